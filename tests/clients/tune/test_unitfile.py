"""Unit files: words are read and written as systemd reads them."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvyield._errors import TuneError
from kvyield.tune import unitfile

PRINTED = st.text(
    st.characters(min_codepoint=1, exclude_categories=["Cs", "Cc", "Zl", "Zp", "Cf", "Co", "Cn"]), max_size=12
)
TRICKY = st.sampled_from(
    ["", ";", "%", "%n", "$", "$A", "${A}", "$$", "\\", '"', "'", "a b", "\t", "#", "-", "\\;", "\\x20", "\xa0"]
)


@pytest.fixture
def analyzed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """The words that systemd itself reads of a value."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze on this host: nothing to compare with")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("FAKE_SYSTEMCTL_STATE", str(tmp_path))
    spec = importlib.util.find_spec("_fake_systemctl")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def read(value: str) -> list[str]:
        return list(module.analyzed(value, tmp_path / "analysis"))

    return read


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(PRINTED | TRICKY, min_size=1, max_size=12))
def test_systemd_reads_back_what_is_written(analyzed: Callable[[str], list[str]], words: list[str]) -> None:
    """Whatever is in the words; a dollar stays doubled until the service's variables are put in."""
    value = " ".join(map(unitfile.quoted, words))
    assert analyzed(value) == [word.replace("$", "$$") for word in words]
    assert list(unitfile.command(f"/bin/x {value}", {}, {}).argv[1:]) == words


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.lists(
        st.sampled_from(["a", " ", "  ", '"', "'", "\\", "\\x41", "\\s", "b c", '"d e"', "\\101", "é", "\\n", "\\\\"]),
        min_size=1,
        max_size=10,
    ).map("".join)
)
def test_words_are_split_as_systemd_splits_them(analyzed: Callable[[str], list[str]], value: str) -> None:
    """What systemd refuses is refused."""
    value = f"x{value}x"  # a backslash at the end would continue the line
    try:
        read: list[str] | None = analyzed(value)
    except ValueError:
        read = None
    if read is None:
        with pytest.raises(TuneError):
            unitfile.words(value)
    else:
        assert [word.text for word in unitfile.words(value)] == read


def test_lines_are_joined_and_comments_left_out() -> None:
    """A comment may stand between the lines of one value; two backslashes at the end do not continue it."""
    text = "; c\n[Unit]\nA=1\n[Service]\n ExecStart = /bin/x a \\\n# comment\n   b\\\n\nB=c\\\\\nnothing\nC=\n"
    assert [*unitfile.entries(text)] == [
        ("Unit", "A", "1"),
        ("Service", "ExecStart", "/bin/x a     b"),
        ("Service", "B", "c\\\\"),
        ("Service", "C", ""),
    ]


def test_variables_and_specifiers_are_put_in() -> None:
    """An unknown variable stays as it is written, so does what only systemd knows."""
    environment = {"A": "one 'two three'", "B": "x"}
    found = unitfile.command("-/bin/x $A ${A} pre${B}$$ $NO ${NO} %n %% %t", environment, {"n": "u.service"})
    assert found.prefix == "-"
    assert found.argv == (
        *("/bin/x", "one", "two three", "one 'two three'", "prex$", "$NO", "${NO}", "u.service", "%", "%t"),
    )
    assert found.origins == (0, 1, 1, 2, 3, 4, 5, 6, 7, 8)
    assert unitfile.command(":/bin/x $A", environment, {}).argv == ("/bin/x", "$A")


def test_what_did_not_change_is_written_as_it_stands() -> None:
    """Variables, specifiers and quotes of the file survive an edit of another word."""
    found = unitfile.command("/bin/x '--a' $F --m 1 %t", {"F": "--f 0.9 --g 'h i'"}, {})
    assert found.argv == ("/bin/x", "--a", "--f", "0.9", "--g", "h i", "--m", "1", "%t")
    changed = ("/bin/x", "--a", "--f", "0.9", "--g", "h i", "--m", "2", "%t")
    assert found.written(changed, (0, 1, 2, 3, 4, 5, 6, None, 8)) == "/bin/x '--a' $F --m 2 %t"
    changed = ("/bin/x", "--a", "--f", "0.8", "--g", "h i", "--m", "1", "%t", "$z")
    written = found.written(changed, (0, 1, 2, None, 4, 5, 6, 7, 8, None))
    assert written == """/bin/x '--a' --f 0.8 --g "h i" --m 1 %t "$$z\""""


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("/bin/a ; /bin/b", "several commands"),
        ("@/bin/a argv0", "@/bin/a"),
        ('/bin/a "b', "does not end"),
        ("", "empty"),
        ("-", "-"),
    ],
)
def test_a_command_that_cannot_be_written_again_is_refused(value: str, named: str) -> None:
    """The reason names what stands in the way."""
    with pytest.raises(TuneError, match=named):
        unitfile.command(value, {}, {})


def test_environment_files_are_read_as_systemd_reads_them() -> None:
    """Comments, quotes, a continued line; no expansion."""
    text = "# c\n;c\nA=1\n B = two words \nC='it''s' \nD=\"a\\\"b\\n\"\nE=x\\\n y\nno\n=z\nF=a\\ b # c\n"
    assert dict(unitfile.environment_file(text)) == {
        "A": "1",
        "B": "two words",
        "C": "its",
        "D": 'a"b\\n',
        "E": "x y",
        "F": "a b # c",
    }


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_plainly(text: str) -> None:
    """Nothing in a file ends in a traceback."""
    list(unitfile.entries(text))
    list(unitfile.environment_file(text))
    with contextlib.suppress(TuneError):
        command = unitfile.command(text.replace("\n", " "), {"a": text}, {})
        assert command.written(command.argv, tuple(range(len(command.argv))))
