"""After a lasting change: the newest starts that agree among themselves, when all together do not."""

from __future__ import annotations

from collections.abc import Sequence

from kvyield_server.domain.legacy.capacity_fit import CapacityFit, fit_capacity
from kvyield_server.domain.legacy.capacity_prior import CapacityPrior, Setting
from kvyield_server.domain.legacy.contradictions import differing_flag_names
from kvyield_server.domain.legacy.evidence import Evidence, Label, Use

LEAST_POINTS = 4
LONGEST = 24
UNSOUND = frozenset({Label.CONFOUNDED, Label.OUTLIER, Label.SLOPE_DISAGREEMENT})


def newest_regime(
    setting: Setting, found: Sequence[Evidence], prior: CapacityPrior
) -> tuple[tuple[Evidence, ...], CapacityFit] | None:
    """Return the longest run of newest starts that shares a line, with its fit; None when there is none.

    Asked only when all starts together contradict one another. Two starts are enough when they differ in nothing but
    the fraction; what came before the change is set aside.
    """
    points = [index for index, item in enumerate(found) if item.use is Use.POINT]
    if len(points) < LEAST_POINTS:
        return None
    for count in range(min(len(points) - 1, LONGEST), 1, -1):
        newest = points[-count:]
        if count == 2 and differing_flag_names([found[index] for index in newest]):
            return None
        since = tuple(
            item.put(Use.SET_ASIDE, "before the last lasting change") if index in points[:-count] else item
            for index, item in enumerate(found)
        )
        fit = fit_capacity(setting, since, prior)
        if fit.distinct_fractions > 1 and not fit.labels & UNSOUND:
            return since, fit
    return None
