"""The import arrows of the layout, held by reading every import of every module."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / "service" / "kvyield_server"
CLIENT = ROOT / "clients" / "python" / "kvyield"

STORED = {"storage.records", "storage.uow", "storage.values"}  # stored forms and the unit of work that jobs are given
ALLOWED = {
    "domain": {"domain"},
    "schemas": {"schemas", "domain"},
    "storage": {"storage", "domain", "errors"},
    "usecases": {"usecases", "domain", "storage", "errors"},
    "api": {"api", "schemas", "usecases", *STORED, "domain.answers", "domain.records", "errors", "settings"},
    "pages": {"pages", "api", "schemas", "usecases", *STORED, "domain", "errors", "settings"},
}
COMPOSING = {"app.py", "cli.py", "serving.py", "__main__.py"}


def modules(folder: Path) -> Iterator[Path]:
    """Yield the modules of a folder."""
    yield from sorted(folder.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Yield the full name of everything that a module imports, also within functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def own(name: str) -> str | None:
    """Return the part after the server's own package, or None for anything else."""
    package, _, rest = name.partition(".")
    return rest if package == "kvyield_server" else None


@pytest.mark.parametrize("layer", sorted(ALLOWED))
def test_layers_import_only_what_lies_below(layer: str) -> None:
    """api and pages see schemas and use cases; use cases see storage; all see the domain, which sees nobody."""
    for path in modules(SERVER / layer):
        for name in imports(path):
            inner = own(name)
            if inner is None or inner.startswith("__version__"):
                continue
            assert any(inner == it or inner.startswith(it + ".") for it in ALLOWED[layer]), f"{path}: {name}"


def test_the_domain_imports_only_mathematics() -> None:
    """The domain needs the standard library, numpy and scipy.special, and no module that does I/O."""
    forbidden = {"socket", "sqlite3", "subprocess", "urllib", "http", "asyncio", "threading", "os", "pathlib", "random"}
    for path in modules(SERVER / "domain"):
        for name in imports(path):
            root = name.partition(".")[0]
            assert root not in forbidden, f"{path}: {name}"
            if root == "scipy":
                assert name.startswith("scipy.special."), f"{path}: {name}"
            else:
                assert root in sys.stdlib_module_names | {"numpy", "kvyield_server"}, f"{path}: {name}"


def test_imports_are_absolute() -> None:
    """A module is named in one way everywhere."""
    for path in [*modules(SERVER), *modules(CLIENT)]:
        assert not any(name.startswith(".") for name in imports(path)), path


def test_only_the_web_layers_know_the_framework() -> None:
    """Litestar is imported by api, pages and the composing modules alone."""
    for path in modules(SERVER):
        if path.relative_to(SERVER).parts[0] not in {"api", "pages"} and path.name not in COMPOSING:
            assert not any(name.partition(".")[0] == "litestar" for name in imports(path)), path


def test_only_storage_and_migrations_know_the_database() -> None:
    """SQLAlchemy and Alembic are imported by the storage alone."""
    for path in modules(SERVER):
        if path.relative_to(SERVER).parts[0] != "storage":
            assert not any(name.partition(".")[0] in {"sqlalchemy", "alembic", "psycopg"} for name in imports(path)), (
                path
            )


def test_errors_know_no_protocol() -> None:
    """The error tree imports the standard library alone."""
    assert {name.partition(".")[0] for name in imports(SERVER / "errors.py")} <= sys.stdlib_module_names


@pytest.mark.parametrize("folder", [SERVER, CLIENT, ROOT / "tests", ROOT / "migrations"], ids=lambda path: path.name)
def test_no_module_has_two_names(folder: Path) -> None:
    """``service.`` and ``clients.`` would import a second copy of every module."""
    for path in modules(folder):
        assert not any(name.partition(".")[0] in {"service", "clients"} for name in imports(path)), path


def test_neither_distribution_needs_the_other() -> None:
    """The server never imports the client, nor the client the server."""
    for path in modules(SERVER):
        assert not any(name.partition(".")[0] == "kvyield" for name in imports(path)), path
    for path in modules(CLIENT):
        assert not any(name.partition(".")[0] == "kvyield_server" for name in imports(path)), path


def test_the_client_needs_only_what_an_engine_has() -> None:
    """The client imports nothing heavy."""
    heavy = {"numpy", "scipy", "sqlalchemy", "litestar", "uvicorn", "structlog"}
    for path in modules(CLIENT):
        assert not any(name.partition(".")[0] in heavy for name in imports(path)), path


@pytest.mark.parametrize("folder", ["service", "clients", "clients/python", "migrations", "docker"])
def test_folders_that_are_no_packages(folder: str) -> None:
    """These folders have no ``__init__.py``, so they cannot become import roots."""
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("path", [*modules(SERVER), *modules(CLIENT)], ids=lambda path: path.name)
def test_files_stay_small(path: Path) -> None:
    """No file has more than 600 lines: one concept each, in few files rather than many."""
    assert len(path.read_text().splitlines()) <= 600
