"""The kept rows of the fleet and of drift, on both databases: every pair is there once, in every order."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from kvyield_server.domain.answers import Drift
from kvyield_server.domain.facts.observation import EngineName, Hardware, Model, Outcome
from kvyield_server.storage.fleet import DRIFT_SORTS, FLEET_SORTS
from kvyield_server.storage.records import FleetRow, Verdict
from kvyield_server.storage.uow import Storage, UnitOfWork
from storage.samples import NOON, recording, start

COUNT = 23


def written(storage: Storage, job: Callable[[UnitOfWork], Any]) -> Any:
    return storage.write(job).result()


def filled(storage: Storage, count: int = COUNT) -> list[FleetRow]:
    """Record that many pairs and keep a row of each; every third knows nothing but its name."""
    for number in range(count):
        hardware = Hardware(gpu=f"GPU {number % 3}", gpu_count=1)
        written(storage, recording(start(hardware=hardware, model=Model(name=f"org/model-{number:02}"))))
    with storage.read() as uow:
        pairs = sorted((uow.pairs.get(name.id) for name in uow.pairs.names()), key=lambda pair: pair.model.name)
    rows = [row(pair.id, pair.revision, pair.model.name, pair.hardware.gpu, at) for at, pair in enumerate(pairs)]
    written(storage, lambda uow: uow.fleet.save(rows, []))
    return rows


def row(pair_id: UUID, revision: int, model: str, gpu: str, number: int) -> FleetRow:
    known: dict[str, Any] = {}
    if number % 3:
        known = {
            "engine": EngineName.SGLANG,
            "observation_id": uuid4(),
            "observed_at": NOON + timedelta(minutes=number * 7 % 11),
            "outcome": Outcome.READY,
            "newest_id": uuid4(),
            "newest_at": NOON + timedelta(minutes=number * 5 % 13),
            "newest_outcome": list(Outcome)[number % 2],
            "pool_tokens": number * 5 % 7 * 1000,
            "free_at_ready_gib": float(number % 5),
            "headroom_gib": -1.5 + number % 4,
            "verified_tokens": None if number % 2 else number * 100,
            "verdict": list(Verdict)[number % 3],
        }
    names = {"model": model, "gpu": gpu, "gpu_count": 1}
    return FleetRow(pair_id=pair_id, revision=revision, looked_at=NOON, **names, **known)


@pytest.mark.parametrize("sort", FLEET_SORTS)
@pytest.mark.parametrize("is_descending", [False, True])
def test_pages_hold_every_pair_once_in_order(storage: Storage, sort: str, is_descending: bool) -> None:
    """Whatever the order, pages follow each other without a gap, and what is not known comes last."""
    rows = filled(storage)
    found: list[FleetRow] = []
    with storage.read() as uow:
        assert uow.fleet.count(None, None) == COUNT
        for offset in range(0, COUNT, 5):
            found += uow.fleet.page(None, None, sort=sort, is_descending=is_descending, offset=offset, size=5)
    assert sorted(each.model for each in found) == [each.model for each in rows]
    name = {"started": "observed_at", "newest": "newest_at", "pool": "pool_tokens", "free": "free_at_ready_gib"}.get(
        sort, f"{sort}_gib"
    )
    name = {"verified_gib": "verified_tokens", "model_gib": "model", "gpu_gib": "gpu"}.get(name, name)
    if sort != "attention":
        values = [getattr(each, name) for each in found]
        known = [value for value in values if value is not None]
        assert values == sorted(known, reverse=is_descending) + [None] * (len(values) - len(known))


def test_what_needs_attention_comes_first(storage: Storage) -> None:
    """First what died, then what does not answer its question, what does so at risk, what runs nothing, the rest."""
    filled(storage)
    with storage.read() as uow:
        found = uow.fleet.page(None, None, sort="attention", is_descending=False, offset=0, size=COUNT)
    by_verdict = {Verdict.NO: 1, Verdict.AT_RISK: 2, None: 3, Verdict.YES: 4}
    died = [each.newest_outcome not in (None, Outcome.READY) for each in found]
    assert 0 < sum(died) < COUNT
    ranks = [0 if is_dead else by_verdict[each.verdict] for each, is_dead in zip(found, died, strict=True)]
    assert ranks == sorted(ranks)


def test_a_search_takes_its_text_as_it_is(storage: Storage) -> None:
    """Part of a model or GPU in any case is found; signs that mean something to a database mean nothing here."""
    filled(storage)
    with storage.read() as uow:
        assert uow.fleet.count("MODEL-0", None) == 10
        assert uow.fleet.count("gpu 1", None) == len([n for n in range(COUNT) if n % 3 == 1])
        for text in ("%", "_rg", "org/model-0' OR 1=1 --", "\\"):
            assert uow.fleet.count(text, None) == 0
        assert uow.fleet.count(None, "nothing_runs") == len([n for n in range(COUNT) if n % 3 == 0])
        assert uow.fleet.count(None, "no") == len([n for n in range(COUNT) if n % 3 == 2])


def test_rows_are_stale_when_their_pair_changed_or_was_asked_again(storage: Storage) -> None:
    """A new pair, a new start and a new question each make the row of that pair alone stale."""
    rows = filled(storage, 3)
    with storage.read() as uow:
        assert uow.fleet.stale() == []
    written(storage, recording(start(model=Model(name="org/new"))))
    written(storage, lambda uow: uow.fleet.add_unknown(NOON))
    written(storage, lambda uow: uow.fleet.add_unknown(NOON))
    with storage.read() as uow:
        (new,) = uow.fleet.stale()
        bare = next(
            each
            for each in uow.fleet.page(None, None, sort="model", is_descending=False, offset=0, size=9)
            if each.pair_id == new
        )
        assert (bare.model, bare.revision, bare.verdict, uow.fleet.count(None, None)) == ("org/new", -1, None, 4)
    written(storage, lambda uow: uow.fleet.ask_again(rows[1].pair_id))
    told = Hardware(gpu=rows[2].gpu, gpu_count=rows[2].gpu_count), Model(name=rows[2].model, facts={"told": "later"})
    written(storage, lambda uow: uow.pairs.ensure(*told))
    with storage.read() as uow:
        assert set(uow.fleet.stale()) == {new, rows[1].pair_id, rows[2].pair_id}
        assert uow.fleet.stale_count() == 3


def test_rows_go_with_their_pair(storage: Storage) -> None:
    """A pair that nothing refers to takes its rows along; rows of a pair that is gone are not kept."""
    (kept,) = filled(storage, 1)
    written(storage, lambda uow: uow.fleet.save([kept], [(kept.pair_id, drift())]))
    with storage.read() as uow:
        starts = [each.observation.id for each in uow.observations.of_pair(kept.pair_id)]
    written(storage, lambda uow: uow.observations.remove(starts))
    written(storage, lambda uow: uow.pairs.drop_empty(kept.pair_id))
    with storage.read() as uow:
        assert (uow.fleet.count(None, None), uow.fleet.version_changes()) == (0, [])
    written(storage, lambda uow: uow.fleet.save([kept], [(kept.pair_id, drift())]))
    with storage.read() as uow:
        assert (uow.fleet.count(None, None), uow.fleet.version_changes()) == (0, [])


def drift(number: int = 0, **changes: Any) -> Drift:
    """Return a change between two versions; that of an odd number excludes zero."""
    pool = -1000.0 * number
    fields: dict[str, Any] = {
        "from_deployment_id": "a",
        "to_deployment_id": "b",
        "engine": EngineName.VLLM,
        "from_version": "0.11.0",
        "to_version": "0.12.0",
        "deployment": "vLLM",
        "newest_at": NOON + timedelta(minutes=number),
        "fraction": 0.9,
        "from_starts": 2,
        "to_starts": 1 + number,
        "from_slope_tokens": 10_000.0,
        "to_slope_tokens": 10_000.0 - number,
        "pool_tokens": pool,
        "pool_low": pool - 500,
        "pool_high": pool + (500 if number % 2 else 5000),
        "free_gib": None if number == 3 else 0.1 * number,
    }
    return Drift(**{**fields, **changes})


def test_drift_is_summed_up_over_all_pairs(storage: Storage) -> None:
    """Two versions are listed with how many pairs ran both, how many changed, and from where to where."""
    rows = filled(storage, 5)
    changes = [(each.pair_id, drift(number)) for number, each in enumerate(rows)]
    other = drift(9, to_deployment_id="c", to_version="0.13.0")
    written(storage, lambda uow: uow.fleet.save(rows, [*changes, (rows[0].pair_id, other)]))
    with storage.read() as uow:
        newest, first = uow.fleet.version_changes()
        assert (newest.to_version, newest.pairs) == ("0.13.0", 1)
        assert (first.pairs, first.deployments, first.from_starts, first.to_starts) == (5, 5, 10, 15)
        assert (first.pool_changed, first.free_changed) == (2, 0)
        assert (first.lowest_pool_tokens, first.highest_pool_tokens) == (-4000.0, 0.0)
        assert first.newest_at == NOON + timedelta(minutes=4)


@pytest.mark.parametrize("sort", DRIFT_SORTS)
def test_drift_is_sorted_and_paged(storage: Storage, sort: str) -> None:
    """Whatever the order, pages of drift hold every deployment once; the largest change, either way, comes first."""
    rows = filled(storage, 5)
    changes = [(each.pair_id, drift(number)) for number, each in enumerate(rows)]
    written(storage, lambda uow: uow.fleet.save(rows, changes))
    key = (EngineName.VLLM, "0.11.0", "0.12.0")
    with storage.read() as uow:
        pages = [uow.fleet.drifts(key, sort=sort, is_descending=True, offset=offset, size=2) for offset in (0, 2, 4)]
    found = [each for page in pages for each in page]
    assert sorted(each.model for each in found) == [each.model for each in rows]
    if sort == "free":
        assert found[-1].drift.free_gib is None
    elif sort == "pool":
        assert [each.drift.pool_tokens for each in found] == [-4000.0, -3000.0, -2000.0, -1000.0, 0.0]
