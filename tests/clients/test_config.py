"""Settings: which source wins, and what is said about wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvyield import ConfigError
from kvyield.config import DEFAULT_URL, load_settings


def write(folder: Path, text: str) -> dict[str, str]:
    (folder / "config.toml").write_text(text)
    return {"KVYIELD_CONFIG": str(folder / "config.toml"), "HOME": str(folder)}


def test_flags_beat_the_environment_and_that_beats_the_file(tmp_path: Path) -> None:
    """Options win over variables, variables over the file, the file over defaults, and each says where it is from."""
    environment = write(tmp_path, 'url = "http://file"\ntoken = "file"\nspool = "~/queue"\n')
    assert load_settings(environment=environment).url == "http://file"
    environment |= {"KVYIELD_URL": "http://variable", "KVYIELD_TOKEN": " variable\n"}
    settings = load_settings(url="http://option", environment=environment)
    assert (settings.url, settings.token) == ("http://option", "variable")
    assert settings.sources["url"] == "option"
    assert settings.sources["token"] == "KVYIELD_TOKEN"
    bare = load_settings(environment={"HOME": str(tmp_path / "empty")})
    assert (bare.url, bare.token, bare.sources["url"]) == (DEFAULT_URL, None, "default")
    assert bare.spool == tmp_path / "empty" / ".local" / "state" / "kvyield" / "spool"


def test_a_token_can_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    """``token_file`` is read, and one that is not there is named."""
    (tmp_path / "token").write_text("kv-123\n")
    environment = write(tmp_path, f'token_file = "{tmp_path}/token"\n')
    assert load_settings(environment=environment).token == "kv-123"
    settings = load_settings(environment=environment)
    assert settings.sources["token"] == str(tmp_path / "token")


def test_a_token_file_that_cannot_be_read_is_no_reason_to_lose_what_was_observed(tmp_path: Path) -> None:
    """The settings can be had, so that the spool is known; asking the service says what is wrong with the file."""
    environment = write(tmp_path, 'token_file = "/nowhere"\nspool = "/var/spool/kv"\n')
    settings = load_settings(environment=environment)
    assert (settings.token, str(settings.spool)) == (None, "/var/spool/kv")
    assert "the token file /nowhere cannot be read" in (settings.token_fault or "")
    assert load_settings(environment=environment, token="kv-1").token_fault is None


def test_a_configuration_that_is_named_and_not_there_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``KVYIELD_CONFIG`` that leads nowhere is named on standard error; no file at the usual place is not mentioned."""
    missing = {"KVYIELD_CONFIG": "/no/such.toml", "HOME": str(tmp_path)}
    assert load_settings(environment=missing).url == DEFAULT_URL
    assert "KVYIELD_CONFIG names /no/such.toml, which does not exist" in capsys.readouterr().err
    assert load_settings(environment={"HOME": str(tmp_path)}).url == DEFAULT_URL
    assert capsys.readouterr().err == ""


def test_the_token_is_not_printed(tmp_path: Path) -> None:
    """Printing settings shows that there is a token, not the token."""
    assert "kv-123" not in repr(load_settings(token="kv-123", environment={"HOME": str(tmp_path)}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("url = ", "not TOML"),
        ("ulr = 'x'", "unknown field `ulr`; known are url, token"),
        ("url = 5", "got `int` - at `.\\.url`"),
        ("facts = 1", "Expected `object`, got `int` - at `.\\.facts`"),
        ("[facts]\ngpu_count = '8'", "at `.\\.facts.gpu_count`"),
        ("[facts]\ngpu_count = 0", "Expected `int` >= 1 - at `.\\.facts.gpu_count`"),
        ("[facts]\ngpus = 8", "unknown field `gpus` - at `.\\.facts`; known are .* gpu, gpu_count"),
        ("timeout_seconds = -1", "> 0.0 - at `.\\.timeout_seconds`"),
    ],
)
def test_wrong_files_are_told_by_place_and_name(tmp_path: Path, text: str, words: str) -> None:
    """A typing error in the file is an error that names the file, the key and what is known."""
    with pytest.raises(ConfigError, match=words):
        load_settings(environment=write(tmp_path, text))
