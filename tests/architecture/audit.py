"""Audits what constraints.txt pins against the known vulnerabilities, and says loudly what could not be audited.

Usage: python tests/architecture/audit.py [PINS]; exits with 1 when a vulnerability is known. A machine that reaches no
vulnerability service is told that nothing was audited, and may go on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PINS = Path(__file__).resolve().parents[2] / "constraints.txt"
COMMAND = (sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--progress-spinner", "off")
SECONDS = 120


def audited(pins: Path) -> dict[str, Any] | None:
    """Return pip-audit's report; None when it could not be made."""
    words = [*COMMAND, "--format", "json", "--requirement", str(pins)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
        report: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return None
    return report


def verdict(report: dict[str, Any] | None) -> tuple[int, list[str]]:
    """Return the exit status that a report means, and what to say."""
    entries = report["dependencies"] if report else []
    skipped = [entry["name"] for entry in entries if "skip_reason" in entry]
    found = [
        f"{entry['name']} {entry['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'no release'}"
        for entry in entries
        for flaw in entry.get("vulns", ())
    ]
    known = len(entries) - len(skipped)
    if not known:
        return 0, ["DEPENDENCIES NOT AUDITED: no vulnerability service that knows them can be reached from here."]
    told = [f"{known} dependencies audited, {len(found)} known vulnerabilities."]
    if skipped:
        told.append(f"NOT AUDITED, unknown to the vulnerability service: {', '.join(skipped)}.")
    return int(bool(found)), [*told, *found]


def main() -> int:
    """Audit and report."""
    status, lines = verdict(audited(Path(sys.argv[1]) if len(sys.argv) > 1 else PINS))
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
