"""Names that people write in several ways: models as paths, cards with and without their vendor."""

from __future__ import annotations

import re

_CACHE = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)(?:/snapshots/(?P<revision>[0-9a-f]+))?")
_VENDORS = ("nvidia", "amd", "instinct", "geforce")


def model_name(told: str, source: str) -> tuple[str, str]:
    """The model's name, a cache folder's as on the hub and a path's last part, and a source that says so."""
    if cached := _CACHE.search(told):
        return f"{cached['owner']}/{cached['name']}", f"{source} (from the cache folder {told})"
    if told.startswith(("/", "./", "../", "~")) and (parts := [part for part in told.split("/") if part]):
        return parts[-1], f"{source} (last part of the path {told})"
    return told, source


def loose(name: object) -> str:
    """A name without case, spaces, punctuation, and what a vendor puts before it."""
    text = re.sub(r"[^a-z0-9]", "", str(name).lower().rpartition("/")[2])
    for vendor in _VENDORS:
        text = text.removeprefix(vendor)
    return text


def same_name(first: object, second: object) -> bool:
    """Whether two names may mean one thing: equal when loosely written, or one the beginning or end of the other."""
    one, other = sorted((loose(first), loose(second)), key=len)
    return bool(one) and (other.startswith(one) or other.endswith(one))


def same_size(first: object, second: object) -> bool:
    """Whether two memory sizes are of one card: drivers, marketing and ECC differ by up to 8 %."""
    if not isinstance(first, int | float) or not isinstance(second, int | float):
        return first == second
    return abs(first - second) <= 0.08 * max(abs(first), abs(second))
