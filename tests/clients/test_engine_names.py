"""Every place that names the engines names the same ones."""

from __future__ import annotations

from typing import get_args

import pytest

from kvyield import _sent, intake, processes
from kvyield._parallel import gpu_count_of
from kvyield.assemble import FRACTION_FLAG
from kvyield.cli._options import ENGINES as CHOICES
from kvyield.engines._engines import ENGINES
from kvyield.engines._start import EngineName
from kvyield.tune import child, commandline, spellings, waiting
from kvyield_server.domain.engines import registry
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


@pytest.mark.parametrize("name", NAMES)
def test_a_logs_process_and_the_arithmetic_are_known(name: str) -> None:
    """A port's process is recognised by the program that a log's engine has; the service knows the engine's flags."""
    assert processes._ENGINE.search(intake._PROGRAM[name])
    assert name in {known.value for known in registry.NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_tune_knows_the_engine(name: str) -> None:
    """Its command, the spelling of its flags, its port, and the metrics that count requests in flight."""
    assert name in {engine for engine, _ in commandline._PROGRAMS.values()}
    assert name in {engine for engine, _ in commandline._MODULES.values()}
    assert spellings.GRAMMARS[name].engine == name
    assert child.PORTS[name] > 0
    assert any(metric.startswith(intake._PROGRAM[name]) for metric in waiting.RUNNING)
