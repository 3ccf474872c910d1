"""Corrections on the wire: only what is named changes."""

from __future__ import annotations

from itertools import chain

import msgspec
from msgspec import UNSET, Struct, UnsetType

from kvyield_server.domain.facts.accounts import FieldChange
from kvyield_server.domain.facts.observation import EngineName
from kvyield_server.schemas.common import GpuCount, MemoryGib, ModelName, Name, ShortText
from kvyield_server.schemas.facts import FactsIn, fact_faults
from kvyield_server.schemas.flags import FlagsIn, flag_faults, normalised
from kvyield_server.schemas.strict import Fault, first_faults


class HardwareCorrectionIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of the hardware with their right values.

    Attributes:
        gpu: The right GPU model; the start moves to the pair of that name.
        gpu_count: The right number of GPUs; the start moves to the pair of that count.
        memory_gib: The right total memory of one GPU as the framework sees it, in GiB.
        unified_memory: Whether the GPU uses the host's memory instead of its own.
        driver_memory_gib: The right total memory of one GPU as the driver reports it, in GiB.
    """

    gpu: Name | UnsetType = UNSET
    gpu_count: GpuCount | UnsetType = UNSET
    memory_gib: MemoryGib | UnsetType | None = UNSET
    unified_memory: bool | UnsetType | None = UNSET
    driver_memory_gib: MemoryGib | UnsetType | None = UNSET


class ModelCorrectionIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of the model with their right values.

    Attributes:
        name: The right name; the start moves to the pair of that name.
        revision: The right revision.
        facts: Fields of `config.json` with their right values; the others stay.
    """

    name: ModelName | UnsetType = UNSET
    revision: ShortText | UnsetType | None = UNSET
    facts: FactsIn | UnsetType = UNSET


class EngineCorrectionIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of the engine with their right values.

    Attributes:
        name: The right engine.
        version: The right version.
        variant: The right name of the fork.
    """

    name: EngineName | UnsetType = UNSET
    version: ShortText | UnsetType | None = UNSET
    variant: ShortText | UnsetType | None = UNSET


class CorrectionIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of a start that were wrong, with their right values. What is not named stays as it is.

    Attributes:
        reason: Why it is corrected, in a sentence of at most 200 characters.
        hardware: Fields of the hardware to put right.
        model: Fields of the model to put right.
        engine: Fields of the engine to put right.
        flags: Flags to put right, by the engine's own names; the others stay.
    """

    reason: ShortText
    hardware: HardwareCorrectionIn | UnsetType = UNSET
    model: ModelCorrectionIn | UnsetType = UNSET
    engine: EngineCorrectionIn | UnsetType = UNSET
    flags: FlagsIn | UnsetType = UNSET


def correction_faults(body: CorrectionIn) -> list[Fault]:
    """Return what the types cannot say: secrets, known flags, and that something is corrected."""
    facts = body.model.facts if isinstance(body.model, ModelCorrectionIn) else UNSET
    found = chain(
        () if facts is UNSET else fact_faults(facts, "/model/facts"),
        () if body.flags is UNSET else flag_faults(body.flags, "/flags"),
        ()
        if changes_of(body)
        else [Fault("", "Nothing is corrected; give a field of hardware, model, engine or flags.")],
    )
    return first_faults(found)


def changes_of(body: CorrectionIn) -> list[FieldChange]:
    """Return the fields that a correction names with their right values."""
    named: dict[str, object] = {}
    for part in ("hardware", "model", "engine"):
        given = getattr(body, part)
        if given is not UNSET:
            values = msgspec.structs.asdict(given)
            named |= {f"{part}.{name}": value for name, value in values.items() if value is not UNSET}
    facts = named.pop("model.facts", {})
    named |= {f"model.facts.{name}": value for name, value in dict(facts).items()}  # type: ignore[call-overload]
    if body.flags is not UNSET:
        named |= {f"flags.{name}": value for name, value in normalised(body.flags).items()}
    return [FieldChange(name, None, value) for name, value in named.items()]
