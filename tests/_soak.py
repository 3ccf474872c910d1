"""Clients of one spool killed at random moments against a real service, and what the ledger then holds."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import _spool_child
from _samples_client import sample
from kvyield import Client
from kvyield._replay import posting
from kvyield.spool import Spool

LONGEST_LIFE_SECONDS = 0.25
APART = 1_000


@dataclass
class Soak:
    """What happened: how often a client was killed, which starts it had promised, which starts the ledger holds."""

    kills: int = 0
    waiting_when_killed: int = 0
    promised: set[int] = field(default_factory=set)
    held: Counter[int] = field(default_factory=Counter)

    @property
    def lost(self) -> set[int]:
        """Starts that were promised and are not in the ledger."""
        return self.promised - set(self.held)

    @property
    def doubled(self) -> list[int]:
        """Starts that the ledger holds more than once."""
        return [number for number, times in self.held.items() if times > 1]


def soak(url: str, root: Path, kills: int, seed: int) -> Soak:
    """Kill ``kills`` delivering clients, each at a random moment of its work, then send what still waits."""
    dice, told = random.Random(seed), Soak()
    for kill in range(kills):
        told.promised |= _killed(url, root, kill * APART, dice.uniform(0.0, LONGEST_LIFE_SECONDS))
        told.kills += 1
        told.waiting_when_killed += bool(Spool(root).pending_count())
    with Client(url) as client:
        outcome = Spool(root).send(posting(client))
        assert (outcome.pending, outcome.refused) == (0, []), outcome
        told.held = _held(client)
    return told


def _killed(url: str, root: Path, first: int, seconds: float) -> set[int]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, _spool_child.__file__, "deliver", str(root), url, str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        begun = process.stdout.readline()
        time.sleep(seconds)
        process.kill()
        lines = [begun, *process.stdout.read().split(b"\n")[:-1]]
    return {int(line) for line in lines if line.strip()}


def _held(client: Client) -> Counter[int]:
    """The number of each start, told from its pool."""
    base = sample().measurements.pool_tokens or 0
    return Counter((one.measurements.pool_tokens or 0) - base for one in client.observations(page_size=500))
