"""The Python client: post a start, ask for flags, read the ledger.

``python docs/examples/client_example.py [URL]``: needs `kvyield` alone, and a service at ``URL``, else at the address
that ``KVYIELD_URL`` or the configuration file names.
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone

from kvyield import Client, Engine, Hardware, Measurements, Model, NotFoundError, Observation, ServiceError

GPU = "NVIDIA H200"
MODEL = "example/model-8b"
STARTS = ((0.80, 689_248, 27.9), (0.90, 791_072, 13.9))


def observed(fraction: float, pool_tokens: int, free_gib: float, at: datetime) -> Observation:
    """One start as an engine told of it. Only what is measured is given; the rest stays unknown."""
    return Observation(
        observed_at=at,
        host="gpu-01",
        source="manual",
        hardware=Hardware(gpu=GPU, gpu_count=1, memory_gib=139.8),
        model=Model(name=MODEL),
        engine=Engine(name="vllm", version="0.26.0"),
        flags={"gpu_memory_utilization": fraction, "max_model_len": 131_072, "max_num_seqs": 8},
        outcome="ready",
        measurements=Measurements(pool_tokens=pool_tokens, free_at_ready_gib=free_gib, startup_seconds=60.0),
    )


def main(url: str | None) -> int:
    first = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)
    with Client(url) as client:
        try:
            for number, (fraction, pool_tokens, free_gib) in enumerate(STARTS):
                receipt = client.post_observation(
                    observed(fraction, pool_tokens, free_gib, first + timedelta(hours=number))
                )
                print("stored" if receipt.created else "known", receipt.id)
            advice = client.recommend(model=MODEL, gpu=GPU, gpu_count=1, engine="vllm", target_tokens=100_000)
        except NotFoundError as error:
            print("nothing fits:", error)
            return 1
        except ServiceError as error:
            print("the service could not answer:", error)
            return 1
        print(advice.status, advice.command_line)
        for start in client.observations(model=MODEL):
            print(start.observed_at, start.flags["gpu_memory_utilization"], start.measurements.pool_tokens)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
