"""What the model says of simulated ledgers, counted: rules broken, errors, coverage, and what became of its advice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean, median

from domain.dirty_world import World
from domain.door import predict
from domain.ledgers import advised_fraction
from domain.rules import Asked, ask, violations
from kvyield_server.domain.answers import Status
from kvyield_server.domain.facts.observation import FRACTION_FLAG

LEAST_CLEAN = 3
LEAST_TOKENS = 1_000


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the model said of one ledger, against the truth; None where the ledger is not evidence for a figure."""

    seed: int
    kinds: tuple[str, ...]
    broken: list[str]
    status: Status
    is_answerable: bool
    error: float | None = None
    is_inside: bool | None = None
    is_unanswered: bool = False
    succeeded: bool | None = None
    joint: float | None = None


def judge(seed: int, world: World, prefer: str = "keep") -> Judged:
    """Ask one ledger for its target, and for the pool at one fraction where it has three clean starts or more."""
    is_newest_clean = world.starts[-1].id in world.clean
    agreeing = world.clean if is_newest_clean else frozenset()
    asked = ask(world.starts, world.target, world.concurrent, prefer, agreeing=agreeing)
    succeeded, joint = _restarted(world, asked)
    true = world.truth.tokens(world.asked_at)
    is_counted = len(world.clean) >= LEAST_CLEAN and true >= LEAST_TOKENS
    pool = predict(world.starts, {FRACTION_FLAG[world.engine]: world.asked_at}).pool_tokens if is_counted else None
    return Judged(
        seed=seed,
        kinds=world.kinds,
        broken=violations(asked),
        status=asked.advice.status,
        is_answerable=world.is_answerable,
        error=None if pool is None else abs(pool.median - true) / true,
        is_inside=None if pool is None else pool.low <= true <= pool.high,
        is_unanswered=is_counted and pool is None,
        succeeded=succeeded,
        joint=joint,
    )


def _restarted(world: World, asked: Asked) -> tuple[bool | None, float | None]:
    """Return whether an `ok` answer truly holds, and the joint probability that it stated."""
    advice = asked.advice
    if advice.status is not Status.OK:
        return None, None
    fraction = advised_fraction(advice)
    kept = None
    if not advice.changes:
        kept = next((start for start in reversed(world.starts) if start.fraction == fraction), None)
    joint = advice.probability.joint if advice.probability is not None else None
    return world.succeeds(fraction, kept), joint


class Tally:
    """Counts over judged ledgers; errors are relative to the true line."""

    def __init__(self, judged: Iterable[Judged]) -> None:
        self.judged = list(judged)

    def of_kind(self, kind: str) -> Tally:
        """Return the counts over the ledgers that this contamination spoiled."""
        return Tally(each for each in self.judged if kind in each.kinds)

    @property
    def broken(self) -> list[tuple[int, str]]:
        return [(each.seed, sentence) for each in self.judged for sentence in each.broken]

    @property
    def errors(self) -> list[float]:
        return [each.error for each in self.judged if each.error is not None]

    @property
    def unanswered(self) -> int:
        return sum(each.is_unanswered for each in self.judged)

    @property
    def statuses(self) -> Counter[str]:
        return Counter(each.status.value for each in self.judged)

    @property
    def median_error(self) -> float:
        return median(self.errors) if self.errors else 0.0

    @property
    def coverage(self) -> float:
        inside = [each.is_inside for each in self.judged if each.is_inside is not None]
        return mean(inside) if inside else 1.0

    @property
    def oks(self) -> list[Judged]:
        return [each for each in self.judged if each.succeeded is not None]

    @property
    def success(self) -> float:
        return mean(bool(each.succeeded) for each in self.oks) if self.oks else 1.0

    @property
    def stated(self) -> float:
        """The mean joint probability that the `ok` answers stated."""
        joints = [each.joint for each in self.oks if each.joint is not None]
        return mean(joints) if joints else 0.0

    @property
    def answerable(self) -> int:
        return sum(each.is_answerable for each in self.judged)

    @property
    def share_ok(self) -> float:
        """The share of answerable questions that were answered `ok`."""
        oks = sum(each.is_answerable and each.status is Status.OK for each in self.judged)
        return oks / self.answerable if self.answerable else 1.0


def tally(worlds: Iterable[tuple[int, World]], prefer: str = "keep") -> Tally:
    """Return the counts over these ledgers."""
    return Tally(judge(seed, world, prefer) for seed, world in worlds)
