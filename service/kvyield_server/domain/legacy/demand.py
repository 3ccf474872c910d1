"""What a question demands of the engine: pool tokens, context length, and flags that must move with them."""

from __future__ import annotations

from math import ceil

from kvyield_server.domain.answers import Question
from kvyield_server.domain.engines.registry import NAMES, positive, translated
from kvyield_server.domain.engines.spec import EngineSpec as FlagNames
from kvyield_server.domain.facts.observation import EngineName, Flags, Scalar

SGLANG_RESERVED_TOKENS = 7
"""SGLang takes prompts up to min(context length, pool) - 7 tokens."""
VLLM_LEAST_REPLY = 1
"""vLLM refuses a prompt as long as max_model_len: at least one token of reply must fit beside it."""


def request_tokens(question: Question) -> int:
    """Return the tokens of one request: the prompt and its reply."""
    return question.target_tokens + question.reply_tokens


def context_needed(engine: EngineName, question: Question) -> int:
    """Return the shortest context length under which the engine takes the request."""
    if engine is EngineName.VLLM:
        return question.target_tokens + max(question.reply_tokens, VLLM_LEAST_REPLY)
    return request_tokens(question) + (SGLANG_RESERVED_TOKENS if engine is EngineName.SGLANG else 0)


def longest_prompt(engine: EngineName, question: Question, context_tokens: int) -> int:
    """Return the longest prompt that a context length lets in beside the question's reply."""
    return context_tokens - (context_needed(engine, question) - question.target_tokens)


def pool_needed(engine: EngineName, question: Question, ranks: int, page_tokens: int) -> int:
    """Return the pool tokens that one data-parallel rank must hold, a whole number of pages.

    Each rank holds its requests whole. The pool is never less than what the engine demands to take one request: SGLang
    the prompt and 7 tokens; vLLM one block beside the longest request that it admits.
    """
    each = request_tokens(question)
    needed = ceil(question.concurrent / ranks) * each
    page = max(1, page_tokens)
    if engine is EngineName.SGLANG:
        needed = max(needed, question.target_tokens + SGLANG_RESERVED_TOKENS)
    if engine is EngineName.VLLM:
        needed = max(needed, ceil(context_needed(engine, question) / page) * page + page)
    return ceil(needed / page) * page


def advised_flags(
    engine: EngineName, question: Question, running: Flags, model_context_tokens: int | None
) -> dict[str, Scalar]:
    """Return the flags to restart with, fraction apart: the running ones, the asker's, and what the request demands.

    The context length is never lowered below the running one (vLLM's may be: see ``lowered_context``). Where it is
    unset the engine admits what the model does, and it stays unset unless that is unknown or shorter than the request.
    There are at least as many running requests as are asked for at once.
    """
    names = NAMES[engine]
    held = translated(engine, question.flags)
    flags = {**running, **held}
    needed = context_needed(engine, question)
    admitted = positive(flags, names.context) or model_context_tokens
    if names.context not in held and (admitted is None or admitted < needed):
        flags[names.context] = needed
    requests = positive(flags, names.requests)
    if names.requests not in held and requests is not None and requests < question.concurrent:
        flags[names.requests] = question.concurrent
    flags.update({key: None for key in _in_the_way(names, question, flags) if key not in held})
    return flags


def _in_the_way(names: FlagNames, question: Question, flags: Flags) -> list[str]:
    """Return flags to take out: those that make the fraction inert, and a cap below what is asked for."""
    found = [key for key in names.inert_with if flags.get(key) is not None]
    cap = positive(flags, names.pool_cap)
    asked = question.concurrent * request_tokens(question) + SGLANG_RESERVED_TOKENS
    return [*found, names.pool_cap] if names.pool_cap and cap is not None and cap < asked else found


def lowered_context(engine: EngineName, question: Question, flags: Flags) -> dict[str, Scalar]:
    """Return ``flags`` with vLLM's longest request cut down to what was asked, so that a smaller pool is accepted."""
    return {**flags, NAMES[engine].context: context_needed(engine, question)}


def advised_keys(engine: EngineName, question: Question) -> tuple[str, ...]:
    """Return the flags that an advice always states when they are known, in the order in which they are written."""
    names = NAMES[engine]
    first = (names.fraction, names.context, names.requests)
    others = (*translated(engine, question.flags), *names.inert_with, *((names.pool_cap,) if names.pool_cap else ()))
    return (*first, *(key for key in others if key not in first))
