"""The figures that real logs hold as a table of right, wrong, missing and invented ones. Fails below 98 % right.

Usage: PYTHONPATH=tests python tests/bench/bench_figures.py [--all]
--all lists every log, else those with a figure that is not right.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from _figures import Figure, h200_figures, public_figures, report_figures, tally
from bench.report import Report, per_cent

SETS = (("public reports", report_figures), ("public logs", public_figures), ("starts on one H200", h200_figures))
HEAD = ("right", "wrong", "missing", "invented")


def main() -> int:
    report = Report("Nothing is invented, and at least 98 % of the figures that a log holds are read rightly.")
    everything: list[Figure] = []
    rows = []
    for title, read in SETS:
        found = list(read())
        everything += found
        rows.append((title, *(tally(found)[verdict] for verdict in HEAD)))
    report.table(("set", *HEAD), rows)
    by_case: dict[str, list[Figure]] = defaultdict(list)
    for figure in everything:
        by_case[figure.case].append(figure)
    for case, found in by_case.items():
        odd = [f"{one.name}: {one.verdict}, {one.read} for {one.known}" for one in found if one.verdict != "right"]
        if odd or "--all" in sys.argv:
            report.line(f"{case}: {tally(found)['right']} right" + "".join(f"\n    {text}" for text in odd))
    count = tally(everything)
    told = count["right"] + count["wrong"] + count["missing"]
    report.bar("figures read rightly", per_cent(count["right"] / told, 2), is_met=count["right"] >= 0.98 * told)
    report.bar("figures invented", str(count["invented"]), is_met=not count["invented"])
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
