"""Labels of the public cases, with precision and recall."""

from __future__ import annotations

from bench.report import Report
from domain.real_starts import case_groups
from domain.test_evidence_labels import expected_groups, labels_of


def labels(report: Report) -> None:
    """Print for every label which groups carry it, rightly or wrongly."""
    report.section("Labels of the public groups")
    given = {name: labels_of(starts) for name, starts in case_groups().items()}
    rows, wrong = [], []
    for label, expected in expected_groups().items():
        found = {name for name, own in given.items() if label in own}
        right = len(found & expected)
        rows.append((label.value, len(expected), f"{right}/{len(found)}", f"{right}/{len(expected)}"))
        wrong += [f"{label.value}: {name}" for name in sorted(found ^ expected)]
    report.table(("label", "groups", "precision", "recall"), rows)
    report.bar("every group carries its right labels", "; ".join(wrong) or "all", is_met=not wrong)
