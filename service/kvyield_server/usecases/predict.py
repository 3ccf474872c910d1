"""Predict: pool and free memory of sets of flags, in the order asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvyield_server.domain.answers import Caution, Prediction
from kvyield_server.domain.facts.layout import (
    DATA,
    DATA_ATTENTION,
    DECODE_CONTEXT,
    PIPELINE,
    TENSOR,
    parallel_layout,
)
from kvyield_server.domain.facts.observation import Flags
from kvyield_server.errors import InvalidError
from kvyield_server.usecases.deployments import Subject


def predict(subject: Subject, flag_sets: Sequence[Flags]) -> list[Prediction]:
    """Return one prediction per set of flags; flags not given are those of the deployment's newest start.

    Raises:
        InvalidError: a size is given by another name than that of the starts, whose own would count.
    """
    return [_predicted(subject, flags, index) for index, flags in enumerate(flag_sets)]


def _predicted(subject: Subject, flags: Flags, index: int) -> Prediction:
    fit = subject.deployment(flags)
    prediction = fit.predict(flags)
    if faults := list(_other_names(flags, prediction.flags, f"/flags/{index}")):
        raise InvalidError(faults, detail=" ".join(detail for _, detail in faults))
    cautions = (*prediction.warnings, *subject.cautions(fit))
    told = {caution.code for caution in cautions}
    layout = tuple(each for each in _layout_cautions(subject, prediction.flags) if each.code not in told)
    return replace(prediction, warnings=(*cautions, *layout))


def _other_names(flags: Flags, merged: Flags, pointer: str) -> Iterator[tuple[str, str]]:
    """Yield each flag that is another name of one that is set too: engines take several, the first counts."""
    for names in (TENSOR, PIPELINE, DATA, DATA_ATTENTION, DECODE_CONTEXT):
        given = [name for name in names if name in merged]
        for name in given[1:]:
            if name in flags:
                yield f"{pointer}/{name}", f"{name} is another name of {given[0]}, which is set here; give {given[0]}."


def _layout_cautions(subject: Subject, flags: Flags) -> Iterator[Caution]:
    """Warn of flags that spread the model over more GPUs than the hardware has."""
    gpu_count = subject.hardware.gpu_count
    layout = parallel_layout(flags, gpu_count)
    if layout.gpus > gpu_count:
        sizes = f"tensor {layout.tensor}, pipeline {layout.pipeline}, data {layout.data}"
        detail = f"The layout ({sizes}) takes {layout.gpus} GPUs and the hardware has {gpu_count}."
        yield Caution(code="layout_exceeds_hardware", detail=detail)
