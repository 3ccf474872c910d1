"""Count the statements of the service's plumbing: ``ast.stmt`` nodes, docstrings not counted, per part and in all.

Usage: python tests/bench/statements.py [folder of a checkout]
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PARTS = ("api", "usecases", "storage", "schemas", "protocol.py", "serving.py")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def statements(path: Path) -> int:
    """Return how many statements a module has."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    documented = sum(isinstance(node, Documented) and ast.get_docstring(node) is not None for node in nodes)
    return sum(isinstance(node, ast.stmt) for node in nodes) - documented


def main() -> None:
    """Print a line per part, and the sum."""
    checkout = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    total = 0
    for part in PARTS:
        place = checkout / "service" / "kvyield_server" / part
        modules = sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.exists() else []
        count = sum(map(statements, modules))
        total += count
        print(f"{part:12} {len(modules):3} modules {count:6,} statements")
    print(f"{'in all':12} {total:18,} statements")


if __name__ == "__main__":
    main()
