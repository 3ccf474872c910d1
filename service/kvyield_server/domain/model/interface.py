"""What advice and predictions ask of a fitted deployment.

Fractions come as arrays, so that a grid is evaluated at once: every method that takes ``fractions`` of shape (n,)
answers with shape (n,).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvyield_server.domain.answers import Caution, Estimate, FitSummary
from kvyield_server.domain.facts.observation import Engine, Flags, Hardware, Model, Observation, Verification

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Spread(Protocol):
    """A predicted quantity at each of n fractions."""

    def above(self, threshold: float) -> Floats:
        """Return P(quantity >= threshold)."""

    def at(self, index: int) -> Spread:
        """Return the quantity at one of the fractions."""

    def quantile(self, probability: float) -> Floats:
        """Return the value that the quantity stays below with this probability."""

    def median(self, index: int) -> float:
        """Return the median of ``estimate`` alone."""

    def estimate(self, index: int, level: float = 0.9) -> Estimate:
        """Return median and central interval at one of the fractions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Pool and free memory under some flags at n fractions; None where nothing tells the quantity.

    ``pool`` is what the engine would log, tokens per data-parallel rank, caps and fixed pools applied (``pool_flag``
    names the flag that decides it instead of the fraction). ``line`` is the pool without them. ``free`` is GiB free at
    ready on the fullest GPU. ``dropped`` is how likely SGLang leaves out its prefill graphs, None where it never does.
    """

    fractions: Floats
    pool: Spread | None
    line: Spread | None
    kv_gib: Spread | None
    free: Spread | None
    pool_flag: str | None = None
    dropped: Floats | None = None

    def at(self, index: int) -> Predicted:
        """Return the same at one of the fractions."""
        one = slice(index, index + 1)
        parts = (self.pool, self.line, self.kv_gib, self.free)
        pool, line, kv_gib, free = (None if part is None else part.at(index) for part in parts)
        dropped = None if self.dropped is None else self.dropped[one]
        return replace(
            self, fractions=self.fractions[one], pool=pool, line=line, kv_gib=kv_gib, free=free, dropped=dropped
        )


class Need(Protocol):
    """What a prompt takes at its peak below free memory at ready, GiB."""

    @property
    def median_gib(self) -> float: ...

    def estimate(self, level: float = 0.9) -> Estimate:
        """Return median and central interval."""

    def at_most(self, gib: float) -> float:
        """Return P(need <= gib)."""

    @property
    def is_measured(self) -> bool:
        """Whether a prompt no shorter was measured at this chunk size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What live starts under the very same flags measured; the newest's figure each. None is not measured.

    ``pools`` and ``free_gib`` are the figures of the newest of them, oldest first.
    """

    newest: Observation
    pool_tokens: int | None
    free_at_ready_gib: float | None
    pools: tuple[int, ...] = ()
    free_gib: tuple[float, ...] = ()


class YieldModel(Protocol):
    """A fitted deployment. ``starts`` are its live starts, oldest first.

    ``runs`` is what runs: the newest live start that came up, or None. ``flags`` stand in for flags that a question
    does not give: those of what runs, else of the newest start, else the asker's. ``context_tokens`` is the model's own
    context length.
    """

    @property
    def summary(self) -> FitSummary: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def model(self) -> Model: ...
    @property
    def hardware(self) -> Hardware: ...
    @property
    def flags(self) -> Flags: ...
    @property
    def page_tokens(self) -> int: ...
    @property
    def context_tokens(self) -> int | None: ...
    @property
    def weights_are_stated(self) -> bool:
        """Whether a log or the model's config says what the weights take."""

    @property
    def drifted(self) -> Observation | None:
        """The newest start, when the others agree on a line and it lies off it."""

    @property
    def starts(self) -> Sequence[Observation]: ...
    @property
    def runs(self) -> Observation | None: ...
    @property
    def limited(self) -> Observation | None:
        """The newest live start that came up and printed the longest prompt that it takes."""

    @property
    def relatives(self) -> Sequence[YieldModel]:
        """Deployments of the pair that differ in what moves the line's start alone, and answer for their own flags."""

    @property
    def distant_deaths(self) -> Sequence[Observation]:
        """Starts of deployments much alike that ran out of memory and rule nothing out here."""

    def contradiction(self, flags: Flags) -> str | None:
        """Return what contradicts what, when the line cannot be that of a real GPU (rule 5); None when it is sound."""

    def at(self, flags: Flags, fractions: Floats) -> Predicted:
        """Return pool and free memory under these flags at each fraction."""

    def need(self, flags: Flags, prompt_tokens: int) -> Need:
        """Return what a prompt of this length takes under these flags."""

    def survives(self, flags: Flags, predicted: Predicted, need: Need | float, prompt_tokens: int) -> Floats | None:
        """Return P(free memory at ready - need >= 0) at each fraction; None where nothing tells free memory."""

    def headroom(self, flags: Flags, fraction: float, need: Need | float, level: float = 0.9) -> Estimate | None:
        """Return the interval of free memory at ready less the need at one fraction; None where nothing tells it."""

    def forbidden(
        self, flags: Flags, fractions: Floats, prompt_tokens: int, concurrent: int
    ) -> tuple[Mask, Observation | None]:
        """Return the fractions that a death which counts rules out, and the death that rules out the lowest."""

    def measured(self, flags: Flags) -> Measured | None:
        """Return what live starts that came up under these very flags measured (memory-irrelevant flags aside)."""

    def failed(self, flags: Flags) -> Observation | None:
        """Return the newest start under these very flags that never came up, where none under them ever did."""

    def implausible(self, start: Observation) -> str | None:
        """Return why a start's fraction cannot be what it ran with, None where it may be."""

    def passed(self, flags: Flags, prompt_tokens: int, concurrent: int) -> Verification | None:
        """Return a passed verification, under flags no lighter, of a prompt no shorter and as many at once."""

    def unserved(self, flags: Flags, prompt_tokens: int, concurrent: int) -> Verification | None:
        """Return the verification that was not served and forbids ``ok`` for such a prompt until one passes."""

    def uncounted(self, asked: Flags) -> Iterator[Caution]:
        """Yield warnings of asked flags whose effect is not known here."""

    def bytes_per_token(self, flags: Flags) -> Estimate | None:
        """Return bytes that one token takes of one GPU's KV memory under these flags."""
