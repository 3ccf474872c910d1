"""Observations as a Parquet file, for analysis: the columns of the CSV export, typed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.inspect import FloatType, IntType, UnionType, type_info

from kvyield_server.domain.records import StoredObservation
from kvyield_server.schemas.exports import COLUMNS, table_row
from kvyield_server.schemas.observations import MeasurementsIn

_INSTANTS = ("observed_at", "received_at", "retracted_at")
_TYPES = {
    **dict.fromkeys(_INSTANTS, pa.timestamp("us", tz="UTC")),
    **dict.fromkeys(("gpu_count", "verified_prompt_tokens"), pa.int64()),
    **dict.fromkeys(("memory_gib", "fraction"), pa.float64()),
    "unified_memory": pa.bool_(),
}


class ParquetTable:
    """One file, written a page of observations at a time, so that memory does not grow with the ledger."""

    def __init__(self) -> None:
        self._sink = _Sink()
        self._schema = pa.schema([(name, _type_of(name)) for name in COLUMNS])
        self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd")

    def rows(self, observations: Iterable[StoredObservation]) -> bytes:
        """Write observations as a group of rows; return what the file gained."""
        rows = [_typed(stored) for stored in observations]
        if rows:
            self._writer.write_table(pa.Table.from_pylist(rows, schema=self._schema))
        return self._sink.taken()

    def end(self) -> bytes:
        """Close the file; return its last part."""
        self._writer.close()
        return self._sink.taken()


class _Sink:
    """A file that is only written to, and whose content is taken away bit by bit."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._size += len(part)
        return len(part)

    def tell(self) -> int:
        return self._size

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        self.closed = True

    def taken(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _type_of(column: str) -> pa.DataType:
    return _TYPES.get(column) or _MEASURED.get(column, pa.string())


def _measured_types() -> dict[str, pa.DataType]:
    """Return the type of each measurement, from the struct that is posted."""
    found: dict[str, pa.DataType] = {}
    for field in type_info(MeasurementsIn).fields:  # type: ignore[attr-defined]  # that of a struct has fields
        options = field.type.types if isinstance(field.type, UnionType) else (field.type,)
        kinds = {IntType: pa.int64(), FloatType: pa.float64()}
        found[field.name] = next(kinds[type(option)] for option in options if type(option) in kinds)
    return found


_MEASURED = _measured_types()


def _typed(stored: StoredObservation) -> dict[str, Any]:
    row = table_row(stored)
    moments = {name: row[name] and datetime.fromisoformat(row[name]) for name in _INSTANTS}
    return {name: row[name] for name in COLUMNS} | moments
