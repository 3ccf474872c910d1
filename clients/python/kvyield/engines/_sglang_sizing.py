"""What SGLang says of the whole start: the pool's tokens and the memory that it counted with, in several wordings."""

from __future__ import annotations

from kvyield.engines import _sglang_lines as lines
from kvyield.engines._engine import source
from kvyield.engines._prefix import Record
from kvyield.engines._sglang_ranks import Rank, Ranks, keep, target_and_draft
from kvyield.engines._start import Sourced


class Sizing:
    """Collects the engine's words about the pool; the final line's count wins over every other."""

    def __init__(self) -> None:
        self.finals: list[Sourced] = []
        self.words: list[Sourced] = []
        self.available: list[Sourced] = []
        self.base: tuple[Sourced, Sourced] | None = None
        self.kv_gib: Sourced | None = None

    def sliding(self, record: Record, rank: Rank) -> bool:
        """Sliding-window models: the count of the full layers is the pool's; both kinds together are its GiB."""
        match = lines.SLIDING.search(record.text)
        if match:
            rank.sliding_window = Sourced(float(match[1]), source(record))
            keep(self.words, Sourced(int(match[3]), source(record)))
        return match is not None

    def profile(self, record: Record) -> float | None:
        """The line that holds T, A and the fraction together; returns the fraction."""
        match = lines.PROFILE.search(record.text)
        if match is None:
            return None
        self.base = (Sourced(float(match[2]), source(record)), Sourced(float(match[1]), source(record)))
        return float(match[3])

    def state_model(self, record: Record) -> bool:
        """DeepSeek-V4's own calculation."""
        match = lines.DSV4.search(record.text)
        if match:
            self.kv_gib = Sourced(float(match[1]), source(record))
            keep(self.words, Sourced(int(match[2]), source(record)))
        return match is not None

    def pool_tokens(self, ranks: Ranks) -> Sourced | None:
        """The least count over ranks, by the best word that the log holds."""
        return min(self.finals or self.words or ranks.first_pools(), key=_number, default=None)

    def free_at_ready(self, ranks: Ranks, *, has_graphs: bool) -> Sourced | None:
        """The final line's figure; where it holds none, what was free after the graphs, or after the pool where the
        log tells of no graphs. Nothing that was free earlier.
        """
        if self.available:
            return min(self.available, key=_number)
        last = ranks.lowest(lambda rank: rank.graphs_end if has_graphs else rank.pool_end)
        if last is None:
            return None
        moment = "graphs" if has_graphs else "pool, in a log without graphs"
        return Sourced(last.value, f"{last.source} (after the {moment}: the final line names no available_gpu_mem)")

    def kv(self, ranks: Ranks, *, ways: int) -> tuple[Sourced | None, Sourced | None]:
        """KV GiB of target and draft, the least over ranks."""
        tokens = self.pool_tokens(ranks)
        pairs = [target_and_draft(rank, int(_number(tokens)) if tokens else None, ways=ways) for rank in ranks.all]
        targets = [target for target, _ in pairs if target]
        drafts = [draft for _, draft in pairs if draft]
        target = self.kv_gib or min(targets, key=_number, default=None)
        return target, min(drafts, key=_number, default=None)

    def contradictions(self, ranks: Ranks, *, ways: int) -> list[str]:
        """A final count that no pool line of any rank holds, nor any other word of the engine."""
        tokens = self.pool_tokens(ranks)
        told = [pool for pool in [*self.words, *ranks.pool_counts()] if pool.value]
        if not self.finals or tokens is None or not told:
            return []
        if any(_number(pool) in (_number(tokens), _number(tokens) // ways) for pool in told):
            return []
        return [f"{tokens.source} names {tokens.value} tokens, but {told[0].source} names {told[0].value}"]


def _number(value: Sourced) -> float:
    return float(str(value.value))
