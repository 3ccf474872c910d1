"""Refit: all pairs anew, for the pages of all pairs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from kvyield_server.errors import KvyieldError
from kvyield_server.storage.uow import Storage
from kvyield_server.usecases.browse import stored_pair
from kvyield_server.usecases.fits import FitCache
from kvyield_server.usecases.fleet import look_at


def refit(storage: Storage) -> Iterator[str]:
    """Fit every pair, bring its row of the fleet up to date, and yield a line per deployment.

    A pair that could not be fitted is one line that says so.
    """
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
            look_at(storage, fits, [pair.id])
            for summary in (deployment.summary for deployment in fit.deployments):
                yield f"{name.gpu_count} x {name.gpu}, {name.model}: {summary.deployment}, {summary.basis.kind}"
