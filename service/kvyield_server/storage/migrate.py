"""Migrations of the schema: found in the wheel and in a checkout, run under a lock, all or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from kvyield_server.errors import MigrationNeededError, StorageUnavailableError
from kvyield_server.storage.connections import Use, database_url, engine_for, is_sqlite
from kvyield_server.storage.faults import translated
from kvyield_server.storage.tables import metadata

_PACKAGE = Path(__file__).resolve().parents[1]


def scripts() -> Path:
    """Return the folder of the migrations: within the installed package, else at the top of the checkout."""
    installed = _PACKAGE / "migrations"
    return installed if installed.is_dir() else _PACKAGE.parents[1] / "migrations"


@cache
def head() -> str:
    """Return the revision that this version of the service needs."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def revision_of(connection: Connection) -> str | None:
    """Return the revision that a connected database is at; None when it was never migrated."""
    return MigrationContext.configure(connection).get_current_revision()


def current(url: str) -> str | None:
    """Return the revision of a database; None when it was never migrated."""
    if _missing_file(url):
        return None
    with _connected(url, Use.READ) as connection:
        return revision_of(connection)


def upgrade(url: str, revision: str = "head") -> None:
    """Bring a database to a revision, in one transaction.

    Two processes may do so at once: one waits, then finds nothing left to do. MigrationNeededError when the database
    is at a revision that this version does not know.
    """
    with _migrating(url) as config:
        command.upgrade(config, revision)


def downgrade(url: str, revision: str) -> None:
    """Take a database back to a revision (``base`` for none), in one transaction. Data in what goes is lost."""
    with _migrating(url) as config:
        command.downgrade(config, revision)


def check(url: str) -> list[str]:
    """Return what is wrong with a database's schema, a sentence each; an empty list when all is as it should be."""
    if file := _missing_file(url):
        return [f"There is no database file {file}; kvyield-server db upgrade makes it."]
    with _connected(url, Use.READ) as connection:
        found = revision_of(connection)
        if found != head():
            return [f"The schema is at revision {found}, and this version needs {head()}."]
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return [f"The schema differs: {difference}." for difference in compare_metadata(context, metadata)]


def require_current(url: str) -> None:
    """Raise MigrationNeededError, saying what to do, unless the schema is the one that this version needs."""
    with _connected(url, Use.READ) as connection:
        _refuse_unknown(connection)
        found = revision_of(connection)
    if found != head():
        raise MigrationNeededError(
            f"The database is at schema revision {found} and this version needs {head()}: "
            "run `kvyield-server db upgrade`."
        )


def _refuse_unknown(connection: Connection) -> None:
    found = revision_of(connection)
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if found is not None and found not in known:
        raise MigrationNeededError(
            f"The database is at schema revision {found}, which this version does not know: "
            "a newer kvyield-server made it."
        )


def _check_references(connection: Connection) -> None:
    """Foreign keys are off while SQLite migrates; look for rows that lost what they refer to."""
    if connection.dialect.name == "sqlite":
        lost = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        if lost:
            raise MigrationNeededError(f"The migration was undone: {len(lost)} rows would refer to nothing.")


@contextmanager
def _migrating(url: str) -> Iterator[Config]:
    with _connected(url, Use.MIGRATE) as connection:
        _refuse_unknown(connection)
        yield _config(connection)
        _check_references(connection)


@contextmanager
def _connected(url: str, use: Use) -> Iterator[Connection]:
    parsed = database_url(url)
    if use is Use.MIGRATE and is_sqlite(parsed):
        _make_file(Path(parsed.database or ""))
    engine = engine_for(parsed, use)
    try:
        with engine.connect() as connection, connection.begin():
            yield connection
    except SQLAlchemyError as error:
        failure = translated(error)
        if isinstance(failure, StorageUnavailableError):
            failure = StorageUnavailableError(f"{_place(url)} cannot be used: {_cause(error)}")
        raise failure from error
    finally:
        engine.dispose()


def _make_file(path: Path) -> None:
    """Make a SQLite file that only its owner may read; SQLite gives its log files the rights of the database."""
    with suppress(OSError):  # what stands in the way is said when the file is opened
        path.touch(mode=0o600, exist_ok=False)


def _missing_file(url: str) -> Path | None:
    """Return the file of a SQLite database that is not there: only looking must not make it."""
    parsed = database_url(url)
    file = Path(parsed.database or "")
    return file if is_sqlite(parsed) and not file.exists() and file.parent.is_dir() else None


def _place(url: str) -> str:
    parsed = database_url(url)
    if is_sqlite(parsed):
        return f"The database file {parsed.database}"
    host = parsed.host or parsed.query.get("host") or "its default host"
    return f"The database {parsed.database or 'of the user'} at {host}:{parsed.port or 5432}"


def _cause(error: SQLAlchemyError) -> str:
    """Return what the driver said, in one line; drivers tell no passwords."""
    return " ".join(str(getattr(error, "orig", None) or error).split())[:300]


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
