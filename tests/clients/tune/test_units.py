"""``kvyield tune --unit``: the whole loop on a user's unit, its death in the middle, and the way back."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from _standin_hosts import BASE, Host, Running, until
from kvyield.tune.systemd import DROP_IN

NAME = "llm.service"


class Served:
    """A unit of the host's user that runs the stand-in engine, as it was before ``tune``."""

    def __init__(self, host: Host, manager: Any) -> None:
        self.host, self.manager = host, manager
        self.log = host.folder / "engine.log"
        words = " ".join([sys.executable, *host.engine[1:], *BASE])
        manager.write(NAME, f"[Service]\nExecStart={words}\nStandardOutput=append:{self.log}\n")
        self.drop_in = manager.units / f"{NAME}.d" / DROP_IN
        host.environ["XDG_CONFIG_HOME"] = str(manager.units.parents[1])
        host.environ["FAKE_SYSTEMCTL_STATE"] = str(manager.folder)
        host.environ["PATH"] = f"{manager.folder.parent / 'bin'}:{host.environ['PATH']}"

    def start(self) -> None:
        """As the host's boot would."""
        environ = {**self.host.environ, "STANDIN": json.dumps(self.host.standin)}
        subprocess.run(["systemctl", "--user", "start", NAME], env=environ, check=True)
        until(self.host.flags_running)

    def tune(self, *options: str) -> Running:
        """The loop on the unit."""
        return self.host.run("--target-tokens", "200k", "--unit", NAME, "--user", "--yes", "--json", *options)

    def fraction(self) -> float | None:
        """The fraction of what answers."""
        found = self.host.flags_running()
        return None if found is None else float(found["mem_fraction_static"])


@pytest.fixture
def served(host: Host, manager: Any) -> Served:
    """The unit, running."""
    found = Served(host, manager)
    found.start()
    return found


def test_a_unit_is_tuned_in_one_restart_and_undone(served: Served) -> None:
    """The advised flags serve from the drop-in; ``--undo`` removes it and the old flags serve."""
    running = served.tune()
    assert running.code() == 0, running.err
    assert [record["restarts"] for record in running.records] == [0, 1]
    fraction = served.fraction()
    assert fraction is not None
    assert fraction > 0.9
    assert f"--mem-fraction-static {fraction:.10g}" in served.drop_in.read_text()
    base, advised = served.host.rows()
    assert [one.outcome for one in (base, advised)] == ["ready", "ready"]
    assert advised.recommendation_id is not None
    undone = served.host.run("--undo", "--yes", "--unit", NAME, "--user")
    assert undone.code() in (0, 1), undone.err
    assert not served.drop_in.parent.exists(), undone.err
    assert served.fraction() == 0.85


def test_a_unit_whose_new_flags_do_not_start_serves_as_before(served: Served) -> None:
    """No drop-in is left."""
    served.host.standin = {"oom_above_fraction": 0.9, "start_seconds": 3.1}  # equal flags within 2 s are one start
    running = served.tune("--max-restarts", "1")
    assert running.code() == 1, running.err
    assert not served.drop_in.parent.exists()
    assert served.fraction() == 0.85
    assert [row.outcome for row in served.host.rows()] == ["ready", "oom_startup", "ready"]


def test_an_infeasible_target_touches_no_unit(served: Served) -> None:
    """No file, no restart."""
    before = served.manager.calls()
    running = served.tune("--target-tokens", "3m")
    assert running.code() == 5, running.err
    assert served.manager.calls() == before
    assert not served.drop_in.parent.exists()


MOMENTS: dict[str, Callable[[Served], object]] = {
    "written": lambda served: served.drop_in.exists(),
    "stopped": lambda served: "stop" in served.manager.calls(),
    "verifying": lambda served: (served.fraction() or 0) > 0.9,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "back"),
    [
        ("written", "again"),
        ("stopped", "undo"),
        *(
            pytest.param(moment, back, marks=pytest.mark.long)
            for moment, back in (
                ("written", "undo"),
                ("stopped", "again"),
                ("verifying", "undo"),
                ("verifying", "again"),
            )
        ),
    ],
)
def test_a_kill_in_the_middle_is_restored_or_finished(served: Served, moment: str, back: str) -> None:
    """By the next run: the unit serves with flags that were good, and the drop-in tells them."""
    running = served.tune()
    ends = time.monotonic() + 60
    while not MOMENTS[moment](served) and running.process.poll() is None and time.monotonic() < ends:
        time.sleep(0.002)
    running.kill()
    if back == "again":
        again = served.tune()
        assert again.code() == 0, again.err
        assert (served.fraction() or 0) > 0.9
        assert served.drop_in.exists()
    else:
        undone = served.host.run("--undo", "--yes")
        assert undone.code() in (0, 1), undone.err
        assert served.fraction() == 0.85, undone.err
        assert not served.drop_in.parent.exists()


def test_a_drop_in_that_is_not_ours_stops_tune_before_anything(served: Served) -> None:
    """It is left as it is."""
    served.drop_in.parent.mkdir()
    served.drop_in.write_text("[Service]\nNice=5\n")
    served.manager.systemctl("daemon-reload")
    before = served.manager.calls()
    running = served.tune()
    assert running.code() not in (0, 5, 6)
    assert "was not written by kvyield" in running.err
    assert "Traceback" not in running.err
    assert served.manager.calls() == before
