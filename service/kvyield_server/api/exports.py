"""The ledger as streams: NDJSON and CSV, in constant memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from litestar import Request, get
from litestar.di import NamedDependency
from litestar.response import Stream

from kvyield_server.api.auth import MANAGERS
from kvyield_server.api.pagination import where_of
from kvyield_server.api.services import Services, services_of
from kvyield_server.schemas.exports import csv_head, csv_lines, ndjson
from kvyield_server.schemas.paging import ExportQuery
from kvyield_server.storage.records import ObservationFilter, StoredObservation
from kvyield_server.usecases.export import export

Encode = Callable[[Iterable[StoredObservation]], bytes]


@get("/export/observations.ndjson", operation_id="export_ndjson", media_type="application/x-ndjson", guards=[MANAGERS])
async def export_ndjson(request: Request[Any, Any, Any], parameters: NamedDependency[ExportQuery]) -> Stream:
    """Stream observations, newest first, one JSON object a line."""
    return _stream(
        _chunks(services_of(request), where_of(parameters), ndjson), "application/x-ndjson", "observations.ndjson"
    )


@get("/export/observations.csv", operation_id="export_csv", media_type="text/csv", guards=[MANAGERS])
async def export_csv(request: Request[Any, Any, Any], parameters: NamedDependency[ExportQuery]) -> Stream:
    """Stream observations, newest first, as a flat table."""
    chunks = _chunks(services_of(request), where_of(parameters), csv_lines, head=csv_head())
    return _stream(chunks, "text/csv", "observations.csv")


async def _chunks(
    services: Services, where: ObservationFilter, encode: Encode, head: bytes = b""
) -> AsyncIterator[bytes]:
    yield head
    pages = export(services.storage, where)
    while (page := await services.in_reader(lambda: next(pages, None))) is not None:
        yield await services.in_reader(lambda page=page: encode(page))  # type: ignore[misc]


def _stream(chunks: AsyncIterator[bytes], media_type: str, name: str) -> Stream:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Stream(chunks, media_type=media_type, headers=headers)
