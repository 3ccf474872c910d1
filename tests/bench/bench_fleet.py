"""How soon the pages of all pairs open, with 500 and with 5,000 pairs, and how long one pair takes to be looked at.

The first 50 pairs have two starts of one engine version and one of the next, and were asked about. They are really
looked at, and what was found of them is kept for the others under their own names. Times are medians of the
server's answers on loopback, whole pages. The bar is half a second with 5,000 pairs.

Usage: PYTHONPATH=service:tests python tests/bench/bench_fleet.py [PAIRS ...]
"""

from __future__ import annotations

import logging
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

import httpx
import structlog

from kvyield_server.domain.answers import Drift
from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
)
from kvyield_server.domain.records import StoredObservation
from kvyield_server.storage.records import FleetRow
from kvyield_server.storage.statements import batched
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.storage.values import new_id
from kvyield_server.usecases.fits import FitCache
from kvyield_server.usecases.fleet import look_at
from pages import samples
from pages.site import Site, serving

ROUNDS = 9
LOOKED_AT = 50
BAR_SECONDS = 0.5
ADDRESSES = {
    "fleet, first page": "/ui/fleet",
    "fleet, by headroom": "/ui/fleet?sort=headroom",
    "fleet, last page": "/ui/fleet?sort=-started&page={last}",
    "fleet, a search": "/ui/fleet?search=model-0012",
    "drift": "/ui/drift",
}


def fill(site: Site, pairs: int) -> None:
    """Record three starts of each of the first pairs, and one of each other."""
    for number in range(LOOKED_AT):
        site.post(starts(number))
    hardware = Hardware(gpu="NVIDIA Bench", gpu_count=8, memory_gib=95.59)
    others = [(hardware, Model(name=f"bench/model-{number:04}")) for number in range(LOOKED_AT, pairs)]
    for some in batched(others, 500):
        site.storage.write(partial(record, some)).result()


def record(named: list[tuple[Hardware, Model]], uow: UnitOfWork) -> None:
    pairs = uow.pairs.ensure_all(named)
    now = datetime.now(UTC)
    kept = [
        StoredObservation(
            observation=Observation(
                id=new_id(),
                observed_at=now,
                hardware=pair.hardware,
                model=pair.model,
                engine=Engine(name=EngineName.SGLANG, version="0.5.12"),
                outcome=Outcome.READY,
                flags={"mem_fraction_static": 0.9},
                measurements=Measurements(pool_tokens=100_000),
            ),
            pair_id=pair.id,
            received_at=now,
            content_digest=str(pair.id),
        )
        for pair in pairs
    ]
    uow.observations.add(kept, pairs)


def starts(number: int) -> list[dict[str, Any]]:
    """Return two starts of one engine version and one of the next."""
    model = {"name": f"bench/model-{number:04}", "facts": samples.FACTS}
    hardware = {"gpu": "NVIDIA Bench", "gpu_count": 8, "memory_gib": 95.59}
    return [
        samples.start(
            fraction,
            8,
            int(1_303_889 * (fraction - 0.77244)) - (900 if version == "0.5.12" else 0),
            round(92.5 - 94.0 * fraction, 2),
            hardware=hardware,
            model=model,
            host=f"gpu-{number}",
            engine={"name": "sglang", "version": version},
            observed_at=samples.hour(hour),
        )
        for fraction, version, hour in ((0.85, "0.5.11", 0), (0.92, "0.5.11", 1), (0.92, "0.5.12", 2))
    ]


def ask(site: Site) -> None:
    """Keep a question about each of the first pairs."""
    with site.storage.read() as uow:
        names = uow.pairs.names()
    with httpx.Client(base_url=site.url, timeout=60) as client:
        for name in names[:LOOKED_AT]:
            body = {"pair_id": str(name.id), "target_tokens": 150_000}
            client.post("/recommendations", json=body).raise_for_status()


def seconds(client: httpx.Client, address: str) -> float:
    """Return the median time of an answer."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        client.get(address).raise_for_status()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def look(site: Site) -> float:
    """Look at the first pairs, keep the same of all others, and return seconds for one pair."""
    with site.storage.read() as uow:
        pairs = [uow.pairs.get(pair_id) for pair_id in uow.fleet.stale()]
    known = sorted((pair for pair in pairs if pair is not None), key=lambda pair: pair.model.name)
    with ThreadPoolExecutor(1) as executor:
        began = time.perf_counter()
        look_at(site.storage, FitCache(executor, size=1), [pair.id for pair in known[:LOOKED_AT]])
        taken = (time.perf_counter() - began) / LOOKED_AT
    with site.storage.read() as uow:
        rows = uow.fleet.page(None, None, sort="model", is_descending=False, offset=0, size=LOOKED_AT)
        (change,) = uow.fleet.version_changes()
        versions = (change.engine, change.from_version, change.to_version)
        drifts = uow.fleet.drifts(versions, sort="pool", is_descending=True, offset=0, size=LOOKED_AT)
    others = known[LOOKED_AT:]
    for some in batched(list(enumerate(others)), 500):
        new = [
            replace(
                rows[at % LOOKED_AT],
                pair_id=pair.id,
                revision=pair.revision,
                model=pair.model.name,
                gpu=pair.hardware.gpu,
                headroom_gib=at % 97 / 10,
            )
            for at, pair in some
        ]
        changed = [(pair.id, drifts[at % LOOKED_AT].drift) for at, pair in some]
        site.storage.write(partial(keep, new, changed)).result()
    return taken


def keep(rows: list[FleetRow], drifts: list[tuple[UUID, Drift]], uow: UnitOfWork) -> None:
    uow.fleet.save(rows, drifts)


def measure(pairs: int) -> dict[str, float]:
    """Return seconds by what was measured."""
    with tempfile.TemporaryDirectory() as folder, serving(f"sqlite:///{folder}/fleet.db") as site:
        fill(site, pairs)
        ask(site)
        found = {"one pair looked at": look(site)}
        with httpx.Client(base_url=site.url, timeout=60) as client:
            last = str(-(-pairs // 50))
            found |= {name: seconds(client, each.replace("{last}", last)) for name, each in ADDRESSES.items()}
        return found


def main(sizes: list[int]) -> int:
    """Print the times; fail when the bar is missed."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    results = {pairs: measure(pairs) for pairs in sizes}
    print(f"{'':22}" + "".join(f"{pairs:>12,} pairs" for pairs in sizes))
    for name in results[sizes[0]]:
        print(f"{name:22}" + "".join(f"{results[pairs][name] * 1000:>15,.0f} ms" for pairs in sizes))
    slowest = max(results[sizes[-1]][name] for name in ADDRESSES)
    print(f"bar {BAR_SECONDS:g} s: {'met' if slowest < BAR_SECONDS else 'MISSED'}")
    return 0 if slowest < BAR_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main([int(text) for text in sys.argv[1:]] or [500, 5_000]))
