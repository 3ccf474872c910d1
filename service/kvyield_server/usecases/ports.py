"""What the layers above may know of the storage: its protocols and stored forms, under one name."""

from kvyield_server.storage.records import (
    ApiToken,
    AuditEntry,
    ObservationFilter,
    Page,
    PageKey,
    Pair,
    Role,
    StoredObservation,
    StoredRecommendation,
)
from kvyield_server.storage.uow import Storage, UnitOfWork
from kvyield_server.storage.values import new_id

__all__ = [
    "ApiToken",
    "AuditEntry",
    "ObservationFilter",
    "Page",
    "PageKey",
    "Pair",
    "Role",
    "Storage",
    "StoredObservation",
    "StoredRecommendation",
    "UnitOfWork",
    "new_id",
]
