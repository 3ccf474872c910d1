"""Refit: all pairs anew, their fits kept for the history."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from kvyield_server.domain.answers import FitSummary
from kvyield_server.errors import KvyieldError
from kvyield_server.storage.records import Pair
from kvyield_server.storage.uow import Storage
from kvyield_server.usecases.browse import stored_pair
from kvyield_server.usecases.fits import FitCache
from kvyield_server.usecases.fleet import look_at


def refit(storage: Storage) -> Iterator[str]:
    """Fit every pair, keep the fits, and yield a line per deployment, or one for a pair that could not be fitted."""
    with ThreadPoolExecutor(1) as executor:
        fits = FitCache(executor)
        with storage.read() as uow:
            names = uow.pairs.names()
        for name in names:
            with storage.read() as uow:
                pair = stored_pair(uow, name.id)
                try:
                    fit = fits.of_pair(uow, pair)
                except KvyieldError:
                    raise
                except Exception as error:
                    yield f"{name.gpu_count} x {name.gpu}, {name.model}: could not be fitted ({type(error).__name__})"
                    continue
            summaries = [deployment.summary for deployment in fit.deployments]
            store_fits(storage, pair, summaries)
            look_at(storage, fits, [pair.id])
            for summary in summaries:
                yield f"{name.gpu_count} x {name.gpu}, {name.model}: {summary.deployment}, {summary.basis.kind}"


def store_fits(storage: Storage, pair: Pair, summaries: list[FitSummary]) -> None:
    """Keep the fits of a pair as of its revision."""
    now = datetime.now(UTC)
    storage.write(lambda uow: uow.fits.save(pair.id, pair.revision, summaries, now)).result()
