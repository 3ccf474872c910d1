"""What every benchmark prints: sections, rows, and bars that are met or missed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median


class Report:
    """Prints figures as they come and remembers every bar that was missed."""

    def __init__(self, promise: str) -> None:
        self.missed: list[str] = []
        self.met = 0
        print(promise.strip() + "\n", flush=True)

    def section(self, title: str) -> None:
        print(f"\n## {title}", flush=True)

    def line(self, text: str) -> None:
        print(text, flush=True)

    def bar(self, name: str, figure: str, *, is_met: bool) -> None:
        """Print one bar with the figure measured against it."""
        print(f"[{'met' if is_met else 'MISSED'}] {name}: {figure}", flush=True)
        self.met += is_met
        if not is_met:
            self.missed.append(f"{name}: {figure}")

    def table(self, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print rows under their heads, words to the left and figures to the right."""
        texts = [list(head), *([str(cell) for cell in row] for row in rows)]
        widths = [max(len(row[column]) for row in texts) for column in range(len(head))]
        for row in texts:
            first, rest = (
                row[0].ljust(widths[0]),
                (cell.rjust(wide) for cell, wide in zip(row[1:], widths[1:], strict=True)),
            )
            print("  ".join([first, *rest]).rstrip())
        print(flush=True)

    def close(self) -> int:
        """Print the verdict and return the exit status: 1 when a bar was missed."""
        if not self.missed:
            print(f"\nAll {self.met} bars are met.")
            return 0
        print(f"\n{len(self.missed)} of {self.met + len(self.missed)} bars are MISSED:")
        for bar in self.missed:
            print(f"  - {bar}")
        return 1


def per_cent(share: float, digits: int = 3) -> str:
    """Return a share as per cent."""
    return f"{100.0 * share:.{digits}f} %"


def share_of(claims: Sequence[bool]) -> float:
    """Return which share of claims is true; none at all counts as all."""
    return sum(claims) / len(claims) if claims else 1.0


def middle(values: Sequence[float]) -> float:
    """Return the median, zero of nothing."""
    return median(values) if values else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that ``percent`` per cent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100.0))]
