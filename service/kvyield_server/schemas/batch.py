"""A batch of observations: items are checked one by one, so that a bad one never stops the others."""

from __future__ import annotations

import re
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from kvyield_server.schemas.problem import Problem
from kvyield_server.schemas.strict import Fault, FaultyBodyError, MalformedJsonError, faults_of, parse, pointer_to

MAX_ITEMS = 500
_KEY = b'"observations"'
_Item = Annotated[msgspec.Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/ExportedIn"})]
_SPELT = re.compile(b"".join(b"(?:%c|\\\\u00%02x)" % (letter, letter) for letter in b"observations"), re.IGNORECASE)


class BatchIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Observations to record in one request.

    Attributes:
        observations: Up to 500 engine starts, as posted one by one or as lines of an export.
    """

    observations: Annotated[list[_Item], Meta(max_length=MAX_ITEMS)]

    @classmethod
    def decode_body(cls, body: bytes) -> BatchIn:
        """Decode the envelope alone; what is wrong with an item shows when it is decoded.

        Raises:
            MalformedJsonError: not JSON.
            FaultyBodyError: not ``{"observations": [...]}`` with at most 500 items.
        """
        try:
            batch = _decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            batch = None
        if batch is None or not _has_one_key(body):
            _refuse_envelope(parse(body))
        if batch is None:
            raise MalformedJsonError("The body is not valid JSON.")
        return batch


_decoder = msgspec.json.Decoder(BatchIn)


class BatchItemOut(Struct, frozen=True, kw_only=True):
    """What became of one item.

    Attributes:
        index: Position of the item in the request, counted from 0.
        status: The HTTP status that a post of this item alone would have had, such as 201, 200, 409 or 422.
        id: UUID of the stored start; absent when the item was refused.
        problem: What is wrong with the item; absent when it was taken.
    """

    index: int
    status: int
    id: UUID | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class BatchOut(Struct, frozen=True, kw_only=True):
    """What became of a batch.

    Attributes:
        items: One result per observation, in the same order.
    """

    items: list[BatchItemOut]


def _has_one_key(body: bytes) -> bool:
    """Say whether the envelope's key certainly occurs once, however it is spelt: JSON lets a letter be escaped."""
    return body.count(_KEY) == 1 and (b"\\u" not in body or len(_SPELT.findall(body)) == 1)


def _refuse_envelope(value: Any) -> None:
    twice = getattr(value, "duplicates", ())
    faults = [Fault(pointer_to(key), f"The key {key} occurs more than once; give it once.") for key in twice]
    if faults or (faults := _envelope_faults(value)):
        raise FaultyBodyError(faults)


def _envelope_faults(value: Any) -> list[Fault]:
    items = value.get("observations") if isinstance(value, dict) else None
    if isinstance(items, list) and len(items) > MAX_ITEMS:
        detail = f"observations has {len(items)} items; at most {MAX_ITEMS} go into one batch."
        return [Fault("/observations", detail)]
    envelope = {**value, "observations": []} if isinstance(items, list) else value
    return faults_of(envelope, BatchIn)
