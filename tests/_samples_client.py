"""Observations for the client's tests."""

from __future__ import annotations

from datetime import datetime, timedelta

from kvyield._ids import start_id
from kvyield._wire import Engine, Hardware, Measurements, Model, Observation

LOG = """\
[2026-05-30 22:00:23] server_args=ServerArgs(model_path='moonshotai/Kimi-K2.6', tp_size=8, context_length=200000, \
mem_fraction_static=0.92, max_running_requests=8, chunked_prefill_size=8192, api_key='sk-very-secret-value')
[2026-05-30 22:04:14 TP0] KV Cache is allocated. #tokens: 192406, KV size: 13.19 GB
[2026-05-30 22:06:04 TP0] max_total_num_tokens=192406, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=8, context_len=200000, available_gpu_mem=6.10 GB
[2026-05-30 22:06:23] The server is fired up and ready to roll!
"""


def sample(number: int = 0, *, model: str = "moonshotai/Kimi-K2.6") -> Observation:
    """A start that differs from another number's in its pool and its minute only."""
    observation = Observation(
        observed_at=datetime.fromisoformat("2026-05-30T22:00:23+00:00") + timedelta(minutes=number),
        hardware=Hardware(gpu="NVIDIA H200", gpu_count=8),
        model=Model(name=model),
        engine=Engine(name="sglang", version="0.5.12"),
        flags={"mem_fraction_static": 0.92},
        outcome="ready",
        measurements=Measurements(pool_tokens=192_406 + number),
    )
    observation.id = start_id(observation)
    return observation
