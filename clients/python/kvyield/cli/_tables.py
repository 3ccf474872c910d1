"""Tables that a person reads: plain, aligned, without colours or codes that a log file would keep."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from kvyield.cli._run import safe

if TYPE_CHECKING:
    from kvyield import _wire

FILE_WIDTH = 200


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Print rows under headings; ``>`` before a heading aligns to the right, ``!`` keeps on one line."""
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH, highlight=False, markup=False, emoji=False)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading.startswith(">") else "left"
        shown.add_column(heading.lstrip(">!"), justify=justify, overflow="fold", no_wrap=heading.startswith("!"))
    for row in rows:
        shown.add_row(*(Text(safe(cell)) for cell in row))
    console.print(shown)


def elided(text: str, longest: int) -> str:
    """The text, its middle left out when it is too long: names differ at their ends."""
    longest = max(longest, 12)
    if len(text) <= longest:
        return text
    end = (longest - 1) * 2 // 3
    return f"{text[: longest - 1 - end]}…{text[-end:]}"


def tokens(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def gib(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    """A probability; what rounds to certainty is shown as nearly so, since no start is certain."""
    if value is None:
        return "-"
    return "> 99.9%" if value >= 0.9995 else f"{value:.1%}"


def span(estimate: _wire.Estimate | None, form: Any = tokens) -> str:
    """A median and its interval."""
    if estimate is None:
        return "not enough evidence"
    return f"{form(estimate.median)}  [{form(estimate.low)} to {form(estimate.high)}]"


def flags_text(flags: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in flags.items())


def moment(value: Any) -> str:
    return "-" if value is None else value.strftime("%Y-%m-%d %H:%M:%S")
