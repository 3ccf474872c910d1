"""One tree of errors, each with a stable ``code`` and a ``title`` for people; knows no HTTP.

KvyieldError
├── NotFoundError            nothing has that id or name; ``nearest`` holds names that come close
├── AmbiguousError           several things match; ``matches`` lists them
├── ConflictError            the write contradicts what is stored
│   └── RetractedError       the start was retracted: nothing more is taken for it
├── InvalidError             the input is not valid; ``errors`` holds a pointer and a sentence each
├── UnauthenticatedError     no token, or one that is unknown, expired or revoked
├── ForbiddenError           the token's role does not allow this
├── MissingExtraError        an optional package is not installed
└── StorageUnavailableError  the database cannot be reached, is locked or is full; try again later
    └── MigrationNeededError the database's schema is not the one that this version needs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import ClassVar


class KvyieldError(Exception):
    """Root of all errors that kvyield raises on purpose; ``detail`` is a sentence about this very case."""

    code: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class NotFoundError(KvyieldError):
    """Nothing has that id or name."""

    code = "not_found"
    title = "Not found"

    def __init__(self, detail: str, nearest: Sequence[str] = ()) -> None:
        super().__init__(detail)
        self.nearest = tuple(nearest)


class AmbiguousError(KvyieldError):
    """Several things match where one is needed; ``matches`` holds what names each."""

    code = "ambiguous"
    title = "Ambiguous"

    def __init__(self, detail: str, matches: Sequence[Mapping[str, object]] = ()) -> None:
        super().__init__(detail)
        self.matches = tuple(matches)


class ConflictError(KvyieldError):
    """The write contradicts what is stored, such as the same id for another start."""

    code = "conflict"
    title = "Conflict"


class RetractedError(ConflictError):
    """The start was retracted, so that nothing more is taken for it."""

    code = "retracted"
    title = "Retracted"


class InvalidError(KvyieldError):
    """The input is not valid. ``errors`` holds a JSON pointer and a sentence for each thing that is wrong."""

    code = "invalid"
    title = "Invalid"

    def __init__(self, errors: Sequence[tuple[str, str]], detail: str | None = None) -> None:
        super().__init__(detail or "; ".join(f"{pointer}: {text}" if pointer else text for pointer, text in errors))
        self.errors = tuple(errors)


class UnauthenticatedError(KvyieldError):
    """No token was given, or one that is unknown, expired or revoked."""

    code = "unauthenticated"
    title = "Unauthenticated"


class ForbiddenError(KvyieldError):
    """The token's role does not allow this, or no token exists and the request came by a name of another host."""

    code = "forbidden"
    title = "Forbidden"


class MissingExtraError(KvyieldError):
    """This installation of the service lacks an optional package; the detail names the extra to install."""

    code = "missing_extra"
    title = "Missing extra"

    @classmethod
    def unless(cls, package: str, extra: str, what: str) -> None:
        """Raise unless a package is installed, which an extra of the service brings."""
        if find_spec(package) is None:
            raise cls(f"{what} needs the package {package}: pip install 'kvyield-server[{extra}]'.")


class StorageUnavailableError(KvyieldError):
    """The database cannot be reached, is locked or is full. What was asked may be tried again later."""

    code = "storage_unavailable"
    title = "Storage unavailable"


class MigrationNeededError(StorageUnavailableError):
    """The database's schema is not the one that this version of the service needs."""

    code = "migration_needed"
    title = "Database migration needed"
