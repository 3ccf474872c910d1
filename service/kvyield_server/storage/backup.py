"""Backup and restore of an embedded database, while the service runs."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from kvyield_server.errors import ConflictError, InvalidError, NotFoundError
from kvyield_server.storage.connections import database_url, is_sqlite


def backup(url: str, target: Path) -> int:
    """Copy the database to a new file and return its size in bytes; readers and the writer go on meanwhile.

    Raises:
        ConflictError: the file exists.
        NotFoundError: there is no database to copy, or no folder to copy it to.
        InvalidError: the copy cannot be written, or the database is PostgreSQL, whose own tools do this better.
    """
    return _copy(_path(url), target)


def restore(url: str, source: Path) -> int:
    """Make the database from a backup and return its size in bytes.

    Raises:
        ConflictError: a database is there already.
        InvalidError: the backup is damaged, or the database is PostgreSQL.
    """
    return _copy(source, _path(url))


def _path(url: str) -> Path:
    parsed = database_url(url)
    if not is_sqlite(parsed):
        raise InvalidError([("/database", "PostgreSQL is copied with pg_dump and pg_restore; this is for SQLite.")])
    return Path(parsed.database or "")


def _copy(source: Path, target: Path) -> int:
    if target.exists():
        raise ConflictError(f"{target} exists; it is not overwritten.")
    if not source.exists():
        raise NotFoundError(f"There is no database {source}.")
    if not target.parent.is_dir():
        raise NotFoundError(f"There is no folder {target.parent}.")
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    with closing(sqlite3.connect(source)) as old:
        _check(old, source)
        try:
            with closing(sqlite3.connect(partial)) as new:
                old.backup(new)
                new.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.OperationalError as error:
            partial.unlink(missing_ok=True)
            raise InvalidError([("", f"{target} could not be written: {error}.")]) from None
    partial.chmod(0o600)
    os.link(partial, target)
    partial.unlink()
    return target.stat().st_size


def _check(database: sqlite3.Connection, path: Path) -> None:
    try:
        answer = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        answer = str(error)
    if answer != "ok":
        raise InvalidError([("", f"{path} is damaged or not a database: {answer}.")])
