"""A process that works on a spool until it is killed: ``_spool_child.py add|send|deliver ROOT FIRST|URL [FIRST]``."""

from __future__ import annotations

import sys
from pathlib import Path

from _samples_client import sample
from kvyield import Client
from kvyield._transfer import Limits
from kvyield.delivery import spool_observations
from kvyield.spool import Spool


def add(spool: Spool, first: int) -> None:
    """Adds without end; prints each number after its `add` has returned."""
    number = first
    while True:
        spool.add(sample(number))
        print(number, flush=True)
        number += 1


def send(spool: Spool, url: str) -> None:
    """Sends until the spool is empty, then says so."""
    with Client(url, limits=Limits(first_pause_seconds=0.01)) as client:
        print("go", flush=True)
        outcome = spool.send(client.post_observation, wait_seconds=30.0)
    print("sent", len(outcome.sent), outcome.stopped_by, flush=True)


def bring(spool: Spool, url: str, first: int) -> None:
    """Delivers starts without end; prints each number once `send` has said that it is kept."""
    number = first
    with Client(url, limits=Limits(first_pause_seconds=0.01, total_seconds=5.0)) as client:
        while True:
            [delivery] = spool_observations([sample(number)], spool).send(client)
            assert delivery.result in ("stored", "known", "spooled"), delivery
            print(number, flush=True)
            number += 1


if __name__ == "__main__":
    verb, root, argument, *more = sys.argv[1:]
    if verb == "deliver":
        bring(Spool(Path(root)), argument, int(more[0]))
    elif verb == "add":
        add(Spool(Path(root)), int(argument))
    else:
        send(Spool(Path(root)), argument)
