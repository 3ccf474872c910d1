"""The ledger as streams: NDJSON, CSV and Parquet, in constant memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from litestar import Request, get
from litestar.di import NamedDependency
from litestar.response import Stream

from kvyield_server.api.auth import MANAGERS
from kvyield_server.api.pagination import where_of
from kvyield_server.api.problems import responses_of
from kvyield_server.api.services import Services, services_of
from kvyield_server.domain.records import StoredObservation
from kvyield_server.errors import AmbiguousError, MissingExtraError
from kvyield_server.schemas.exports import csv_head, csv_lines, ndjson
from kvyield_server.schemas.paging import ExportQuery
from kvyield_server.storage.records import ObservationFilter
from kvyield_server.usecases.browse import as_spelled
from kvyield_server.usecases.export import export

Encode = Callable[[Iterable[StoredObservation]], bytes]
Part = Callable[[], bytes]
PARQUET = "application/vnd.apache.parquet"
WHICH_NAMES = responses_of(AmbiguousError)


@get(
    "/export/observations.ndjson",
    operation_id="export_ndjson",
    media_type="application/x-ndjson",
    guards=[MANAGERS],
    responses=WHICH_NAMES,
)
async def export_ndjson(request: Request[Any, Any, Any], parameters: NamedDependency[ExportQuery]) -> Stream:
    """Stream observations, newest first, one JSON object a line."""
    services, where = await _asked(request, parameters)
    return _stream(_chunks(services, where, ndjson), "application/x-ndjson", "observations.ndjson")


@get(
    "/export/observations.csv",
    operation_id="export_csv",
    media_type="text/csv",
    guards=[MANAGERS],
    responses=WHICH_NAMES,
)
async def export_csv(request: Request[Any, Any, Any], parameters: NamedDependency[ExportQuery]) -> Stream:
    """Stream observations, newest first, as a flat table."""
    services, where = await _asked(request, parameters)
    return _stream(_chunks(services, where, csv_lines, head=csv_head), "text/csv", "observations.csv")


@get(
    "/export/observations.parquet",
    operation_id="export_parquet",
    media_type=PARQUET,
    guards=[MANAGERS],
    responses=responses_of(AmbiguousError, MissingExtraError),
)
async def export_parquet(request: Request[Any, Any, Any], parameters: NamedDependency[ExportQuery]) -> Stream:
    """Stream observations, newest first, as a typed table in a Parquet file; needs the extra ``parquet``."""
    MissingExtraError.unless("pyarrow", "parquet", "A Parquet file")
    from kvyield_server.schemas.parquet import ParquetTable

    services, where = await _asked(request, parameters)
    table = await services.in_reader(ParquetTable)
    return _stream(_chunks(services, where, table.rows, end=table.end), PARQUET, "observations.parquet")


async def _asked(request: Request[Any, Any, Any], parameters: ExportQuery) -> tuple[Services, ObservationFilter]:
    services, where = services_of(request), where_of(parameters)
    return services, await services.read(lambda uow: as_spelled(uow, where))


async def _chunks(
    services: Services, where: ObservationFilter, encode: Encode, head: Part = bytes, end: Part = bytes
) -> AsyncIterator[bytes]:
    yield head()
    pages = export(services.storage, where)
    while (page := await services.in_reader(lambda: next(pages, None))) is not None:
        yield await services.in_reader(lambda page=page: encode(page))  # type: ignore[misc]
    yield end()


def _stream(chunks: AsyncIterator[bytes], media_type: str, name: str) -> Stream:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Stream(chunks, media_type=media_type, headers=headers)
