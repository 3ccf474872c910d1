"""Problem details (RFC 9457): what every refused or failed request is answered with."""

from __future__ import annotations

from uuid import UUID

from msgspec import Struct

PROBLEM_MEDIA_TYPE = "application/problem+json"


class FaultOut(Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a request.

    Attributes:
        pointer: JSON pointer into the body, or `/` and the name of a query parameter; empty for the whole body.
        detail: The field, its value and what would be right.
    """

    pointer: str
    detail: str


class MatchOut(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pair that matches a request; where a list is asked for one GPU model or one model, its name alone.

    Attributes:
        pair_id: UUID of the pair, to be sent instead of its names.
        gpu: GPU model of the pair, or a GPU model that matches.
        gpu_count: Number of GPUs of the pair.
        model: Name of the model of the pair, or of a model that matches.
    """

    pair_id: UUID | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    model: str | None = None


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Problem details (RFC 9457).

    Attributes:
        type: Path that leads to what this kind of problem means, such as `/problems/invalid`.
        title: Name of the kind of problem.
        status: The HTTP status.
        detail: What is wrong in this very case.
        instance: Path of the request.
        request_id: Id of the request, which is in the service's log too.
        errors: Each thing that is wrong with the input; empty when something else is wrong.
        nearest: Names that come close to one that was not found.
        matches: The pairs that match the request, when there are several.
    """

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    errors: list[FaultOut]
    nearest: list[str] | None = None
    matches: list[MatchOut] | None = None
