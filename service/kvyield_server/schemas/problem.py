"""Problem details (RFC 9457): what every refused or failed request is answered with."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

PROBLEM_MEDIA_TYPE = "application/problem+json"


class FaultOut(Struct, frozen=True, kw_only=True):
    """One thing that is wrong: ``pointer`` is a JSON pointer into the body, or to a query parameter by its name."""

    pointer: str
    detail: str


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``type`` leads to a page about this kind of problem; ``request_id`` is in the service's log too.

    ``nearest`` (404) holds names that come close; ``matches`` (409) holds what the request may have meant.
    """

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    errors: list[FaultOut]
    nearest: list[str] | None = None
    matches: list[dict[str, Any]] | None = None
