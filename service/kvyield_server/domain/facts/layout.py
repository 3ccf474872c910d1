"""How an engine spreads one model over the GPUs of its hardware."""

from __future__ import annotations

from dataclasses import dataclass

from kvyield_server.domain.facts.observation import Flags
from kvyield_server.domain.facts.scalars import any_named, as_count, first_given, is_on

TENSOR = ("tp_size", "tensor_parallel_size", "tp")
PIPELINE = ("pp_size", "pipeline_parallel_size", "pp")
DATA = ("dp_size", "data_parallel_size", "dp")
DATA_ATTENTION = ("enable_dp_attention", "dp_attention")
DECODE_CONTEXT = ("dcp_size", "decode_context_parallel_size", "dcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """Sizes of each kind of parallelism; ``is_known`` is false where the tensor size was inferred from the GPUs."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    data_attention: bool = False
    decode_context: int = 1
    is_known: bool = True

    @property
    def attention_tensor(self) -> int:
        """The number of GPUs that share one attention layer."""
        return max(1, self.tensor // self.data) if self.data_attention else self.tensor

    @property
    def gpus(self) -> int:
        """The number of GPUs that the layout takes."""
        return self.tensor * self.pipeline * (1 if self.data_attention else self.data)

    @property
    def is_spread(self) -> bool:
        """Tell whether GPUs must talk to one another, which costs each of them communication buffers."""
        return self.tensor * self.pipeline > 1


def parallel_layout(flags: Flags, gpu_count: int) -> ParallelLayout:
    """Read the layout from an engine's own flags; an unnamed tensor size takes the GPUs that the others leave."""
    pipeline = as_count(first_given(flags, *PIPELINE)) or 1
    data = as_count(first_given(flags, *DATA)) or 1
    attention = is_on(first_given(flags, *DATA_ATTENTION))
    named = as_count(first_given(flags, *TENSOR))
    is_known = named is not None or any_named(flags, *TENSOR) or gpu_count == 1
    inferred = max(1, gpu_count // (pipeline if attention else pipeline * data))
    tensor = named or (1 if any_named(flags, *TENSOR) else inferred)
    context = as_count(first_given(flags, *DECODE_CONTEXT)) or 1
    return ParallelLayout(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        data_attention=attention,
        decode_context=context,
        is_known=is_known,
    )
