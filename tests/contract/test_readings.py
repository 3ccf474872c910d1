"""Whatever a reader finds in a log, the service takes what the client makes of it."""

from __future__ import annotations

import string
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvyield import IncompleteError, _wire
from kvyield._bounds import LONGEST_EXCERPT
from kvyield.assemble import Extras, assemble
from kvyield.engines import Sourced, Start, read_starts
from kvyield_server.schemas.observations import ObservationIn, observation_faults

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
OPTIONS = {"gpu": Sourced("NVIDIA H200", "option"), "gpu_count": Sourced(1, "option"), "model": Sourced("m", "option")}
FRACTION = {"mem_fraction_static": Sourced(0.9, "option")}

texts = st.one_of(st.text(max_size=30), st.text(string.printable, max_size=3).map(lambda text: (text or "x") * 20_000))
numbers = st.one_of(st.integers(), st.floats(), st.sampled_from([0, -1, 1, 10**13, 2**63, 1e7, 1e300]))
values = st.one_of(st.none(), st.booleans(), numbers, texts).map(lambda value: Sourced(value, "line 1: x"))
names = st.one_of(st.sampled_from(["odd flag", "x" * 500, "hf_token", ""]), st.text(max_size=5))
MEASURED = tuple(_wire.Measurements.__struct_fields__)
FAILED = tuple(_wire.Failure.__struct_fields__)[1:]
FACTS = (
    "gpu",
    "gpu_count",
    "gpu_memory_gib",
    "model_name",
    "model_revision",
    "engine_version",
    "engine_variant",
    "host",
)


def taken(observation: _wire.Observation) -> list[str]:
    """The service's faults with an observation as the client encodes it."""
    body = msgspec.json.decode(msgspec.json.encode(observation), type=ObservationIn)
    return [f"{fault.pointer}: {fault.detail}" for fault in observation_faults(body)]


@pytest.mark.parametrize("log", sorted(EXAMPLES.glob("*/*.log")), ids=lambda path: path.name)
def test_every_example_log_is_taken(log: Path) -> None:
    """Each start of the example logs becomes an observation that the service takes as it is."""
    for start in read_starts([line + b"\n" for line in log.read_bytes().split(b"\n")]):
        found = assemble(start, Extras(options=OPTIONS, flags=FRACTION)).observation()
        assert taken(found) == []
        assert len(found.log_excerpt or "") <= LONGEST_EXCERPT


READY = {"pool_tokens": Sourced(1000, "line 1: x")}
starts = st.builds(
    Start,
    engine=st.just("sglang"),
    outcome=st.sampled_from(["ready", "refused", "oom_startup", "oom_runtime", "failed"]),
    flags=st.dictionaries(names, values, max_size=5).map(lambda flags: {**flags, **FRACTION}),
    measurements=st.dictionaries(st.sampled_from(MEASURED), values).map(lambda measured: {**measured, **READY}),
    failure=st.dictionaries(st.sampled_from(FAILED), values),
    facts=st.dictionaries(st.sampled_from(FACTS), values),
    observed_at=st.one_of(st.none(), st.datetimes()),
    excerpt=st.lists(texts, max_size=40),
)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # long texts are the point
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(starts)
def test_odd_readings_are_cut_to_what_the_service_takes(start: Start) -> None:
    """Impossible figures, endless texts and odd names are cut or left out: what is posted is never refused for them."""
    try:
        found = assemble(start, Extras(options=OPTIONS)).observation()
    except IncompleteError:
        return
    assert taken(found) == []


@pytest.mark.parametrize("hours", [-48, 1, 48, 24 * 365 * 40])
def test_a_clock_that_is_ahead_is_not_sent(hours: int) -> None:
    """A log whose times lie more than a day ahead gives no time, and its start is taken; its own day is kept."""
    moment = datetime.now(UTC) + timedelta(hours=hours)
    start = Start(
        engine="sglang",
        outcome="ready",
        flags=dict(FRACTION),
        measurements=dict(READY),
        failure={},
        facts={},
        observed_at=moment,
        excerpt=[],
    )
    found = assemble(start, Extras(options=OPTIONS)).observation()
    assert taken(found) == []
    assert (found.observed_at is None) == (hours > 24)
