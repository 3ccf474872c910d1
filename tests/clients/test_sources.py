"""Logs from files, compressed or damaged, from stdin and from the commands of journald and containers."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from kvyield import SourceError, _bounded, sources
from kvyield.assemble import Extras
from kvyield.intake import read

LINES = [b"first\n", b"second \xff\n", b"last"]


def script(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a program of this name first on the path."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def zstd(data: bytes) -> bytes:
    """Two frames, as a log that was appended to after its first compression has."""
    zstandard = pytest.importorskip("zstandard")
    middle = len(data) // 2
    return b"".join(zstandard.ZstdCompressor().compress(part) for part in (data[:middle], data[middle:]))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress, zstd])
def test_files_are_read_as_lines_whatever_packs_them(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """Plain and compressed files give the same lines, told apart by content and not by name."""
    file = tmp_path / "any.name"
    file.write_bytes(pack(b"".join(LINES)))
    assert list(sources.file_source(file).lines()) == LINES


def test_a_truncated_archive_gives_what_it_holds_and_a_note(tmp_path: Path) -> None:
    """A compressed log that ends in the middle is read up to there, and it is said."""
    file = tmp_path / "log.gz"
    packed = gzip.compress(b"".join(b"line %d of many\n" % (number * 7919) for number in range(5000)))
    file.write_bytes(packed[: len(packed) // 2])
    source = sources.file_source(file)
    assert next(iter(source.lines())) == b"line 0 of many\n"
    assert len(list(source.lines())) > 100
    assert "ends in the middle" in source.notes[-1]


def test_a_truncated_zstd_file_gives_what_it_holds(tmp_path: Path) -> None:
    """The damage is noted or the end is reached; what came before is read."""
    file = tmp_path / "log.zst"
    packed = zstd(b"".join(b"line %d of many\n" % (number * 7919) for number in range(50_000)))
    file.write_bytes(packed[: len(packed) // 3])
    assert len(list(sources.file_source(file).lines())) > 100


def test_a_damaged_zstd_file_is_noted(tmp_path: Path) -> None:
    """Bytes that are not a frame are an honest note, not a traceback."""
    file = tmp_path / "log.zst"
    file.write_bytes(zstd(b"first line\n" * 1000)[:20] + b"\xff" * 4000)
    source = sources.file_source(file)
    list(source.lines())
    assert "is damaged" in source.notes[-1]


def test_zstd_without_its_package_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the standard library's module nor the package: the message names both ways out."""
    file = tmp_path / "log.zst"
    file.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    for module in ("compression.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SourceError, match=r"kvyield\[zstd\].*zstd -dc"):
        list(sources.file_source(file).lines())


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [
        ("utf-8", codecs.BOM_UTF8),
        ("utf-16-le", codecs.BOM_UTF16_LE),
        ("utf-16-be", codecs.BOM_UTF16_BE),
        ("utf-16-le", b""),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_log_that_windows_wrote_is_read_as_utf_8(
    tmp_path: Path, encoding: str, mark: bytes, pack: Callable[[bytes], bytes]
) -> None:
    """A byte order mark, or UTF-16 without one, packed or not, gives the same lines as UTF-8."""
    text = "INFO: erste Zeile ä\r\n" + "#tokens: 5\n" * 20_000 + "ends 😀 without a newline"
    file = tmp_path / "powershell.log"
    file.write_bytes(pack(mark + text.encode(encoding)))
    assert list(sources.file_source(file).lines()) == text.encode().splitlines(keepends=True)


def test_of_a_line_without_end_only_the_head_comes(tmp_path: Path) -> None:
    """A file without a single line end does not come as one piece of its whole size; the line after it is whole."""
    file = tmp_path / "binary"
    file.write_bytes(b"x" * (_bounded.LONGEST_LINE_BYTES * 9 + 5) + b"\nnext\n")
    first, second = sources.file_source(file).lines()
    assert (len(first), second) == (_bounded.LONGEST_LINE_BYTES + 1, b"next\n")


def test_what_a_progress_bar_left_last_is_kept(tmp_path: Path) -> None:
    """A bar that writes over itself makes one long line; its last state comes with the head."""
    file = tmp_path / "bar.log"
    file.write_bytes(b"first " + b"\r 17% of it" * 60_000 + b"\r100% of it\n")
    [line] = sources.file_source(file).lines()
    assert line.startswith(b"first ")
    assert line.endswith(b"\r100% of it\n")
    assert len(line) < 2 * _bounded.LONGEST_LINE_BYTES


def test_no_more_is_read_of_a_source_than_was_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log over the bound is read up to it; one that unpacks a thousandfold is left; both are noted."""
    file = tmp_path / "large.log"
    file.write_bytes(b"line\n" * 1000)
    source = sources.file_source(file, most_bytes=100)
    assert len(list(source.lines())) == 20
    assert "--max-bytes" in source.notes[-1]
    monkeypatch.setattr(_bounded, "MOST_OF_A_BOMB_BYTES", 2**22)
    (tmp_path / "bomb.xz").write_bytes(lzma.compress(bytes(2**25)))
    bomb = sources.file_source(tmp_path / "bomb.xz")
    assert sum(map(len, bomb.lines())) <= 2 * _bounded.LONGEST_LINE_BYTES
    assert "times its size" in bomb.notes[-1]


def test_long_lines_do_not_fill_the_memory(tmp_path: Path) -> None:
    """A thousand lines of a quarter of a MiB are read in a few tens of MiB."""
    file = tmp_path / "zeros.log.gz"
    file.write_bytes(gzip.compress((b"x" * (2**18 - 1) + b"\n") * 800, 1))
    code = (
        "import re, sys; from pathlib import Path; from kvyield.intake import read_file; "
        "from kvyield.assemble import Extras; read_file(Path(sys.argv[1]), Extras(), None); "
        "print(re.search('VmHWM:[^0-9]*([0-9]+)', Path('/proc/self/status').read_text())[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, check=True, timeout=60)
    assert int(done.stdout) < 120_000


def test_a_pipe_is_read_to_its_end_and_not_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe as a log is legitimate; one that nobody writes to ends with an error that says so."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(gzip.compress(b"one\ntwo\n")))
    writer.start()
    assert list(sources.file_source(tmp_path / "pipe").lines()) == [b"one\n", b"two\n"]
    writer.join()
    monkeypatch.setattr(_bounded, "SILENCE_SECONDS", 0.2)
    with pytest.raises(SourceError, match="was silent"):
        list(sources.file_source(tmp_path / "pipe").lines())


def test_missing_files_are_named_with_what_would_be_right(tmp_path: Path) -> None:
    """A path that is not there, a folder, or an unreadable file is told by name."""
    for path, words in (
        (tmp_path / "no.log", "holds no no.log"),
        (tmp_path / "a" / "b.log", "exists"),
        (tmp_path, "is a folder"),
    ):
        with pytest.raises(SourceError, match=words):
            list(sources.file_source(path).lines())


def test_names_stand_for_files_folders_and_globs(tmp_path: Path) -> None:
    """Folders give the logs below them, globs what fits, and nothing is read twice."""
    for name in ("a.log", "b.log.1.gz", "sub/c.txt", "sub/model.safetensors", ".hidden.log", "config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = sources.expand([str(tmp_path), str(tmp_path / "*.log"), str(tmp_path / "config.json")])
    assert [file.name for file in found] == ["a.log", "b.log.1.gz", "c.txt", "config.json"]
    for name in ("no-such", "*.nothing", str(tmp_path / "sub" / "..") + "/*.zip"):
        with pytest.raises(SourceError):
            sources.expand([name])


def test_pipes_and_devices_are_not_imported(tmp_path: Path) -> None:
    """A name that is not a regular file could be read without end, so it is refused."""
    os.mkfifo(tmp_path / "pipe.log")
    for name in (str(tmp_path / "pipe.log"), "/dev/zero"):
        with pytest.raises(SourceError, match="not a regular file"):
            sources.expand([name])


def test_the_journal_is_asked_for_all_lines_with_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """journalctl gets the unit and is told to show full times and long lines."""
    script(tmp_path, "journalctl", 'echo "$@"', monkeypatch)
    [line] = sources.journal_source("sglang.service", since="-2 h").lines()
    words = line.decode().split()
    assert words[:2] == ["--unit", "sglang.service"]
    assert {"short-iso-precise", "--utc", "--all", "--no-pager", "--since"} <= set(words)
    [own] = sources.journal_source("user:sglang.service").lines()
    assert own.decode().split()[:2] == ["--user-unit", "sglang.service"]


def test_containers_give_both_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines log to standard error, so both outputs of a container are read."""
    script(tmp_path, "docker", 'echo out; echo err >&2; echo "$@"', monkeypatch)
    script(tmp_path, "kubectl", 'echo "$@"', monkeypatch)
    assert list(sources.docker_source("engine").lines()) == [b"out\n", b"err\n", b"logs --timestamps engine\n"]
    source = sources.kubernetes_source("pod-0", namespace="llm", container="engine", previous=True)
    [line] = source.lines()
    assert line == b"logs --timestamps --namespace llm --container engine --previous pod-0\n"
    assert not source.is_local


def test_a_command_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When docker or journalctl says no, its words and a hint are in the error."""
    script(tmp_path, "docker", "echo 'No such container: x' >&2; exit 1", monkeypatch)
    with pytest.raises(SourceError, match=r"No such container.*does `docker ps -a`"):
        list(sources.docker_source("x").lines())


def test_a_command_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host without kubectl the error says so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="no kubectl on this host"):
        list(sources.kubernetes_source("x").lines())


def test_a_command_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that never answers does not hold the client, and its process does not stay behind."""
    script(tmp_path, "docker", "echo hello; exec sleep 60", monkeypatch)
    monkeypatch.setattr(_bounded, "SILENCE_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(SourceError, match="was silent"):
        list(sources.docker_source("x").lines())
    assert time.monotonic() - began < 5.0


def test_leaving_early_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that stops after the first line leaves no process behind."""
    pid_file = tmp_path / "pid"
    script(tmp_path, "journalctl", f"echo $$ > {pid_file}; echo one; exec sleep 60", monkeypatch)
    lines = sources.journal_source("x").lines()
    assert next(lines) == b"one\n"
    lines.close()  # type: ignore[attr-defined]  # a generator
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_stamps_without_a_year_get_it_from_the_files_own_time(tmp_path: Path) -> None:
    """vLLM prints no year: equal starts of two years are told apart by when their files were written."""
    line = b"INFO 12-30 12:07:59 [kv_cache_utils.py:2177] GPU KV cache size: 689,248 tokens\n"
    line += b"INFO:     Application startup complete.\n"
    times = []
    for year in (2022, 2024):
        log = tmp_path / f"{year}.log"
        log.write_bytes(line)
        written = datetime(year, 12, 31, tzinfo=timezone.utc).timestamp()
        os.utime(log, (written, written))
        times += [start.draft["observed_at"] for start in read(sources.file_source(log), Extras()).starts]
    assert [str(moment)[:4] for moment in times] == ["2022", "2024"]
