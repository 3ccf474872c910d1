"""The warnings of an advice: what holds whatever the numbers say, and what was never tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvyield_server.domain.answers import Caution, Change
from kvyield_server.domain.engines.registry import NAMES, positive
from kvyield_server.domain.facts.versions import plain_version
from kvyield_server.domain.facts.model_config import read_shape
from kvyield_server.domain.facts.observation import EngineName, Observation
from kvyield_server.domain.legacy.case import Case
from kvyield_server.domain.legacy.demand import context_needed
from kvyield_server.domain.legacy.known_flags import unknown_flags
from kvyield_server.domain.legacy.memory_failures import is_lighter
from kvyield_server.domain.legacy.quantised import unknown_weights
from kvyield_server.domain.legacy.solution import Solution, running_chance
from kvyield_server.domain.legacy.window import stated

_BEYOND_CONTEXT = {
    EngineName.SGLANG: "SGLang refuses such a {flag} unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
    EngineName.VLLM: "vLLM refuses such a {flag} unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1, or RoPE scaling is set",
    EngineName.TENSORRT_LLM: "TensorRT-LLM cuts {flag} down to what the model allows, or answers poorly beyond it",
    EngineName.LMDEPLOY: "LMDeploy takes such a {flag}, but the model was not trained for it and answers poorly",
}
_NEIGHBOUR_GIB = 0.3
_NEIGHBOUR_SHARE = 0.06


def cautions(case: Case, solution: Solution, changes: Sequence[Change]) -> tuple[Caution, ...]:
    """Return the warnings of an advice, the fit's own last, each code once."""
    found: dict[str, Caution] = {}
    sources = (
        _context_length(case, solution, changes),
        _nothing_changes(case, changes),
        _running_holds(case, solution, changes),
        _uncounted(case),
        _never_verified(case, solution),
        _memory(case, solution),
        _distant_deaths(case, solution),
        _hardware(case),
        _versions(case),
        case.fit.summary.warnings,
    )
    for source in sources:
        for caution in source:
            found.setdefault(caution.code, caution)
    return tuple(found.values())


def _context_length(case: Case, solution: Solution, changes: Sequence[Change]) -> Iterator[Caution]:
    name = NAMES[case.engine].context
    running = case.fit.running
    pool_tokens = running.measurements.pool_tokens if running else None
    changed = any(change.flag == name for change in changes)
    lengths = {start.flags[name] for start in case.fit.starts if name in start.flags}
    short = pool_tokens is None or solution.needed_tokens > pool_tokens
    if changed or short or len(lengths) > 1:
        seen = _unmoved(case.fit.starts, name)
        yield Caution(
            code="context_length_does_not_grow_pool",
            detail=f"{name} only says what one request may ask for: it does not grow the pool{seen}. "
            f"{case.fraction_flag} does.",
        )
    yield from _longest_context(case, name)


def _longest_context(case: Case, name: str) -> Iterator[Caution]:
    longest = read_shape(case.fit.capacity.model.facts).context_length
    asked, admitted = context_needed(case.engine, case.question), case.running_context if case.fit.running else None
    if longest is not None and asked > max(longest, admitted or 0):
        consequence = _BEYOND_CONTEXT[case.engine].format(flag=name)
        detail = f"The model's config allows {longest:,} tokens, fewer than {asked:,}: {consequence}."
        yield Caution(code="beyond_model_context", detail=detail)
    held = positive(case.held, name)
    if held is not None and held < context_needed(case.engine, case.question):
        detail = f"{name} is held at {held:,}, and the request needs {context_needed(case.engine, case.question):,}."
        yield Caution(code="held_flag_too_small", detail=detail)


def _unmoved(starts: Sequence[Observation], name: str) -> str:
    """Return what the history shows: two starts that differ in context length and have the same pool."""
    pools: dict[tuple[float | None, int], set[object]] = {}
    for start in starts:
        if start.measurements.pool_tokens is not None and name in start.flags:
            pools.setdefault((start.fraction, start.measurements.pool_tokens), set()).add(start.flags[name])
    for (fraction, pool_tokens), lengths in pools.items():
        if len(lengths) > 1:
            listed = " and ".join(f"{length:,}" for length in sorted(lengths, key=str) if isinstance(length, int))
            return f" (at fraction {fraction} the pool was {pool_tokens:,} tokens with {listed})"
    return ""


def _nothing_changes(case: Case, changes: Sequence[Change]) -> Iterator[Caution]:
    running = case.fit.running
    if running is None:
        return
    if not changes:
        detail = "These are the flags of the running start: there is nothing to restart."
        yield Caution(code="flags_equal_running", detail=detail)
    elif case.held and all(running.flags.get(key, ...) == value for key, value in case.held.items()):
        detail = f"The flags given ({', '.join(case.held)}) are the running ones: giving them changes nothing."
        yield Caution(code="flags_equal_running", detail=detail)


def _running_holds(case: Case, solution: Solution, changes: Sequence[Change]) -> Iterator[Caution]:
    """Say when what runs now already holds the target within the window, so that no restart is needed."""
    chance = running_chance(case)
    now, then = case.running.get(case.fraction_flag), solution.flags[case.fraction_flag]
    if not changes or chance is None:
        return
    more = "; the smaller fraction leaves more memory free" if isinstance(now, float) and now > float(then or 0) else ""
    detail = (
        f"What runs now ({now}) already holds this target with probability {stated(chance, 2)}: no restart is needed"
    )
    yield Caution(code="running_flags_hold_target", detail=f"{detail}{more}.")


def _uncounted(case: Case) -> Iterator[Caution]:
    yield from unknown_flags(case.engine, case.held, case.fit.starts)
    yield from unknown_weights(case.fit.running, {**case.running, **case.held}, case.lighter)


def _never_verified(case: Case, solution: Solution) -> Iterator[Caution]:
    need, target = case.fit.prompt_need, case.question.target_tokens
    longest = need.verified_prompt_tokens
    if longest is None or longest < target:
        had = (
            "no prompt was ever verified" if longest is None else f"the longest verified prompt had {longest:,} tokens"
        )
        growth = " and with this model's attention the need grows with the prompt" if need.latent else ""
        yield Caution(code="nothing_verified_at_this_length", detail=f"Asked for {target:,} tokens: {had}{growth}.")
    chunk = positive(solution.flags, NAMES[case.engine].chunk)
    if longest is not None and chunk is not None and chunk not in need.verified_chunk_tokens:
        name = NAMES[case.engine].chunk
        yield Caution(code="chunk_never_verified", detail=f"No prompt was verified with {name} {chunk:,}.")


def _memory(case: Case, solution: Solution) -> Iterator[Caution]:
    if solution.free is None:
        detail = "Nothing tells the card's memory: post free_at_ready_gib, or hardware.memory_gib."
        yield Caution(code="free_memory_unknown", detail=detail)
    if solution.death is not None:
        whose = _whose(case, solution.death)
        detail = f"A start{whose} at {solution.death.fraction} ran out of memory: only fractions below it are advised."
        yield Caution(code="ran_out_of_memory", detail=detail)


def _whose(case: Case, death: Observation) -> str:
    known, version = case.fit.summary.engine_version, death.engine.version
    return "" if version == known else f" of version {version or 'unknown'}"


def _distant_deaths(case: Case, solution: Solution) -> Iterator[Caution]:
    """Warn of deployments that ran out of memory at the advised fraction or below and differ from this one."""
    above = [start for start in case.distant_deaths if (start.fraction or 1.0) * 1000.0 <= solution.step + 1e-6]
    deaths = [start for start in above if not is_lighter(case.engine, solution.flags, start.flags)]
    lowest = min(deaths, key=lambda start: start.fraction or 1.0, default=None)
    if lowest is not None:
        whose = _whose(case, lowest) or " of a deployment with other flags"
        code = "oom_in_another_version" if _whose(case, lowest) else "oom_in_another_deployment"
        detail = (
            f"A start{whose} ran out of memory at {lowest.fraction}, not above the {solution.step / 1000:.3g} here."
        )
        yield Caution(code=code, detail=detail)


def _hardware(case: Case) -> Iterator[Caution]:
    if any(start.hardware.unified_memory for start in case.fit.starts):
        detail = "GPU and host share this memory: pools of equal starts differ by several percent."
        yield Caution(code="unified_memory", detail=detail)
    before = [free for start in case.fit.starts if (free := start.measurements.free_before_load_gib) is not None]
    if before and (max(before) - min(before) > _NEIGHBOUR_GIB or _is_crowded(case.fit.starts)):
        detail = "Free memory before load differs between starts or is well below the card's: a neighbour on the card?"
        yield Caution(code="co_tenant_seen", detail=detail)


def _is_crowded(starts: Sequence[Observation]) -> bool:
    return any(
        start.measurements.free_before_load_gib < (1.0 - _NEIGHBOUR_SHARE) * start.hardware.memory_gib
        for start in starts
        if start.measurements.free_before_load_gib is not None and start.hardware.memory_gib is not None
    )


def _versions(case: Case) -> Iterator[Caution]:
    asked, known = case.question.engine_version, case.fit.summary.engine_version
    if asked is not None and plain_version(asked) != plain_version(known or "unknown"):
        detail = f"Asked for version {asked}; the evidence is of {known or 'an unknown version'}."
        yield Caution(code="other_engine_version", detail=detail)
    running = case.fit.running
    if running is None:
        return
    now = running.engine.version
    others = sorted({start.engine.version or "unknown" for start in case.fit.starts} - {now or "unknown"})
    if others:
        detail = f"Part of the evidence is of version {', '.join(others)}; {now or 'an unknown version'} runs."
        yield Caution(code="other_engine_version", detail=detail)
    verified = [start.engine.version for start in case.fit.starts if any(c.passed for c in start.verifications)]
    if verified and now not in verified:
        detail = f"No prompt was verified with version {now or 'unknown'}."
        yield Caution(code="engine_version_never_verified", detail=detail)
