"""Starts from public sources: leave one out, one-start predictions, coverage, and what was not fitted and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from bench.accuracy.errors import HEADS, Errors, ask, fit_of
from bench.report import Report, middle, per_cent, share_of
from domain.real_starts import case_groups
from kvyield_server.domain.facts.devices import has_unified_memory
from kvyield_server.domain.facts.observation import FRACTION_FLAG, EngineName, Observation
from kvyield_server.domain.model.evidence import Label
from kvyield_server.domain.model.fit import PairFit


@dataclass(frozen=True)
class Points:
    """The starts of one deployment of a public group that lie on its line."""

    group: str
    starts: tuple[Observation, ...]
    labels: tuple[str, ...]

    @property
    def fractions(self) -> set[float]:
        return {start.fraction or 0.0 for start in self.starts}

    @property
    def contradiction(self) -> str | None:
        """Say why starts of one line cannot be compared: their own figures show that more changed than the fraction."""
        if self.is_unified:
            return None
        if Label.SLOPE_DISAGREEMENT in self.labels:
            return "labelled slope_disagreement"
        if changed := _changed_flags(self.starts):
            return f"{', '.join(changed)} changed too"
        memory, points = self.starts[0].hardware.memory_gib, _gib_points(self.starts)
        if memory is None or len(points) < 2:
            return None
        (low, least), (high, most) = min(points), max(points)
        slope = (most - least - 0.01) / (high - low)
        return f"{slope:.1f} GiB per fraction on a GPU of {memory:.1f} GiB" if slope > 1.01 * memory else None

    @property
    def is_unified(self) -> bool:
        return has_unified_memory(self.starts[0].hardware)


def _changed_flags(starts: Sequence[Observation]) -> list[str]:
    """Return the flags beside the fraction that not all starts recorded alike."""
    names = {name for start in starts for name in start.flags} - set(FRACTION_FLAG.values())
    return sorted(name for name in names if len({repr(start.flags.get(name, ...)) for start in starts}) > 1)


def _gib_points(starts: Sequence[Observation]) -> list[tuple[float, float]]:
    """Return fractions with their logged KV GiB."""
    pairs = ((start.fraction, start.measurements.kv_cache_gib) for start in starts)
    return [(fraction, gib) for fraction, gib in pairs if fraction is not None and gib is not None]


def fit_able() -> list[Points]:
    """Return the deployments with points at two or more fractions that the fit did not refuse."""
    found = []
    for group, starts in case_groups().items():
        for fit in fit_of(starts).deployments:
            points = {item.observation_id for item in fit.summary.evidence if item.use == "point"}
            points_only = tuple(start for start in fit.starts if start.id in points)
            candidate = Points(group, points_only, fit.summary.labels)
            if Label.CONFOUNDED not in fit.summary.labels and len(candidate.fractions) > 1:
                found.append(candidate)
    return found


def public(report: Report) -> Errors:
    """Print everything that the public cases say with the bars that they carry; return the left-out points."""
    everything = fit_able()
    groups = [group for group in everything if group.contradiction is None]
    _refused(report, everything)
    _from_two_others(report, [group for group in groups if len(group.fractions) >= 3])
    left_out = _from_all_others(report, groups)
    _from_one(report, groups)
    _contradictory(report, [group for group in everything if group.contradiction is not None])
    return left_out


def _contradictory(report: Report, groups: Sequence[Points]) -> None:
    report.section("Set apart from the bars: the starts' own figures show that more than the fraction changed")
    rows = []
    for group in groups:
        errors = Errors()
        for start in group.starts:
            for other in group.starts:
                if other.fraction != start.fraction:
                    _count(errors, fit_of([start]), other)
        rows.append((f"{group.group}: {group.contradiction}", *errors.cells()))
    report.table(("group, from one start to the other", *HEADS), rows)


def _from_two_others(report: Report, groups: Sequence[Points]) -> None:
    report.section("Public groups with three or more fractions: any two starts predict each other one")
    report.line("Pools are printed in whole pages, so two of them tell the line to a page x (1 + distance / spacing).")
    rows, discrete = [], Errors()
    for group in groups:
        errors = Errors()
        for kept in _pairs(group.starts):
            pair = fit_of(kept)
            for other in group.starts:
                if other not in kept:
                    _count(errors, pair, other, carried=1.0 + _reach(kept, other))
        rows.append((_name(group), *errors.cells()))
        if not group.is_unified:
            discrete.merge(errors)
    rows.append(("all on discrete GPUs", *discrete.cells()))
    report.table(("group", *HEADS), rows)
    half, worst = middle(discrete.relative), max(discrete.beyond)
    report.bar("two starts, discrete: median error <= 0.02 %", per_cent(half, 4), is_met=half <= 0.0002)
    figure = f"{per_cent(worst)} beyond that rounding"
    report.bar("two starts, discrete: worst <= 0.5 %, a page where pages are coarse", figure, is_met=worst <= 0.005)


def _reach(kept: Sequence[Observation], other: Observation) -> float:
    """Return how far a fraction is from the nearest of two, in units of their spacing."""
    low, high, asked = (start.fraction or 0.0 for start in (*kept, other))
    return min(abs(asked - low), abs(asked - high)) / abs(high - low)


def _pairs(starts: Sequence[Observation]) -> Iterator[tuple[Observation, Observation]]:
    return (kept for kept in combinations(starts, 2) if kept[0].fraction != kept[1].fraction)


def _from_all_others(report: Report, groups: Sequence[Points]) -> Errors:
    report.section("Public groups, each start left out and predicted from all others of its line")
    rows, sums = [], {"all, discrete GPUs": Errors(), "all, unified memory": Errors()}
    for group in groups:
        errors = Errors()
        for other in group.starts:
            _count(errors, fit_of([start for start in group.starts if start is not other]), other)
        sums["all, unified memory" if group.is_unified else "all, discrete GPUs"].merge(errors)
        rows.append((_name(group), *errors.cells()))
    everything = Errors()
    for errors in sums.values():
        everything.merge(errors)
    rows += [(name, *errors.cells()) for name, errors in {**sums, "all": everything}.items()]
    report.table(("left out of", *HEADS), rows)
    covered = share_of(everything.inside)
    figure = f"{sum(everything.inside)} of {everything.count} = {per_cent(covered, 1)}"
    report.bar("public: 90 % intervals hold at least 85 % of left-out points", figure, is_met=covered >= 0.85)
    return everything


def _from_one(report: Report, groups: Sequence[Points]) -> None:
    report.section("Public groups, one start predicts the others")
    rows, logged = [], Errors()
    for group in groups:
        errors = Errors()
        for start in group.starts:
            pair, has_logged = fit_of([start]), _logs_memory(start) and not group.is_unified
            for other in group.starts:
                if other.fraction != start.fraction:
                    _count(errors, pair, other)
                    if has_logged:
                        _count(logged, pair, other)
        rows.append((_name(group), *errors.cells()))
    rows.append(("with logged K and GPU, discrete", *logged.cells()))
    report.table(("group", *HEADS), rows)
    half, worst = middle(logged.relative), max(logged.relative, default=0.0)
    report.bar("one start with logged K and GPU: median error <= 0.1 %", per_cent(half, 4), is_met=half <= 0.001)
    report.bar("one start with logged K and GPU: worst <= 2 %", per_cent(worst), is_met=worst <= 0.02)


def _logs_memory(start: Observation) -> bool:
    """Whether the figures price a token whole. What SGLang prints is the target's pool alone: unless the start says
    whether there was a draft the price is 1.0 to 1.2 times that, a guess with a wide interval and no such bar.
    """
    is_whole = start.engine.name is not EngineName.SGLANG or "speculative_algorithm" in start.flags
    return is_whole and start.measurements.kv_cache_gib is not None and start.hardware.memory_gib is not None


def _count(errors: Errors, pair: PairFit, other: Observation, *, carried: float = 1.0) -> None:
    answer = ask(pair, other)
    if answer is not None:
        errors.add(answer.estimate, answer.truth, allowed=answer.page * carried)


def _name(group: Points) -> str:
    return group.group + (" (unified memory)" if group.is_unified else "")


def _refused(report: Report, groups: Sequence[Points]) -> None:
    report.section("Public groups that the fit refused, and why")
    fitted = {group.group for group in groups}
    reasons: dict[str, list[str]] = {}
    for name, starts in case_groups().items():
        if name not in fitted:
            reasons.setdefault(_reason(starts), []).append(name)
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        report.line(f"{len(names):3d}  {reason}")
        if "confounded" in reason or "set by" in reason:
            report.line("     " + "; ".join(names))
    report.line(f"{len(fitted):3d}  fitted, with points at two or more fractions")


def _reason(starts: Sequence[Observation]) -> str:
    fits = fit_of(starts).deployments
    labels = {label for fit in fits for label in fit.summary.labels}
    if Label.CONFOUNDED in labels:
        return "confounded: the starts contradict one another"
    items = [item for fit in fits for item in fit.summary.evidence]
    points = [item for item in items if item.use == "point"]
    if points:
        return "fitted from one fraction only: there is no other start to compare with"
    return min((item.reason for item in items), key=len)
