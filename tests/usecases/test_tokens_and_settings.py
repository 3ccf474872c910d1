"""Tokens from the command line, settings from the environment, backups of the embedded database."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from _storages import fresh_storage
from kvyield_server.cli import main
from kvyield_server.domain.facts.observation import Hardware, Model
from kvyield_server.domain.model.fit import PairFit
from kvyield_server.errors import AmbiguousError, ConflictError, InvalidError, NotFoundError
from kvyield_server.settings import Settings, settings_from, shown, without_password
from kvyield_server.storage.backup import backup, restore
from kvyield_server.storage.engine import open_storage
from kvyield_server.storage.records import Pair
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.fits import FitCache
from kvyield_server.usecases.refit import refit
from kvyield_server.usecases.tokens import create, described, expiry, revoke

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90d", NOW + timedelta(days=90)),
        ("12h", NOW + timedelta(hours=12)),
        ("2026-06-01", datetime(2026, 6, 1, tzinfo=UTC)),
        ("2026-06-01T02:00:00+02:00", datetime(2026, 6, 1, tzinfo=UTC)),
        ("never", None),
    ],
)
def test_expiry_is_read(text: str, moment: datetime | None) -> None:
    """A length of time, a date, a moment or never."""
    assert expiry(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "soon", "d", "-5d", "5w", "2020-01-01", "0d", "9999999999d", "1.5d"])
def test_other_expiries_are_refused(text: str) -> None:
    """Anything else, and the past, is refused by name."""
    with pytest.raises(InvalidError) as caught:
        expiry(text, NOW)
    assert caught.value.errors[0][0] == "/expires"


def test_a_name_that_two_tokens_have_is_not_enough_to_revoke() -> None:
    """With two valid tokens of one name the id is asked for; with one the name does."""
    storage = fresh_storage()
    first, _ = create(storage, "ci", ["read"], "1d")
    create(storage, "ci", ["ingest"], "1d")
    with pytest.raises(AmbiguousError, match=str(first.id)):
        revoke(storage, "ci")
    assert revoke(storage, str(first.id)).revoked_at is not None
    assert revoke(storage, "ci").roles_text == "ingest"
    with pytest.raises(NotFoundError):
        revoke(storage, "ci")
    assert {row["state"] for row in described(storage)} == {"revoked"}


def test_settings_come_from_options_then_environment_then_defaults() -> None:
    """An option wins over a variable, a variable over the default; an empty variable is none."""
    environment = {"KVYIELD_PORT": "9000", "KVYIELD_HOST": "::1", "KVYIELD_DATABASE": ""}
    settings = settings_from(environment, port=9001, host=None)
    assert (settings.port, settings.host, settings.database) == (9001, "::1", Settings().database)
    assert settings_from({}) == Settings()


@pytest.mark.parametrize(
    "environment", [{"KVYIELD_PORT": "x"}, {"KVYIELD_PORT": "70000"}, {"KVYIELD_LOG_LEVEL": "loud"}]
)
def test_bad_settings_are_refused(environment: dict[str, str]) -> None:
    """A setting of the wrong type or out of bounds is refused with a sentence."""
    with pytest.raises(InvalidError):
        settings_from(environment)


def test_the_password_of_the_database_is_never_shown() -> None:
    """Printed settings and logs have the address without the password."""
    url = "postgresql+psycopg://user:p%40ss:w0rd@db.example:5432/kvyield"
    assert without_password(url) == "postgresql+psycopg://user:***@db.example:5432/kvyield"
    assert "w0rd" not in str(shown(Settings(database=url)))
    assert without_password("sqlite:///kvyield.db") == "sqlite:///kvyield.db"


def test_a_backup_restores_the_ledger(tmp_path: Path) -> None:
    """A copy taken while the database is open holds what was in it, and nothing is overwritten either way."""
    url, copy, other = (f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "copy.db", f"sqlite:///{tmp_path / 'b.db'}")
    storage = open_storage(url)
    storage.write(lambda uow: uow.pairs.ensure(Hardware(gpu="H200", gpu_count=1), Model(name="m"))).result()
    assert backup(url, copy) > 0
    storage.close()
    with pytest.raises(ConflictError):
        backup(url, copy)
    assert restore(other, copy) > 0
    with pytest.raises(ConflictError):
        restore(other, copy)
    restored = open_storage(other)
    with restored.read() as uow:
        assert [name.gpu for name in uow.pairs.names()] == ["H200"]
    restored.close()


def test_a_damaged_backup_is_not_restored(tmp_path: Path) -> None:
    """A file that is not a database is refused and leaves nothing behind."""
    source = tmp_path / "noise.db"
    source.write_bytes(b"noise" * 1000)
    with pytest.raises(InvalidError):
        restore(f"sqlite:///{tmp_path / 'b.db'}", source)
    assert not (tmp_path / "b.db").exists()


@pytest.mark.parametrize("words", [["db", "upgrade"], ["db", "check"], ["db", "current"], ["refit"], ["export"]])
def test_commands_work_on_a_fresh_database(tmp_path: Path, words: list[str]) -> None:
    """Each command exits with 0 on a database that is as it should be."""
    url = f"sqlite:///{tmp_path / 'kvyield.db'}"
    assert CliRunner().invoke(main, ["db", "upgrade", "--database", url]).exit_code == 0
    answer = CliRunner().invoke(main, [*words, "--database", url])
    assert (answer.exit_code, answer.exception) == (0, None)


@pytest.mark.parametrize("words", [["db", "check"], ["token", "create", "--name", "x", "--role", "read"]])
def test_a_bad_database_is_one_sentence(words: list[str]) -> None:
    """A URL of another kind of database is refused without a traceback."""
    answer = CliRunner().invoke(main, [*words, "--database", "mysql://x"])
    assert answer.exit_code == 1
    assert answer.output.startswith("Error: ")


def test_a_database_of_another_kind_is_named_with_what_would_be_right() -> None:
    """The message says what the URL begins with, and never the rest, which may hold a password."""
    answer = CliRunner().invoke(main, ["settings", "--database", "mysql://ann:secret@db/kvyield"])
    wanted = "The database URL begins with mysql://; it must begin with sqlite:/// or postgresql+psycopg://."
    assert (answer.exit_code, answer.output.strip()) == (1, f"Error: {wanted}")


@pytest.mark.parametrize("folder", ["missing", "a-file"])
def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path, folder: str) -> None:
    """Retiring to a folder that is not there, or is a file, names the path and removes nothing."""
    (tmp_path / "a-file").touch()
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    target = tmp_path / folder / "retired.ndjson"
    assert CliRunner().invoke(main, ["db", "upgrade", "--database", url]).exit_code == 0
    answer = CliRunner().invoke(main, ["retire", "--older-than", "1", "--export", str(target), "--database", url])
    assert answer.exit_code == 1
    assert isinstance(answer.exception, SystemExit)
    assert answer.output.startswith(f"Error: {target}: ")
    answer = CliRunner().invoke(main, ["db", "backup", str(target), "--database", url])
    assert (answer.exit_code, answer.output) == (1, f"Error: There is no folder {target.parent}.\n")


def test_an_age_beyond_the_calendar_is_refused() -> None:
    """Two hundred million years have no date; the message says what is allowed."""
    answer = CliRunner().invoke(main, ["retire", "--older-than", "99999999999", "--export", "x"])
    assert answer.exit_code == 2
    assert "is not in the range 1<=x<=36500" in answer.output


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "postgresql"])
@pytest.mark.parametrize("words", [["db", "upgrade"], ["db", "check"], ["token", "list"]])
def test_a_database_that_does_not_answer_is_named(scheme: str, words: list[str]) -> None:
    """The sentence says which database at which host and why, without the password."""
    url = f"{scheme}://someone:hunter2@127.0.0.1:1/none"
    result = CliRunner().invoke(main, [*words, "--database", url])
    assert result.exit_code == 1
    assert "The database none at 127.0.0.1:1 cannot be used:" in result.output
    assert "refused" in result.output
    assert "hunter2" not in result.output


@pytest.mark.parametrize("words", [["db", "check"], ["db", "current"]])
def test_looking_at_a_missing_file_does_not_make_it(tmp_path: Path, words: list[str]) -> None:
    """db check says that the file is missing, db current that there is no revision; neither makes the file."""
    file = tmp_path / "missing.db"
    result = CliRunner().invoke(main, [*words, "--database", f"sqlite:///{file}"])
    assert (str(file) in result.output) if words[1] == "check" else (result.output == "none\n")
    assert list(tmp_path.iterdir()) == []


def test_a_pair_that_cannot_be_fitted_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """refit names it and goes on."""
    storage = fresh_storage()
    h200 = Hardware(gpu="H200", gpu_count=1)
    storage.write(lambda uow: uow.pairs.ensure_all([(h200, Model(name=name)) for name in ("m0", "m1")])).result()
    broken = FitCache.of_pair

    def of_pair(self: FitCache, uow: UnitOfWork, pair: Pair) -> PairFit:
        if pair.model.name == "m0":
            raise ZeroDivisionError
        return broken(self, uow, pair)

    monkeypatch.setattr(FitCache, "of_pair", of_pair)
    assert list(refit(storage)) == ["1 x H200, m0: could not be fitted (ZeroDivisionError)"]


@pytest.mark.parametrize("password", ["p@ss", "pa/ss", "p?ss", "p#ss", "a@b/c@d"])
def test_no_part_of_a_password_is_printed(password: str) -> None:
    """A password with characters that end a part of a URL is hidden whole, and the mistake is named."""
    url = f"postgresql+psycopg://user:{password}@db.example/kvyield"
    assert without_password(url) == "postgresql+psycopg://user:***@db.example/kvyield"
    result = CliRunner().invoke(main, ["settings", "--database", url])
    assert (result.exit_code, "%40" in result.output) == (1, True)
    for command in (["db", "current"], ["settings"], ["refit"]):
        said = CliRunner().invoke(main, [*command, "--database", url])
        assert said.exit_code == 1
        assert all(part not in said.output for part in (password, password[1:], "ss@", "d@"))


def test_a_password_in_the_query_is_not_printed() -> None:
    """libpq takes a password as a parameter too."""
    url = "postgresql+psycopg://db.example/kvyield?password=secret&sslpassword=hidden&connect_timeout=3"
    assert without_password(url).endswith("/kvyield?password=***&sslpassword=***&connect_timeout=3")


@pytest.mark.parametrize("database", ["mysql://host/x", "nonsense", "sqlite://"])
def test_settings_with_a_wrong_database_fail(database: str) -> None:
    """A script that checks the settings notices."""
    result = CliRunner().invoke(main, ["settings", "--database", database])
    assert result.exit_code == 1
    assert "Traceback" not in result.output


def test_the_database_file_is_its_owners(tmp_path: Path) -> None:
    """A new SQLite file and what SQLite puts beside it can be read by nobody else, whatever the umask."""
    before = os.umask(0)
    try:
        storage = open_storage(f"sqlite:///{tmp_path / 'kvyield.db'}")
        storage.write(lambda uow: uow.pairs.names()).result()
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        storage.close()
    finally:
        os.umask(before)
    assert "kvyield.db" in modes
    assert set(modes.values()) == {0o600}
