"""Secrets never leave the host: names that sound like one, and texts with the secret parts taken out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import lru_cache

REDACTED = "[secret]"
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ALONE_WORDS = """
    apikey apikeys authorization bearer cookie cookies credential credentials jwt passphrase passwd password
    passwords pwd secret secrets
"""
_KEY_OWNER_WORDS = """
    api access auth encryption private secret signing ssh subscription
"""
_OWNER_WORDS = """
    github gitlab hf hub huggingface id login oauth refresh security session
"""
_PROSE_WORDS = """
    audio bos cls draft eos image mask max media min new next num pad page per prompt sep special start stop think
    total unk video vision
"""
_ALONE = frozenset(_ALONE_WORDS.split())
_KEY_OWNERS = frozenset(_KEY_OWNER_WORDS.split())
_TOKEN_OWNERS = frozenset(_OWNER_WORDS.split())
_TEXT_TOKENS = frozenset(_PROSE_WORDS.split())
_NAMED = re.compile(
    r"""(?P<name>--[A-Za-z][\w-]{0,120}(?=[\s'"])|[A-Za-z_][\w-]{0,120})(?P<between>['"]?\s*[=:]\s*|['"]\s*,\s*|(?<=\w)\s+)"""
)
_VALUE = re.compile(r"""\[[^\]]*\]?|"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|[^\s,;)}\]]+""")
_SHAPES = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), r"\1 " + REDACTED),
    (re.compile(r"\b(?:sk|hf|gh[opsu]|glpat|xox[abprs]|nvapi|pat)[-_][\w-]{8,}"), REDACTED),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), REDACTED),
    (re.compile(r"\bAKIA[0-9A-Z]{12,}"), REDACTED),
    (re.compile(r"(://)[^/\s:@]*:[^/\s@]*@"), r"\1" + REDACTED + "@"),
)
_HINTS = (
    *("key", "token", "secret", "pass", "pwd", "auth", "bearer", "basic", "credential", "cookie", "jwt", "://"),
    *("sk-", "sk_", "hf-", "hf_", "gho", "ghp", "ghs", "ghu", "glpat", "xox", "nvapi", "pat-", "pat_", "eyj", "akia"),
)
_HARMLESS = frozenset({"none", "null", "true", "false", "''", '""', "[]"})


@lru_cache(maxsize=4096)
def looks_secret(name: str) -> bool:
    """Whether a key is named like a secret (``hf_token``, ``apiKey``), not like a count or id of text tokens."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    owned = any(
        (owner in _KEY_OWNERS and noun in ("key", "keys", "token", "tokens"))
        or (owner in _TOKEN_OWNERS and noun in ("token", "tokens"))
        for owner, noun in itertools.pairwise(words)
    )
    return owned or not _ALONE.isdisjoint(words) or _ends_as_secret(words)


def _ends_as_secret(words: list[str]) -> bool:
    before = words[-2] if len(words) > 1 else ""
    return words[-1] == "auth" or (words[-1] == "token" and before not in _TEXT_TOKENS)


def redacted(text: str) -> str:
    """The text with the values of secret names, bearer headers, well-known key shapes and passwords in URLs removed."""
    if not any(map(text.lower().__contains__, _HINTS)):
        return text
    for pattern, replacement in _SHAPES:
        text = pattern.sub(replacement, text)
    return "".join(_without_values(text))


def _without_values(text: str) -> Iterator[str]:
    kept_to = 0
    for match in _NAMED.finditer(text):
        is_assigned = match["name"].startswith("--") or match["between"].strip("'\" \t\n,") != ""
        if match.start() < kept_to or not is_assigned or not looks_secret(match["name"]):
            continue
        value = _VALUE.match(text, match.end())
        if value and value[0].lower() not in _HARMLESS and not value[0].startswith("--"):
            yield text[kept_to : match.end()] + REDACTED
            kept_to = value.end()
    yield text[kept_to:]
