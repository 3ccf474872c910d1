"""What kvyield has to know of an engine's command line to size its pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvyield_server.domain.facts.observation import Scalar

Fields = Mapping[str, tuple[str, ...]]
"""A field of the deployment key -> the flags that it is read from, in order of preference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine's own names for the roles that flags play; None where the engine has no such flag.

    ``pool_cap`` caps the pool in tokens (``other_caps`` are older names of it); a flag of ``inert_with`` sizes the pool
    by itself, whatever the fraction; ``bytes_flags`` are those among them that say it in bytes, ``blocks_flag`` in
    blocks. ``scales_free_memory`` says that the fraction multiplies what is free after the weights, so that the line
    starts at zero. ``reserves_peak`` says that the engine sets a profiled peak aside before it sizes the pool.
    ``counts_blocks``: a fraction flag over 1 is a number of blocks, each of so many tokens where no flag says more.
    ``default_fraction`` is the engine's own where none is given.
    ``key_fields`` are flags that move the line; ``state_fields`` do so only where requests hold memory of their own.
    """

    title: str
    fraction: str
    default_fraction: float
    context: str
    requests: str
    chunk: str
    tensor_parallel: str
    data_parallel: str | None
    kv_dtype: str
    half_kv: Scalar
    graph_batch: str | None
    graphs_off: str | None
    speculation: str | None
    pool_cap: str | None
    other_caps: tuple[str, ...] = ()
    inert_with: tuple[str, ...] = ()
    bytes_flags: tuple[str, ...] = ()
    blocks_flag: str | None = None
    program: tuple[str, ...]
    model_option: str | None
    image_runs_program: bool = False
    underscores: bool = False
    counts_blocks: int | None = None
    scales_free_memory: bool = False
    reserves_peak: bool = False
    key_fields: Fields = field(default_factory=dict)
    state_fields: Fields = field(default_factory=dict)

    @property
    def caps(self) -> tuple[str, ...]:
        """Every name of the flag that caps the pool in tokens."""
        return (*((self.pool_cap,) if self.pool_cap else ()), *self.other_caps)
