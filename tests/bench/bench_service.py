"""How soon the service is ready after exec, and how much memory it holds with 100,000 observations.

Usage: PYTHONPATH=service:tests python tests/bench/bench_service.py [observations]

The memory is what stays resident after batches that post them all, a walk over 200 pages, 50 questions and an export.
Exits with 1 when a start takes over 2 s or the memory is over 150 MB.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx
import psutil

from api.samples import NAMES, start
from bench.bench_load import ITEMS, batches, started

READY_SECONDS, RESIDENT_MB = 2.0, 150.0


def seconds_to_ready(folder: Path) -> tuple[float, str, subprocess.Popen[bytes]]:
    """Start the service and return how long it took to call itself ready, its address and its process."""
    begun = time.perf_counter()
    url, process = started(folder)
    httpx.get(f"{url}/health/ready").raise_for_status()
    return time.perf_counter() - begun, url, process


def use(url: str, observations: int) -> None:
    """Fill the ledger and use what reads it."""
    with httpx.Client(base_url=url, timeout=120) as client:
        for request in itertools.islice(batches("", itertools.count()), observations // ITEMS):
            body = request.partition(b"\r\n\r\n")[2]
            headers = {"Content-Type": "application/json"}
            client.post("/observations/batch", content=body, headers=headers).raise_for_status()
        for number in (1, 2, 3):
            client.post("/observations", json=start(number))
        for target in range(50):
            client.get("/recommend", params={**NAMES, "target_tokens": 150_000 + target}).raise_for_status()
        large = {**NAMES, "model": "batched-3", "target_tokens": 150_000}
        client.get("/recommend", params=large).raise_for_status()
        query: dict[str, str | int] = {"page_size": 500}
        for _ in range(200):
            page = client.get("/observations", params=query).json()
            query["page_token"] = page["next_page_token"] or ""
            if not query["page_token"]:
                break
        with client.stream("GET", "/export/observations.ndjson") as answer:
            for _ in answer.iter_raw():
                pass


def main() -> int:
    """Measure and report."""
    observations = int((sys.argv[1:] or ["100000"])[0])
    with tempfile.TemporaryDirectory() as name:
        times = []
        for _ in range(5):
            seconds, url, process = seconds_to_ready(Path(name))
            times.append(seconds)
            process.terminate()
            process.wait()
        _, url, process = seconds_to_ready(Path(name))
        use(url, observations)
        resident = psutil.Process(process.pid).memory_info().rss / 1e6
        process.terminate()
        process.wait()
    ready = median(times)
    print(json.dumps({"case": "exec to ready", "seconds": round(ready, 2), "bar": READY_SECONDS}))
    print(json.dumps({"case": f"resident, {observations} observations", "mb": round(resident), "bar": RESIDENT_MB}))
    return 0 if ready < READY_SECONDS and resident < RESIDENT_MB else 1


if __name__ == "__main__":
    sys.exit(main())
