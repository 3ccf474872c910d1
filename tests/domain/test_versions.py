"""Engine versions: drift after an upgrade, advice widened until verified anew, and questions about another version."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.real_starts import KIMI, PRO_6000, observe
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.answers import Question
from kvyield_server.domain.facts.observation import Engine, EngineName, Observation
from kvyield_server.domain.model.evidence import Label
from kvyield_server.domain.model.fit import DeploymentFit, PairEvidence, fit_pair

OLD, NEW = "0.5.12", "0.5.18"


def kimi(position: int, fraction: float, pool: int, version: str = OLD) -> Observation:
    return observe(
        f"versions-{position}",
        position,
        hardware=PRO_6000,
        model=KIMI,
        engine=Engine(name=EngineName.SGLANG, version=version),
        flags={"mem_fraction_static": fraction, "tp_size": 8, "speculative_algorithm": "DFLASH"},
        pool_tokens=pool,
        free_at_ready_gib=4.2 - 89.0 * (fraction - 0.94),
    )


def on_line(position: int, fraction: float) -> Observation:
    return kimi(position, fraction, round(1_303_889 * (fraction - 0.77244)))


HISTORY = [on_line(position, fraction) for position, fraction in enumerate((0.85, 0.88, 0.92))]


def newest(*later: Observation) -> DeploymentFit:
    return fit_pair(PairEvidence((*HISTORY, *later))).deployments[0]


def width(fit: DeploymentFit) -> float:
    estimate = fit.predict({"mem_fraction_static": 0.93}).pool_tokens
    assert estimate is not None
    return estimate.high - estimate.low


def test_an_upgrade_that_moves_the_pool_is_drift_with_its_size() -> None:
    """The first start of a new version, 5 % above what the old one predicts, is drift in tokens and GiB."""
    fit = newest(kimi(9, 0.94, 229_300, NEW))
    detail = next(caution.detail for caution in fit.summary.warnings if caution.code == "drift")
    assert Label.DRIFT in fit.summary.labels
    assert "+10,8" in detail
    assert "GiB" in detail
    assert OLD in detail
    assert "drift" in {caution.code for caution in recommend(fit, Question(target_tokens=200_000)).warnings}


def test_an_upgrade_that_moves_nothing_is_no_drift() -> None:
    """A new version's start on the old line carries no label."""
    assert Label.DRIFT not in newest(kimi(9, 0.94, 218_484, NEW)).summary.labels


def test_drift_widens_until_a_second_start_verifies_the_new_version() -> None:
    """After the drift the interval is far wider than before; a second start of the new version narrows it again."""
    first, second = kimi(9, 0.94, 229_300, NEW), kimi(10, 0.92, 201_934, NEW)
    drifted, verified = newest(first), newest(first, second)
    assert width(drifted) > 50 * width(newest())
    assert width(verified) < width(drifted) / 3
    assert Label.DRIFT not in verified.summary.labels


def test_the_older_version_is_not_judged_by_the_newer() -> None:
    """Drift is of the newer version's start: the older deployment keeps its line and has no label."""
    older = fit_pair(PairEvidence((HISTORY[0], kimi(9, 0.94, 229_300, NEW), kimi(10, 0.92, 201_934, NEW))))
    assert all(Label.DRIFT not in fit.summary.labels for fit in older.deployments if fit.key["version"] == OLD)


@pytest.mark.parametrize(("asked", "is_other"), [(None, False), (OLD, False), (f"v{OLD}", False), (NEW, True)])
def test_a_question_about_another_version_is_answered_more_widely_and_says_so(
    asked: str | None, *, is_other: bool
) -> None:
    """Asked for a version without evidence, another one's answers: 1 GiB and 2 % less sure, with a warning."""
    chosen = fit_pair(PairEvidence(tuple(HISTORY))).choose(
        engine=EngineName.SGLANG, engine_version=asked, like=None, flags={}
    )
    assert chosen is not None
    assert (width(chosen) > 20 * width(newest())) == is_other
    advice = recommend(chosen, Question(target_tokens=200_000, engine_version=asked))
    assert ("other_version" in {caution.code for caution in advice.warnings}) == is_other
    free = advice.prediction.free_at_ready_gib
    plain = recommend(newest(), Question(target_tokens=200_000)).prediction.free_at_ready_gib
    assert free is not None
    assert plain is not None
    assert (free.high - free.low > 1.2 * (plain.high - plain.low)) == is_other


def test_the_same_start_of_an_unknown_version_is_no_other_version() -> None:
    """A hand-made post without a version answers for any version as it is."""
    bare = [replace(start, engine=Engine(name=EngineName.SGLANG)) for start in HISTORY]
    chosen = fit_pair(PairEvidence(tuple(bare))).choose(engine=None, engine_version=NEW, like=None, flags={})
    assert chosen is not None
    assert width(chosen) == width(newest())
