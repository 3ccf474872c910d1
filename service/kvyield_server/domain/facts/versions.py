"""Engine versions as comparable numbers; builds that no release can be read from compare with nothing."""

from __future__ import annotations

import re
from functools import lru_cache

Version = tuple[int, int, int, int]

_RELEASE = re.compile(r"^v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:\.?post(\d{1,6}))?")


@lru_cache(maxsize=1024)
def parse_version(text: str | None) -> Version | None:
    """Return (major, minor, patch, post), or None for development builds, hashes and unknown versions."""
    if text is None or "dev" in text:
        return None
    match = _RELEASE.match(text.strip())
    if match is None:
        return None
    major, minor, patch, post = (int(part or 0) for part in match.groups())
    return (major, minor, patch, post)


def is_other_series(one: str | None, other: str | None) -> bool:
    """Tell whether two versions are of different minor series; unknown ones and builds without a release may not be."""
    first, second = parse_version(one), parse_version(other)
    return first is not None and second is not None and first[:2] != second[:2]


def plain_version(version: str) -> str:
    """Return a version as the key has it: ``v0.5.12`` and ``0.5.12`` are one."""
    return version.strip().lower().removeprefix("v")
