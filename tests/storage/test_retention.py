"""Old starts leave the ledger only after they are in a file, and only when no answer needs them."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kvyield_server.errors import ConflictError
from kvyield_server.schemas.exports import ndjson
from kvyield_server.storage.engine import open_storage
from kvyield_server.storage.records import ObservationFilter
from kvyield_server.storage.uow import Storage
from kvyield_server.usecases import retention
from kvyield_server.usecases.record import Arrival, record
from storage.samples import start

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def filled(storage: Storage) -> list[str]:
    """Store six starts a day apart, the newest first, and retract the second; return their ids."""
    starts = [start(observed_at=NOW - timedelta(days=days)) for days in range(1, 7)]
    arrivals = [Arrival(each, str(each.id), None, NOW, "loopback") for each in starts]
    storage.write(record(arrivals)).result()
    storage.write(lambda uow: uow.observations.retract(starts[1].id, "wrong host", NOW)).result()
    return [str(each.id) for each in starts]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_is_removed_is_in_the_file_first(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Before a time, retracted starts and those beyond the newest of their pair go; the count and the trail agree."""
    urls = {"sqlite": f"sqlite:///{tmp_path / 'kvyield.db'}"}
    url = urls.get(kind) or request.getfixturevalue("postgres_url")
    monkeypatch.setattr(retention, "MOST_STARTS", 3)
    monkeypatch.setattr(retention, "AT_ONCE", 2)
    target = tmp_path / "retired.ndjson"
    with closing(open_storage(url)) as storage:
        ids = filled(storage)
        removed = retention.retire(storage, NOW - timedelta(days=1, hours=12), target, ndjson, now=NOW)
        with storage.read() as uow:
            left = [str(row.observation.id) for row in uow.observations.page(ObservationFilter(), None, 10).items]
            (pair,) = uow.pairs.page(None, None, 2).items
            trail = uow.audit.page(None, 10).items
        with pytest.raises(ConflictError):
            retention.retire(storage, NOW, target, ndjson, now=NOW)
    assert [json.loads(line)["id"] for line in target.read_text().splitlines()] == [ids[5], ids[4], ids[1]]
    assert (removed, left, pair.observation_count) == (3, [ids[0], ids[2], ids[3]], 3)
    assert sum(int(str(entry.details["removed"])) for entry in trail) == 3
