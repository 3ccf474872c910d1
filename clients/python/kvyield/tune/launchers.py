"""Who starts the engine: what the loop of ``tune`` needs of it, whether it is a child, a unit or a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from kvyield._wire import Scalar
from kvyield.sources import Source

State = Literal["running", "stopped", "failed"]
Snapshot = dict[str, Any]
"""JSON-able: all that is needed to put back what is there now."""


class Launcher(Protocol):
    """Changes the flags that an engine is started with, and starts it anew. All methods raise `TuneError`.

    ``name`` is for people. ``key`` is the same for two runs of ``tune`` on one engine and for no others: it names the
    journal and the lock.
    """

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> str: ...

    def learn(self, engine: str) -> None:
        """Takes which engine runs, as its log or server told. Raises when the command starts another one."""
        ...

    def snapshot(self) -> Snapshot:
        """What is there now."""
        ...

    def describe(self, flags: Mapping[str, Scalar]) -> list[str]:
        """Lines for the plan: what `apply` would change."""
        ...

    def apply(self, flags: Mapping[str, Scalar]) -> None:
        """Writes flags, by the engine's own names; None removes one. Idempotent, atomic, fsynced; restarts nothing."""
        ...

    def stop(self) -> bool:
        """Ends the engine and returns when its process is gone; False where only `restart` can end it."""
        ...

    def restart(self) -> None:
        """Starts the engine anew, or starts it when it does not run. Does not wait until it is ready."""
        ...

    def restore(self, snapshot: Snapshot) -> None:
        """Puts back exactly what was there, also that there was nothing. Idempotent, atomic, fsynced."""
        ...

    def restore_commands(self, snapshot: Snapshot) -> list[str]:
        """What a person would type to do what `restore` and `restart` do."""
        ...

    def state(self) -> State:
        """Whether the engine's process runs."""
        ...

    def pid(self) -> int | None:
        """The engine's process, where this host has it."""
        ...

    def log_source(self) -> Source | None:
        """What the engine logs from now on, as a source that follows; None where the user must name the log."""
        ...
