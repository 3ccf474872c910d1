"""Answers that are kept for the next who asks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

MOST_KEPT, LONGEST_KEPT_BYTES = 1_024, 64_000


class Answer(NamedTuple):
    """An answer as it is sent; ``label`` is what is counted when it is given."""

    body: bytes
    media_type: str
    etag: str
    label: str


class KeptAnswers:
    """The newest answers by (stamp, question): a commit makes new stamps, so none is ever stale."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, Answer] = OrderedDict()

    def get(self, key: Hashable) -> Answer | None:
        """Return the answer that was kept, if any."""
        return self._answers.get(key)

    def keep(self, key: Hashable, answer: Answer) -> None:
        """Keep an answer unless it is long."""
        if len(answer.body) <= LONGEST_KEPT_BYTES:
            self._answers[key] = answer
        while len(self._answers) > MOST_KEPT:
            self._answers.popitem(last=False)
