"""How callers use the client, for the type checker alone: every name has the type that its documentation says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from typing_extensions import assert_type

from kvyield import AsyncClient, Client, Observation, Recommendation, StoredObservation, Verification
from kvyield._wire import Pair, Receipt


def use(client: Client, observation: Observation, verification: Verification) -> None:
    receipt = client.post_observation(observation)
    assert_type(receipt, Receipt)
    assert_type(client.observation(receipt.id), StoredObservation)
    assert_type(client.observations(model="m"), Iterator[StoredObservation])
    assert_type(client.add_verification(receipt.id, verification), StoredObservation)
    assert_type(client.recommend(target_tokens=1), Recommendation)
    assert_type(client.recommend_text("args", target_tokens=1), str)
    assert_type(client.pair(receipt.id), Pair)
    assert_type(client.export(), Iterator[bytes])
    client.post_observation(5)  # type: ignore[arg-type]  # must be refused


async def use_async(client: AsyncClient, observation: Observation) -> None:
    assert_type(await client.post_observation(observation), Receipt)
    assert_type(client.observations(), AsyncIterator[StoredObservation])
    assert_type(await client.recommend(target_tokens=1), Recommendation)
    await client.observation(b"")  # type: ignore[arg-type]  # must be refused
