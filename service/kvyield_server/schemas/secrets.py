"""Names that look like secrets: a flag with such a name is refused, and its value is never repeated."""

from __future__ import annotations

import itertools
import re

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_SECRET_WORDS = frozenset(
    {"apikey", "apikeys", "authorization", "bearer", "cookie", "cookies", "credential", "credentials", "jwt"}
    | {"passphrase", "passwd", "password", "passwords", "pwd", "secret", "secrets"}
)
_SECRET_PAIRS = frozenset(
    (kind, noun)
    for kind in ("api", "access", "auth", "encryption", "private", "secret", "signing", "ssh", "subscription")
    for noun in ("key", "keys", "token", "tokens")
)
_TOKEN_OWNERS = frozenset({"github", "gitlab", "hf", "hub", "huggingface", "login", "oauth", "refresh", "session"})
_TEXT_TOKENS = frozenset(
    {"audio", "bos", "cls", "draft", "eos", "image", "mask", "max", "media", "min", "new", "next", "num", "pad", "page"}
    | {"per", "prompt", "sep", "special", "start", "stop", "think", "total", "unk", "video", "vision"}
)


def looks_secret(name: str) -> bool:
    """Say whether a key is named like a secret (``hf_token``, ``apiKey``), not like a count or id of text tokens.

    >>> looks_secret("admin_api_key"), looks_secret("HF_TOKEN"), looks_secret("max_total_tokens")
    (True, True, False)
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    pairs = set(itertools.pairwise(words))
    return (
        bool(_SECRET_WORDS.intersection(words))
        or bool(_SECRET_PAIRS & pairs)
        or any(owner in _TOKEN_OWNERS and noun in ("token", "tokens") for owner, noun in pairs)
        or _ends_as_secret(words)
    )


def _ends_as_secret(words: list[str]) -> bool:
    before, last = (words[-2] if len(words) > 1 else ""), words[-1]
    return last == "auth" or (last == "token" and before not in _TEXT_TOKENS)
