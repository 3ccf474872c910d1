"""The client against the real service: replays, upgrades and what the ledger then holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from _samples_client import sample
from e2e.running import Server
from kvyield import Client, Observation, Verification
from kvyield._ids import start_id
from kvyield._replay import SETTLED
from kvyield.cli import main
from kvyield.delivery import deliver_batch, spool_observations
from kvyield.spool import Spool


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as opened:
        yield opened


def seen(observation: Observation, **changes: object) -> Observation:
    """The same start as another reader sees it."""
    other = msgspec.structs.replace(observation, **changes)
    other.id = start_id(other)
    return other


def test_a_newer_reader_and_a_replica_at_the_real_service(client: Client, tmp_path: Path) -> None:
    """An import by a newer reader is known, a replica on another host is not, and both again store nothing."""
    spool, model = Spool(tmp_path / "spool"), "tests/replay"
    old = [sample(number, model=model) for number in range(20)]
    assert {one.result for one in deliver_batch(old, spool, client)} == {"stored"}
    assert {(one.result, one.reason) for one in deliver_batch(old, spool, client)} == {("known", None)}
    newer = [seen(one, host="gpu-01", flags={**one.flags, "page_size": 64}) for one in old]
    assert {(one.result, one.reason) for one in deliver_batch(newer, spool, client)} == {("known", None)}
    assert client.observation(old[0].id or "").flags["page_size"] == 64
    pool = msgspec.structs.replace(old[0].measurements, pool_tokens=200_000)
    replica = seen(newer[0], host="gpu-02", measurements=pool)
    assert [one.result for one in spool_observations([replica], spool).send(client)] == ["stored"]
    assert [one.result for one in spool_observations([replica, newer[0]], spool).send(client)] == ["known", "known"]
    assert len(list(client.observations(model=model))) == 21


def test_a_verification_that_comes_with_a_known_start_is_kept_once(client: Client, tmp_path: Path) -> None:
    """A start that was stored without its verification gets it from a later replay, once."""
    spool, bare = Spool(tmp_path / "spool"), sample(1, model="tests/verified")
    spool_observations([bare], spool).send(client)
    verified = seen(bare, verifications=[Verification(prompt_tokens=60_010, passed=True)])
    for _ in range(2):
        assert [one.result for one in spool_observations([verified], spool).send(client)] == ["known"]
    assert [one.prompt_tokens for one in client.observation(bare.id or "").verifications] == [60_010]


def test_a_watched_start_is_tied_to_the_advice_that_it_followed(client: Client, tmp_path: Path) -> None:
    """A watch posts the start first; a report that names the advice then ties the two; both again change nothing."""
    spool, watched = Spool(tmp_path / "spool"), sample(1, model="tests/watched")
    hardware = watched.hardware
    spool_observations([sample(0, model="tests/watched")], spool).send(client)
    kept = client.store_recommendation(
        target_tokens=1_000, model="tests/watched", gpu=hardware.gpu, gpu_count=hardware.gpu_count, engine="sglang"
    )
    assert [one.result for one in spool_observations([watched], spool).send(client)] == ["stored"]
    report = seen(watched, recommendation_id=kept.id)
    for _ in range(2):
        assert [(one.result, one.reason) for one in spool_observations([report], spool).send(client)] == [
            ("known", SETTLED)
        ]
    assert client.recommendation(kept.id or "").observation_id == watched.id
    assert len(list(client.observations(model="tests/watched"))) == 2


def test_a_start_that_was_retracted_says_so_when_it_is_posted_again(client: Client, tmp_path: Path) -> None:
    """A replay of a spool is known, and the reason of the retraction is told."""
    spool, start = Spool(tmp_path / "spool"), sample(1, model="tests/retracted")
    spool_observations([start], spool).send(client)
    client.retract(start.id or "", "the log of another machine")
    [again] = spool_observations([start], spool).send(client)
    assert again.result == "known"
    assert "was retracted on" in (again.reason or "")
    assert "the log of another machine; it counts as no evidence" in (again.reason or "")


def test_the_command_line_shows_what_was_changed_in_a_start(
    server: Server, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`history ID` tells each field that a correction changed, with the old value, who and why."""
    start = sample(1, model="tests/corrected")
    spool_observations([start], Spool(tmp_path / "spool")).send(client)
    monkeypatch.setenv("KVYIELD_URL", server.url)
    monkeypatch.setenv("COLUMNS", "200")  # a narrow table folds the reason
    words = ["correct", str(start.id), "--gpu-memory-gib", "96", "--reason", "the driver's total"]
    assert CliRunner().invoke(main, words).exit_code == 0
    told = CliRunner().invoke(main, ["history", str(start.id)])
    assert told.exit_code == 0
    assert "hardware.memory_gib" in told.stdout
    assert "the driver's total" in told.stdout
    assert CliRunner().invoke(main, ["history", "no-id"]).exit_code == 1
    whole = CliRunner().invoke(main, ["history", str(start.id), "--json"])
    [entry] = json.loads(whole.stdout)["history"]
    assert [(one["field"], one["to"]) for one in entry["changes"]] == [("hardware.memory_gib", 96.0)]
