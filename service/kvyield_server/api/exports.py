"""The ledger as streams: NDJSON and CSV, in constant memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from litestar import Request, get
from litestar.response import Stream

from kvyield_server.api.auth import MANAGES
from kvyield_server.api.pages import where_of
from kvyield_server.api.request import MEDIA, QUERY, query_of
from kvyield_server.api.services import Services, services_of
from kvyield_server.schemas.exports import csv_head, csv_lines, ndjson
from kvyield_server.schemas.paging import ExportQuery
from kvyield_server.usecases.export import export
from kvyield_server.usecases.ports import ObservationFilter, StoredObservation

Encode = Callable[[Iterable[StoredObservation]], bytes]
EXPORTS = {**MANAGES, QUERY: ExportQuery}


@get("/export/observations.ndjson", operation_id="export_ndjson", opt={**EXPORTS, MEDIA: ("application/x-ndjson",)})
async def export_ndjson(request: Request[Any, Any, Any]) -> Stream:
    """Stream observations, newest first, one JSON object a line."""
    where = where_of(query_of(request, ExportQuery))
    return _stream(_chunks(services_of(request), where, ndjson), "application/x-ndjson", "observations.ndjson")


@get("/export/observations.csv", operation_id="export_csv", opt={**EXPORTS, MEDIA: ("text/csv",)})
async def export_csv(request: Request[Any, Any, Any]) -> Stream:
    """Stream observations, newest first, as a flat table."""
    where = where_of(query_of(request, ExportQuery))
    chunks = _chunks(services_of(request), where, csv_lines, head=csv_head())
    return _stream(chunks, "text/csv", "observations.csv")


async def _chunks(
    services: Services, where: ObservationFilter, encode: Encode, head: bytes = b""
) -> AsyncIterator[bytes]:
    yield head
    pages = export(services.storage, where)
    while (page := await services.off_loop(lambda: next(pages, None))) is not None:
        yield await services.off_loop(lambda page=page: encode(page))  # type: ignore[misc]


def _stream(chunks: AsyncIterator[bytes], media_type: str, name: str) -> Stream:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Stream(chunks, media_type=media_type, headers=headers)
