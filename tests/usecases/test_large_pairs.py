"""A pair of many starts is fitted from its newest ones, and the answer says so."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from uuid6 import uuid7

from _storages import fresh_storage
from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
)
from kvyield_server.usecases import fits
from kvyield_server.usecases.record import Arrival, record

NOON = datetime(2026, 5, 30, 12, tzinfo=UTC)


def starts(gpu: str, count: int) -> list[Arrival]:
    """Return starts on one line, one a minute."""
    made = []
    for number in range(count):
        fraction = 0.6 + 0.01 * (number % 20)
        observation = Observation(
            id=uuid7(),
            observed_at=NOON + timedelta(minutes=number),
            hardware=Hardware(gpu=gpu, gpu_count=1, memory_gib=140.0),
            model=Model(name="m"),
            engine=Engine(name=EngineName.SGLANG, version="0.5.12"),
            outcome=Outcome.READY,
            flags={"mem_fraction_static": fraction},
            measurements=Measurements(pool_tokens=round(1_000_000 * (fraction - 0.2))),
        )
        made.append(Arrival(observation, str(observation.id), None, NOON, "loopback"))
    return made


def test_the_newest_starts_of_a_large_pair_are_used_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 30 starts the newest 20 are evidence, another deployment lends 5, and a warning counts the rest."""
    monkeypatch.setattr(fits, "MOST_STARTS", 20)
    monkeypatch.setattr(fits, "MOST_LENT", 5)
    storage = fresh_storage()
    storage.write(record([*starts("A", 30), *starts("B", 10)])).result()
    with storage.read() as uow, ThreadPoolExecutor(1) as executor:
        pair = uow.pairs.find("A", 1, "m")
        assert pair is not None
        evidence = fits.evidence_of(uow, pair)
        (fit,) = fits.FitCache(executor).of_pair(uow, pair).deployments
    assert [len(evidence.observations), len(evidence.transfers), evidence.left_out] == [20, 5, 10]
    assert min(start.observed_at for start in evidence.observations) == NOON + timedelta(minutes=10)
    (warning,) = [warning for warning in fit.summary.warnings if warning.code == "newest_starts_only"]
    assert "30 starts the newest 20" in warning.detail
