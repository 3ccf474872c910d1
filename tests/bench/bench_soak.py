"""Clients killed with kill -9 at 200 random moments of their work, against the real service: none lost, none doubled.

``--kills N --seed S`` choose other numbers.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from _soak import soak
from e2e.running import Server


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kvyield-soak-") as name:
        server = Server(Path(name))
        try:
            told = soak(server.url, Path(name) / "spool", chosen.kills, chosen.seed)
        finally:
            server.stop()
    print(f"kills                                {told.kills:>8,}")
    print(f"of them with a start still waiting   {told.waiting_when_killed:>8,}")
    print(f"starts promised by the client        {len(told.promised):>8,}")
    print(f"starts in the ledger                 {len(told.held):>8,}")
    print(f"promised and lost                    {len(told.lost):>8,}   (wanted: 0)")
    print(f"in the ledger twice                  {len(told.doubled):>8,}   (wanted: 0)")
    print(f"seconds                              {time.monotonic() - began:>8.0f}")
    return int(bool(told.lost or told.doubled))


if __name__ == "__main__":
    raise SystemExit(main())
