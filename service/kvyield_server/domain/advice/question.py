"""What a question demands of the engine: pool tokens, context length, running requests, and the flags to begin from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from kvyield_server.domain.answers import Question
from kvyield_server.domain.engines.registry import NAMES, number, positive, translated
from kvyield_server.domain.engines.sglang import RESERVED_TOKENS
from kvyield_server.domain.engines.spec import EngineSpec
from kvyield_server.domain.facts.deployment import requests_move_pool
from kvyield_server.domain.facts.observation import LARGEST_FRACTION, EngineName, Flags, Observation, Scalar
from kvyield_server.domain.facts.versions import plain_version
from kvyield_server.domain.model.interface import YieldModel

VLLM_LEAST_REPLY = 1
"""vLLM refuses a prompt as long as max_model_len: at least one token of reply must fit beside it."""
_DATA = ("dp_size", "data_parallel_size", "dp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question put to a fitted deployment, with what is the same for all flags tried.

    ``held`` are the flags named in the question, under the engine's own names. ``base`` are the flags that stand in for
    those not named: those of ``runs`` (what runs), else of the newest start, else the asker's.
    """

    model: YieldModel
    question: Question
    engine: EngineName
    names: EngineSpec
    held: Flags
    base: Flags
    runs: Observation | None

    @property
    def fraction_flag(self) -> str:
        return self.names.fraction

    @property
    def anchor(self) -> Observation | None:
        """What runs, else the newest start: advice stays near its fraction."""
        starts = self.model.starts
        return self.runs or (starts[-1] if starts else None)

    @property
    def is_other_version(self) -> bool:
        """Whether the question names a version that the evidence is not of."""
        asked, known = self.question.engine_version, self.model.summary.engine_version
        return asked is not None and known is not None and plain_version(asked) != plain_version(known)

    def holding(self, flags: Flags) -> Case:
        """Return the case with these flags held too."""
        return replace(self, held={**self.held, **flags})


def make_case(model: YieldModel, question: Question) -> Case:
    """Return the question as a case of this deployment."""
    engine = model.summary.engine
    return Case(
        model=model,
        question=question,
        engine=engine,
        names=NAMES[engine],
        held=translated(engine, question.flags),
        base=model.flags,
        runs=model.runs,
    )


def context_needed(engine: EngineName, question: Question) -> int:
    """Return the shortest context length under which the engine takes the request."""
    if engine is EngineName.VLLM:
        return question.target_tokens + max(question.reply_tokens, VLLM_LEAST_REPLY)
    reserved = RESERVED_TOKENS if engine is EngineName.SGLANG else 0
    return question.target_tokens + question.reply_tokens + reserved


def pool_needed(engine: EngineName, question: Question, ranks: int, page_tokens: int) -> int:
    """Return the pool tokens that one data-parallel rank must hold, a whole number of pages.

    Each rank holds its requests whole. The pool is never less than what the engine demands to take one request: SGLang
    the prompt and 7 tokens; vLLM one block beside the longest request.
    """
    page = max(1, page_tokens)
    needed = ceil(question.concurrent / max(1, ranks)) * (question.target_tokens + question.reply_tokens)
    if engine is EngineName.SGLANG:
        needed = max(needed, question.target_tokens + RESERVED_TOKENS)
    if engine is EngineName.VLLM:
        needed = max(needed, blocks_of_context(context_needed(engine, question), page))
    return ceil(needed / page) * page


def blocks_of_context(context_tokens: int, page_tokens: int) -> int:
    """Return the pool tokens that vLLM demands for a context length: its whole blocks and one more."""
    page = max(1, page_tokens)
    return ceil(context_tokens / page) * page + page


def ranks_of(flags: Flags) -> int:
    """Return the number of data-parallel ranks, each with a pool of its own."""
    return next((count for name in _DATA if (count := positive(flags, name))), 1)


def context_of(case: Case, flags: Flags) -> int | None:
    """Return the context length that an engine under these flags admits, None where it is not known."""
    if fits_its_context(case, flags):
        return None
    return positive(flags, case.names.context) or case.model.context_tokens


def fits_its_context(case: Case, flags: Flags) -> bool:
    """Tell whether the engine fits the context length to the pool: vLLM does for -1 and ``auto``."""
    return case.engine is EngineName.VLLM and flags.get(case.names.context) in (-1, "-1", "auto")


def context_moves_pool(case: Case, flags: Flags) -> bool:
    """Tell whether the context length moves the pool as vLLM counts it: in requests, or after the longest prompt."""
    return case.engine is EngineName.VLLM and requests_move_pool(case.model.model, case.model.engine, flags)


def begun_flags(case: Case) -> dict[str, Scalar]:
    """Return the flags that advice begins from, fraction apart: the standing-in ones, the held ones, the request's.

    The context length is raised where it admits too little; so are the running requests.
    """
    names, flags = case.names, {**case.base, **case.held}
    needed, admitted = context_needed(case.engine, case.question), context_of(case, flags)
    is_short = (admitted is None or admitted < needed) and not fits_its_context(case, flags)
    if names.context not in case.held and is_short:
        flags[names.context] = needed
    requests = positive(flags, names.requests)
    if names.requests not in case.held and requests is not None and requests < case.question.concurrent:
        flags[names.requests] = case.question.concurrent
    flags.pop(names.fraction, None)
    return flags


def anchor_flags(case: Case) -> Flags:
    """Return the flags that changes are named against: those standing in, none before the first start."""
    return case.base if case.anchor is not None else {}


def held_fraction(case: Case) -> float | None:
    """Return the fraction that the question names, cut to what can be counted; None where it names none."""
    held = number(case.held, case.fraction_flag)
    return None if held is None else max(-LARGEST_FRACTION, min(LARGEST_FRACTION, held))


def input_limit(start: Observation) -> int | None:
    """Return the longest prompt that a start takes by what its engine printed, None where it printed no limit."""
    limits = (start.measurements.longest_prompt_tokens, start.measurements.fitted_max_model_len)
    return min((limit for limit in limits if limit is not None), default=None)
