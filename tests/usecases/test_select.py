"""Selecting a pair: exact wins, loose is equal after case, spaces, punctuation and vendor, never a substring."""

from __future__ import annotations

import pytest

from _storages import fresh_storage
from kvyield_server.domain.facts.observation import Hardware, Model
from kvyield_server.errors import AmbiguousError, NotFoundError
from kvyield_server.storage.uow import Storage
from kvyield_server.usecases.select import Selector, find_pair, loose_gpu, loose_model
from storage.samples import NOON, recording, start

PAIRS = [
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 8, "moonshotai/Kimi-K2.6"),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 4, "moonshotai/Kimi-K2.6"),
    ("NVIDIA H200", 1, "Qwen/Qwen3-8B"),
    ("NVIDIA H200", 1, "qwen3_8b"),
    ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 1, "Qwen/Qwen3-8B"),
    ("NVIDIA A100-SXM4-80GB", 1, "Qwen/Qwen3-8B"),
]


@pytest.fixture(scope="module")
def storage() -> Storage:
    """A storage that knows the pairs."""
    storage = fresh_storage()
    for gpu, count, model in PAIRS:
        hardware = Hardware(gpu=gpu, gpu_count=count)
        storage.write(lambda uow, h=hardware, m=model: uow.pairs.ensure(h, Model(name=m))).result()
    return storage


def found(storage: Storage, gpu: str, count: int, model: str) -> tuple[str, int, str]:
    """Return the names of the pair that matches."""
    with storage.read() as uow:
        pair = find_pair(uow, Selector(gpu=gpu, gpu_count=count, model=model))
    return pair.hardware.gpu, pair.hardware.gpu_count, pair.model.name


@pytest.mark.parametrize("pair", PAIRS)
def test_exact_names_are_found(storage: Storage, pair: tuple[str, int, str]) -> None:
    """An exact name is never ambiguous, even where a loose one would be."""
    assert found(storage, *pair) == pair


@pytest.mark.parametrize(
    ("gpu", "model"),
    [
        ("RTX PRO 6000 Blackwell Workstation Edition", "kimi-k2.6"),
        ("nvidia rtx-pro-6000 blackwell workstation edition", "KIMI K2.6"),
        ("NVIDIA Corporation RTX PRO 6000 (Blackwell) Workstation Edition", "Kimi_K2_6"),
        ("RTXPRO6000BlackwellWorkstationEdition", "moonshotai/kimi-k2.6/"),
    ],
)
def test_loose_names_are_found(storage: Storage, gpu: str, model: str) -> None:
    """Case, spaces, punctuation and vendor prefixes do not matter."""
    assert found(storage, gpu, 8, model) == PAIRS[0]


@pytest.mark.parametrize(
    ("gpu", "count", "model"),
    [
        ("RTX PRO 6000", 8, "moonshotai/Kimi-K2.6"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 8, "Kimi"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 2, "moonshotai/Kimi-K2.6"),
        ("NVIDIA", 8, "moonshotai/Kimi-K2.6"),
        ("---", 8, "..."),
    ],
)
def test_parts_of_names_are_not_names(storage: Storage, gpu: str, count: int, model: str) -> None:
    """A substring, another count or nothing but punctuation finds nothing; pairs of a model that is near are listed."""
    with pytest.raises(NotFoundError) as caught:
        found(storage, gpu, count, model)
    nearest = caught.value.nearest
    assert all("Kimi" in name for name in nearest)
    assert bool(nearest) is ("Kimi" in model)
    if "RTX" in gpu:
        assert "RTX PRO 6000" in nearest[0]


@pytest.mark.parametrize(
    ("wanted", "near"),
    [
        ("qwen3-14b", {"Qwen/Qwen3-8B"}),
        ("Qwem3-8B", {"Qwen/Qwen3-8B"}),
        ("qwen", {"Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B-Instruct"}),
        ("llama-2-7b-instruct", {"meta-llama/Llama-3.1-8B-Instruct"}),
        ("deepseek-r1", {"deepseek-ai/DeepSeek-V3"}),
        ("bert-base", set()),
        ("mamba-7b-instruct", set()),
        ("x", set()),
    ],
)
def test_nearest_are_near(wanted: str, near: set[str]) -> None:
    """A typing error or another size is near; a model of another family is not, however alike the rest is."""
    storage = fresh_storage()
    names = ("Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3")
    for name in names:
        storage.write(recording(start(model=Model(name=name)))).result()
    with pytest.raises(NotFoundError) as caught:
        found(storage, "H200", 8, wanted)
    assert {name.split(", ")[-1] for name in caught.value.nearest} == near
    assert bool(near) or "None of the 4 recorded is near" in caught.value.detail


def test_an_exact_part_narrows(storage: Storage) -> None:
    """With an exact model name and a loose GPU, the exact spelling of the model wins."""
    assert found(storage, "h200", 1, "qwen3_8b") == PAIRS[3]


def test_several_loose_matches_are_listed(storage: Storage) -> None:
    """Two spellings of one model are both listed with their ids."""
    with pytest.raises(AmbiguousError) as caught:
        found(storage, "h200", 1, "QWEN3 8B")
    assert {match["model"] for match in caught.value.matches} == {"Qwen/Qwen3-8B", "qwen3_8b"}
    assert all(match["pair_id"] for match in caught.value.matches)


def test_a_mig_profile_is_part_of_the_name(storage: Storage) -> None:
    """A MIG slice of a GPU is not the same GPU as the whole."""
    assert found(storage, "a100 sxm4 80gb mig 3g.40gb", 1, "qwen3-8b") == PAIRS[4]
    assert found(storage, "a100 sxm4 80gb", 1, "qwen3-8b") == PAIRS[5]


def test_an_empty_ledger_says_so() -> None:
    """Without any pair there is nothing near."""
    with pytest.raises(NotFoundError, match="No pair is recorded yet"):
        found(fresh_storage(), "x", 1, "y")


def test_what_is_left_of_names() -> None:
    """Vendors of GPUs and owners of models are prefixes only."""
    assert loose_gpu("NVIDIA H200") == loose_gpu("h200") == "h200"
    assert loose_gpu("AMD Instinct MI300X") == "instinctmi300x"
    assert loose_gpu("Intel(R) Data Center GPU Max 1550") == "datacentergpumax1550"
    assert loose_gpu("Nvidiabased") == "nvidiabased"
    assert loose_model("/models/Kimi-K2.6/") == loose_model("moonshotai/Kimi-K2.6") == "kimik26"


def test_a_pair_without_a_live_start_gives_way() -> None:
    """A name whose starts are all retracted is not matched where a spelling of it has starts; alone it is."""
    storage = fresh_storage()
    alive, gone = (start(hardware=Hardware(gpu=gpu, gpu_count=1)) for gpu in ("NVIDIA H200", "H200"))
    for each in (alive, gone):
        storage.write(recording(each)).result()
    for retracted, meant in ((gone, "NVIDIA H200"), (alive, "H200")):
        storage.write(lambda uow, it=retracted: uow.observations.retract(it.id, "mistyped", NOON)).result()
        assert found(storage, "H200", 1, alive.model.name)[0] == meant
