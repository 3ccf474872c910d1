"""Values on their way to the wire: finite, rounded, UTC, paged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from math import inf, nan
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvyield_server.domain.answers import Estimate
from kvyield_server.schemas.common import as_utc, estimate_out, rounded, tokens_out
from kvyield_server.schemas.paging import page_token, row_named
from kvyield_server.schemas.strict import FaultyBodyError

MOMENT = datetime(2026, 5, 30, 22, 0, 23, 123456, tzinfo=UTC)


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_what_is_not_finite_is_null(bad: float) -> None:
    """NaN and infinities never leave the service."""
    assert rounded(bad, 2) is None
    assert estimate_out(Estimate(median=1.0, low=0.0, high=bad), digits=2) is None
    assert tokens_out(Estimate(median=bad, low=0.0, high=1.0)) is None


def test_tokens_are_whole() -> None:
    """An estimate in tokens is written without a fraction."""
    out = tokens_out(Estimate(median=218484.4, low=218360.6, high=218607.5))
    assert out is not None
    assert (out.median, out.low, out.high) == (218484, 218361, 218608)
    assert isinstance(out.median, int)


@given(moment=st.datetimes(timezones=st.sampled_from([timezone(timedelta(hours=h)) for h in (-14, 0, 5, 14)])))
def test_any_time_has_a_utc(moment: datetime) -> None:
    """No time is too early or too late to be written in UTC."""
    assert as_utc(moment).utcoffset() == timedelta(0)


ORDERS = ("-observed_at", "received_at", "-created_at", "-at", "-made_at")


@given(moment=st.datetimes(timezones=st.just(UTC)), row_id=st.uuids(), order=st.sampled_from(ORDERS))
def test_page_tokens_name_their_row(moment: datetime, row_id: UUID, order: str) -> None:
    """A token gives back the time and id that it was made of, in its own list alone, and is safe in a URL."""
    token = page_token(moment, row_id, order)
    assert row_named(token, order) == (moment, row_id)
    for other in set(ORDERS) - {order}:
        with pytest.raises(FaultyBodyError, match="of another list, or of this one in another order"):
            row_named(token, other)
    assert set(token) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@given(token=st.text(max_size=80))
def test_any_other_token_is_refused(token: str) -> None:
    """Text that was not made by the service is a fault of page_token, or names a row after all."""
    assert row_or_pointers(token) in ("row", ["/page_token"])


def row_or_pointers(token: str) -> object:
    """Return that a token names a row, or the pointers of its refusal."""
    try:
        at, _ = row_named(token, "-observed_at")
    except FaultyBodyError as error:
        return [fault.pointer for fault in error.faults]
    return "row" if at.tzinfo is not None else "no zone"
