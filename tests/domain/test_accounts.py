"""Accounts of a start: what makes two of them one, and what they make together, whatever they say."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from kvyield_server.domain.facts.accounts import Account, is_other_start, is_same_start, is_zone_shift
from kvyield_server.domain.facts.merging import differences, merged, with_changes
from kvyield_server.domain.facts.observation import (
    Cause,
    Engine,
    EngineName,
    Failure,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
    Phase,
    Verification,
)

BEGUN = datetime(2026, 5, 30, 22, 0, 23, tzinfo=UTC)
FLAGS = st.dictionaries(
    st.sampled_from(("mem_fraction_static", "port", "kv_cache_dtype", "tp_size")),
    st.sampled_from((None, "auto", "bfloat16", 0.9, 0.92, 30000, 30001)),
)
FAILURES = st.none() | st.builds(
    Failure,
    phase=st.sampled_from(Phase),
    message=st.sampled_from((None, "out of memory")),
    cause=st.none() | st.sampled_from(Cause),
)
OBSERVATIONS = st.builds(
    Observation,
    id=st.integers(1, 99).map(lambda number: UUID(int=number)),
    observed_at=st.sampled_from((0, 1, 2, 3, 180, 3600, 7200, 9000)).map(lambda gap: BEGUN + timedelta(seconds=gap)),
    hardware=st.builds(
        Hardware,
        gpu=st.sampled_from(("NVIDIA H200", "h200", "NVIDIA H100")),
        gpu_count=st.sampled_from((4, 8)),
        memory_gib=st.sampled_from((None, 139.8)),
    ),
    model=st.builds(
        Model,
        name=st.sampled_from(("org/model", "model", "org/other")),
        facts=st.dictionaries(st.sampled_from("ab"), st.sampled_from((None, 1, 2))),
    ),
    engine=st.builds(Engine, name=st.just(EngineName.SGLANG), version=st.sampled_from((None, "1", "2"))),
    outcome=st.sampled_from(Outcome),
    flags=FLAGS,
    measurements=st.builds(
        Measurements,
        pool_tokens=st.sampled_from((None, 1000, 2000)),
        free_at_ready_gib=st.sampled_from((None, 6.0, 7.0)),
        startup_seconds=st.sampled_from((None, 300.0)),
        kv_cache_gib=st.sampled_from((None, 50.0)),
    ),
    failure=FAILURES,
    verifications=st.lists(st.sampled_from([Verification(prompt_tokens=n, passed=True) for n in (1, 2)])).map(tuple),
    host=st.sampled_from((None, "gpu-01", "gpu-01.example", "gpu-02")),
    source=st.sampled_from((None, "log", "endpoint", "import", "manual")),
    log_excerpt=st.sampled_from((None, "[22:00:23] begin", "[23:00:23] begin", "no clock")),
)


@st.composite
def accounts(draw: st.DrawFn) -> Account:
    start = draw(OBSERVATIONS)
    received = BEGUN + timedelta(hours=draw(st.integers(0, 30)))
    return Account(
        observation=start,
        digest=repr(start),
        received_at=received,
        is_timed=draw(st.booleans()),
    )


@given(accounts(), accounts())
def test_being_of_one_start_has_no_direction(one: Account, other: Account) -> None:
    """Two accounts are of one start, or not, in whichever order they are compared; an account is of its own."""
    assert is_same_start(one, other) == is_same_start(other, one)
    assert (is_other_start(one.observation, other.observation) is None) == (
        is_other_start(other.observation, one.observation) is None
    )
    assert is_other_start(one.observation, one.observation) is None


@given(accounts(), accounts())
def test_accounts_of_one_start_name_the_same_machine(one: Account, other: Account) -> None:
    """What is merged never contradicts itself in engine, GPUs, host, fraction or port."""
    if is_same_start(one, other):
        assert is_other_start(replace(one.observation, model=other.observation.model), other.observation) is None


@given(st.lists(accounts(), min_size=1, max_size=5, unique_by=lambda each: each.digest), st.randoms())
def test_the_row_is_a_function_of_the_set(told: list[Account], chance: random.Random) -> None:
    """Any order makes the same row, and an account that is there already changes nothing."""
    shuffled = [*told]
    chance.shuffle(shuffled)
    assert merged(told) == merged(shuffled) == merged([*shuffled, told[0]])


@given(st.lists(accounts(), min_size=1, max_size=5, unique_by=lambda each: each.digest))
def test_nothing_is_invented_and_nulls_are_filled(told: list[Account]) -> None:
    """Each figure and flag is one that some account gives; a death is never taken back."""
    row, is_timed = merged(told)
    starts = [each.observation for each in told]
    for each in fields(Measurements):
        value = getattr(row.measurements, each.name)
        given_values = [getattr(start.measurements, each.name) for start in starts]
        assert value in given_values
        if each.name not in ("free_at_ready_gib", "startup_seconds"):
            assert (value is None) == all(known is None for known in given_values)
    assert row.flags.keys() == {name for start in starts for name in start.flags}
    assert all(value in [start.flags.get(name) for start in starts] for name, value in row.flags.items())
    assert row.outcome in {start.outcome for start in starts}
    if any(start.outcome not in (Outcome.READY, Outcome.FAILED) for start in starts):
        assert row.outcome is not Outcome.READY
    assert (row.failure is None) or row.outcome is not Outcome.READY
    assert is_timed == any(each.is_timed for each in told)


@given(OBSERVATIONS, OBSERVATIONS)
def test_changes_are_what_differs(before: Observation, after: Observation) -> None:
    """The changes of hardware, model, engine and flags lead from one to the other; none are found between equals."""
    parts = ("hardware.", "model.name", "model.revision", "model.facts.", "engine.", "flags.")
    changes = [each for each in differences(before, after) if each.field.startswith(parts)]
    made = with_changes(before, changes)
    assert differences(before, before) == ()
    left = [each for each in differences(made, after) if each.field.startswith(parts)]
    assert left == []


def test_zones_are_quarters_of_an_hour() -> None:
    """What zones differ by, and what they do not."""
    hours = {0.25, 0.5, 1, 5.5, 5.75, 12.75, 14}
    assert all(is_zone_shift(timedelta(hours=each)) for each in hours)
    assert not any(is_zone_shift(timedelta(seconds=each)) for each in (0, 2, 180, 895, 1000, 15 * 3600))
