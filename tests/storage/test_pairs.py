"""Pairs: named by GPU, count and model, with attributes merged from all that is posted."""

from __future__ import annotations

import pytest

from kvyield_server.domain.facts.observation import Engine, EngineName, Hardware, Model
from kvyield_server.storage.records import (
    ApiToken,
    PageKey,
    Pair,
    Role,
)
from kvyield_server.storage.uow import Storage
from kvyield_server.storage.values import new_id
from storage.samples import HARDWARE, MODEL, NOON, minutes, recording, start


def ensure(storage: Storage, hardware: Hardware = HARDWARE, model: Model = MODEL) -> Pair:
    return storage.write(lambda unit: unit.pairs.ensure(hardware, model)).result()


def get(storage: Storage, pair: Pair) -> Pair:
    with storage.read() as unit:
        found = unit.pairs.get(pair.id)
    assert found is not None
    return found


def test_a_pair_is_made_once(storage: Storage) -> None:
    """The same GPU, count and model are the same pair, however often it is asked for."""
    first = ensure(storage)
    assert ensure(storage) == first
    assert get(storage, first) == first
    with storage.read() as unit:
        assert unit.pairs.find("RTX PRO 6000", 8, "moonshotai/Kimi-K2.6") == first


@pytest.mark.parametrize(
    ("hardware", "model"),
    [
        (Hardware(gpu="RTX PRO 6000", gpu_count=4), MODEL),
        (Hardware(gpu="RTX PRO 6000 MIG 1g", gpu_count=8), MODEL),
        (HARDWARE, Model(name="moonshotai/Kimi-K2")),
    ],
)
def test_another_name_is_another_pair(storage: Storage, hardware: Hardware, model: Model) -> None:
    """GPU, count and model each tell pairs apart."""
    assert ensure(storage).id != ensure(storage, hardware, model).id


def test_memory_and_revision_are_attributes(storage: Storage) -> None:
    """The newest attribute that is not None wins, and None takes nothing away."""
    ensure(storage, Hardware(gpu="G", gpu_count=1, memory_gib=95.59), Model(name="m", revision="r1"))
    ensure(storage, Hardware(gpu="G", gpu_count=1, memory_gib=94.97, unified_memory=False), Model(name="m"))
    pair = ensure(storage, Hardware(gpu="G", gpu_count=1), Model(name="m", revision="r2"))
    assert (pair.hardware.memory_gib, pair.hardware.unified_memory, pair.model.revision) == (94.97, False, "r2")
    assert get(storage, pair) == pair


def test_facts_merge_one_by_one(storage: Storage) -> None:
    """A newer fact replaces its own name alone, and null replaces nothing."""
    ensure(storage, model=Model(name="m", facts={"layers": 60, "heads": 64, "window": None}))
    pair = ensure(storage, model=Model(name="m", facts={"layers": 61, "heads": None, "types": ["a", "b"]}))
    assert pair.model.facts == {"layers": 61, "heads": 64, "window": None, "types": ["a", "b"]}


def test_attributes_are_shared_by_all_pairs_of_the_same_name(storage: Storage) -> None:
    """What is learnt of a GPU or a model holds for every pair of it, and tells their fits that they are stale."""
    mine = ensure(storage)
    same_gpu = ensure(storage, model=Model(name="other"))
    same_model = ensure(storage, hardware=Hardware(gpu="H200", gpu_count=8))
    neither = ensure(storage, Hardware(gpu="H100", gpu_count=8), Model(name="third"))
    ensure(storage, Hardware(gpu=HARDWARE.gpu, gpu_count=8, memory_gib=95.0), Model(name=MODEL.name, facts={"a": 1}))
    assert get(storage, same_gpu).hardware.memory_gib == 95.0
    assert get(storage, same_model).model.facts == {"a": 1}
    assert all(get(storage, pair).revision > pair.revision for pair in (mine, same_gpu, same_model))
    assert get(storage, neither) == neither


def test_a_new_pair_inherits_what_is_known(storage: Storage) -> None:
    """The second pair of a GPU starts with the GPU's attributes."""
    ensure(storage, Hardware(gpu="G", gpu_count=2, memory_gib=80.0), Model(name="a", facts={"layers": 1}))
    pair = ensure(storage, Hardware(gpu="G", gpu_count=2), Model(name="b"))
    assert pair.hardware.memory_gib == 80.0
    assert pair.model.facts == {}


def test_asking_again_with_nothing_new_changes_nothing(storage: Storage) -> None:
    """Attributes that are already known leave the revision alone, so that fits stay cached."""
    hardware = Hardware(gpu="G", gpu_count=1, memory_gib=80.0)
    pair = ensure(storage, hardware, Model(name="m", facts={"layers": 1}))
    assert ensure(storage, hardware, Model(name="m", facts={"layers": 1})) == pair


def test_unknown_pairs_are_none(storage: Storage) -> None:
    """Looking for a pair that is not there answers None."""
    with storage.read() as unit:
        assert unit.pairs.get(new_id()) is None
        assert unit.pairs.find("G", 1, "m") is None


def test_names_list_every_pair(storage: Storage) -> None:
    """All names come in the order of model, GPU and count."""
    for gpu, count, model in [("B", 2, "m"), ("A", 4, "m"), ("A", 2, "m"), ("Z", 1, "a")]:
        ensure(storage, Hardware(gpu=gpu, gpu_count=count), Model(name=model))
    with storage.read() as unit:
        names = [(name.model, name.gpu, name.gpu_count) for name in unit.pairs.names()]
    assert names == [("a", "Z", 1), ("m", "A", 2), ("m", "A", 4), ("m", "B", 2)]


def test_pages_run_from_the_newest_pair(storage: Storage) -> None:
    """Pages of pairs hold each pair once, newest first, and the last page has no key."""
    made = [ensure(storage, model=Model(name=f"m{number}")) for number in range(5)]
    seen: list[Pair] = []
    key = None
    with storage.read() as unit:
        for size in (2, 2, 2):
            page = unit.pairs.page(None, key, size)
            seen += page.items
            key = page.next_key
    assert seen == made[::-1]
    assert key is None


@pytest.mark.parametrize(
    ("search", "models"),
    [("kimi", {"org/Kimi_K2"}), ("_", {"org/Kimi_K2"}), ("%", set()), ("h200", {"x", "org/Kimi_K2"})],
)
def test_search_is_literal_and_ignores_case(storage: Storage, search: str, models: set[str]) -> None:
    """A search finds part of a GPU or model name; the wildcards of SQL mean nothing."""
    for name in ("x", "org/Kimi_K2"):
        ensure(storage, Hardware(gpu="NVIDIA H200", gpu_count=1), Model(name=name))
    with storage.read() as unit:
        assert {pair.model.name for pair in unit.pairs.page(search, None, 10).items} == models


def test_pairs_of_a_model(storage: Storage) -> None:
    """All pairs of one model are found, whatever the hardware, oldest first."""
    pairs = [ensure(storage, Hardware(gpu=gpu, gpu_count=1)) for gpu in ("A", "B")]
    ensure(storage, model=Model(name="other"))
    with storage.read() as unit:
        assert list(unit.pairs.of_model(MODEL.name)) == pairs
        assert dict(unit.pairs.revisions_of_model(MODEL.name)) == {pair.id: pair.revision for pair in pairs}


def test_a_pair_sums_up_its_observations(storage: Storage) -> None:
    """Count, newest time and engines follow what is added, in any order, and each addition is a new revision."""
    first = storage.write(recording(start(minutes(5)))).result()
    storage.write(recording(start(minutes(1), engine=Engine(name=EngineName.LMDEPLOY)))).result()
    with storage.read() as unit:
        pair = unit.pairs.get(first)
    assert pair is not None
    assert (pair.observation_count, pair.last_observed_at) == (2, minutes(5))
    assert pair.engines == (EngineName.LMDEPLOY, EngineName.SGLANG)
    assert pair.revision == 2


def test_pairs_posted_by_a_token(storage: Storage) -> None:
    """A token's own pairs are those that hold an observation posted with it."""
    token = ApiToken(id=new_id(), name="host", roles=frozenset({Role.INGEST}), token_hash="h", created_at=minutes(0))
    storage.write(lambda unit: unit.tokens.add(token)).result()
    mine = storage.write(recording(start(), token_id=token.id)).result()
    storage.write(recording(start(model=Model(name="other")))).result()
    with storage.read() as unit:
        assert unit.pairs.posted_by(token.id) == {mine}
        assert unit.pairs.posted_by(new_id()) == frozenset()


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_pairs_are_sorted_with_every_row_once(storage: Storage, size: int) -> None:
    """By name or by last start, either way, also where several share a name and some have no live start."""
    names = ("b", "a", "a", "c", "d", "d")
    starts = [
        start(minutes(at), model=Model(name=name), hardware=Hardware(gpu=f"gpu-{at}", gpu_count=1))
        for at, name in enumerate(names)
    ]
    for each in starts:
        storage.write(recording(each)).result()
    for gone in (starts[1], starts[4]):
        storage.write(lambda uow, it=gone: uow.observations.retract(it.id, "a test", NOON)).result()

    def walked(sort: str) -> list[Pair]:
        found: list[Pair] = []
        key: PageKey | None = None
        while True:
            with storage.read() as unit:
                page = unit.pairs.page(None, key, size, sort=sort)
            found += page.items
            key = page.next_key
            if key is None:
                return found

    by_name = [pair.model.name for pair in walked("name")]
    assert by_name == sorted(names)
    assert [pair.model.name for pair in walked("-name")] == by_name[::-1]
    by_start = [pair.last_observed_at for pair in walked("last_start")]
    assert by_start == [minutes(0), minutes(2), minutes(3), minutes(5), None, None]
    assert [pair.last_observed_at for pair in walked("-last_start")] == [*by_start[3::-1], None, None]
    for sort in ("name", "-name", "last_start", "-last_start", "created_at"):
        assert len({pair.id for pair in walked(sort)}) == len(names)


def test_names_are_looked_up(storage: Storage) -> None:
    """Each name of a GPU or model once, and whether one is known exactly."""
    for count in (1, 2):
        storage.write(
            lambda uow, n=count: uow.pairs.ensure(Hardware(gpu="H200", gpu_count=n), Model(name="m"))
        ).result()
    with storage.read() as unit:
        assert (list(unit.pairs.spellings("gpu")), list(unit.pairs.spellings("model"))) == (["H200"], ["m"])
        assert (unit.pairs.knows("gpu", "H200"), unit.pairs.knows("gpu", "h200")) == (True, False)
        assert [pair.hardware.gpu_count for pair in unit.pairs.page(None, None, 9, gpus=["H200"]).items] == [2, 1]
        assert unit.pairs.page(None, None, 9, models=[]).items == ()
