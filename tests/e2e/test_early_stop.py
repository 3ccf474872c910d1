"""A stop that comes while the server is still starting."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from e2e.running import Server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.1])
def test_a_signal_right_after_the_server_says_that_it_serves_stops_it(
    tmp_path: Path, number: signal.Signals, seconds: float
) -> None:
    """Whether the event loop runs already or not, the server ends with status 0 in a few seconds."""
    server = Server(tmp_path)
    time.sleep(seconds)
    server.process.send_signal(number)
    assert server.process.wait(15) == 0
    assert server.stop() == 0
