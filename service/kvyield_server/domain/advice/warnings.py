"""The warnings of an advice: what holds whatever the numbers say, and what was never tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvyield_server.domain.advice.grid import Choice
from kvyield_server.domain.advice.question import (
    Case,
    context_moves_pool,
    context_needed,
    context_of,
    fits_its_context,
)
from kvyield_server.domain.answers import Caution, Change
from kvyield_server.domain.engines.registry import positive
from kvyield_server.domain.facts.observation import EngineName, Observation, Phase
from kvyield_server.domain.facts.versions import plain_version
from kvyield_server.domain.model.evidence import is_lighter
from kvyield_server.domain.model.need import has_latent_attention

_BEYOND_CONTEXT = {
    EngineName.SGLANG: "SGLang refuses such a {flag} unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
    EngineName.VLLM: "vLLM refuses such a {flag} unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1, or RoPE scaling is set",
    EngineName.TENSORRT_LLM: "TensorRT-LLM cuts {flag} down to what the model allows, or answers poorly beyond it",
    EngineName.LMDEPLOY: "LMDeploy takes such a {flag}, but the model was not trained for it and answers poorly",
}
_NEIGHBOUR_GIB = 0.3
_NEIGHBOUR_SHARE = 0.06
_UNUSED_SHARE = 0.2
_MOST_LISTED = 6


def cautions(case: Case, choice: Choice, changes: Sequence[Change], *, is_kept: bool) -> tuple[Caution, ...]:
    """Return the warnings of an advice, the fit's own last, each code once."""
    found: dict[str, Caution] = {}
    sources = (
        _context_length(case, choice, changes),
        _nothing_changes(case, is_kept=is_kept),
        case.model.uncounted(case.held),
        _never_came_up(case, choice),
        _mistyped(case),
        _not_served(choice),
        _never_verified(case, choice),
        _memory(case, choice),
        _distant_deaths(case, choice),
        _hardware(case),
        versions(case),
        case.model.summary.warnings,
    )
    for source in sources:
        for caution in source:
            found.setdefault(caution.code, caution)
    return tuple(found.values())


def _context_length(case: Case, choice: Choice, changes: Sequence[Change]) -> Iterator[Caution]:
    name, starts = case.names.context, case.model.starts
    runs = case.runs.measurements.pool_tokens if case.runs is not None else None
    must_grow = runs is not None and choice.option.needed_tokens > runs
    changed = any(change.flag == name for change in changes)
    lengths = {start.flags[name] for start in starts if name in start.flags}
    is_of_interest = changed or must_grow or name in case.held or len(lengths) > 1
    if is_of_interest and not context_moves_pool(case, case.model.flags):
        yield Caution(
            code="context_length_does_not_grow_pool",
            detail=f"{name} only limits the length of one request: it does not grow the pool{_unmoved(starts, name)}. "
            f"{case.fraction_flag} does.",
        )
    needed, longest, admitted = (
        context_needed(case.engine, case.question),
        case.model.context_tokens,
        context_of(case, case.base),
    )
    if longest is not None and needed > max(longest, admitted or 0):
        consequence = _BEYOND_CONTEXT[case.engine].format(flag=name)
        detail = f"The model's config allows {longest:,} tokens, fewer than {needed:,}: {consequence}."
        yield Caution(code="beyond_model_context", detail=detail)
    if admitted is None and not changed and not fits_its_context(case, case.base):
        detail = (
            f"Neither {name} nor the model's own context length is known: make sure that it admits {needed:,} tokens."
        )
        yield Caution(code="context_length_unknown", detail=detail)
    held = positive(case.held, name)
    if held is not None and held < needed:
        yield Caution(
            code="held_flag_too_small",
            detail=f"The question fixes {name} at {held:,}, but the request needs {needed:,}.",
        )


def _unmoved(starts: Sequence[Observation], name: str) -> str:
    """Return what the history shows: two starts that differ in context length and have the same pool."""
    pools: dict[tuple[float | None, int], set[object]] = {}
    for start in starts:
        if start.measurements.pool_tokens is not None and name in start.flags:
            pools.setdefault((start.fraction, start.measurements.pool_tokens), set()).add(start.flags[name])
    for (fraction, pool_tokens), lengths in pools.items():
        if len(lengths) > 1:
            known = sorted(length for length in lengths if isinstance(length, int))
            listed = " and ".join(f"{length:,}" for length in known)
            return f" (at fraction {fraction} the pool was {pool_tokens:,} tokens with {listed})"
    return ""


def _nothing_changes(case: Case, *, is_kept: bool) -> Iterator[Caution]:
    if case.runs is None:
        return
    if is_kept:
        yield Caution(code="flags_equal_running", detail="These are the flags of what runs: no restart is needed.")
    elif case.held and all(case.runs.flags.get(key, ...) == value for key, value in case.held.items()):
        detail = f"The flags given ({', '.join(case.held)}) are those of what runs: they change nothing."
        yield Caution(code="flags_equal_running", detail=detail)


def _not_served(choice: Choice) -> Iterator[Caution]:
    check = choice.unserved
    if check is not None:
        why = f" ({check.error})" if check.error else ""
        detail = (
            f"A prompt of {check.prompt_tokens:,} tokens failed under these or lighter flags{why}: verify again before "
            "relying on it."
        )
        yield Caution(code="prompt_not_served", detail=detail)


def _never_came_up(case: Case, choice: Choice) -> Iterator[Caution]:
    start = case.model.failed(choice.flags)
    if start is None:
        return
    failure = start.failure
    at_load = failure is not None and failure.phase is Phase.LOAD
    what = "ran out of GPU memory" if start.death is not None else "failed"
    when = " while it loaded the weights, which no fraction changes: they do not fit, or something else holds the GPU"
    said = f" ({failure.message.strip()[:200]})" if failure is not None and failure.message else ""
    if start.came_up:
        before = start.measurements.free_before_load_gib or 0.0
        detail = (
            f"The newest start under these very flags {what} while it served{said}. Only {before:.1f} GiB were free "
            "before it loaded: check what else uses the GPU; most often an engine that has not ended."
        )
        yield Caution(code="memory_held_elsewhere", detail=detail)
        return
    detail = f"A start under these very flags {what}{when if at_load else ''}{said}, and none has come up under them."
    yield Caution(code="same_flags_failed", detail=detail)


def _mistyped(case: Case) -> Iterator[Caution]:
    why = None if case.runs is None else case.model.implausible(case.runs)
    if why is not None:
        yield Caution(code="implausible_fraction", detail=f"{why[0].upper()}{why[1:]}")


def _never_verified(case: Case, choice: Choice) -> Iterator[Caution]:
    target, longest = case.question.target_tokens, case.model.summary.basis.verified_prompt_tokens
    if longest is None or longest < target:
        had = (
            "no prompt was ever verified" if longest is None else f"the longest verified prompt had {longest:,} tokens"
        )
        if longest is None and choice.unserved is not None:
            had = "no prompt has passed a verification yet"
        growth, is_latent = "", has_latent_attention(case.model.model)
        if is_latent:
            growth = ", and with this model's attention the need grows with the prompt"
        elif is_latent is None and not case.names.reserves_peak:
            growth = ", and whether the need grows with the prompt is not known: post the model's config.json"
        yield Caution(
            code="nothing_verified_at_this_length", detail=f"Not verified at {target:,} tokens: {had}{growth}."
        )
    name = case.names.chunk
    chunk = positive(choice.flags, name)
    verified = {
        positive(start.flags, name) for start in case.model.starts if any(check.passed for check in start.verifications)
    }
    if longest is not None and chunk is not None and verified and chunk not in verified:
        yield Caution(code="chunk_never_verified", detail=f"No prompt was verified with {name} {chunk:,}.")


def _memory(case: Case, choice: Choice) -> Iterator[Caution]:
    free, death = choice.free_at_ready_gib, choice.option.death
    impossible = choice.impossible_gib
    if free is None and impossible is not None:
        detail = (
            f"By what was posted, free memory would be {impossible:,.0f} GiB, which no such GPU has: it is left out. A "
            "figure or flag is wrong, or far beyond this GPU."
        )
        yield Caution(code="impossible_free_memory", detail=detail)
    elif free is None:
        detail = "The GPU's memory is unknown: post free_at_ready_gib, or hardware.memory_gib."
        yield Caution(code="free_memory_unknown", detail=detail)
    if choice.disputed_free_gib:
        listed = ", ".join(f"{gib:g}" for gib in choice.disputed_free_gib[-_MOST_LISTED:])
        detail = (
            f"Under these very flags {listed} GiB were free at ready (the newest last): see what else uses the GPU."
        )
        yield Caution(code="free_memory_contradicted", detail=detail)
    need_gib = choice.impossible_need_gib
    if need_gib is not None:
        detail = (
            f"A prompt of {case.question.target_tokens:,} tokens would take {need_gib:,.0f} GiB beside the pool, more "
            "than the GPU has: the headroom is left out."
        )
        yield Caution(code="impossible_prompt_need", detail=detail)
    if choice.binding is not None and not choice.is_sensible:
        detail = f"No {case.fraction_flag} comes near what was asked, so none is shown."
        yield Caution(code="no_fraction", detail=detail)
    if death is not None:
        known, version = case.model.summary.engine_version, death.engine.version
        whose = "" if version == known else f" of version {version or 'unknown'}"
        detail = f"A start{whose} at {death.fraction} ran out of memory: only fractions below it are advised."
        yield Caution(code="ran_out_of_memory", detail=detail)
    memory, need = case.model.hardware.memory_gib, choice.option.need
    if free is not None and memory is not None and choice.is_met:
        longest = need if isinstance(need, int | float) else need.estimate().high
        unused = free.median - longest
        if unused > _UNUSED_SHARE * memory:
            detail = (
                f"About {unused:.0f} GiB of the GPU's {memory:.0f} stay unused beyond what the longest prompt takes: "
                "a larger pool is possible (prefer=pool)."
            )
            yield Caution(code="memory_stays_unused", detail=detail)


def _distant_deaths(case: Case, choice: Choice) -> Iterator[Caution]:
    """Warn of deployments much alike that ran out of memory at the advised fraction or below."""
    above = [death for death in case.model.distant_deaths if (death.fraction or 1.0) <= choice.fraction + 1e-9]
    deaths = [death for death in above if not is_lighter(case.engine, choice.flags, death.flags)]
    lowest = min(deaths, key=lambda death: death.fraction or 1.0, default=None)
    if lowest is None:
        return
    is_version = lowest.engine.version != case.model.summary.engine_version
    whose = f"of version {lowest.engine.version or 'unknown'}" if is_version else "of a deployment with other flags"
    code = "oom_in_another_version" if is_version else "oom_in_another_deployment"
    detail = f"A start {whose} ran out of memory at {lowest.fraction}, not above the {choice.fraction:.3g} here."
    yield Caution(code=code, detail=detail)


def _hardware(case: Case) -> Iterator[Caution]:
    starts = case.model.starts
    before = [free for start in starts if (free := start.measurements.free_before_load_gib) is not None]
    if before and (max(before) - min(before) > _NEIGHBOUR_GIB or any(_is_crowded(start) for start in starts)):
        detail = (
            "Free memory before load differs between starts or is well below the GPU's: another process may hold some."
        )
        yield Caution(code="co_tenant_seen", detail=detail)


def _is_crowded(start: Observation) -> bool:
    before, memory = start.measurements.free_before_load_gib, start.hardware.memory_gib
    return before is not None and memory is not None and before < (1.0 - _NEIGHBOUR_SHARE) * memory


def versions(case: Case) -> Iterator[Caution]:
    """Warn where the evidence is not of the version asked for, or of several."""
    asked, known = case.question.engine_version, case.model.summary.engine_version
    if asked is not None and plain_version(asked) != plain_version(known or "unknown"):
        detail = f"Asked for version {asked}; the evidence is of {known or 'an unknown version'}."
        yield Caution(code="other_version", detail=detail)
    if case.anchor is None:
        return
    now = case.anchor.engine.version
    others = sorted({start.engine.version or "unknown" for start in case.model.starts} - {now or "unknown"})
    if others:
        detail = f"Part of the evidence is of version {', '.join(others)}; {now or 'an unknown version'} runs."
        yield Caution(code="other_version", detail=detail)
    verified = [
        start.engine.version for start in case.model.starts if any(check.passed for check in start.verifications)
    ]
    if verified and now not in verified:
        detail = f"No prompt was verified with version {now or 'unknown'}."
        yield Caution(code="engine_version_never_verified", detail=detail)
