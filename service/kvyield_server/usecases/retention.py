"""Retention: take starts that no fit reads out of the ledger, written to a file first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from kvyield_server.domain.records import StoredObservation
from kvyield_server.errors import ConflictError
from kvyield_server.storage.uow import Storage, UnitOfWork
from kvyield_server.usecases.audit import COMMAND_LINE, audited
from kvyield_server.usecases.fits import MOST_STARTS

AT_ONCE = 500
Encode = Callable[[Iterable[StoredObservation]], bytes]


def retire(storage: Storage, before: datetime, target: Path, encode: Encode, *, now: datetime) -> int:
    """Remove starts observed before a time that are retracted, or superseded: beyond the newest 2,000 of their pair.

    Each group is on disk in ``target`` before it is removed. A start that settled a recommendation stays, so that
    calibration does not change. A spool that sends a removed start again stores it again. Return how many were removed.

    Raises:
        ConflictError: the file exists.
    """
    if target.exists():
        raise ConflictError(f"{target} exists; it is not overwritten.")
    removed = 0
    with target.open("xb") as file:
        target.chmod(0o600)
        while found := _expired(storage, before):
            _append(file, encode(found))
            removed += storage.write(_removal(found, before, now)).result()
    return removed


def _expired(storage: Storage, before: datetime) -> tuple[StoredObservation, ...]:
    with storage.read() as uow:
        return uow.observations.expired(before, MOST_STARTS, AT_ONCE)


def _append(file: BinaryIO, lines: bytes) -> None:
    file.write(lines)
    file.flush()
    os.fsync(file.fileno())


def _removal(found: Iterable[StoredObservation], before: datetime, now: datetime) -> Callable[[UnitOfWork], int]:
    ids = [stored.observation.id for stored in found]

    def job(uow: UnitOfWork) -> int:
        uow.observations.remove(ids)
        return len(ids)

    details = {"before": before.isoformat(), "removed": len(ids)}
    return audited(job, "retire", actor=COMMAND_LINE, now=now, subject=lambda _: ids[0], details=details)
