"""Kill -9 at random moments under load, again and again, then compare the ledger with what was acknowledged.

Usage: PYTHONPATH=service:tests python tests/bench/soak_kills.py [kills] [seed]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from _postgres import PostgresCluster
from e2e.test_faults import kill_again_and_again


def main() -> None:
    """Soak a server on SQLite and one on PostgreSQL; a lost, doubled or unexplained row ends with an error."""
    given = [int(word) for word in sys.argv[1:]]
    kills, seed = (given + [100, 1][len(given) :])[:2]
    cluster = PostgresCluster()
    try:
        with tempfile.TemporaryDirectory() as name:
            databases = {
                "SQLite": f"sqlite:///{Path(name) / 'kvyield.db'}",
                "PostgreSQL": cluster.url(cluster.create_migrated()),
            }
            for kind, database in databases.items():
                begun = time.monotonic()
                kept = kill_again_and_again(Path(name), database, kills, seed)
                took = time.monotonic() - begun
                print(
                    f"{kind}: {kills} kills, {kept} starts, none lost, none doubled, no 500; {took:.0f} s", flush=True
                )
    finally:
        cluster.close()


if __name__ == "__main__":
    main()
