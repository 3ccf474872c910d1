"""Select: from what a caller says to the one pair that matches. Exact wins; loose is never a substring."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from heapq import nlargest
from uuid import UUID

from kvyield_server.domain.facts.accounts import loose_gpu, loose_model
from kvyield_server.domain.facts.observation import EngineName, Facts
from kvyield_server.errors import AmbiguousError, InvalidError, NotFoundError
from kvyield_server.storage.records import Pair, PairName
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.browse import stored_pair

NEAR = 0.6  # of difflib's ratio; it holds a typing error and another size of a family, not another family
_SAME_FAMILY = 0.7  # llama and mamba are 0.6, qwen and qwem 0.75
_SHORTEST_PART = 4
_MOST_SHOWN = 5
_MOST_COMPARED = 2_000
_LETTERS = re.compile(r"[^\W\d_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """``pair_id``, or all of ``gpu``, ``gpu_count`` and ``model``; the rest chooses the deployment or starts cold."""

    pair_id: UUID | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    model: str | None = None
    engine: EngineName | None = None
    engine_version: str | None = None
    like: UUID | None = None
    facts: Facts | None = None
    memory_gib: float | None = None
    unified_memory: bool | None = None
    as_given: dict[str, object] = field(default_factory=dict)


def find_pair(uow: UnitOfWork, selector: Selector) -> Pair:
    """Return the one pair that matches.

    Raises:
        NotFoundError: none is; lists the nearest.
        AmbiguousError: several are; lists them.
        InvalidError: ``like`` belongs to another pair.
    """
    pair = stored_pair(uow, selector.pair_id) if selector.pair_id else _by_names(uow, selector)
    _check_like(uow, selector.like, pair)
    return pair


def _by_names(uow: UnitOfWork, selector: Selector) -> Pair:
    gpu, count, model = selector.gpu or "", selector.gpu_count or 0, selector.model or ""
    exact = uow.pairs.find(gpu, count, model)
    if exact is not None and exact.observation_count:
        return exact
    names = uow.pairs.names()
    # a pair whose starts were all retracted, such as one of a mistyped name, gives way to one that has some
    matches = _matches([name for name in names if name.observation_count], gpu, count, model)
    if exact is not None and not matches:
        return exact
    matches = matches or _matches(names, gpu, count, model)
    if not matches:
        raise _none_found(names, gpu, count, model)
    if len(matches) > 1:
        raise _several_found(matches)
    return stored_pair(uow, matches[0].id)


def _matches(names: Sequence[PairName], gpu: str, count: int, model: str) -> list[PairName]:
    loose = (loose_gpu(gpu), loose_model(model))
    if not all(loose):
        return []
    found = [n for n in names if n.gpu_count == count and (loose_gpu(n.gpu), loose_model(n.model)) == loose]
    found = [n for n in found if n.model == model] or found
    return [n for n in found if n.gpu == gpu] or found


def _several_found(matches: Sequence[PairName]) -> AmbiguousError:
    listed = [{"pair_id": str(n.id), "gpu": n.gpu, "gpu_count": n.gpu_count, "model": n.model} for n in matches]
    labels = "; ".join(f"{_label(name)} (pair_id {name.id})" for name in matches)
    return AmbiguousError(f"Several pairs match: {labels}. Name one exactly.", listed)


def _none_found(names: Sequence[PairName], gpu: str, count: int, model: str) -> NotFoundError:
    compared = names[:_MOST_COMPARED]
    gpus = _likeness(loose_gpu(gpu), {name.gpu: loose_gpu(name.gpu) for name in compared})
    models = _likeness(loose_model(model), {name.model: loose_model(name.model) for name in compared})
    ranked = nlargest(
        _MOST_SHOWN,
        (name for name in compared if models[name.model] >= NEAR),
        key=lambda name: gpus[name.gpu] + models[name.model] + 0.2 * (name.gpu_count == count),
    )
    nearest = [_label(name) for name in ranked]
    if nearest:
        hint = f"Nearest: {'; '.join(nearest)}."
    elif names:
        hint = f"None of the {len(names):,} recorded is near; GET /pairs lists them."
    else:
        hint = "No pair is recorded yet."
    return NotFoundError(f"There is no pair {count} x {gpu}, {model}. {hint}", nearest)


def _likeness(wanted: str, names: Mapping[str, str]) -> dict[str, float]:
    """Return how near each loose name is to the wanted one, from 0 to 1; names of other families are never near."""
    whole, family = (SequenceMatcher(b=text, autojunk=False) for text in (wanted, _family(wanted)))
    result = {}
    for name, loose in names.items():
        whole.set_seq1(loose)
        family.set_seq1(_family(loose))
        is_part = min(len(wanted), len(loose)) >= _SHORTEST_PART and (wanted in loose or loose in wanted)
        if is_part:
            result[name] = max(whole.ratio(), NEAR)
        else:
            result[name] = whole.ratio() if family.ratio() >= _SAME_FAMILY else 0.0
    return result


def _family(loose: str) -> str:
    """Return the letters that a name begins with: ``qwen`` of ``qwen38binstruct``."""
    return _LETTERS.match(loose)[0]  # type: ignore[index]  # it matches nothing at least


def _check_like(uow: UnitOfWork, like: UUID | None, pair: Pair) -> None:
    if like is None:
        return
    stored = uow.observations.get(like)
    if stored is None:
        raise NotFoundError(f"There is no observation {like}, which like names.")
    if stored.pair_id != pair.id:
        raise InvalidError([("/like", f"like is {like}, an observation of another pair; name one of this pair.")])


def _label(name: PairName) -> str:
    return f"{name.gpu_count} x {name.gpu}, {name.model}"
