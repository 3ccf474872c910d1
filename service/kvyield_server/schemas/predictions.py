"""Predictions on the wire."""

from __future__ import annotations

from itertools import chain
from typing import Annotated

from msgspec import Meta, Struct

from kvyield_server.domain.answers import Prediction
from kvyield_server.domain.facts.observation import EngineName, Scalar
from kvyield_server.schemas.common import EstimateOut, WarningOut, estimate_out, tokens_out, warnings_out
from kvyield_server.schemas.flags import FlagsIn, asked_faults
from kvyield_server.schemas.pairs import BasisOut, basis_out
from kvyield_server.schemas.selectors import SelectorIn, selector_faults
from kvyield_server.schemas.strict import Fault, first_faults

MAX_FLAG_SETS = 200


class PredictionsIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to predict.

    Attributes:
        selector: Which pair and deployment.
        flags: Sets of flags by the engine's own names, 1 to 200; flags not given are those of the deployment's newest
            start. Known flags are typed and bounded.
    """

    selector: SelectorIn
    flags: Annotated[list[FlagsIn], Meta(min_length=1, max_length=MAX_FLAG_SETS)]


class PredictionOut(Struct, frozen=True, kw_only=True):
    """What one set of flags is predicted to give; an estimate is null when there is not enough evidence.

    Attributes:
        flags: The flags of the prediction, with those that the deployment's newest start adds.
        pool_tokens: Tokens that the KV pool will hold, per data-parallel rank.
        kv_cache_gib: Size of the KV cache, in GiB.
        free_at_ready_gib: Free memory of the fullest GPU when the engine is ready, in GiB.
        basis: The evidence that the prediction was made from.
        warnings: What to know before it is used.
    """

    flags: dict[str, Scalar]
    pool_tokens: EstimateOut | None
    kv_cache_gib: EstimateOut | None
    free_at_ready_gib: EstimateOut | None
    basis: BasisOut
    warnings: list[WarningOut]


class PredictionsOut(Struct, frozen=True, kw_only=True):
    """Predictions.

    Attributes:
        items: One prediction per set of flags, in the same order.
    """

    items: list[PredictionOut]


def predictions_faults(body: PredictionsIn, engine: EngineName | None = None) -> list[Fault]:
    """Return what the types cannot say; ``engine`` is the one that was found where the body names none."""
    engine = body.selector.engine or engine
    of_flags = (asked_faults(flags, engine, f"/flags/{index}") for index, flags in enumerate(body.flags))
    return first_faults(chain(selector_faults(body.selector, "/selector"), chain.from_iterable(of_flags)))


def prediction_out(prediction: Prediction) -> PredictionOut:
    return PredictionOut(
        flags=dict(prediction.flags),
        pool_tokens=tokens_out(prediction.pool_tokens),
        kv_cache_gib=estimate_out(prediction.kv_cache_gib, digits=3),
        free_at_ready_gib=estimate_out(prediction.free_at_ready_gib, digits=3),
        basis=basis_out(prediction.basis),
        warnings=warnings_out(prediction.warnings),
    )
