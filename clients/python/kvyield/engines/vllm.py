"""vLLM, V0 and V1 to 0.33: what its log says about a start."""

from __future__ import annotations

from collections.abc import Callable

from kvyield.engines import _vllm_lines as lines
from kvyield.engines._defaults import vllm_defaults
from kvyield.engines._engine import Engine, Role, StartReader, Surroundings, source
from kvyield.engines._failures import SPECIFIC, Problem
from kvyield.engines._literals import Fields, Value, call_fields, dict_fields, scalar
from kvyield.engines._prefix import Record
from kvyield.engines._start import Scalar, Sourced
from kvyield.engines._text import quote
from kvyield.engines._vllm_flags import ALIASES, MEMORY_FLAGS, NESTED
from kvyield.engines._vllm_pool import VllmMemory, count, rank_of

LONGEST_LINE = 4000
DUMP_BYTES = 1 << 18


class VllmReader(StartReader):
    """Reads one start of vLLM."""

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__("vllm", surroundings)
        self.memory = VllmMemory()
        self.openings: dict[str, str] = {}
        self.args_known = self.args_read = False

    def belongs(self, record: Record) -> bool:
        """False for an opening line once the pool is known, and for arguments or a version other than those seen.

        Configs come once for each engine process of one server.
        """
        kind = _opening(record.text)
        if kind is None:
            return True
        if self.settled or self.memory.pool_known:
            return False
        return kind == "config" or self.openings.get(kind, record.text) == record.text

    def feed(self, record: Record) -> None:
        """Take in one line."""
        text, own = record.text[:LONGEST_LINE], lines.own_time(record.text)
        kind = _opening(text)
        if kind:
            self.openings.setdefault(kind, record.text)
            self.opened = True
        ready = bool(lines.ENGINE_READY.search(text) or lines.SERVING.search(text))
        self.clock.see(record, own, opens=kind == "args" and not self.started, ready=ready)
        handlers = dict.fromkeys(handle for needle, handle in _HANDLERS if needle in text)
        results = [handle(self, record, text) for handle in handlers]
        if any(results):
            self.note(record)
            self.progressed(record)
        elif not self._refusal(record, text):
            self._problem(record, text)

    def _problem(self, record: Record, text: str) -> None:
        """A problem; for a crash at run time also the longest prompt that the engine dumped."""
        found, cause = self.read_problem(record, text), self.problems.cause
        if cause is None or cause.outcome != "oom_runtime" or "prompt_tokens" in cause.evidence:
            return
        dumped = self.lines_before(record, DUMP_BYTES) if found else [record.text.encode()]
        lengths = [int(length) for line in dumped for length in lines.PROMPT_LENGTH.findall(line[: 1 << 16])]
        if lengths:
            cause.evidence["prompt_tokens"] = Sourced(max(lengths), "the scheduler's output that the engine dumped")

    def _read_args(self, record: Record, text: str) -> bool:
        match, namespace = lines.NON_DEFAULT.search(text), lines.NAMESPACE.search(text)
        if match:
            fields = dict_fields(record.text, match.start(1))
            self.args_known = fields.complete
        elif namespace:
            fields = call_fields(record.text, namespace.end())
        else:
            return False
        self.args_read = True
        self._take_flags(fields, record, "args", strong=True)
        self._names(fields.values, f"line {record.number}: args")
        return True

    def _take_flags(self, fields: Fields, record: Record, line: str, *, strong: bool) -> None:
        values = dict(fields.values)
        for outer, inner in NESTED.items():
            nested = values.get(outer)
            if isinstance(nested, dict):
                values.update({name: nested[name] for name in inner if name in nested})
        for name, value in values.items():
            flag = ALIASES.get(name, name)
            if flag in MEMORY_FLAGS and (strong or self._is_open(flag)):
                self.flag(flag, _plain(value), f"line {record.number}: {line}, {name}={quote(str(value), 80)}")

    def _is_open(self, flag: str) -> bool:
        known = self.start.flags.get(flag)
        return known is None or known.value is None or (known.value == "auto" and flag != "max_model_len")

    def _names(self, values: dict[str, Value], where: str) -> None:
        model = values.get("model") or values.get("model_tag")
        self.fact("model_name", scalar(model), f"{where}, model")
        self.fact("model_revision", scalar(values.get("revision")), f"{where}, revision")
        served = values.get("served_model_name")
        self.fact(
            "served_model_name",
            scalar(served[0] if isinstance(served, list) and served else served),
            f"{where}, served_model_name",
        )

    def _read_config(self, record: Record, text: str) -> bool:
        match = lines.CONFIG.search(text)
        if match is None:
            return False
        if match[1]:
            self.version(match[1], f"line {record.number}: engine config")
        fields = call_fields(record.text, match.end())
        self._take_flags(fields, record, "engine config", strong=False)
        self._names(fields.values, f"line {record.number}: engine config")
        sizes = [fields.values.get(f"{kind}_parallel_size") for kind in ("tensor", "pipeline", "data")]
        if all(isinstance(size, int) and 0 < size < 1 << 20 for size in sizes):
            product = int(str(sizes[0])) * int(str(sizes[1])) * int(str(sizes[2]))
            self.fact("gpu_count", product, f"line {record.number}: engine config, product of parallel sizes")
        return True

    def _read_plan(self, record: Record, text: str) -> bool:
        match = lines.PLAN.search(text)
        if match and self._is_open("kv_cache_memory_bytes"):
            self.flag("kv_cache_memory_bytes", int(match[1]), source(record))
        return match is not None

    def _read_version(self, record: Record, text: str) -> bool:
        match = lines.SERVER_VERSION.search(text)
        if match:
            self.version(match[1].removeprefix("v"), source(record))
        return match is not None

    def _read_lengths(self, record: Record, text: str) -> bool:
        length, batched, fitted = (pattern.search(text) for pattern in (lines.MODEL_LEN, lines.BATCHED, lines.AUTO_LEN))
        if length and self._is_open("max_model_len"):
            self.flag("max_model_len", int(length[1]), source(record))
        if fitted:
            self.memory.fitted = Sourced(count(fitted[1] or fitted[2]), source(record))
            if not self.args_read:
                self.flag("max_model_len", -1, f"{source(record)} (only an asked -1 or auto is fitted)")
        if batched:
            self.flag("max_num_batched_tokens", int(batched[1]), source(record))
        return bool(length or batched or fitted)

    def _read_compile_cache(self, record: Record, text: str) -> bool:
        """Cold when any graph was compiled: then the profiled peak is higher and the pool smaller.

        On an H200 1.29 GiB instead of 0.78 (0.26.0, Qwen3-8B, 8192 batched tokens); the next start finds the cache.
        """
        known = self.start.flags.get("compile_cache")
        if lines.COMPILED.search(text):
            self.flag("compile_cache", "cold", source(record))
            return True
        if lines.COMPILE_CACHE_HIT.search(text):
            if known is None:
                self.flag("compile_cache", "warm", source(record))
            return True
        return False

    def _read_weights(self, record: Record, text: str) -> bool:
        if self.memory.weights(record, text):
            self.started = True
            self.phase = "pool"
            return True
        return False

    def _read_pool(self, record: Record, text: str) -> bool:
        if not self.memory.pool(record, text):
            return False
        self.started = True
        longest = lines.CONCURRENCY.search(text)
        if longest and self._is_open("max_model_len"):
            self.flag("max_model_len", count(longest[1]), source(record))
        capped = lines.OVERRIDE.search(text)
        if capped and self._is_open("num_gpu_blocks_override"):
            self.flag("num_gpu_blocks_override", int(capped[2]), source(record))
        self.phase = "graph_capture" if self.phase == "graph_capture" else "pool"
        if self.memory.no_blocks:
            message = Sourced(quote(text), source(record))
            self.problems.add(
                Problem("refused", "pool", message, SPECIFIC, final=True, evidence=self.memory.shortage())
            )
        return True

    def _read_total(self, record: Record, text: str) -> bool:
        if lines.REFUSED_FREE.search(text):
            return False
        total = lines.V0_TOTAL.search(text) or lines.V0_RESULTS.search(text)
        others = [p.search(text) for p in (lines.DESIRED, lines.REQUESTED, lines.EQUIVALENT)]
        rounded = total[2] if total else next((match[1] for match in others if match), None)
        if rounded is not None and "gpu_memory_utilization" not in self.start.flags:
            self.flag("gpu_memory_utilization", float(rounded), source(record))
        found = self.memory.totals(record, text, self.start.contradictions)
        self.started = self.started or found
        return found or any(others)

    def _read_graphs(self, record: Record, text: str) -> bool:
        if lines.GRAPHS_BEGIN.search(text):
            self.phase = "graph_capture"
            return True
        return self.memory.graphs(record, text)

    def _read_ready(self, record: Record, text: str) -> bool:
        port = lines.PORT.search(text)
        if port and self._is_open("port"):
            self.flag("port", int(port[1]), source(record))
        if lines.ENGINE_READY.search(text):
            self.started = self.announced = True
        elif lines.SERVING.search(text):
            self.announced = self.announced or self.started
            self.complete = self.announced
        else:
            return False
        self.phase = "serving"
        return True

    def _read_served(self, record: Record, text: str) -> bool:
        if lines.SERVED.search(text):
            self.progressed(record)
            if lines.HAS_SERVED.search(text) and self.memory.pool_known and not self.announced:
                self.announced, self.phase = True, "serving"
        return False

    def _refusal(self, record: Record, text: str) -> bool:
        if self.announced:
            return False
        free, length, stored, plain = (
            pattern.search(text) for pattern in
            (lines.REFUSED_FREE, lines.REFUSED_LENGTH, lines.REFUSED_STORED, lines.REFUSED_PLAIN)
        )  # fmt: skip
        match = free or length or stored or plain
        where = source(record)
        if match is None:
            self._refused_figures(record, text)
            return False
        problem = Problem(
            "refused", "load" if free else "pool", Sourced(quote(match[0]), where), SPECIFIC + 1, final=True
        )
        if stored:
            self.memory.of(record).tokens = Sourced(int(stored[2]), where)
            problem.evidence["longest_tokens"] = Sourced(int(stored[2]), where)
        if free:
            self._free_refusal(record, free, problem.evidence)
        self.problems.add(problem)
        self._refused_figures(record, text)
        return True

    def _refused_figures(self, record: Record, text: str) -> None:
        """The figures of a refusal, on its line or, where somebody broke the line, on those after it."""
        cause = self.problems.cause
        if cause is None or cause.outcome != "refused":
            return
        for name, pattern, read in (
            ("needed_gib", lines.NEEDED, float),
            ("available_kv_cache_gib", lines.AVAILABLE_FOR, float),
            ("longest_tokens", lines.LONGEST, count),
        ):
            match = pattern.search(text)
            if match:
                cause.evidence.setdefault(name, Sourced(read(match[1]), source(record)))

    def _free_refusal(self, record: Record, free: lines.Match, evidence: dict[str, Sourced]) -> None:
        where, process = source(record), self.memory.of(record)
        process.free, process.device = Sourced(float(free[1]), where), Sourced(float(free[2]), where)
        evidence |= {"free_gib": process.free, "needed_gib": Sourced(float(free[4]), where)}
        rank = self._rank(record.process)
        if rank is not None:
            evidence["rank"] = Sourced(rank, f"line {record.number}: the process's name")
        if "gpu_memory_utilization" not in self.start.flags:
            self.flag("gpu_memory_utilization", float(free[3]), where)

    def _rank(self, process: str) -> int | None:
        sizes = [self.start.flags.get(f"{kind}_parallel_size") for kind in ("tensor", "pipeline")]
        tensor, pipeline = (size.value if size and isinstance(size.value, int) else None for size in sizes)
        return rank_of(process, tensor=tensor, pipeline=pipeline)

    def _refused_shortage(self) -> None:
        """What a refusal that names no figure had for the pool, below zero too: the worker printed it before.

        An end in other words after less than no memory was left for the pool is such a refusal.
        """
        cause = self.problems.cause
        if cause is not None and not self.announced and self.memory.is_short:
            cause.outcome = "refused" if (cause.outcome, cause.cause) == ("failed", "error") else cause.outcome
        if cause is None or cause.outcome != "refused" or "free_gib" in cause.evidence:
            return
        for name, value in self.memory.shortage().items():
            cause.evidence.setdefault(name, value)

    def _refused_rank(self) -> None:
        """The rank that binds: the one with the least KV cache, or the only one that printed the refusal's figure."""
        cause = self.problems.cause
        told = cause.evidence.get("available_kv_cache_gib") if cause else None
        if cause is None or told is None or cause.outcome != "refused":
            return
        name = self.memory.process_with(float(str(told.value)))
        rank = None if name is None else self._rank(name)
        if rank is not None:
            cause.evidence.setdefault("rank", Sourced(rank, f"{name} printed {told.value} GiB"))

    def conclude(self) -> None:
        """Sum up the processes, and fill defaults where all arguments that differ from them were read."""
        block = self.start.flags.get("block_size")
        size = block.value if block and isinstance(block.value, int) and block.value > 0 else None
        told = self.start.facts.get("engine_version")
        version = str(told.value) if told else ""
        for name, value in self.memory.conclude(size, version).items():
            self.take(name, value)
        self._refused_shortage()
        self._refused_rank()
        if self.args_known:
            for name, default in vllm_defaults(version).items():
                if name not in self.start.flags:
                    self.flag(name, default, "default")


def _plain(value: Value) -> Scalar:
    return value.removeprefix("torch.") if isinstance(value, str) else scalar(value)


def _opening(text: str) -> str | None:
    for kind, pattern in (
        ("args", lines.NON_DEFAULT),
        ("args", lines.NAMESPACE),
        ("config", lines.CONFIG),
        ("version", lines.SERVER_VERSION),
    ):
        if pattern.search(text, 0, LONGEST_LINE):
            return kind
    return None


Handler = Callable[[VllmReader, Record, str], bool]
_HANDLERS: tuple[tuple[str, Handler], ...] = (
    ("args: ", VllmReader._read_args),
    ("with config: ", VllmReader._read_config),
    ("server version", VllmReader._read_version),
    (lines.BANNER, VllmReader._read_version),
    ("startup plan", VllmReader._read_plan),
    ("max_model_len", VllmReader._read_lengths),
    ("max model len", VllmReader._read_lengths),
    ("max_num_batched_tokens", VllmReader._read_lengths),
    ("weights", VllmReader._read_weights),
    ("Model loading took", VllmReader._read_weights),
    ("utilization", VllmReader._read_total),
    ("ree memory", VllmReader._read_total),
    ("KV ", VllmReader._read_pool),
    ("Available memory: ", VllmReader._read_pool),
    ("kv cache memory in use", VllmReader._read_pool),
    ("kv_cache_size=", VllmReader._read_pool),
    (" blocks: ", VllmReader._read_pool),
    ("num_gpu_blocks", VllmReader._read_pool),
    ("Maximum concurrency", VllmReader._read_pool),
    ("raph", VllmReader._read_graphs),
    ("Compiling a graph", VllmReader._read_compile_cache),
    ("Directly load ", VllmReader._read_compile_cache),
    ("init engine (profile", VllmReader._read_ready),
    ("startup complete", VllmReader._read_ready),
    ("Starting vLLM", VllmReader._read_ready),
    ("throughput: ", VllmReader._read_served),
)


def _role(text: str) -> Role | None:
    short = text[:LONGEST_LINE]
    if _opening(short):
        return "opens"
    return "belongs" if lines.MINE.search(short) else None


VLLM = Engine(
    name="vllm",
    openers=(b"non-default args", b" with config: ", b"args: Namespace"),
    ready=(b"startup complete",),
    hooks=(
        *(b"LLM ", b"GiB", b" GB", b" blocks", b"num_gpu_blocks", b"KV cache size", b"Maximum concurrency"),
        *(b"max_num_batched_tokens", b"max model len", b"max_model_len", b"init engine", b"padding layers"),
        *(b"attention block size", b"shared memory broadcast", b"GPU memory", b"prompt_token_ids_len"),
        *(b"maximum model length", b"startup plan", b"utilization", b"Available memory: "),
        *(b"Capturing ", b"Compiling a graph", b"Directly load ", lines.BANNER.encode()),
    ),
    role=_role,
    reader=VllmReader,
)
