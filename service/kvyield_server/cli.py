"""The command line: serve, and what an operator does beside it. Commands import what they need, so help is quick."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from kvyield_server import __version__
from kvyield_server.errors import InvalidError, KvyieldError, MissingExtraError
from kvyield_server.settings import Settings, settings_from, shown

ROLES = ("ingest", "read", "admin")
MOST_DAYS = 36_500
DATABASE = click.option(
    "--database", metavar="URL", help="sqlite:///file or postgresql+psycopg://... (KVYIELD_DATABASE)"
)


class Group(click.Group):
    """Commands whose foreseen errors are one sentence on standard error and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidError as error:
            raise click.ClickException("; ".join(text for _, text in error.errors)) from None
        except KvyieldError as error:
            raise click.ClickException(error.detail) from None
        except OSError as error:
            if error.filename is None:
                raise
            raise click.ClickException(f"{error.filename}: {error.strerror}") from None


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvyield-server")
def main() -> None:
    """Which memory flags to restart an LLM engine with: the service."""


@main.command()
@click.option("--host", metavar="ADDRESS", help="Address to listen on (KVYIELD_HOST, 127.0.0.1)")
@click.option("--port", type=int, help="Port to listen on; 0 takes a free one (KVYIELD_PORT, 8321)")
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    help="Serve a Unix socket of this name instead, until standard input ends: for kvyield --local",
)
@DATABASE
@click.option("--log-level", type=click.Choice(("debug", "info", "warning", "error")), help="(KVYIELD_LOG_LEVEL, info)")
def serve(socket_path: Path | None, **given: Any) -> None:
    """Serve the API and the pages until stopped; queued posts are written first."""
    from kvyield_server.serving import run

    run(settings_from(**given), socket_path)


@main.command("settings")
@DATABASE
def show_settings(database: str | None) -> None:
    """Print the settings in effect, without the database's password; fail when the database URL is wrong."""
    from kvyield_server.storage.connections import database_url

    settings = settings_from(database=database)
    database_url(settings.database)
    for name, value in shown(settings).items():
        click.echo(f"{name} = {value}")


@main.command()
def openapi() -> None:
    """Print the OpenAPI document."""
    from kvyield_server.api.openapi import document
    from kvyield_server.api.router import API

    click.echo(json.dumps(document(API), indent=2))


@main.group()
def db() -> None:
    """Manage the database: schema, backup, restore."""


@db.command()
@DATABASE
def upgrade(database: str | None) -> None:
    """Bring the schema to what this version needs."""
    from kvyield_server.storage import migrate

    url = settings_from(database=database).database
    migrate.upgrade(url)
    click.echo(f"The schema is at revision {migrate.current(url)}.")


@db.command()
@DATABASE
def current(database: str | None) -> None:
    """Print the schema's revision."""
    from kvyield_server.storage import migrate

    click.echo(migrate.current(settings_from(database=database).database) or "none")


@db.command()
@DATABASE
def check(database: str | None) -> None:
    """Exit with 1 when the schema is not what this version needs."""
    from kvyield_server.storage import migrate

    if wrong := migrate.check(settings_from(database=database).database):
        raise click.ClickException(" ".join(wrong))
    click.echo("The schema is as it should be.")


@db.command()
@DATABASE
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
def backup(database: str | None, target: Path) -> None:
    """Copy an embedded database to TARGET while the service runs."""
    from kvyield_server.storage.backup import backup as copy

    click.echo(f"{copy(settings_from(database=database).database, target)} bytes in {target}.")


@db.command()
@DATABASE
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def restore(database: str | None, source: Path) -> None:
    """Make the embedded database from a backup; an existing one is never overwritten."""
    from kvyield_server.storage.backup import restore as copy

    click.echo(f"{copy(settings_from(database=database).database, source)} bytes restored.")


@main.group()
def token() -> None:
    """Manage bearer tokens."""


@token.command("create")
@DATABASE
@click.option("--name", required=True, help="Who will use it")
@click.option(
    "--role",
    "roles",
    required=True,
    multiple=True,
    type=click.Choice(ROLES),
    help="ingest posts, read asks, admin manages; may be given twice",
)
@click.option("--expires", default="365d", show_default=True, help="Such as 90d or 12h, a date, or never")
def create_token(database: str | None, name: str, roles: tuple[str, ...], expires: str) -> None:
    """Make a token and print it: it is shown this once and kept only as a hash."""
    from kvyield_server.usecases.tokens import create

    with _storage(settings_from(database=database)) as storage:
        made, text = create(storage, name, roles, expires)
    click.echo(text)
    until = f"until {made.expires_at:%Y-%m-%d %H:%M} UTC" if made.expires_at else "without expiry"
    click.echo(f"Token {made.id} ({made.name}, {made.roles_text}) is valid {until}. It is not shown again.", err=True)


@token.command("list")
@DATABASE
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line")
def list_tokens(database: str | None, as_json: bool) -> None:
    """List tokens: names, roles, expiry and last use, never the tokens themselves."""
    from kvyield_server.usecases.tokens import described

    with _storage(settings_from(database=database)) as storage:
        rows = described(storage)
    for row in rows:
        click.echo(json.dumps(row) if as_json else "  ".join(str(value) for value in row.values() if value))


@token.command("revoke")
@DATABASE
@click.argument("which")
def revoke_token(database: str | None, which: str) -> None:
    """Revoke a token by its id, or by its name when only one has it."""
    from kvyield_server.usecases.tokens import revoke

    with _storage(settings_from(database=database)) as storage:
        revoked = revoke(storage, which)
    click.echo(f"Token {revoked.id} ({revoked.name}) is revoked.")


@main.command()
@DATABASE
@click.option("--format", "form", type=click.Choice(("ndjson", "csv", "parquet")), default="ndjson", show_default=True)
@click.option("--pair", "pair_id", type=click.UUID, help="One pair only")
def export(database: str | None, form: str, pair_id: UUID | None) -> None:
    """Write the ledger to standard output, newest first; ndjson is what import takes.

    parquet is a typed table for analysis and needs kvyield-server[parquet].
    """
    from kvyield_server.schemas.exports import archive_line, csv_head, csv_lines
    from kvyield_server.storage.archive import as_json
    from kvyield_server.storage.records import ObservationFilter
    from kvyield_server.usecases.archive import archive
    from kvyield_server.usecases.export import export as pages

    where, out = ObservationFilter(pair_id=pair_id), sys.stdout.buffer
    if form == "parquet":
        MissingExtraError.unless("pyarrow", "parquet", "A Parquet file")
        if sys.stdout.isatty():
            raise click.UsageError("A Parquet file is not text for a terminal: kvyield-server export ... > FILE.")
    with _storage(settings_from(database=database)) as storage:
        if form == "csv":
            out.write(csv_head())
            for page in pages(storage, where):
                out.write(csv_lines(page))
        elif form == "parquet":
            from kvyield_server.schemas.parquet import ParquetTable

            table = ParquetTable()
            for page in pages(storage, where):
                out.write(table.rows(page))
            out.write(table.end())
        else:
            for stored, kept in archive(storage, where):
                out.write(archive_line(stored, as_json(kept)))


@main.command("import")
@DATABASE
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_(database: str | None, source: Path) -> None:
    """Restore what export wrote: starts with all that belongs to them, and stored answers.

    What the ledger has already stays as it is. The whole file is read before anything is written.
    """
    from kvyield_server.usecases.archive import restore_all

    with _storage(settings_from(database=database)) as storage:
        for _ in _lines(source):
            pass
        done = restore_all(storage, _lines(source))
    click.echo(f"{done.starts} starts and {done.answers} recommendations restored; {done.known} starts were known.")


def _lines(source: Path) -> Iterator[Any]:
    import msgspec

    from kvyield_server.domain.records import StoredObservation
    from kvyield_server.schemas.exports import read_line
    from kvyield_server.schemas.strict import FaultyBodyError, MalformedJsonError
    from kvyield_server.storage.archive import archive_from

    with source.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                line = read_line(text)
                kept = archive_from(line.archive)
                # the pair is found or made when the line is kept
                stored = (
                    None
                    if line.start is None
                    else StoredObservation(**line.start, pair_id=line.start["observation"].id)
                )
            except (FaultyBodyError, MalformedJsonError, msgspec.ValidationError) as error:
                raise InvalidError([("", f"Line {number} of {source}: {error}")]) from None
            if stored is not None and kept.content_digest is not None:
                stored = replace(stored, content_digest=kept.content_digest)
            yield stored, kept


@main.command()
@DATABASE
@click.option("--older-than", type=click.IntRange(1, MOST_DAYS), required=True, metavar="DAYS", help="Age in days")
@click.option(
    "--export", "target", type=click.Path(dir_okay=False, path_type=Path), required=True, help="NDJSON file, made first"
)
def retire(database: str | None, older_than: int, target: Path) -> None:
    """Remove old starts that are retracted, or that no fit reads, after writing them to a file."""
    from datetime import UTC, datetime, timedelta

    from kvyield_server.schemas.exports import ndjson
    from kvyield_server.usecases.retention import retire as run

    now = datetime.now(UTC)
    with _storage(settings_from(database=database)) as storage:
        count = run(storage, now - timedelta(days=older_than), target, ndjson, now=now)
    click.echo(f"{count} starts are in {target} and no longer in the ledger.")


@main.command()
@DATABASE
def refit(database: str | None) -> None:
    """Fit all pairs anew and bring the pages of all pairs up to date; prints one line per deployment."""
    from kvyield_server.usecases.refit import refit as fits

    with _storage(settings_from(database=database)) as storage:
        for line in fits(storage):
            click.echo(line)


@contextmanager
def _storage(settings: Settings) -> Iterator[Any]:
    from kvyield_server.storage.engine import open_storage

    storage = open_storage(settings.database)
    try:
        yield storage
    finally:
        storage.close()
