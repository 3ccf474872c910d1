"""Lists, advice and posts on PostgreSQL with a million starts beside the same with ten thousand, in rotation.

Usage: PYTHONPATH=service:tests python tests/bench/bench_growth.py [rows] [rounds]

Two databases of one server hold the ledgers, each with a service; the starts are spread over a thousand pairs. Exits
with 1 when a case takes over 1.3 times as long with a hundred times the rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg

from _postgres import PostgresCluster
from api.samples import NAMES, start
from bench.bench_load import started
from kvyield_server.schemas.paging import page_token, row_named
from kvyield_server.storage.records import NEWEST_OBSERVED

BAR, FEW, PAIRS, WARM_UP = 1.3, 10_000, 1_000, 3

OWN = {
    "id": "gen_random_uuid()",
    "content_digest": "md5(g::text) || 'copied'",
    "observed_at": "o.observed_at - g * interval '1 minute'",
    "host": "'gpu-' || mod(g, 500)",
    "host_key": "'gpu-' || mod(g, 500)",
    "pair_id": "p.id",
    "model": "p.name",
}
COUNTED = """
    UPDATE pair SET observation_count = c.n, revision = revision + 1
    FROM (SELECT pair_id, count(*) AS n FROM observation GROUP BY pair_id) AS c WHERE c.pair_id = pair.id
"""


def fill(url: str, database: str, count: int) -> None:
    """Copy one stored start until there are that many, spread over the pairs, a minute apart."""
    with httpx.Client(base_url=url, timeout=60) as client:
        for first in range(0, PAIRS, 250):
            items = [start(id=None, model={"name": f"m{number}"}) for number in range(first, first + 250)]
            client.post("/observations/batch", json={"observations": items}).raise_for_status()
        for number in (1, 2, 3):
            client.post("/observations", json=start(number)).raise_for_status()
    with psycopg.connect(database.replace("+psycopg", ""), autocommit=True) as connection:
        copy_starts(connection, count)
        connection.execute(COUNTED)
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def copy_starts(connection: psycopg.Connection[Any], count: int) -> None:
    """Copy one stored start that many times."""
    listed = "SELECT column_name FROM information_schema.columns WHERE table_name = 'observation'"
    columns = [str(row[0]) for row in connection.execute(listed)]
    chosen = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join(OWN.get(name, f'o."{name}"') for name in columns)
    connection.execute(
        f"INSERT INTO observation ({chosen}) SELECT {values} FROM generate_series(1, {count}) AS g "
        "JOIN (SELECT pair.id, model.name FROM pair JOIN model ON model.id = pair.model_id) AS p "
        "ON p.name = 'm' || mod(g, 1000), (SELECT * FROM observation LIMIT 1) AS o".encode()
    )


def page_of_1000(url: str) -> str:
    """Return the token of the thousandth page, of ten starts each."""
    newest = httpx.get(f"{url}/observations?page_size=1", timeout=60).json()["next_page_token"]
    at, _ = row_named(newest, NEWEST_OBSERVED)
    return page_token(at - timedelta(minutes=9_990), UUID(int=2**127), NEWEST_OBSERVED)


def cases(url: str) -> dict[str, Callable[[], httpx.Response]]:
    """Return what is timed at one service."""
    client, thousandth = httpx.Client(base_url=url, timeout=60), page_of_1000(url)
    numbers = iter(range(10**9))

    def until() -> str:
        """Return a time that no earlier question had, so that no answer is one that was kept."""
        return f"2100-01-01T00:00:00.{next(numbers):06}Z"

    def page(**more: str) -> httpx.Response:
        return client.get("/observations", params={"page_size": 10, "until": until(), **more})

    def recommend() -> httpx.Response:
        return client.get("/recommend", params={**NAMES, "target_tokens": 100_000 + next(numbers)})

    def post() -> httpx.Response:
        return client.post("/observations", json=start(id=None, host=str(uuid4()), model={"name": "m7"}))

    return {
        "page 1": page,
        "page 1000": lambda: page(page_token=thousandth),
        "recommend": recommend,
        "post": post,
    }


def milliseconds(case: Callable[[], httpx.Response]) -> float:
    """Return how long one answer takes."""
    begun = time.perf_counter()
    case().raise_for_status()
    return 1000.0 * (time.perf_counter() - begun)


def compare(small: str, large: str, rounds: int) -> bool:
    """Time all cases at both services in turn, print them, and say whether the bar is met."""
    few, many = cases(small), cases(large)
    is_met = True
    for name in few:
        pairs = [(milliseconds(few[name]), milliseconds(many[name])) for _ in range(rounds + WARM_UP)][WARM_UP:]
        ratio = median(pair[1] for pair in pairs) / median(pair[0] for pair in pairs)
        line: dict[str, Any] = {"case": name, "ratio": round(ratio, 2), "bar": BAR}
        line |= {"few_milliseconds": round(median(pair[0] for pair in pairs), 2)}
        print(json.dumps(line | {"many_milliseconds": round(median(pair[1] for pair in pairs), 2)}), flush=True)
        is_met &= ratio <= BAR
    return is_met


def main() -> int:
    """Fill both ledgers and compare."""
    given = [int(word) for word in sys.argv[1:]]
    rows, rounds = (given + [1_000_000, 200][len(given) :])[:2]
    cluster, processes = PostgresCluster(), list[subprocess.Popen[bytes]]()
    try:
        urls = []
        for count in (FEW, rows):
            database = cluster.url(cluster.create_migrated())
            folder = Path(tempfile.mkdtemp(prefix="kvyield-growth-"))
            url, process = started(folder, "--database", database)
            processes.append(process)
            fill(url, database, count)
            urls.append(url)
        return 0 if compare(urls[0], urls[1], rounds) else 1
    finally:
        for process in processes:
            process.terminate()
            process.wait()
        cluster.close()


if __name__ == "__main__":
    sys.exit(main())
