"""SGLang's table from requests to token slots: allocated beside the pool, and exactly known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvyield_server.domain.engines.registry import NAMES, positive
from kvyield_server.domain.engines.token_cost import speculation
from kvyield_server.domain.facts.layout import DATA, DATA_ATTENTION
from kvyield_server.domain.facts.observation import EngineName, Flags, Observation
from kvyield_server.domain.facts.scalars import as_count, first_given, is_on
from kvyield_server.domain.legacy.student import StudentT

Vector = NDArray[np.float64]

_GIB = float(2**30)
FEWEST_REQUESTS, MOST_REQUESTS = 2048, 4096
SPECULATIVE_REQUESTS = 48
"""SGLang's default of running requests with a draft; without one it follows the pool."""


class PoolAlong(Protocol):
    """A capacity line under fixed flags, as a function of the fraction."""

    def pool(self, fraction: float) -> StudentT | None: ...
    def budget_gib(self, fraction: float) -> float | None: ...


@dataclass(frozen=True, slots=True)
class RequestTable:
    """int32 for (requests + 1) rows of (context + 4) tokens; requests of None follow the pool."""

    context_tokens: int | None
    requests: int | None
    ranks: int = 1
    pool_cap: int | None = None

    def gib(self, pool: PoolAlong, fraction: float) -> float:
        """Return the table's GiB on one GPU; zero where the engine keeps none or the context is unknown."""
        if self.context_tokens is None:
            return 0.0
        requests = self.requests if self.requests is not None else self._from_pool(pool.pool(fraction))
        return (max(1, requests // self.ranks) + 1) * (self.context_tokens + 4) * 4 / _GIB

    def gibs(self, pool: PoolAlong, fractions: Vector) -> Vector:
        """Return ``gib`` at many fractions."""
        if self.requests is not None or self.context_tokens is None:
            return np.full_like(fractions, self.gib(pool, 0.5))
        return np.array([self.gib(pool, fraction) for fraction in fractions.tolist()], dtype=np.float64)

    def _from_pool(self, pool: StudentT | None) -> int:
        if pool is None or self.context_tokens is None:
            return FEWEST_REQUESTS
        tokens = pool.loc if self.pool_cap is None else min(pool.loc, self.pool_cap)
        return _requests_of_pool(tokens, self.context_tokens)


def request_table(engine: EngineName, flags: Flags, model_context_tokens: int | None) -> RequestTable:
    """Return the table under these flags; what is unset is the engine's own default."""
    if engine is not EngineName.SGLANG:
        return RequestTable(None, None)
    names = NAMES[engine]
    requests = positive(flags, names.requests) or (SPECULATIVE_REQUESTS if speculation(flags) else None)
    context = positive(flags, names.context) or model_context_tokens
    return RequestTable(context, requests, attention_ranks(flags), positive(flags, names.pool_cap))


def flags_as_set(start: Observation, model_context_tokens: int | None) -> Flags:
    """Return a start's flags without running requests that SGLang itself chose for its pool.

    Its log states the figure as resolved. Pinned, it would no longer follow the pool. By version it is bounded by half
    the pool's tokens, or is of one data-parallel rank.
    """
    name = NAMES[EngineName.SGLANG].requests
    requests, pool_tokens = positive(start.flags, name), start.measurements.pool_tokens
    context = positive(start.flags, NAMES[EngineName.SGLANG].context) or model_context_tokens
    if start.engine.name is not EngineName.SGLANG or None in (requests, pool_tokens, context):
        return start.flags
    assert pool_tokens is not None
    assert context is not None
    chosen = _requests_of_pool(pool_tokens, context)
    ranks = as_count(first_given(start.flags, *DATA)) or 1
    if requests not in {chosen, min(chosen, pool_tokens // 2), chosen // ranks, min(chosen // ranks, pool_tokens // 2)}:
        return start.flags
    return {key: value for key, value in start.flags.items() if key != name}


def _requests_of_pool(pool_tokens: float, context_tokens: int) -> int:
    return int(min(float(MOST_REQUESTS), max(float(FEWEST_REQUESTS), pool_tokens / context_tokens * 512)))


def attention_ranks(flags: Flags) -> int:
    """Return into how many data-parallel groups one model's attention is split."""
    return as_count(first_given(flags, *DATA)) or 1 if is_on(first_given(flags, *DATA_ATTENTION)) else 1
