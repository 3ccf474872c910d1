"""The fleet: what runs in each pair, whether it answers the pair's last question, what a new engine version changed.

What the pages of all pairs show is kept in the database and brought up to date beside the requests: no page waits for
the fits of thousands of pairs.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from threading import Lock
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from kvyield_server.domain.answers import Drift, Estimate, HeadlineCode, Prefer, Question, Status
from kvyield_server.domain.facts.observation import FRACTION_FLAG, Observation
from kvyield_server.errors import KvyieldError
from kvyield_server.storage.records import FleetRow, Pair, Verdict
from kvyield_server.storage.statements import batched
from kvyield_server.storage.uow import Storage, UnitOfWork
from kvyield_server.usecases.fits import FitCache

if TYPE_CHECKING:
    from kvyield_server.domain.model.fit import DeploymentFit, PairFit

log = structlog.get_logger("kvyield.fleet")

AT_ONCE = 20
LONGEST_PAUSE_SECONDS = 1.0
NOT_FITTED = "could not be fitted"


class FleetRefresher:
    """Brings the kept rows up to date in a thread of its own, one run at a time, at half of that thread's time."""

    def __init__(self, storage: Storage, fits: FitCache) -> None:
        self._storage = storage
        self._fits = fits
        self._thread = ThreadPoolExecutor(1, "kvyield-fleet")
        self._lock = Lock()
        self._run: Future[None] | None = None
        self._right_at: Hashable = None
        self._is_closed = False

    def begin(self) -> Future[None]:
        """Begin to bring stale rows up to date, unless that is under way; return what ends with it."""
        with self._lock:
            if self._run is None or self._run.done():
                self._run = self._thread.submit(self._bring_up_to_date)
            return self._run

    def count_stale(self, uow: UnitOfWork) -> int:
        """Return how many pairs have newer starts or questions than their rows; nothing is counted where nothing was
        committed since all rows were right."""
        return 0 if self._storage.stamp() == self._right_at else uow.fleet.stale_count()

    def close(self) -> None:
        """Stop after the rows at hand; the rest stays stale."""
        self._is_closed = True
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _bring_up_to_date(self) -> None:
        try:
            stamp = self._storage.stamp()
            if stamp == self._right_at:
                return
            with self._storage.read() as uow:
                stale = uow.fleet.stale()
            self._right_at = None if stale else stamp
            if stale:
                self._storage.write(lambda uow: uow.fleet.add_unknown(datetime.now(UTC))).result()
            for some in batched(stale, AT_ONCE):
                began = time.monotonic()
                if self._is_closed:
                    return
                look_at(self._storage, self._fits, some)
                time.sleep(min(LONGEST_PAUSE_SECONDS, time.monotonic() - began))
        except Exception:  # the rows stay stale and the next page begins again
            log.exception("fleet_not_up_to_date")


def look_at(storage: Storage, fits: FitCache, pairs: list[UUID]) -> None:
    """Look at pairs anew and keep what is found."""
    from kvyield_server.domain.model.drift import drifts  # scipy loads at the first fit

    rows: list[FleetRow] = []
    found: list[tuple[UUID, Drift]] = []
    for pair_id in pairs:
        with storage.read() as uow:
            pair = uow.pairs.get(pair_id)
            if pair is not None:
                fit = _fit(uow, fits, pair)
                rows.append(fleet_row(uow, pair, fit, datetime.now(UTC)))
                found += [(pair.id, each) for each in drifts(fit)] if fit else []
    storage.write(lambda uow: uow.fleet.save(rows, found)).result()


def _fit(uow: UnitOfWork, fits: FitCache, pair: Pair) -> PairFit | None:
    """Return the fits of a pair; None for one that cannot be fitted, which takes no other along."""
    try:
        return fits.of_pair(uow, pair)
    except KvyieldError:
        raise
    except Exception:
        log.exception("pair_not_fitted", pair_id=str(pair.id))
        return None


def fleet_row(uow: UnitOfWork, pair: Pair, fit: PairFit | None, now: datetime) -> FleetRow:
    """Return what runs in a pair, and whether it answers the last question that was kept for the pair."""
    row = FleetRow(
        pair_id=pair.id,
        revision=pair.revision,
        looked_at=now,
        model=pair.model.name,
        gpu=pair.hardware.gpu,
        gpu_count=pair.hardware.gpu_count,
        note=NOT_FITTED if fit is None else None,
    )
    asked = uow.recommendations.newest_of(pair.id)
    row = replace(row, recommendation_id=asked.id if asked else None)
    for newest in uow.observations.of_pair(pair.id, newest=1):
        start = newest.observation
        row = replace(row, newest_id=start.id, newest_at=start.observed_at, newest_outcome=start.outcome)
    found = running_fit(fit) if fit else None
    if found is None or found.runs is None:
        return row
    row = _with_what_runs(row, found, found.runs)
    return _with_verdict(row, found, asked.question) if asked else row


def running_fit(fit: PairFit) -> DeploymentFit | None:
    """Return the deployment of the newest start that came up; None when none did."""
    running = [(each.runs.observed_at, each.runs.id.int, each) for each in fit.deployments if each.runs]
    return max(running, key=lambda each: each[:2])[2] if running else None


def _with_what_runs(row: FleetRow, fit: DeploymentFit, runs: Observation) -> FleetRow:
    measured, last = runs.measurements, runs.verifications[-1] if runs.verifications else None
    headroom, prompt, is_measured = headroom_of(fit)
    return replace(
        row,
        engine=runs.engine.name,
        engine_version=runs.engine.version,
        deployment_id=fit.summary.deployment_id,
        observation_id=runs.id,
        observed_at=runs.observed_at,
        outcome=runs.outcome,
        host=runs.host,
        fraction=runs.fraction,
        pool_tokens=measured.pool_tokens,
        free_at_ready_gib=measured.free_at_ready_gib,
        free_is_bound=measured.free_at_ready_gib is not None
        and measured.free_at_ready_gib == measured.free_at_pool_end_gib,
        headroom_gib=headroom,
        headroom_tokens=prompt,
        headroom_is_measured=is_measured,
        verified_tokens=last.prompt_tokens if last else None,
        verified_passed=last.passed if last else None,
        verified_answer=last.answer if last else None,
    )


def headroom_of(fit: DeploymentFit) -> tuple[float | None, int | None, bool | None]:
    """Return GiB left at the peak of the longest verified prompt under the running flags, its tokens, and whether that
    was measured; None where it is not known."""
    prompt, runs = fit.summary.basis.verified_prompt_tokens, fit.runs
    if not prompt or runs is None:
        return None, None, None
    lowest = [
        each.lowest_free_gib
        for each in runs.verifications
        if each.passed and each.prompt_tokens == prompt and each.lowest_free_gib is not None
    ]
    if lowest:
        return min(lowest), prompt, True
    predicted = predicted_headroom(fit, prompt)
    return (None, prompt, None) if predicted is None else (predicted.median, prompt, False)


def predicted_headroom(fit: DeploymentFit, prompt_tokens: int) -> Estimate | None:
    """Return the headroom, GiB, that a prompt leaves under the flags of what runs; None where nothing tells it."""
    from kvyield_server.domain.advice.recommend import recommend  # scipy loads at the first answer

    fraction = fit.runs.fraction if fit.runs else None
    if fraction is None:
        return None
    held = {FRACTION_FLAG[fit.summary.engine]: fraction}
    return recommend(fit, Question(target_tokens=prompt_tokens, flags=held)).prediction.headroom_gib


def _with_verdict(row: FleetRow, fit: DeploymentFit, question: Question) -> FleetRow:
    from kvyield_server.domain.advice.recommend import recommend  # scipy loads at the first answer
    from kvyield_server.domain.engines.registry import translated

    held = translated(fit.summary.engine, question.flags)
    advice = recommend(fit, replace(question, flags=held, prefer=Prefer.KEEP, engine_version=None))
    if advice.headline is None:
        return row
    is_kept = advice.headline.code is HeadlineCode.KEEP
    verdict = (Verdict.YES if advice.status is Status.OK else Verdict.AT_RISK) if is_kept else Verdict.NO
    return replace(row, verdict=verdict, headline=advice.headline.text)
