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
    audio bos cls draft eos full image mask max media min new next num pad page per prompt sep special start stop swa
    think total unk video vision
"""
_ALONE = frozenset(_ALONE_WORDS.split())
_KEY_OWNERS = frozenset(_KEY_OWNER_WORDS.split())
_TOKEN_OWNERS = frozenset(_OWNER_WORDS.split())
_TEXT_TOKENS = frozenset(_PROSE_WORDS.split())
_NAMED = re.compile(
    r"""(?P<name>--[A-Za-z][\w-]{0,120}(?=[\s'"])|[A-Za-z_][\w-]{0,120})(?P<between>['"]?\s*[=:]\s*|['"]\s*,\s*|(?<=\w)\s+)"""
)
_VALUE = re.compile(r"""\[[^\]]*\]?|"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|[^\s,;)}\]&]+""")
_KEY_SHAPES = (
    r"(?:sk|rk|pk|hf|r8|gsk|npm|kvy|whsec|gh[opsur]|github_pat|glpat|gldt|xox[abeprs]|xapp|nvapi|pat|dckr_pat|dop_v1)"
    r"[-_][\w-]{8,}"
)
"""OpenAI, Stripe, Hugging Face, Replicate, Groq, npm, kvyield, GitHub, GitLab, Slack, NVIDIA, Docker, DigitalOcean."""
_SHAPES = (
    (re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END[A-Z ]{0,31}-----|\Z)", re.DOTALL), REDACTED),
    (re.compile(r"(?i)\bbearer\s+[\w.~+/-][\w.~+/=-]*"), "bearer " + REDACTED),
    (re.compile(r"(?i)\bbasic\s+[\w.~+/-][\w.~+/=-]{5,}"), "basic " + REDACTED),
    (re.compile(rf"(?<![A-Za-z0-9]){_KEY_SHAPES}"), REDACTED),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), REDACTED),  # JWT
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}"), REDACTED),  # AWS
    (re.compile(r"\bAIza[\w-]{20,}|\bya29\.[\w-]{10,}"), REDACTED),  # Google
    (re.compile(r"(?i)([?&](?:sig|signature|x-amz-signature|x-amz-credential)=)[^&\s'\"]+"), r"\1" + REDACTED),
    (re.compile(r"(://)[^\s/'\"@:]*:[^\s'\"@]*@(?:[^\s'\"/@]*@)*"), r"\1" + REDACTED + "@"),
    (re.compile(r"(://)[^\s/'\"@:]{16,}@"), r"\1" + REDACTED + "@"),
)
_HINTS = (
    *("key", "token", "secret", "pass", "pwd", "auth", "bearer", "basic", "credential", "cookie", "jwt", "://", "sig"),
    *("sk", "rk", "pk", "hf", "r8", "npm", "kvy", "gh", "gl", "xox", "xapp", "nvapi", "pat", "dop_v1", "eyj", "akia"),
    *("asia", "aiza", "ya29."),
)
_HARMLESS = re.compile(r"""(?i)(?:none|null|true|false|''|""|\[\]|\{\}|<[^>]*>|['"]?[-+]?[\d.,_]+['"]?)$""")
_GLUED = re.compile(r"(?i)password|passwd|secret|credential|apikey|accesskey|privatekey|authtoken|accesstoken")
_COUNTS = re.compile(r"(?i)tokens|tokenizer|token[-_]?(?:id|usage|type|count|limit|budget|len|length|size|rate)")


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


@lru_cache(maxsize=4096)
def holds_secret(name: str) -> bool:
    """Whether what is assigned to this name in a log line is taken for a secret: wider than `looks_secret`.

    Names of a flag are refused by it, so it is strict; a line loses nothing that anybody needs by one value more.
    """
    if looks_secret(name):
        return True
    if _COUNTS.search(name):
        return False
    words = [word.lower() for word in _WORD.findall(name)]
    has_token = any(word == "token" and (not at or words[at - 1] not in _TEXT_TOKENS) for at, word in enumerate(words))
    return has_token or _GLUED.search(name.replace("_", "").replace("-", "")) is not None


def redacted(text: str) -> str:
    """The text with the values of secret names, bearer headers, well-known key shapes and passwords in URLs removed.

    The one place that decides it, for what is posted, printed, quoted from a log, or told as the source of a value.
    """
    if not any(map(text.lower().__contains__, _HINTS)):
        return text
    for pattern, replacement in _SHAPES:
        text = pattern.sub(replacement, text)
    return "".join(_without_values(text))


def _without_values(text: str) -> Iterator[str]:
    kept_to = 0
    for match in _NAMED.finditer(text):
        is_assigned = match["name"].startswith("--") or match["between"].strip("'\" \t\n,") != ""
        if match.start() < kept_to or not is_assigned or not holds_secret(match["name"]):
            continue
        value = _VALUE.match(text, match.end())
        if value and REDACTED in value[0]:
            continue  # its shape has told it already
        if value and not _HARMLESS.match(value[0]) and not value[0].startswith("--"):
            yield text[kept_to : match.end()] + REDACTED
            kept_to = value.end()
    yield text[kept_to:]
