"""kvyield's thin client: reads an engine's log, measures GPU memory, posts engine starts, asks for memory flags.

    from kvyield import Client

    with Client("http://127.0.0.1:8321") as client:
        advice = client.recommend(model="moonshotai/Kimi-K2.6", gpu="RTX PRO 6000", gpu_count=8, target_tokens=200_000)

Importing this package loads neither the HTTP library nor the structs; both come with the first name that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kvyield._errors import (
    AnswerTooLargeError,
    ConfigError,
    ConflictError,
    DeadlineError,
    IncompleteError,
    InvalidError,
    KvyieldError,
    NotAllowedError,
    NotFoundError,
    RefusedError,
    ServiceError,
    ServiceFailedError,
    ServiceUnreachableError,
    SourceError,
    SpoolError,
    UnexpectedAnswerError,
)

if TYPE_CHECKING:
    from kvyield._client import AsyncClient as AsyncClient
    from kvyield._client import Client as Client
    from kvyield._wire import Engine as Engine
    from kvyield._wire import Failure as Failure
    from kvyield._wire import Hardware as Hardware
    from kvyield._wire import Measurements as Measurements
    from kvyield._wire import Model as Model
    from kvyield._wire import Observation as Observation
    from kvyield._wire import Recommendation as Recommendation
    from kvyield._wire import Selector as Selector
    from kvyield._wire import StoredObservation as StoredObservation
    from kvyield._wire import Verification as Verification

__version__ = "0.1.0"

_LAZY = {
    "AsyncClient": "kvyield._client",
    "Client": "kvyield._client",
    "Engine": "kvyield._wire",
    "Failure": "kvyield._wire",
    "Hardware": "kvyield._wire",
    "Measurements": "kvyield._wire",
    "Model": "kvyield._wire",
    "Observation": "kvyield._wire",
    "Recommendation": "kvyield._wire",
    "Selector": "kvyield._wire",
    "StoredObservation": "kvyield._wire",
    "Verification": "kvyield._wire",
}

__all__ = [
    "AnswerTooLargeError",
    "AsyncClient",
    "Client",
    "ConfigError",
    "ConflictError",
    "DeadlineError",
    "Engine",
    "Failure",
    "Hardware",
    "IncompleteError",
    "InvalidError",
    "KvyieldError",
    "Measurements",
    "Model",
    "NotAllowedError",
    "NotFoundError",
    "Observation",
    "Recommendation",
    "RefusedError",
    "Selector",
    "ServiceError",
    "ServiceFailedError",
    "ServiceUnreachableError",
    "SourceError",
    "SpoolError",
    "StoredObservation",
    "UnexpectedAnswerError",
    "Verification",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'kvyield' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
