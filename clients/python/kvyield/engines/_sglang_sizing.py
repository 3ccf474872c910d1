"""What SGLang says of the whole start: the pool's tokens and the memory that it counted with, in several wordings."""

from __future__ import annotations

from kvyield.engines import _sglang_lines as lines
from kvyield.engines._engine import source
from kvyield.engines._prefix import Record
from kvyield.engines._sglang_ranks import Rank, Ranks, add, target_and_draft
from kvyield.engines._start import Sourced

BYTES_A_GIB = 1 << 30


class Sizing:
    """Collects the engine's words about the pool; the final line's count wins over every other."""

    def __init__(self) -> None:
        self.finals: list[Sourced] = []
        self.words: list[Sourced] = []
        self.projected: list[Sourced] = []
        self.available: list[Sourced] = []
        self.limits: list[Sourced] = []
        self.base: tuple[Sourced, Sourced] | None = None
        self.is_sharded = False  # each rank's pool line holds its share of the tokens only

    def sliding(self, record: Record, rank: Rank) -> bool:
        """Pools of full attention and of a sliding window: the full one is the pool, both together are its GiB."""
        patterns = (lines.SLIDING_USAGE, lines.FULL, lines.SLIDING)
        usage, full, window = (pattern.search(record.text) for pattern in patterns)
        if usage:
            rank.sliding_window = Sourced(float(usage[1]), source(record))
            rank.pools_before_draft = len(rank.pools)
        if full:
            add(rank.full_counts, Sourced(int(full[1]), source(record)))
        if window:
            rank.window_tokens = Sourced(int(window[1]), source(record))
        return bool(usage or full or window)

    def profile(self, record: Record) -> float | None:
        """The line that holds T, A and the fraction together; returns the fraction."""
        told = lines.profile(record.text)
        before, after = told.get("total_gpu_memory"), told.get("available_gpu_memory")
        if before is not None and after is not None:
            self.base = (Sourced(before, source(record)), Sourced(after, source(record)))
        return told.get("mem_fraction_static")

    def state_model(self, record: Record, rank: Rank) -> bool:
        """DeepSeek-V4's own calculation: what is available for the pool, and what a token of it takes."""
        told = lines.state_model(record.text)
        if "full_token" in told:
            add(rank.full_counts, Sourced(int(told["full_token"]), source(record)))
        if "available_bytes" in told:
            rank.state_gib = Sourced(told["available_bytes"], source(record))
        if "bytes_per_full_token" in told:
            rank.token_bytes = Sourced(told["bytes_per_full_token"], source(record))
        return bool(told)

    def pool_tokens(self, ranks: Ranks) -> Sourced | None:
        """The least count over ranks, by the best word that the log holds; a later count replaces a rank's earlier."""
        counted = [rank.full_counts[-1] for rank in ranks.all if rank.full_counts]
        told = self.finals or [*self.words, *counted] or ranks.full_pools(is_sharded=self.is_sharded)
        return min(told, key=_number, default=None)

    def uncapped_tokens(self, ranks: Ranks, cap: int | None) -> Sourced | None:
        """What the engine counted before a cap, where it binds: the count fell, or is above a cap that was given."""
        pool = self.pool_tokens(ranks)
        if pool is None:
            return None
        counts = [rank.full_counts for rank in ranks.all if rank.full_counts]
        is_given = cap is not None and cap >= _number(pool)
        above = [
            one[0]
            for one in counts
            if _number(one[0]) > max(_number(pool), cap or 0) and (is_given or _number(one[0]) > _number(one[-1]))
        ]
        projected = [one for one in self.projected if _number(one) > _number(pool)]
        return min([*above, *projected], key=_number, default=None)

    def window_tokens(self, ranks: Ranks) -> Sourced | None:
        """The least pool of the sliding-window layers over ranks."""
        told = [rank.window_tokens for rank in ranks.all if rank.window_tokens]
        return min(told or ranks.other_pools(is_sharded=self.is_sharded), key=_number, default=None)

    def free_at_ready(self, ranks: Ranks, *, has_graphs: bool) -> Sourced | None:
        """The final line's figure; where it holds none, what was free after the graphs, or after the pool where the
        log shows no graphs. Nothing that was free earlier.
        """
        if self.available:
            return min(self.available, key=_number)
        last = ranks.lowest(lambda rank: rank.graphs_end if has_graphs else rank.pool_end)
        if last is None:
            return None
        moment = "graphs" if has_graphs else "pool, in a log without graphs"
        return Sourced(last.value, f"{last.source} (after the {moment}: the final line names no available_gpu_mem)")

    def kv(self, ranks: Ranks, *, ways: int, is_capped: bool) -> tuple[Sourced | None, Sourced | None]:
        """KV GiB of target and draft, the least over ranks."""
        tokens = self.pool_tokens(ranks)
        count, sharded = int(_number(tokens)) if tokens else None, self.is_sharded or ways > 1
        pairs = [target_and_draft(rank, count, ways=ways, is_sharded=sharded) for rank in ranks.all]
        targets = [target for target, _ in pairs if target]
        drafts = [draft for _, draft in pairs if draft]
        states = [state for rank in ranks.all if (state := _state_gib(rank, tokens, is_capped=is_capped))]
        return min(states or targets, key=_number, default=None), min(drafts, key=_number, default=None)

    def contradictions(self, ranks: Ranks, *, ways: int) -> list[str]:
        """A final count that no pool line of any rank holds, nor any other word of the engine."""
        tokens = self.pool_tokens(ranks)
        counted = [count for rank in ranks.all for count in rank.full_counts]
        told = [pool for pool in [*self.words, *counted, *ranks.pool_counts()] if pool.value]
        if not self.finals or tokens is None or not told:
            return []
        if any(_number(pool) in (_number(tokens), _number(tokens) // ways) for pool in told):
            return []
        return [f"{tokens.source} names {tokens.value} tokens, but {told[0].source} names {told[0].value}"]


def _state_gib(rank: Rank, tokens: Sourced | None, *, is_capped: bool) -> Sourced | None:
    """What a DeepSeek-V4 pool takes: all that is available, or what the capped tokens need of it."""
    price = rank.token_bytes
    if not is_capped or rank.state_gib is None or price is None or tokens is None:
        return rank.state_gib
    gib = round(_number(tokens) * _number(price) / BYTES_A_GIB, 4)
    return Sourced(gib, f"{tokens.value} tokens × bytes_per_full_token of {price.source}")


def _number(value: Sourced) -> float:
    return float(str(value.value))
