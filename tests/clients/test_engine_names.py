"""Every place that names the engines names the same ones."""

from __future__ import annotations

from typing import get_args

import pytest

from kvyield import _sent, processes
from kvyield._parallel import gpu_count_of
from kvyield.assemble import FRACTION_FLAG
from kvyield.cli._options import ENGINES as CHOICES
from kvyield.engines._engines import ENGINES
from kvyield.engines._start import EngineName
from kvyield_server.domain.facts import observation as served

NAMES = tuple(engine.name for engine in ENGINES)


def test_the_engines_are_the_same_everywhere() -> None:
    """Readers, wire, options, fraction flags and the service know the same engines."""
    assert set(NAMES) == set(get_args(EngineName)) == set(get_args(_sent.EngineName)) == set(CHOICES)
    assert set(NAMES) == set(FRACTION_FLAG) == {name.value for name in served.EngineName}
    assert {name.value: flag for name, flag in served.FRACTION_FLAG.items()} == FRACTION_FLAG


@pytest.mark.parametrize("name", NAMES)
def test_the_gpus_of_each_engine_can_be_counted(name: str) -> None:
    """Without parallel sizes the count is unknown, not an error."""
    assert gpu_count_of(name, {}) is None


@pytest.mark.parametrize("command", ["sglang.launch_server", "vllm serve", "trtllm-serve", "lmdeploy serve api_server"])
def test_each_engines_process_is_recognised(command: str) -> None:
    """What listens on the port is an engine's when its command names one."""
    assert processes._ENGINE.search(command)
