"""Libraries are used by their public names alone, so that their next version breaks nothing here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / "service" / "kvyield_server"
OWN = {"self", "cls"}
DOCUMENTED = {"_replace", "_asdict", "_fields", "_make"}  # of named tuples, underscored to keep apart from their fields


def is_private(name: str) -> bool:
    """Say whether a name is not for others to use."""
    is_special = name.startswith("__") and name.endswith("__")
    return name.startswith("_") and not is_special and name not in DOCUMENTED


def private_names(tree: ast.Module) -> Iterator[str]:
    """Yield private names of others: imported, or looked up on anything but an object of this very module."""
    own = {it.attr for it in ast.walk(tree) if isinstance(it, ast.Attribute) and ast.unparse(it.value) in OWN}
    own |= {it.name for it in ast.walk(tree) if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {it.id for it in ast.walk(tree) if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)}
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (it.name for it in node.names if any(map(is_private, it.name.split("."))))
            case ast.ImportFrom(module=module):
                parts = [*(module or "").split("."), *(it.name for it in node.names)]
                yield from (f"{module}: {part}" for part in parts if is_private(part))
            case ast.Attribute(attr=name) if is_private(name) and name not in own:
                yield ast.unparse(node)
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "hasattr"), args=[_, ast.Constant(str(name)), *_]):
                if is_private(name):
                    yield f"getattr {name}"
            case _:
                pass


def borrowed_names(tree: ast.Module) -> Iterator[str]:
    """Yield private names that a class takes from itself and never gives itself: those of its base class."""
    for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        inside = list(ast.walk(kind))
        own = {it.name for it in inside if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef)}
        own |= {it.id for it in inside if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)}
        used = [it for it in inside if isinstance(it, ast.Attribute) and ast.unparse(it.value) in OWN]
        own |= {it.attr for it in used if isinstance(it.ctx, ast.Store)}
        yield from (f"{kind.name}.{it.attr}" for it in used if is_private(it.attr) and it.attr not in own)


@pytest.mark.parametrize("path", sorted(SERVER.rglob("*.py")), ids=lambda path: path.relative_to(SERVER).as_posix())
def test_no_private_name_of_a_library_is_used(path: Path) -> None:
    """Neither imported, nor looked up, nor taken over from a base class."""
    tree = ast.parse(path.read_text())
    assert [*private_names(tree), *borrowed_names(tree)] == []


@pytest.mark.parametrize(
    "code",
    [
        "import asyncio._x",
        "from uvicorn import _types",
        "from litestar._asgi import x",
        "import asyncio\nasyncio._get_running_loop()",
        "app.router._routes",
        "f()._x",
        "getattr(app, '_x')",
        "class A(B):\n    def f(self):\n        return self._of_the_base()",
    ],
)
def test_the_check_finds_them(code: str) -> None:
    """Each way to a private name is one that the check knows."""
    tree = ast.parse(code)
    assert [*private_names(tree), *borrowed_names(tree)]
