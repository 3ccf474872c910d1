"""``--write FILE``: flags are replaced where they stand, all other text stays, and what was there is put back."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvyield._errors import TuneError
from kvyield.tune import composefile, unitfile
from kvyield.tune.commandline import flags_of
from kvyield.tune.splicing import shell_words
from kvyield.tune.written import MARK, Written


def written(path: Path, form: Any = "args", command: str = "true", engine: str | None = "vllm") -> Written:
    """A launcher of a file."""
    return Written(path, form, command, engine)


def test_args_are_one_line_and_the_file_goes_where_there_was_none(tmp_path: Path) -> None:
    """What a new file holds, twice the same, and nothing after it is put back."""
    launcher = written(tmp_path / "flags")
    before = launcher.snapshot()
    assert json.loads(json.dumps(before)) == before
    launcher.apply({"gpu_memory_utilization": 0.9, "max_model_len": 200007})
    launcher.apply({"gpu_memory_utilization": 0.9, "max_model_len": 200007})
    assert launcher.path.read_text() == "--gpu-memory-utilization 0.9 --max-model-len 200007\n"
    launcher.restore(before)
    launcher.restore(before)
    assert [one for one in tmp_path.iterdir() if one.is_file()] == []
    assert launcher.restore_commands(before) == [f"rm -f {launcher.path}", "true"]


def test_flags_that_are_not_asked_for_and_comments_stay(tmp_path: Path) -> None:
    """Byte for byte, with the file's mode."""
    path = tmp_path / "flags"
    path.write_text("# ours\n--served-model-name 'a b'  --max-num-seqs=8 \\\n  $EXTRA # why\n--enforce-eager\n")
    path.chmod(0o640)
    launcher = written(path)
    before = launcher.snapshot()
    launcher.apply({"max_num_seqs": 4, "enforce_eager": None, "max_model_len": 5})
    assert path.read_text() == (
        "# ours\n--served-model-name 'a b'  --max-num-seqs=4 \\\n  $EXTRA # why\n--max-model-len 5\n"
    )
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o600)
    launcher.restore(before)
    assert launcher.snapshot() == before
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    """The file that it names is written."""
    (tmp_path / "real").write_text("--max-num-seqs 8\n")
    (tmp_path / "link").symlink_to("real")
    launcher = written(tmp_path / "link")
    before = launcher.snapshot()
    launcher.apply({"max_num_seqs": 4})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "--max-num-seqs 4\n"
    launcher.restore(before)
    assert (tmp_path / "real").read_text() == "--max-num-seqs 8\n"
    assert launcher.key == written(tmp_path / "real").key


SYSTEMD = """# ours
[Unit]
Description=x

[Service]
Environment=A=1 "KVYIELD_FLAGS=--max-num-seqs 8 --x '100%%'" B=2
# ExecStart=
"""


def test_the_variable_of_a_drop_in_is_edited(tmp_path: Path) -> None:
    """As ``kvyield recommend --format systemd`` prints it; what stands beside it stays."""
    path = tmp_path / "50-kvyield.conf"
    path.write_text(SYSTEMD)
    launcher = written(path, "systemd")
    launcher.apply({"max_num_seqs": 4, "max_model_len": 5})
    [line] = [one for one in path.read_text().splitlines() if one.startswith("Environment")]
    assert dict(unitfile.assignments(line.partition("=")[2], {})) == {
        "A": "1",
        "KVYIELD_FLAGS": "--max-num-seqs 4 --x '100%' --max-model-len 5",
        "B": "2",
    }
    assert path.read_text().replace(line, "") == SYSTEMD.replace(SYSTEMD.splitlines()[5], "")
    text = path.read_text()
    launcher.apply({"max_num_seqs": 4, "max_model_len": 5})
    assert path.read_text() == text
    new = written(tmp_path / "new.conf", "systemd")
    new.apply({"max_num_seqs": 4})
    assert new.path.read_text() == '[Service]\nEnvironment="KVYIELD_FLAGS=--max-num-seqs 4"\n'


def test_the_command_of_a_unit_is_edited(tmp_path: Path) -> None:
    """Where the file has the engine's own ``ExecStart=``."""
    path = tmp_path / "llm.service"
    path.write_text("[Service]\nExecStart=-/opt/vllm serve m \\\n # many\n --max-num-seqs 8 $MORE\nRestart=always\n")
    launcher = written(path, "systemd", engine=None)
    launcher.apply({"max_num_seqs": 4})
    assert path.read_text() == (
        "[Service]\n # many\nExecStart=-/opt/vllm serve m --max-num-seqs 4 $MORE\nRestart=always\n"
    )
    path.write_text("[Service]\nExecStart=a\nExecStart=b\n")
    with pytest.raises(TuneError, match="2 ExecStart="):
        launcher.apply({"max_num_seqs": 4})


COMPOSE = """\
# ours
x-base: &base
  restart: always
services:
  proxy:
    image: nginx
    command: nginx -g 'daemon off;'
  llm:   # the engine
    <<: *base
    image: vllm/vllm-openai:v0.11.0
    command: %s
    environment: {A: "1"}
"""
LISTS = [
    '["m", "--max-num-seqs", "8", "--api-key", "$${KEY}", \'--enforce-eager\']',
    """
      - m
      - --max-num-seqs   # few
      - "8"
      - --api-key
      - $${KEY}
      - --enforce-eager""",
]
TEXTS = [
    "m --max-num-seqs 8 --api-key $${KEY} --enforce-eager",
    '"m --max-num-seqs 8 --api-key $${KEY} --enforce-eager"',
    "'m --max-num-seqs 8 --api-key $${KEY} --enforce-eager'",
    ">-\n      m\n      --max-num-seqs 8\n      --api-key $${KEY}\n      --enforce-eager",
    "|\n      m --max-num-seqs 8\n      --api-key $${KEY} --enforce-eager\n",
    "m --max-num-seqs 8\n      --api-key $${KEY}\n      --enforce-eager",
]


def _command(text: str) -> list[str]:
    command = yaml.safe_load(text)["services"]["llm"]["command"]
    words = command if isinstance(command, list) else [one.text for one in shell_words(command)]
    assert all(isinstance(word, str) for word in words)
    return [word.replace("$$", "$") for word in words]


@pytest.mark.parametrize("command", [*LISTS, *TEXTS])
def test_a_compose_command_is_edited_where_it_stands(tmp_path: Path, command: str) -> None:
    """As a list or a text in any of YAML's styles; everything else of the file stays as it is, comments too."""
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE % command)
    launcher = written(path, "compose", "docker compose up -d llm", engine=None)
    before = launcher.snapshot()
    flags = {"max_num_seqs": 4, "max_model_len": 200007, "speculative_config": '{"method": "mtp"}'}
    launcher.apply({**flags, "enforce_eager": None})
    text = path.read_text()
    assert _command(text) == [
        *("m", "--max-num-seqs", "4", "--api-key", "${KEY}", "--max-model-len", "200007"),
        *("--speculative-config", '{"method": "mtp"}'),
    ]
    head, tail = (COMPOSE % "|").split("|")
    assert text.startswith(head)
    assert text.endswith(tail)
    if "few" in command:
        assert "# few" in text
    launcher.apply({**flags, "enforce_eager": None})
    assert path.read_text() == text
    launcher.apply({"max_num_seqs": 8, "max_model_len": None, "speculative_config": None, "enforce_eager": True})
    assert _command(path.read_text()) == _command(COMPOSE % command)
    launcher.restore(before)
    assert path.read_text() == COMPOSE % command


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("vllm serve ${M:-a b} --max-num-seqs ${N:?say n} # c", "vllm serve ${M:-a b} --max-num-seqs 4 # c"),
        ("!override [vllm, serve, m, --max-num-seqs=8]", "!override [vllm, serve, m, --max-num-seqs=4]"),
        (
            "[\n  vllm, serve, m, # c\n  --max-num-seqs, 8,\n  ]",
            '[\n  vllm, serve, m, # c\n  --max-num-seqs, "4",\n  ]',
        ),
        ("[vllm, serve, m, --max-num-seqs, 8]  # c", '[vllm, serve, m, --max-num-seqs, "4"]  # c'),
        ("|\n      vllm serve m \\\n        --max-num-seqs 8", "|\n      vllm serve m \\\n        --max-num-seqs 4"),
        ("\r\n    - vllm\r\n    - serve", '\r\n    - vllm\r\n    - serve\r\n    - --max-num-seqs\r\n    - "4"'),
    ],
)
def test_what_people_write_in_compose_files_stays(before: str, after: str) -> None:
    """Variables with blanks inside, tags, numbers, comments, continued lines, Windows' ends of lines."""
    text = "services:\n  a:\n    command: {}\n    init: true\n"
    new, _, _ = composefile.edited(text.format(before), {"max_num_seqs": 4})
    assert new == text.format(after)


@pytest.mark.parametrize("command", LISTS)
def test_one_changed_value_changes_one_line(command: str) -> None:
    """The smallest edit there is."""
    text = COMPOSE % command
    new, _, _ = composefile.edited(text, {"max_num_seqs": 4})
    assert new == text.replace('"8"', '"4"') or new == text.replace('"8"', "4")
    assert _command(new)[2] == "4"


def test_an_entrypoint_may_hold_the_program_or_all(tmp_path: Path) -> None:
    """The command follows it."""
    text = (
        "services:\n  a:\n    image: lmsysorg/sglang\n    entrypoint: [python3, -m, sglang.launch_server]\n"
        "    command: --model-path m --mem-fraction-static=0.9\n"
    )
    new, argv, _ = composefile.edited(text, {"mem_fraction_static": 0.8, "context_length": 5})
    assert new == text.replace("=0.9", "=0.8 --context-length 5")
    assert argv[:3] == ("python3", "-m", "sglang.launch_server")
    alone = "services:\n  a:\n    entrypoint: vllm serve m\n"
    assert composefile.edited(alone, {"max_num_seqs": 5})[0] == alone.replace("serve m", "serve m --max-num-seqs 5")
    first = "services:\n  a:\n    entrypoint: [vllm, serve]\n    command: [--max-num-seqs=8]\n"
    assert composefile.edited(first, {"max_num_seqs": 5})[0] == first.replace("=8", "=5")
    assert composefile.edited(first, {"max_num_seqs": None})[0] == first.replace("--max-num-seqs=8", "")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: [", "no YAML"),
        ("[]", "no services"),
        ("services: {a: {image: nginx}}", "no service starts an engine that kvyield knows: a"),
        ("services: {a: {command: vllm serve m}, b: {command: vllm serve m}}", r"several services .*\(a, b\)"),
        ("services: {a: {command: sh -c 'vllm serve m'}}", "service a: .*shell"),
        ("x: &c [vllm, serve, m]\nservices:\n  a:\n    command: *c\n", "from an anchor"),
        ("x: &c {command: vllm serve m}\nservices:\n  a:\n    <<: *c\n", "from an anchor"),
        ("services: {a: {image: vllm/vllm-openai}}", "no command"),
        ("services: {a: {command: vllm serve 'm}}", "does not end"),
        ("services: {a: 5}", "no service"),
        ("services:\n  a: &a\n    x: *a\n", "no service"),
    ],
)
def test_a_compose_file_that_cannot_be_edited_is_refused(tmp_path: Path, text: str, named: str) -> None:
    """By the file's name and the reason; nothing is written."""
    path = tmp_path / "compose.yaml"
    path.write_text(text)
    launcher = written(path, "compose")
    with pytest.raises(TuneError, match=f"(?s)compose.yaml: .*{named}"):
        launcher.apply({"max_num_seqs": 4})
    assert path.read_text() == text


def test_of_several_services_the_restart_command_names_one() -> None:
    """`docker compose up -d b` means b."""
    text = "services: {a: {command: vllm serve m}, b: {command: vllm serve m}}"
    new, _, _ = composefile.edited(text, {"max_num_seqs": 4}, "docker compose up -d b")
    assert yaml.safe_load(new)["services"]["b"]["command"] == "vllm serve m --max-num-seqs 4"
    assert yaml.safe_load(new)["services"]["a"]["command"] == "vllm serve m"


WORDS = st.text("ab-=/ '\"\\${}#:,[]é%|>&*!", min_size=1, max_size=8)


@settings(deadline=None, max_examples=80)
@given(words=st.lists(WORDS, max_size=5), seqs=st.integers(1, 999), style=st.sampled_from(["flow", "block", "text"]))
def test_any_command_is_edited_right_or_refused(words: list[str], seqs: int, style: str) -> None:
    """Whatever its words hold: the engine gets the same words but for the one that was asked for."""
    argv = ["vllm", "serve", "m", "--max-num-seqs", "1", *(f"--lora-modules={word}" for word in words)]
    escaped = [word.replace("$", "$$") for word in argv]
    service = {"command": shlex.join(escaped) if style == "text" else escaped, "image": "x"}
    text = yaml.safe_dump({"services": {"a": service}}, default_flow_style=style == "flow", width=60)
    new, _, _ = composefile.edited(text, {"max_num_seqs": seqs, "max_model_len": 7})
    assert composefile.argv_of(new) == ("vllm", (*argv[:4], str(seqs), *argv[5:], "--max-model-len", "7"))
    assert yaml.safe_load(new)["services"]["a"]["image"] == "x"


@given(text=st.text("ab'\"\\ \n#$-", max_size=30))
def test_a_shell_line_is_split_as_a_shell_splits_it(text: str) -> None:
    """By the standard library's own reading, but for comments in the middle and what a shell would replace."""
    try:
        expected = shlex.split(text.replace("\\\n", ""), comments=False)
    except ValueError:
        return
    if "#" not in text and "\\" not in text:
        assert [one.text for one in shell_words(text)] == expected


@pytest.mark.parametrize("form", ["args", "systemd", "compose"])
def test_a_file_that_cannot_be_used_is_told(tmp_path: Path, form: str) -> None:
    """No text, a folder, too large, a folder that is not there."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe--a")
    (tmp_path / "large").write_bytes(b"#" * ((1 << 20) + 1))
    for name, named in [("binary", "UTF-8"), ("large", "1 MiB"), (".", "directory")]:
        with pytest.raises(TuneError, match=f"--write .*{named}"):
            written(tmp_path / name, form).apply({"max_num_seqs": 4})
    if form != "compose":
        with pytest.raises(TuneError, match="could not be written: No such file"):
            written(tmp_path / "no" / "file", form).apply({"max_num_seqs": 4})
        with pytest.raises(TuneError, match="--engine"):
            written(tmp_path / "f", form, engine=None).apply({"max_num_seqs": 4})


def test_a_compose_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A command replaces the service's own whole, so that it cannot be made up."""
    with pytest.raises(TuneError, match="no such file"):
        written(tmp_path / "compose.yaml", "compose").apply({"max_num_seqs": 4})


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no draft beside it."""
    path = tmp_path / "flags"
    path.write_text("--max-num-seqs 8\n")

    def fails(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(TuneError, match="No space left on device"):
        written(path).apply({"max_num_seqs": 4})
    monkeypatch.undo()
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["flags"]
    assert path.read_text() == "--max-num-seqs 8\n"


def test_the_restart_command_may_leave_an_engine_behind(tmp_path: Path) -> None:
    """It returns; what it has started keeps its output."""
    launcher = written(tmp_path / "flags", command=f"echo ok; (sleep 60; echo late) & echo $! > {tmp_path}/pid")
    began = time.monotonic()
    launcher.restart()
    assert time.monotonic() - began < 30
    assert launcher.state() == "running"
    os.kill(int((tmp_path / "pid").read_text()), 9)


@pytest.mark.parametrize(
    ("command", "named"),
    [("echo bad things >&2; exit 3", "ended with status 3: bad things"), ("sleep 30", "did not return within 0 s")],
)
def test_the_words_of_a_restart_command_that_fails_are_told(tmp_path: Path, command: str, named: str) -> None:
    """And it is ended when it does not return."""
    launcher = Written(tmp_path / "flags", "args", command, "vllm", command_seconds=0.3)
    with pytest.raises(TuneError, match=named):
        launcher.restart()


def test_the_engines_process_is_found_by_its_port(tmp_path: Path) -> None:
    """It has failed when it was seen and is gone."""
    program = tmp_path / "vllm"
    program.write_text(
        "import socket, time\ns = socket.create_server(('127.0.0.1', 0))\n"
        f"open({str(tmp_path / 'port.tmp')!r}, 'w').write(str(s.getsockname()[1]))\n"
        f"import os; os.rename({str(tmp_path / 'port.tmp')!r}, {str(tmp_path / 'port')!r})\ntime.sleep(60)\n"
    )
    start = f"{shlex.quote(sys.executable)} {program} serve m & echo $! > {tmp_path}/pid"
    Written(tmp_path / "flags", "args", start, "vllm").restart()
    ends = time.monotonic() + 60
    while not (tmp_path / "port").exists() and time.monotonic() < ends:
        time.sleep(0.01)
    launcher = Written(
        tmp_path / "flags", "args", "true", "vllm", f"http://127.0.0.1:{(tmp_path / 'port').read_text()}"
    )
    pid = int((tmp_path / "pid").read_text())
    assert launcher.pid() == pid
    assert launcher.state() == "running"
    os.kill(pid, 9)
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        time.sleep(0.01)
    assert launcher.state() == "failed"
    assert Written(tmp_path / "flags", "args", "true", "vllm", launcher.url).state() == "stopped"


@pytest.mark.parametrize("text", ["vllm serve m | tee log", "vllm serve m &", "vllm serve m >log 2>&1", "a `b`"])
def test_a_script_is_not_a_file_of_flags(tmp_path: Path, text: str) -> None:
    """Flags appended to it would go to another program."""
    (tmp_path / "flags").write_text(text)
    with pytest.raises(TuneError, match="a shell's"):
        written(tmp_path / "flags").apply({"max_num_seqs": 4})
    assert (tmp_path / "flags").read_text() == text


def test_flags_are_written_below_comments_of_an_empty_file(tmp_path: Path) -> None:
    """And before the first word where they replace it."""
    path = tmp_path / "flags"
    path.write_text("# ours")
    written(path).apply({"max_num_seqs": 4})
    assert path.read_text() == "# ours\n--max-num-seqs 4\n"


def test_flags_of_a_written_file_are_those_asked_for(tmp_path: Path) -> None:
    """Read back with the command line's own reader."""
    launcher = written(tmp_path / "flags", engine="sglang")
    launcher.apply({"mem_fraction_static": 0.926, "context_length": 200007, "disable_cuda_graph": True})
    assert flags_of(shlex.split(launcher.path.read_text()), "sglang") == {
        "mem_fraction_static": 0.926,
        "context_length": 200007,
        "disable_cuda_graph": True,
    }


def _left_command(launcher: Written, command: str) -> subprocess.Popen[bytes]:
    """A restart command of a run that was killed meanwhile."""
    environment = {**os.environ, MARK: launcher.key}
    return subprocess.Popen(["/bin/sh", "-c", f"{command}; exit $?"], env=environment, start_new_session=True)


def test_a_restart_command_that_a_killed_run_left_is_waited_for(tmp_path: Path) -> None:
    """Two at once would start two engines: the first is over when the second begins."""
    launcher = written(tmp_path / "flags", command=f"test -e {tmp_path}/over")
    with _left_command(launcher, f"sleep 1; touch {tmp_path}/over") as left:
        launcher.restart()
    assert left.returncode == 0


def test_a_restart_command_left_that_never_returns_is_ended(tmp_path: Path) -> None:
    """After as long as a command may take."""
    launcher = written(tmp_path / "flags")
    launcher.command_seconds = 0.5
    with _left_command(launcher, "sleep 600") as left:
        threading.Thread(target=left.wait, daemon=True).start()  # the system's first process does so for an orphan
        launcher.restart()
    assert left.returncode == -signal.SIGKILL


def test_an_engine_that_a_restart_command_left_does_not_look_like_the_command(tmp_path: Path) -> None:
    """It inherits the environment, without the mark of the command."""
    launcher = written(tmp_path / "flags", command=f"env > {tmp_path}/environment; sleep 30 & echo $! > {tmp_path}/pid")
    launcher.restart()
    try:
        assert MARK not in (tmp_path / "environment").read_text()
        began = time.monotonic()
        launcher.restart_command = "true"
        launcher.restart()
        assert time.monotonic() - began < 20
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
