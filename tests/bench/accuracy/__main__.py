"""Accuracy of the yield model on real and simulated starts, against the bars that the project set itself.

Checks, from the domain's public functions and cases that lie beside the tests: the worked case from no, one, two and
three starts; every public group and 110 starts of one H200 with starts left out; predictions from one start; what 90 %
intervals hold; free memory at ready and headroom as measured; 5,000 simulated starts; restarts on 1,000 simulated
tasks; simulated ledgers that something spoiled; advice replayed on real groups; calibration of a perfect predictor;
labels; times of a fit and an advice. Exits with 1, and says which, when a bar is missed.
"""

from __future__ import annotations

import sys

from bench.accuracy.dirty import dirty
from bench.accuracy.h200 import h200
from bench.accuracy.labels import labels
from bench.accuracy.memory import memory
from bench.accuracy.public import public
from bench.accuracy.replay import replay
from bench.accuracy.settled import settled
from bench.accuracy.simulated import coverage, restarts
from bench.accuracy.speed import speed
from bench.accuracy.worked import worked
from bench.report import Report


def main() -> int:
    """Print everything and return 1 when a bar is missed."""
    report = Report(__doc__ or "")
    worked(report)
    h200(report, public(report))
    memory(report)
    labels(report)
    coverage(report)
    restarts(report)
    dirty(report)
    replay(report)
    settled(report)
    speed(report)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
