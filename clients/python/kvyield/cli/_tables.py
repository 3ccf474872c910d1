"""Tables that a person reads: plain, aligned, without colours or codes that a log file would keep."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from kvyield.cli._run import safe

if TYPE_CHECKING:
    from kvyield import _wire

FILE_WIDTH = 200
GAP = 2
SHORTEST_NAME = 16
MARKS = ">!~?"


@dataclass
class _Column:
    """One column; ``marks`` are the signs before its heading, see `table`."""

    heading: str
    marks: str
    cells: list[str]
    width: int = 0

    @property
    def keeps_lines(self) -> bool:
        """Whether a cell stays on one line."""
        return not set(self.marks).isdisjoint(">!~")

    @property
    def narrowest(self) -> int:
        """Where no word and no figure is broken."""
        if "~" in self.marks:
            return min(max(map(len, [self.heading, *self.cells])), SHORTEST_NAME)
        keeps = self.cells if self.keeps_lines else [word for cell in self.cells for word in cell.split()]
        return max(map(len, [*self.heading.split(), *keeps]), default=0)

    @property
    def widest(self) -> int:
        """Where nothing is wrapped."""
        return max(map(len, [self.heading, *(line for cell in self.cells for line in cell.split("\n"))]))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Print rows under headings within the width of the terminal, or of COLUMNS; returns columns that were left out.

    Signs before a heading: ``>`` aligns to the right, ``!`` keeps on one line, ``~`` shortens in the middle, ``?``
    leaves out when there is no room, the last one first. Words and figures are never broken.
    """
    texts = [[safe(cell) for cell in row] for row in rows]
    columns = []
    for index, heading in enumerate(headings):
        name = heading.lstrip(MARKS)
        cells = [row[index] if index < len(row) else "" for row in texts]
        columns.append(_Column(name, heading[: len(heading) - len(name)], cells))
    left_out = _fit(columns, _width())
    _print(columns)
    return left_out


def _width() -> int:
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else FILE_WIDTH


def _fit(columns: list[_Column], width: int) -> list[str]:
    """Leaves columns out, then gives each its width: first the least, then all that it needs, the modest ones first."""
    left_out = []
    while _total(one.narrowest for one in columns) > width:
        optional = [one for one in columns if "?" in one.marks]
        if not optional:
            break
        columns.remove(optional[-1])
        left_out.append(optional[-1].heading)
    room = max(0, width - _total(one.narrowest for one in columns))
    for one in sorted(columns, key=lambda one: one.widest - one.narrowest):
        need = max(0, one.widest - one.narrowest)
        one.width = one.narrowest + (need if need <= room else 0)
        room -= one.width - one.narrowest
    if columns and room:
        widest = max(columns, key=lambda one: one.widest - one.width)
        widest.width += min(room, max(0, widest.widest - widest.width))
    return left_out[::-1]


def _total(widths: Iterable[int]) -> int:
    each = list(widths)
    return sum(each) + GAP * max(len(each) - 1, 0)


def _print(columns: Sequence[_Column]) -> None:
    """Rich wraps and aligns; it would rather break a figure than leave a column out, so the widths are given."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=False)
    for one in columns:
        shown.add_column(justify="right" if ">" in one.marks else "left", width=one.width)
    rule = ["─" * one.width for one in columns]
    cells = [[elided(cell, one.width) if "~" in one.marks else cell for cell in one.cells] for one in columns]
    for row in ([one.heading for one in columns], rule, *zip(*cells, strict=True)):
        shown.add_row(*row)
    width = _total(one.width for one in columns) + GAP
    console = Console(width=width, color_system=None, markup=False, highlight=False, emoji=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(shown)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())
    click.echo()


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
    """A probability as the service writes it: what is not certain is never 0 % or 100 %."""
    if value is None:
        return "-"
    if value >= 0.9995:
        return "> 99.9 %"
    if value < 0.0005:
        return "< 0.1 %"
    text = f"{100 * value:.{0 if 0.01 <= value <= 0.99 else 1}f}"
    return f"{text.removesuffix('.0')} %"


def span(estimate: _wire.Estimate | None, form: Any = tokens) -> str:
    """A median and its interval."""
    if estimate is None:
        return "not enough evidence"
    return f"{form(estimate.median)}  [{form(estimate.low)} to {form(estimate.high)}]"


def flags_text(flags: Any) -> str:
    """Flags with their values; one that is to be taken out says so."""
    words = (
        f"remove --{name.replace('_', '-')}" if value is None or value is False else f"{name}={value}"
        for name, value in flags.items()
    )
    return " ".join(words)


def moment(value: Any) -> str:
    return "-" if value is None else value.strftime("%Y-%m-%d %H:%M:%S")
