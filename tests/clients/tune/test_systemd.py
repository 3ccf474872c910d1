"""``--unit``: a drop-in of kvyield's own changes the flags; without it the unit is what it was."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvyield._errors import TuneError
from kvyield.tune.systemd import DROP_IN, MARK, Unit

UNIT = """[Unit]
Description=an engine
[Service]
Environment="F=--max-num-seqs 8 --api-key 'a b'" M=org/Model
ExecStart=-/usr/bin/env vllm serve ${M} \\
    --gpu-memory-utilization 0.9 \\
    # how many at once
    $F --port %i0
"""


@pytest.fixture
def unit(manager: Any) -> Unit:
    """A unit that is loaded and does not run."""
    manager.write("llm.service", UNIT.replace("%i", "1"))
    return Unit("llm", is_user=True)


def test_a_drop_in_changes_the_flags_and_its_removal_puts_them_back(manager: Any, unit: Unit) -> None:
    """The unit's own file is never written; variables that hold no changed flag stay variables."""
    before = unit.snapshot()
    assert json.loads(json.dumps(before)) == before
    unit.restart()
    old = manager.started_with()
    assert old == [
        *("serve", "org/Model", "--gpu-memory-utilization", "0.9", "--max-num-seqs", "8", "--api-key", "a b"),
        *("--port", "10"),
    ]
    first = unit.pid()
    unit.apply({"gpu_memory_utilization": 0.85, "max_model_len": 200007})
    text = (manager.units / "llm.service.d" / DROP_IN).read_text()
    assert text.splitlines()[0] == MARK
    assert text.splitlines()[2:] == [
        "[Service]",
        "ExecStart=",
        "ExecStart=-/usr/bin/env vllm serve ${M} --gpu-memory-utilization 0.85 $F --port 10 --max-model-len 200007",
    ]
    assert unit.pid() == first, "apply restarts nothing"
    unit.restart()
    new = manager.started_with()
    assert new[2:4] == ["--gpu-memory-utilization", "0.85"]
    assert new[-2:] == ["--max-model-len", "200007"]
    assert unit.state() == "running"
    assert unit.pid() not in (None, first)
    unit.apply({"gpu_memory_utilization": 0.85, "max_model_len": 200007})
    assert unit.drop_in.read_text() == text, "idempotent"
    unit.restore(before)
    unit.restore(before)
    assert not unit.drop_in.parent.exists()
    unit.restart()
    assert manager.started_with() == old
    assert (manager.units / "llm.service").read_text() == UNIT.replace("%i", "1")


def test_a_flag_inside_a_variable_is_written_out(manager: Any, unit: Unit) -> None:
    """The other words of that variable with it, quoted as systemd reads them."""
    unit.apply({"max_num_seqs": 4})
    line = unit.drop_in.read_text().splitlines()[-1]
    assert line.endswith("""--gpu-memory-utilization 0.9 --max-num-seqs 4 --api-key "a b" --port 10""")
    unit.apply({"max_num_seqs": None, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": False})
    lines = unit.drop_in.read_text().splitlines()
    assert "max-num-seqs" not in lines[-2]
    assert lines[-1] == "Environment=VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0"
    unit.apply({"max_num_seqs": 2})
    assert unit.drop_in.read_text().splitlines()[-1] == lines[-1], "what an earlier edit set stays set"
    unit.apply({"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": None})
    assert "Environment" not in unit.drop_in.read_text()


def test_words_of_a_private_file_stay_private(manager: Any, unit: Unit, tmp_path: Path) -> None:
    """A drop-in that may hold them is for its owner alone."""
    unit.apply({"max_model_len": 5})
    assert unit.drop_in.stat().st_mode & 0o777 == 0o644
    unit.restore({"drop_in": str(unit.drop_in), "content": None})
    secret = tmp_path / "secret"
    secret.write_text("KEYS='--api-key secret'\n")
    manager.write("llm.service", UNIT.replace("%i", "1").replace("$F", "$KEYS") + f"EnvironmentFile=-{secret}\n")
    unit.apply({"max_model_len": 5})
    assert unit.drop_in.stat().st_mode & 0o777 == 0o600
    assert "secret" not in unit.drop_in.read_text()
    assert "$KEYS" in unit.drop_in.read_text()


def test_a_change_of_the_unit_that_the_drop_in_hides_is_told(manager: Any, unit: Unit) -> None:
    """It would be lost without a word; removing the drop-in brings it to bear."""
    before = unit.snapshot()
    unit.apply({"max_model_len": 5})
    unit.apply({"max_model_len": 6})
    manager.write("llm.service", UNIT.replace("%i", "1").replace("0.9", "0.8"))
    with pytest.raises(TuneError, match=r"ExecStart= of llm\.service was changed since .*--undo"):
        unit.apply({"max_model_len": 7})
    unit.restore(before)
    unit.apply({"max_model_len": 7})
    assert "0.8" in unit.drop_in.read_text()


def test_what_was_there_before_is_put_back_byte_for_byte(manager: Any, unit: Unit) -> None:
    """A drop-in of an earlier run is what ran before this one."""
    unit.apply({"max_model_len": 5})
    before, text = unit.snapshot(), unit.drop_in.read_bytes()
    unit.apply({"max_model_len": 6})
    (unit.drop_in.parent / "10-own.conf").write_text("[Service]\nNice=5\n")
    unit.restore(before)
    assert unit.drop_in.read_bytes() == text
    assert unit.restore_commands(before)[0].startswith("printf %s ")
    assert not [path for path in unit.drop_in.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[Service]\nType=oneshot\nExecStart=vllm serve a\nExecStart=vllm serve b\n", "has 2 ExecStart="),
        ("[Service]\nType=oneshot\n", "no ExecStart="),
        ("[Service]\nExecStart=/bin/sh -c 'vllm serve m'\n", "run by a shell"),
        ("[Service]\nExecStart=/usr/bin/podman run vllm/vllm-openai\n", "podman"),
        ("[Service]\nExecStart=/bin/sleep 5\n", "not an engine that kvyield knows"),
        ("[Service]\nExecStart=/bin/a ; vllm serve m\n", "several commands"),
        ("[Service]\nExecStart=@vllm x serve m\n", "does not edit"),
        ('[Service]\nExecStart=vllm serve "m\n', "does not end"),
    ],
)
def test_a_unit_that_cannot_be_put_back_is_refused(manager: Any, text: str, named: str) -> None:
    """With the reason, before anything is written."""
    manager.write("llm.service", text)
    unit = Unit("llm.service", is_user=True)
    for attempt in (unit.snapshot, lambda: unit.apply({"max_model_len": 5}), lambda: unit.describe({})):
        with pytest.raises(TuneError, match=named):
            attempt()
    assert not unit.drop_in.parent.exists()


@pytest.mark.parametrize(
    ("shown", "named"),
    [
        ({"LoadState": "masked"}, "masked"),
        ({"LoadState": "not-found"}, "knows no unit llm.service"),
        ({"LoadState": "bad-setting"}, "could not load"),
        ({"UnitFileState": "transient"}, "transient"),
        ({"NeedDaemonReload": "yes"}, "daemon-reload first"),
        ({"Id": "other.service"}, "give --unit other.service"),
    ],
)
def test_what_systemd_says_of_the_unit_is_heard(manager: Any, unit: Unit, shown: dict[str, str], named: str) -> None:
    """Masked, gone, broken, transient, changed on disk, another's alias."""
    (manager.folder / "llm.service.show").write_text(json.dumps(shown))
    with pytest.raises(TuneError, match=named):
        unit.snapshot()


@pytest.mark.parametrize("name", ["llm@.service", "llm.socket", "a/b", "", "-x.service.timer", "a b"])
def test_a_name_that_is_no_service_is_refused(name: str) -> None:
    """Before systemd is asked."""
    with pytest.raises(TuneError, match="--unit"):
        Unit(name)


def test_a_drop_in_of_that_name_that_is_not_ours_is_left_alone(manager: Any, unit: Unit) -> None:
    """Neither overwritten nor removed."""
    place = manager.units / "llm.service.d"
    place.mkdir()
    (place / DROP_IN).write_text("[Service]\nNice=5\n")
    manager.systemctl("daemon-reload")
    for attempt in (
        unit.snapshot,
        lambda: unit.apply({"max_model_len": 5}),
        lambda: unit.restore({"drop_in": str(unit.drop_in), "content": None}),
    ):
        with pytest.raises(TuneError, match="was not written by kvyield"):
            attempt()
    assert (place / DROP_IN).read_text() == "[Service]\nNice=5\n"


def test_a_later_drop_in_that_has_the_last_word_is_told(manager: Any, unit: Unit) -> None:
    """The loop puts back what was there."""
    place = manager.units / "llm.service.d"
    place.mkdir()
    (place / "zzz.conf").write_text("[Service]\nExecStart=\nExecStart=/usr/bin/env vllm serve other\n")
    manager.systemctl("daemon-reload")
    before = unit.snapshot()
    with pytest.raises(TuneError, match=r"zzz\.conf has the last word"):
        unit.apply({"max_model_len": 5})
    unit.restore(before)
    assert [path.name for path in place.iterdir()] == ["zzz.conf"]


def test_the_tools_own_words_are_told(manager: Any, unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a systemctl that refuses, and of a host that has none."""
    (manager.folder / "refuses").write_text("restart")
    with pytest.raises(TuneError, match=r"Failed to restart llm\.service: it was told to refuse"):
        unit.restart()
    (manager.folder / "refuses").write_text("daemon-reload")
    with pytest.raises(TuneError, match=r"daemon-reload.*told to refuse"):
        unit.apply({"max_model_len": 5})
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TuneError, match="no systemctl on this host"):
        unit.state()


def test_a_drop_in_written_and_not_read_is_put_back(manager: Any, unit: Unit) -> None:
    """As after a kill between the two: the next run knows it as its own."""
    before = unit.snapshot()
    unit.drop_in.parent.mkdir()
    unit.drop_in.write_text(f"{MARK}\n[Service]\nExecStart=\nExecStart=vllm serve half\n")
    (unit.drop_in.parent / f".{DROP_IN}.123.456").write_text("draft")
    unit.apply({"max_model_len": 5})
    assert unit.drop_in.read_text().endswith("--max-model-len 5\n")
    unit.restore(before)
    assert not unit.drop_in.parent.exists()


def test_states_are_those_of_the_service(manager: Any, unit: Unit) -> None:
    """One that systemd started again by itself has failed; so has one that waits to be."""
    assert unit.state() == "stopped"
    unit.restart()
    assert unit.state() == "running"
    assert unit.stop()
    assert unit.state() == "stopped"
    for shown, state in [
        ({"ActiveState": "active", "NRestarts": "1"}, "failed"),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, "failed"),
        ({"ActiveState": "activating", "SubState": "start"}, "running"),
        ({"ActiveState": "deactivating", "SubState": "stop-sigterm"}, "running"),
        ({"ActiveState": "failed", "SubState": "failed"}, "failed"),
    ]:
        (manager.folder / "llm.service.show").write_text(json.dumps(shown))
        assert unit.state() == state, shown


def test_a_unit_that_others_need_is_only_restarted(manager: Any, unit: Unit) -> None:
    """A stop would end them too, and the start after it would not start them again."""
    unit.restart()
    (manager.folder / "llm.service.show").write_text(json.dumps({"RequiredBy": "proxy.service"}))
    assert not unit.stop()
    assert unit.state() == "running"
    assert manager.calls().count("stop") == 0


def test_a_unit_that_says_when_it_is_ready_is_not_waited_for(manager: Any, unit: Unit) -> None:
    """``Type=notify``: systemctl would wait for the model to load."""
    unit.restart()
    first = unit.pid()
    (manager.folder / "llm.service.show").write_text(json.dumps({"Type": "notify"}))
    unit.restart()
    assert unit.pid() != first
    assert "--no-block" in (manager.folder / "calls").read_text()


def test_the_log_is_the_file_that_the_unit_writes_to(manager: Any, unit: Unit, tmp_path: Path) -> None:
    """Else its journal."""
    source = unit.log_source()
    assert source is not None
    assert source.name == "journal of user:llm.service"
    log = tmp_path / "llm.log"
    manager.write("llm.service", UNIT.replace("%i", "1") + f"StandardOutput=append:{log}\n")
    log.write_text("hello\n")
    source = unit.log_source()
    assert source is not None
    assert [*source.lines()] == [b"hello\n"]


def _real_systemd() -> bool:
    told = subprocess.run(["systemctl", "--user", "is-system-running"], capture_output=True, check=False)
    return told.stdout.strip() in (b"running", b"degraded")


@pytest.mark.skipif(not _real_systemd(), reason="NO SYSTEMD of this user runs here: --unit was tried on a fake alone")
def test_on_systemd_itself(tmp_path: Path) -> None:
    """The same round on a real user manager: applied, restarted, put back."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
    folder.mkdir(parents=True, exist_ok=True)
    engine = tmp_path / "vllm"
    engine.write_text("#!/bin/sh\nexec sleep 1000\n")
    engine.chmod(0o755)
    path = folder / f"kvyield-test-{os.getpid()}.service"
    path.write_text(f"[Service]\nExecStart={engine} serve m --max-num-seqs 8\n")
    unit = Unit(path.name, is_user=True)
    try:
        subprocess.run(["systemctl", "--user", "daemon-reload"], check=True)
        before = unit.snapshot()
        unit.restart()
        first = unit.pid()
        unit.apply({"max_num_seqs": 4})
        unit.restart()
        assert unit.state() == "running"
        assert unit.pid() != first
        assert b"--max-num-seqs\0004" in Path(f"/proc/{unit.pid()}/cmdline").read_bytes() or unit.argv[-1] == "4"
        unit.restore(before)
        assert unit.argv[-1] == "8"
    finally:
        subprocess.run(["systemctl", "--user", "stop", path.name], check=False)
        path.unlink()
        subprocess.run(["systemctl", "--user", "daemon-reload"], check=False)
