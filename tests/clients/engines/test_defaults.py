"""Defaults come from the engine's version, are marked as such, and are not guessed."""

from __future__ import annotations

import pytest

from kvyield.engines import read_starts
from kvyield.engines._defaults import parse_version, vllm_defaults
from kvyield.engines._literals import shortest_float32


def start_of(version: str, args: str) -> list[str]:
    return [
        f"INFO 11-29 12:00:00 [a.py:1] non-default args: {args}",
        f"INFO 11-29 12:00:01 [c.py:1] Initializing a V1 LLM engine (v{version}) with config: max_seq_len=4096",
        "INFO 11-29 12:00:02 [g.py:1] Available KV cache memory: 10.0 GiB",
        "INFO 11-29 12:00:02 [g.py:1] GPU KV cache size: 4,096 tokens",
    ]


@pytest.mark.parametrize(
    ("version", "fraction"),
    [
        ("0.8.5", 0.9),
        ("0.9.2", 0.9),
        ("0.12.0", 0.9),
        ("0.19.0", 0.9),
        ("0.20.0", 0.92),
        ("0.33.0.post1", 0.92),
        ("0.33.0rc1", 0.92),
    ],
)
def test_a_fraction_that_was_not_given_is_the_versions_own(version, fraction):
    """vLLM prints the arguments that were given; the fraction that was not is the version's default, and says so."""
    (start,) = read_starts(start_of(version, "{'model': 'm'}"))
    assert start.flags["gpu_memory_utilization"].value == fraction
    assert start.flags["gpu_memory_utilization"].source == "default"
    (given,) = read_starts(start_of(version, "{'model': 'm', 'gpu_memory_utilization': 0.5}"))
    assert given.flags["gpu_memory_utilization"].value == 0.5
    assert given.flags["gpu_memory_utilization"].source.startswith("line 1: args")


@pytest.mark.parametrize(
    ("version", "args"),
    [("0.19.1rc1.dev17+gd2d649e67", "{'model': 'm'}"), ("dev", "{}"), ("0.20.0", "{'model': 'm', 'gpu")],
)
def test_a_default_that_is_not_known_stays_absent(version, args):
    """Between versions that were read, without a version, or with arguments cut off, there is no fraction."""
    (start,) = read_starts(start_of(version, args))
    assert "gpu_memory_utilization" not in start.flags


def test_versions_are_compared_as_numbers():
    """0.9 comes before 0.20, and a text that is not a version has no defaults."""
    assert parse_version("v0.9.2") == (0, 9, 2)
    assert parse_version("0.26.0.post1") == (0, 26, 0)
    assert parse_version("nightly") is None
    assert vllm_defaults("nightly") == {}
    assert vllm_defaults("99.0") == {}


@pytest.mark.parametrize("version", ["0.1.dev20610+g4b276a363.d20260910", "0.1.dev8168+g475c1a0", "0.0.0+dev", "dev"])
def test_a_source_build_has_no_version(version):
    """What setuptools-scm prints without tags is not a version: it is unknown, and no version's defaults are taken."""
    (start,) = read_starts(start_of(version, "{'model': 'm'}"))
    assert "engine_version" not in start.facts
    assert "gpu_memory_utilization" not in start.flags


@pytest.mark.parametrize("version", ["0.15.2rc1.dev93+g11a4c9d30", "0.29.1rc1.dev17+gd2d649e67.d20260913", "0.1.7"])
def test_a_tagged_build_keeps_its_version(version):
    """A development build after a tag, and an old release, are versions."""
    (start,) = read_starts(start_of(version, "{'model': 'm'}"))
    assert start.facts["engine_version"].value == version


@pytest.mark.parametrize(
    ("printed", "meant"),
    [
        (0.8999999761581421, 0.9),
        (0.949999988079071, 0.95),
        (0.30000001192092896, 0.3),
        (0.9, 0.9),
        (0.918, 0.918),
        (0.75, 0.75),
        (0.333251953125, 0.333251953125),
        (1 / 3, 1 / 3),
        (1e300, 1e300),
    ],
)
def test_a_widened_float32_is_the_decimal_that_was_given(printed, meant):
    """A number that passed through a float32 is its shortest decimal; any other number stays as it is."""
    assert shortest_float32(printed) == meant
