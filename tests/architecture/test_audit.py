"""The dependency audit fails on a known vulnerability and never passes for an audit that did not happen."""

from __future__ import annotations

from typing import Any

from architecture.audit import verdict

SOUND = {"name": "msgspec", "version": "0.20.0", "vulns": []}
FLAWED = {"name": "jinja2", "version": "2.4.1", "vulns": [{"id": "PYSEC-2021-66", "fix_versions": ["2.11.3"]}]}
UNKNOWN = {"name": "uvloop", "skip_reason": "Dependency not found on PyPI and could not be audited"}


def told(*entries: dict[str, Any]) -> tuple[int, str]:
    status, lines = verdict({"dependencies": list(entries)})
    return status, " ".join(lines)


def test_a_known_vulnerability_fails_the_check() -> None:
    """It is named with its version and where it is fixed."""
    status, text = told(SOUND, FLAWED)
    assert status == 1
    assert "jinja2 2.4.1: PYSEC-2021-66, fixed in 2.11.3" in text


def test_what_was_not_audited_is_named() -> None:
    """A service that knows only some of the dependencies has audited only those."""
    status, text = told(SOUND, UNKNOWN)
    assert status == 0
    assert "1 dependencies audited, 0 known vulnerabilities." in text
    assert "NOT AUDITED, unknown to the vulnerability service: uvloop." in text


def test_no_audit_is_said_loudly() -> None:
    """Neither a service out of reach nor one that knows nothing reads as a clean bill."""
    for report in (None, {"dependencies": [UNKNOWN]}):
        status, lines = verdict(report)
        assert (status, lines[0].startswith("DEPENDENCIES NOT AUDITED")) == (0, True)
