"""What SGLang's ranks print about their memory, kept per rank and summed up at the end.

SGLang prints GiB and calls them GB. With a draft model every line comes twice per rank; sliding-window models have
two pools; other lines speak of address space or of host memory. This module tells them apart by order and by the
counts they carry."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from kvyield.engines._start import Sourced

MOST_RANKS = 4096
MOST_LINES = 4096
_GB = r"(-?\d+(?:\.\d+)?) ?GB\b"
AVAILABLE = re.compile(rf"avail mem={_GB}")
USAGE = re.compile(rf"mem usage={_GB}")
TOKENS = re.compile(r"#tokens: (\d{1,18}),")
_SIZES = re.compile(rf"\bKV size: {_GB}|\bK(?: size)?:? {_GB}, V(?: size)?:? {_GB}")


_Item = TypeVar("_Item")


def add(found: list[_Item], item: _Item) -> None:
    """Append, up to a bound that no real start comes near, so that noise cannot fill the memory."""
    if len(found) < MOST_LINES:
        found.append(item)


@dataclass(frozen=True)
class Pool:
    """One pool line of one rank; ``tokens`` and ``gib`` are None when the line does not hold them."""

    tokens: int | None
    gib: float | None
    source: str


@dataclass
class Rank:
    """One rank's figures, GiB, in the order in which it printed them."""

    before_load: Sourced | None = None
    after_load: Sourced | None = None
    pool_end: Sourced | None = None
    graphs_end: Sourced | None = None
    weights: list[tuple[float, str]] = field(default_factory=list)
    graphs: list[tuple[float, str]] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)
    sliding_window: Sourced | None = None
    pools_before_draft: int = 0
    window_tokens: Sourced | None = None
    full_counts: list[Sourced] = field(default_factory=list)
    state_gib: Sourced | None = None
    token_bytes: Sourced | None = None
    pool_begun: bool = False


class Ranks:
    """All ranks of one start."""

    def __init__(self) -> None:
        self._ranks: dict[str, Rank] = {}

    @property
    def all(self) -> list[Rank]:
        """Every rank that printed something."""
        return list(self._ranks.values())

    def full_pools(self, *, is_sharded: bool) -> list[Sourced]:
        """The count of each rank's pool of full attention: the largest of several, else that of its first line."""
        found = [rank for rank in self._ranks.values() if _counts(rank)]
        return [max(_counts(one), key=_number) if _is_hybrid(one, is_sharded) else _counts(one)[0] for one in found]

    def other_pools(self, *, is_sharded: bool) -> list[Sourced]:
        """The count of each rank's smaller pool, where its lines hold two counts."""
        hybrids = [rank for rank in self._ranks.values() if _is_hybrid(rank, is_sharded)]
        return [min(_counts(rank), key=_number) for rank in hybrids]

    def pool_counts(self) -> list[Sourced]:
        """The counts on all pool lines of all ranks."""
        pools = [pool for rank in self._ranks.values() for pool in rank.pools]
        return [Sourced(pool.tokens, pool.source) for pool in pools if pool.tokens is not None]

    def of(self, name: str) -> Rank:
        """The rank of that name, made when new; past a bound all share one, so that noise cannot fill the memory."""
        if name not in self._ranks and len(self._ranks) >= MOST_RANKS:
            name = next(iter(self._ranks))
        return self._ranks.setdefault(name, Rank())

    def load_begins(self, rank: Rank, text: str, source: str) -> None:
        """Weights start to load; the first time, before any pool, what is free is T."""
        available = _available(text, source)
        if available and rank.before_load is None and not rank.pool_begun:
            rank.before_load = available

    def load_ends(self, rank: Rank, text: str, source: str) -> None:
        """Weights are loaded. What loads before the pool, a draft model too, is part of what the pool must fit
        beside.
        """
        available, usage = _available(text, source), USAGE.search(text)
        if available:
            rank.after_load = rank.after_load if rank.pool_begun else available
        if usage:
            add(rank.weights, (float(usage[1]), source))

    def pool_line(self, rank: Rank, text: str, source: str) -> None:
        """A pool was allocated; a line cut inside its sizes tells none."""
        tokens, sizes = TOKENS.search(text), _SIZES.search(text)
        gib = round(sum(float(size) for size in sizes.groups() if size), 4) if sizes else None
        add(rank.pools, Pool(int(tokens[1]) if tokens else None, gib, source))
        rank.pool_begun = True

    def pool_ends(self, rank: Rank, text: str, source: str) -> None:
        """What is free after a pool; with a draft's the last one counts."""
        available = _available(text, source)
        rank.pool_begun = True
        rank.pool_end = available or rank.pool_end

    def graph_ends(self, rank: Rank, text: str, source: str) -> None:
        """Graphs of one kind were captured."""
        available, usage = _available(text, source), USAGE.search(text)
        rank.graphs_end = available or rank.graphs_end
        if usage:
            add(rank.graphs, (float(usage[1]), source))

    def lowest(self, pick: Callable[[Rank], Sourced | None]) -> Sourced | None:
        """The least of a figure over the ranks that printed it."""
        found = [value for value in map(pick, self._ranks.values()) if value is not None]
        return min(found, key=lambda value: float(value.value or 0), default=None)

    def highest_sum(self, pick: Callable[[Rank], list[tuple[float, str]]], *, positive: bool = False) -> Sourced | None:
        """The largest sum of a figure over one rank's lines. ``positive`` leaves out negative terms."""
        sums = []
        for rank in self._ranks.values():
            terms = [(value, source) for value, source in pick(rank) if value > 0 or not positive]
            if terms:
                sums.append((round(sum(value for value, _ in terms), 4), " + ".join(source for _, source in terms)))
        best = max(sums, key=lambda item: item[0], default=None)
        return Sourced(*best) if best else None


def _available(text: str, source: str) -> Sourced | None:
    match = AVAILABLE.search(text)
    return Sourced(float(match[1]), source) if match else None


def target_and_draft(
    rank: Rank, pool_tokens: int | None, *, ways: int, is_sharded: bool
) -> tuple[Sourced | None, Sourced | None]:
    """KV GiB of the target's pools and of the draft's, of one rank.

    The target's pool comes first, and a draft's has as many tokens; a line with another count is another pool of the
    target (sliding window, states), whose GiB are the target's too. Under ``ways``-fold context parallelism a rank's
    line holds its share: where the first line is neither the engine's count nor that share while a later line holds
    the count, the order proves nothing and both stay unknown."""
    pools = list(rank.pools)
    if rank.sliding_window is not None:
        drafts = [pool for pool in pools[rank.pools_before_draft :] if pool.gib is not None]
        return rank.sliding_window, _gib(drafts[0]) if drafts else None
    if not pools:
        return None, None
    first = pools[0]
    if _is_hybrid(rank, is_sharded):
        return _hybrid(pools)
    agrees = first.tokens is None or pool_tokens is None or first.tokens in (pool_tokens, pool_tokens // ways)
    if not agrees and any(pool.tokens == pool_tokens for pool in pools[1:]):
        return None, None
    drafts = [pool for pool in pools[1:] if pool.gib is not None]
    return _gib(first), _gib(drafts[0]) if drafts else None


def _hybrid(pools: list[Pool]) -> tuple[Sourced | None, Sourced | None]:
    """The first line of each count is of the target; one that repeats a count is of the draft."""
    own: dict[int, Pool] = {}
    drafts = []
    for pool in pools:
        if pool.tokens is None or pool.gib is None:
            continue
        if own.setdefault(pool.tokens, pool) is not pool:
            drafts.append(pool)
    total = round(sum(pool.gib or 0.0 for pool in own.values()), 4)
    source = " + ".join(pool.source for pool in own.values())
    return Sourced(total, source) if own else None, _gib(drafts[0]) if drafts else None


def _is_hybrid(rank: Rank, is_sharded: bool) -> bool:
    """Whether pool lines of several counts are several pools; a count that divides another may be a rank's share."""
    counts = sorted({pool.tokens for pool in rank.pools if pool.tokens})
    return not is_sharded and len(counts) > 1 and all(counts[-1] % count for count in counts[:-1])


def _counts(rank: Rank) -> list[Sourced]:
    return [Sourced(pool.tokens, pool.source) for pool in rank.pools if pool.tokens is not None]


def _number(value: Sourced) -> float:
    return float(str(value.value))


def _gib(pool: Pool) -> Sourced | None:
    return Sourced(pool.gib, pool.source) if pool.gib is not None else None
