"""From what a database driver raises to the tree in ``errors``."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    PendingRollbackError,
    StatementError,
)
from sqlalchemy.exc import (
    TimeoutError as PoolTimeoutError,
)

from kvyield_server.errors import ConflictError, InvalidError, KvyieldError, NotFoundError, StorageUnavailableError

_UNAVAILABLE = (OperationalError, InterfaceError, InternalError, PendingRollbackError, PoolTimeoutError)


_UNIQUE = {sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, "23505"}
_REFERENCE = {sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY, "23503"}
_RACES = {"40P01", "40001", "23505"}  # PostgreSQL: a deadlock, a transaction that could not be serialised, a taken key


def is_race(error: BaseException) -> bool:
    """Say whether another process was in the way, so that the same job may succeed when it is run again."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _RACES


def translated(error: BaseException) -> BaseException:
    """Return the error of our own tree that says the same, or the error itself when it is no database's."""
    if isinstance(error, IntegrityError):
        return _breach(error)
    if isinstance(error, DataError | OverflowError):
        return InvalidError([("", "holds a value that the database cannot hold")])
    if isinstance(error, _UNAVAILABLE) or type(error) is DatabaseError:  # the base class alone: a damaged file
        return unavailable(error)
    if isinstance(error, StatementError) and isinstance(error.orig, KvyieldError):
        return error.orig
    return error


def unavailable(error: BaseException) -> StorageUnavailableError:
    """Return a StorageUnavailableError caused by ``error``; what the driver said is in the cause alone."""
    if isinstance(error, StorageUnavailableError):
        return error
    result = StorageUnavailableError("The database did not confirm the request; it may be tried again.")
    result.__cause__ = error
    return result


def _breach(error: IntegrityError) -> KvyieldError:
    code = getattr(error.orig, "sqlite_errorcode", None) or getattr(error.orig, "sqlstate", None)
    if code in _UNIQUE:
        return ConflictError("Something with the same id or content is already stored.")
    if code in _REFERENCE:
        return NotFoundError("It refers to something that is not stored.")
    return InvalidError([("", "holds a value outside of what its column allows")])
