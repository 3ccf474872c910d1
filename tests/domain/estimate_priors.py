"""Constants of the yield model's priors, estimated from recorded starts, each with the count that it rests on.

Usage: PYTHONPATH=service:tests python -m domain.estimate_priors
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import log
from statistics import median, stdev

from domain.measured_memory import ladder, measured_prompts, measured_starts
from domain.real_starts import case_groups, h200_ladder, h200_starts
from domain.trial_starts import trial_starts
from kvyield_server.domain.facts.devices import has_unified_memory
from kvyield_server.domain.facts.observation import FRACTION_FLAG, EngineName, Observation, Outcome
from kvyield_server.domain.model.evidence import is_death
from kvyield_server.domain.model.fit import PairEvidence, fit_pair
from kvyield_server.domain.model.need import has_latent_attention

LADDERS = (("qwen3-8b", "sglang"), ("dsv2-lite", "sglang"), ("qwen3-8b", "vllm"))
TABLE_BYTES = 4


def spread(values: Sequence[float]) -> str:
    """Return median, range and count."""
    if not values:
        return "no starts"
    sd = f", sd {stdev(values):.4f}" if len(values) > 1 else ""
    return f"median {median(values):.4f}, {min(values):.4f} to {max(values):.4f}{sd}, {len(values)} values"


def everything() -> list[Observation]:
    """Return all recorded starts: public groups, the measured H200 and its trial."""
    public = [start for starts in case_groups().values() for start in starts]
    return [*public, *h200_starts().values(), *trial_starts()]


def repeats() -> Iterator[tuple[Observation, Observation]]:
    """Yield pairs of starts that recorded the very same flags, hardware, model and engine, and both have a pool."""
    alike: dict[tuple[object, ...], list[Observation]] = defaultdict(list)
    for start in everything():
        if start.measurements.pool_tokens and start.outcome in (Outcome.READY, Outcome.OOM_RUNTIME):
            flags = tuple(sorted((key, str(value)) for key, value in start.flags.items() if key != "max_total_tokens"))
            key = (start.hardware.gpu, start.hardware.gpu_count, start.model.name, start.engine.name, flags)
            alike[key].append(start)
    for starts in alike.values():
        yield from combinations(starts, 2)


def repeat_noise() -> Iterable[tuple[str, str]]:
    """How far equal starts' pools lie apart, as a share of the pool."""
    for name, is_unified in (("discrete GPUs", False), ("unified memory", True)):
        apart = []
        for one, other in repeats():
            pools = [start.measurements.pool_tokens or 1 for start in (one, other)]
            if has_unified_memory(one.hardware) is is_unified:
                apart.append(abs(log(pools[0] / pools[1])))
        yield f"pools of equal starts, {name}, |log ratio|", spread(apart)
        within = sum(value < 0.002 for value in apart)
        yield "  of these within 0.2 % (the rest differ in what nobody recorded)", f"{within} of {len(apart)}"


def slopes() -> Iterable[tuple[str, str]]:
    """rho: free memory at ready lost for each GiB that the fraction adds, between neighbours on a ladder."""
    for model, engine in LADDERS:
        starts = [start for start in ladder(model, engine) if start.measurements.free_at_ready_gib is not None]
        lost = []
        for low, high in combinations(starts, 2):
            base = high.measurements.free_before_load_gib or high.measurements.device_memory_gib or 0.0
            more = base * ((high.fraction or 0.0) - (low.fraction or 0.0))
            if more > 5.0 and high.measurements.free_at_ready_gib is not None:
                lost.append(((low.measurements.free_at_ready_gib or 0.0) - high.measurements.free_at_ready_gib) / more)
        yield f"rho, {model}, {engine}", spread(lost)


def beside() -> Iterable[tuple[str, str]]:
    """What SGLang takes beside weights and KV memory, GiB: free after load less KV memory less free at ready."""
    kinds: dict[str, list[float]] = defaultdict(list)
    for start in everything():
        seen = start.measurements
        if start.engine.name is not EngineName.SGLANG or None in (
            seen.free_after_load_gib,
            seen.kv_cache_gib,
            seen.free_at_ready_gib,
        ):
            continue
        taken = (seen.free_after_load_gib or 0.0) - (seen.kv_cache_gib or 0.0) - (seen.free_at_ready_gib or 0.0)
        graphs = "graphs off" if start.flags.get("disable_cuda_graph") else "graphs on"
        kinds[graphs].append(taken - _table(start))
    for kind, values in sorted(kinds.items()):
        yield f"beside pool, request table and weights, {kind}, GiB", spread(values)


def _table(start: Observation) -> float:
    """Return SGLang's request table, GiB, by its own defaults where unset."""
    context = start.flags.get("context_length") or start.model.facts.get("max_position_embeddings")
    if not isinstance(context, int):
        return 0.0
    pool = start.measurements.pool_tokens or 0
    requests = start.flags.get("max_running_requests")
    rows = requests if isinstance(requests, int) else min(4096, max(2048, int(pool / context * 512)))
    return (rows + 1) * (context + 4) * TABLE_BYTES / 2**30


def graphs() -> Iterable[tuple[str, str]]:
    """What CUDA graphs took by the engine's own line, GiB, and what they moved free memory by at equal fractions."""
    for engine in (EngineName.SGLANG, EngineName.VLLM):
        logged = [start.measurements.graph_gib for start in everything() if start.engine.name is engine]
        yield f"graphs as logged, {engine.value}, GiB", spread([gib for gib in logged if gib])
    starts, moved = h200_starts(), []
    for name, start in starts.items():
        bare = starts.get(name.removesuffix("_graph").replace("c7_", "c6_"))
        if name.endswith("_graph") and bare is not None and bare is not start:
            frees = [each.measurements.free_at_ready_gib for each in (bare, start)]
            if frees[0] is not None and frees[1] is not None:
                moved.append(frees[0] - frees[1])
    yield "graphs by the fall of free memory at ready, SGLang, GiB", spread(moved)
    logged = [each for each in trial_starts() if each.engine.name is EngineName.SGLANG and each.measurements.graph_gib]
    full = [each.measurements.graph_gib or 0.0 for each in logged if (each.measurements.graph_gib or 0.0) > 1.0]
    few = [each.measurements.graph_gib or 0.0 for each in logged if (each.measurements.graph_gib or 0.0) <= 1.0]
    if full and few:
        steps = [one - other for one in full for other in few]
        yield "prefill graphs that SGLang leaves out, by its own lines, GiB", spread(steps)


def requests() -> Iterable[tuple[str, str]]:
    """Free memory that one more running request takes beyond its row of the table, GiB; graphs off."""
    starts = {
        start.flags["max_running_requests"]: start
        for name, start in h200_starts().items()
        if name.startswith("c6_sgl_q8_f0.8_mrr")
    }
    found = []
    for (few, one), (many, other) in combinations(sorted(starts.items(), key=lambda item: str(item[0])), 2):
        rows = float(str(many)) - float(str(few))
        fell = (one.measurements.free_at_ready_gib or 0.0) - (other.measurements.free_at_ready_gib or 0.0)
        table = rows * (131_072 + 4) * TABLE_BYTES / 2**30
        if rows:
            found.append((fell - table) / rows)
    yield "a running request beyond its row of the table, SGLang, GiB", spread(found)


def batched() -> Iterable[tuple[str, str]]:
    """How vLLM's KV memory moves with flags that its profile depends on, GiB, at one fraction."""
    starts = h200_starts()
    plain = starts["c4_vllm_q8_f0.8"].measurements.kv_cache_gib or 0.0
    for kind in ("batched", "seqs", "len", "graph"):
        moved = [
            (start.measurements.kv_cache_gib or 0.0) - plain
            for name, start in starts.items()
            if name.startswith((f"c4_vllm_q8_f0.8_{kind}", f"c8_vllm_q8_f0.8_{kind}"))
        ]
        yield f"KV memory moved by {kind}, vLLM, GiB", spread(moved)


def prices() -> Iterable[tuple[str, str]]:
    """KV GiB a token as logged against the config's formula, one start a ladder and fraction."""
    formula = {"qwen3-8b": 36 * 2 * 8 * 128 * 2, "dsv2-lite": 27 * 576 * 2}
    for model, engine in LADDERS:
        ratios = []
        for start in h200_ladder(model, engine):
            seen = start.measurements
            if seen.kv_cache_gib and seen.pool_tokens and (start.fraction or 0.0) >= 0.3:
                ratios.append(seen.kv_cache_gib * 2**30 / seen.pool_tokens / formula[model])
        yield f"bytes per token, logged over formula, {model}, {engine}", spread(ratios)


def prompts() -> Iterable[tuple[str, str]]:
    """What prompts of more than one chunk took at their peak below the free memory before them, GiB."""
    taken: dict[str, list[float]] = defaultdict(list)
    for name, checks in measured_prompts().items():
        start = measured_starts()[name]
        for check in checks:
            if check.free_before_gib is not None and check.lowest_free_gib is not None and check.prompt_tokens > 8192:
                kind = f"{start.model.name}, {start.engine.name.value}"
                taken[kind].append(check.free_before_gib - check.lowest_free_gib)
    for start in trial_starts():
        for check in start.verifications:
            if check.passed and check.free_before_gib is not None and check.lowest_free_gib is not None:
                kind = f"{start.model.name}, {start.engine.name.value}, HTTP servers"
                taken[kind].append(check.free_before_gib - check.lowest_free_gib)
    for kind, values in sorted(taken.items()):
        yield f"what a prompt took, {kind}, GiB", spread(values)


def attention() -> Iterable[tuple[str, str]]:
    """How many models have latent or sparse attention, of those whose name or config tells."""
    told = {start.model.name: has_latent_attention(start.model) for start in everything()}
    latent = [name for name, kind in told.items() if kind]
    plain = [name for name, kind in told.items() if kind is False]
    yield "latent or sparse", f"{len(latent)} of {len(latent) + len(plain)} ({len(told)} in all)"


def sizes() -> Iterable[tuple[str, str]]:
    """The slope of logged KV memory over the memory that was stated, groups of two and more fractions."""
    ratios: dict[str, list[float]] = {"a whole number": [], "another figure": []}
    for starts in case_groups().values():
        points = {
            start.fraction: start
            for start in starts
            if start.measurements.kv_cache_gib and start.fraction and start.hardware.memory_gib
        }
        if len(points) < 2:
            continue
        low, high = points[min(points)], points[max(points)]
        stated = high.hardware.memory_gib or 0.0
        rise = (high.measurements.kv_cache_gib or 0.0) - (low.measurements.kv_cache_gib or 0.0)
        ratio = rise / (max(points) - min(points)) / stated
        if 0.9 < ratio < 1.02:
            ratios["a whole number" if stated == round(stated) else "another figure"].append(ratio)
    for kind, values in ratios.items():
        yield f"slope over the stated memory, {kind}", spread(values)


def by_pair() -> list[list[Observation]]:
    """Return all recorded starts by GPU, count, model and engine."""
    found: dict[tuple[object, ...], list[Observation]] = defaultdict(list)
    for start in everything():
        found[start.hardware.gpu, start.hardware.gpu_count, start.model.name, start.engine.name].append(start)
    return list(found.values())


def arithmetic() -> Iterable[tuple[str, str]]:
    """Free memory at ready less what each start would predict if nothing had measured it, by pair."""
    for starts in by_pair():
        off, shares = [], []
        for start in starts:
            ready, fraction = start.measurements.free_at_ready_gib, start.fraction
            if not start.came_up or ready is None or fraction is None or has_unified_memory(start.hardware):
                continue
            unread = replace(start.measurements, free_at_ready_gib=None, free_at_pool_end_gib=None)
            fit = fit_pair(PairEvidence((replace(start, measurements=unread, verifications=()),))).deployments[0]
            predicted, base = fit.predict(fit.flags).free_at_ready_gib, fit.pool.line.base
            if predicted is not None and base is not None:
                off.append(ready - predicted.median)
                shares.append((ready - predicted.median) / base.mean)
        if off:
            name = f"{starts[0].hardware.gpu}, {starts[0].model.name}, {starts[0].engine.name.value}"
            yield f"{name}, GiB", spread(off)
            yield "  as a share of the GPU's memory", spread(shares)


def deaths() -> Iterable[tuple[str, str]]:
    """Deaths that starts which came up contradict, and how near below a death the next start came up."""
    up, died, spoken_against, near = 0, 0, 0, []
    for starts in by_pair():
        for fit in fit_pair(PairEvidence(tuple(starts))).deployments:
            counting = {start.id for start in fit.history.deaths}
            ran = [start for start in fit.starts if start.came_up and start.fraction is not None]
            up += len(ran)
            for start in fit.starts:
                if not is_death(start):
                    continue
                died += 1
                spoken_against += start.id not in counting
                below = [each.fraction or 0.0 for each in ran if (each.fraction or 0.0) < (start.fraction or 0.0)]
                if below and start.hardware.memory_gib is not None:
                    near.append(((start.fraction or 0.0) - max(below)) * start.hardware.memory_gib)
    yield "deaths that others contradict", f"{spoken_against} of {died}, beside {up} starts that came up"
    yield "from a death down to the next start that came up, GiB", spread(near)


def fractions() -> Iterable[tuple[str, str]]:
    """Fractions that starts ran at, by engine."""
    for engine, flag in FRACTION_FLAG.items():
        ran = [s.fraction for s in everything() if s.engine.name is engine and s.outcome is Outcome.READY]
        yield f"{flag} of ready starts", spread([value for value in ran if value is not None])


def main() -> None:
    """Print every estimate."""
    for chapter in (
        repeat_noise,
        slopes,
        beside,
        graphs,
        requests,
        batched,
        prices,
        prompts,
        attention,
        sizes,
        arithmetic,
        deaths,
        fractions,
    ):
        print(f"\n{(chapter.__doc__ or '').strip()}")
        for name, figure in chapter():
            print(f"  {name}: {figure}")


if __name__ == "__main__":
    main()
