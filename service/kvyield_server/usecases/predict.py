"""Predict: pool and free memory of sets of flags, in the order asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvyield_server.domain.answers import Caution, Prediction
from kvyield_server.domain.facts.layout import parallel_layout
from kvyield_server.domain.facts.observation import Flags
from kvyield_server.usecases.deployments import Subject


def predict(subject: Subject, flag_sets: Sequence[Flags]) -> list[Prediction]:
    """Return one prediction per set of flags; flags not given are those of the deployment's newest start."""
    return [_predicted(subject, flags) for flags in flag_sets]


def _predicted(subject: Subject, flags: Flags) -> Prediction:
    fit = subject.deployment(flags)
    prediction = fit.predict(flags)
    cautions = (*prediction.warnings, *subject.cautions(fit))
    told = {caution.code for caution in cautions}
    layout = tuple(each for each in _layout_cautions(subject, prediction.flags) if each.code not in told)
    return replace(prediction, warnings=(*cautions, *layout))


def _layout_cautions(subject: Subject, flags: Flags) -> Iterator[Caution]:
    """Warn of flags that spread the model over more GPUs than the hardware has."""
    gpu_count = subject.hardware.gpu_count
    layout = parallel_layout(flags, gpu_count)
    if layout.gpus > gpu_count:
        sizes = f"tensor {layout.tensor}, pipeline {layout.pipeline}, data {layout.data}"
        detail = f"The layout ({sizes}) takes {layout.gpus} GPUs and the hardware has {gpu_count}."
        yield Caution(code="layout_exceeds_hardware", detail=detail)
