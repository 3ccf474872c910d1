"""What is checked before a prompt costs anybody minutes: the service, the observation, the engine, the GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kvyield._errors import ConflictError, KvyieldError, NotFoundError, RefusedError, ServiceError
from kvyield._names import same_name
from kvyield.cli._options import client_of
from kvyield.cli._run import say

if TYPE_CHECKING:
    from kvyield import _wire
    from kvyield._client import Client
    from kvyield.config import Settings
    from kvyield.gpu import Gpu

FORCE = "--force sends the prompt all the same"


def check_observation(settings: Settings, observation_id: UUID) -> _wire.StoredObservation | None:
    """The observation that a verification is for; None, which is said, when the service cannot be reached.

    Raises `RefusedError` when the service does not have it, or does not let this token see it, or it is retracted.
    """
    from kvyield._wire import Problem

    try:
        with client_of(settings) as client:
            stored = _stored(client, settings, observation_id)
            if stored.retracted_at is None:
                client.check_verification(observation_id)
    except RefusedError:
        say("kvyield: no prompt was sent, since the service refuses what would come of it")
        raise
    except ServiceError as error:
        say(f"kvyield: {error}; the prompt is sent, and its result will wait in the spool")
        return None
    if stored.retracted_at is not None:
        why = f": {stored.retraction_reason}" if stored.retraction_reason else ""
        detail = f"the observation {observation_id} is retracted{why}; no prompt was sent"
        raise ConflictError(409, Problem(type="retracted", title="Retracted", detail=detail))
    return stored


def _stored(client: Client, settings: Settings, observation_id: UUID) -> _wire.StoredObservation:
    """The observation; one that still waits in the spool is sent first."""
    from kvyield._replay import adding, posting
    from kvyield.spool import Spool

    try:
        return client.observation(observation_id)
    except NotFoundError:
        spool = Spool(settings.spool)
        if not spool.has(observation_id):
            raise
        spool.send(posting(client), add=adding(client))
        return client.observation(observation_id)


def check_server(given: Mapping[str, Any], stored: _wire.StoredObservation | None) -> None:
    """Whether the engine that answers can be the start in the ledger. Raises `KvyieldError` when it cannot."""
    from kvyield import identity
    from kvyield.cli.observe import running_engine
    from kvyield.engines.endpoints import read_endpoints

    if stored is None or given["force"]:
        return
    running = running_engine(given)
    try:
        server = identity.of_start(read_endpoints(running.get), "the server", running.listener)
    except (KvyieldError, ValueError):
        return  # it tells nothing that could contradict
    stop_at(identity.contradictions(identity.of_stored(stored), server))


def check_gpus(given: Mapping[str, Any], stored: _wire.StoredObservation | None, gpus: Sequence[Gpu]) -> None:
    """Whether the GPUs that are sampled are those of the observation. Raises `KvyieldError` when they are not."""
    if stored is None or given["force"] or not gpus:
        return
    hardware = stored.hardware
    names = sorted({gpu.name for gpu in gpus})
    if not all(same_name(name, hardware.gpu) for name in names):
        stop_at([f"GPU: {hardware.gpu} (the observation {stored.id}) against {', '.join(names)} (this host)"])
    if len(gpus) < hardware.gpu_count:
        told = f"GPUs: {hardware.gpu_count} (the observation {stored.id}) against {len(gpus)} (this host"
        stop_at([f"{told}; CUDA_VISIBLE_DEVICES hides GPUs)"])


def stop_at(differences: Sequence[str]) -> None:
    """Raises `KvyieldError` when there is a difference."""
    if differences:
        told = "; ".join(differences)
        raise KvyieldError(f"no prompt was sent: the server is another start: {told}. {FORCE}")
