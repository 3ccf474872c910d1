"""A trial of kvyield on a host with a real GPU: what was predicted beside what was measured.

``make gpu-trial ENGINE_COMMAND='vllm serve MODEL --gpu-memory-utilization 0.80'``, or the same command after
``python tests/gpu/trial.py --``: starts the engine, runs doctor, observe, verify and recommend, restarts the engine
with the advice, observes and verifies again. A sampler of its own (``sampler.py``) reads NVML every 10 ms throughout.
Nothing but the product's own commands, the engine and that sampler is run; the ledger is a new one in the output
folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpu.engine import Engine, EngineError, address_of, command_of, with_advice
from gpu.report import table_of
from gpu.sampler import GIB, Sampler, SamplerError

PROMPTS = (1_000, 8_000, 60_000)
AT_ONCE = 4
SETTLE_SECONDS = 2.0
MEMORY_SECONDS = 120.0
COMMAND_SECONDS = 3_600.0
ENGINE_GIB = 1.0
"""A GPU whose free memory fell by less than this while the engine started is not the engine's."""
BACK_GIB = 0.5
"""The memory of an engine that ended counts as free again within this of what was free before."""


class TrialError(Exception):
    """The trial cannot go on; the text says why."""


@dataclass
class Prompt:
    """One ``kvyield verify``: what the client posted and what the sampler saw while the command ran."""

    prompt_tokens: int
    concurrent: int
    verification: Mapping[str, Any] | None
    sampler_lowest_gib: float
    sampler_before_gib: float
    note: str = ""


@dataclass
class Start:
    """One start of the engine as the client recorded it, with the sampler's free memory once it was ready."""

    words: Sequence[str]
    observation: Mapping[str, Any]
    seconds_to_ready: float | None
    sampler_free_gib: float | None = None
    prompts: list[Prompt] = field(default_factory=list)


@dataclass
class Result:
    """All that the report is made of."""

    gpus: Sequence[str] = ()
    starts: list[Start] = field(default_factory=list)
    advice: Mapping[str, Any] | None = None
    advice_after: Mapping[str, Any] | None = None
    target_tokens: int | None = None
    concurrent: int = 1
    stop_seconds: float | None = None
    readings: int = 0
    longest_gap_seconds: float = 0.0
    doctor: list[Mapping[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Trial:
    """The steps, in order. ``out`` receives logs, the ledger, every command's words, and the report."""

    def __init__(self, options: argparse.Namespace, sampler: Sampler) -> None:
        self._options = options
        self._sampler = sampler
        self._out: Path = options.out
        self._environment, self._words = command_of(options.engine_command)
        self._server: str = options.server or address_of(self._words)
        self._gpus: list[int] = []
        self._engine: Engine | None = None
        self.result = Result(gpus=sampler.trace().names)

    def run(self) -> None:
        """All steps. Raises TrialError, EngineError or SamplerError at the first that cannot be done."""
        try:
            first = self._started(self._words)
            self._doctor()
            for tokens, concurrent in self._plan(first):
                self._verify(first, tokens, concurrent)
            advice = self._advised(first)
            if advice is None:
                return
            self._environment, words = with_advice(self._environment, self._words, advice["changes"])
            self._stop()
            second = self._started(words, recommendation=advice["id"])
            self._verify(second, self.result.target_tokens or 0, self.result.concurrent)
            self.result.advice_after = self._recommend(self.result.target_tokens or 0, self.result.concurrent, "keep")
        finally:
            if self._engine is not None:
                self.result.stop_seconds = self._engine.stop()
            trace = self._sampler.trace()
            self.result.readings, self.result.longest_gap_seconds = trace.readings, trace.longest_gap_seconds

    def _started(self, words: Sequence[str], recommendation: str | None = None) -> Start:
        number = len(self.result.starts) + 1
        before = self._sampler.now()
        _say(f"start {number}: {shlex.join(words)}")
        self._engine = Engine(self._environment, words, self._server, self._out / f"engine-{number}.log")
        came_up = self._engine.wait(self._options.ready_seconds)
        if came_up:
            time.sleep(SETTLE_SECONDS)
            self._find_gpus(before)
        ready = time.monotonic()
        extra = ["--recommendation", recommendation] if recommendation else []
        extra += ["--server", self._server] if came_up else []
        posted = self._json("observe", "--log", str(self._engine.log), "--last", *extra)
        if not posted:
            raise TrialError(f"observe read no start from {self._engine.log}; its words are in commands.txt")
        start = Start(words, posted[-1], self._engine.seconds_to_ready)
        self.result.starts.append(start)
        if not came_up:
            outcome = start.observation["outcome"]
            raise TrialError(f"start {number} did not come up (recorded as {outcome}); see {self._engine.log}")
        start.sampler_free_gib = self._sampler.trace().free_gib(ready, self._gpus)
        _say(f"ready after {start.seconds_to_ready:.0f} s, {start.sampler_free_gib:.2f} GiB free")
        return start

    def _find_gpus(self, before: Sequence[int]) -> None:
        """The engine's GPUs: those that lost memory while it started."""
        now = self._sampler.now()
        found = [n for n, (was, left) in enumerate(zip(before, now, strict=True)) if was - left > ENGINE_GIB * GIB]
        if not found:
            raise TrialError(f"no GPU lost over {ENGINE_GIB} GiB while the engine started: does it run on this host?")
        self._gpus = found

    def _doctor(self) -> None:
        assert self._engine is not None
        self.result.doctor = self._json("doctor", "--server", self._server, "--log", str(self._engine.log))
        for check in self.result.doctor:
            if check["verdict"] in ("warn", "fail"):
                self.result.notes.append(f"doctor: {check['verdict']} {check['name']}: {check['finding']}")

    def _plan(self, start: Start) -> list[tuple[int, int]]:
        """The prompts: each length alone, then the longest of which several fit the pool at once."""
        pool = start.observation["measurements"]["pool_tokens"] or 0
        lengths = sorted(self._options.prompt_tokens)
        together = [tokens for tokens in lengths if tokens * AT_ONCE <= pool]
        alone = [(tokens, 1) for tokens in lengths]
        return [*alone, (together[-1], AT_ONCE)] if together else alone

    def _verify(self, start: Start, tokens: int, concurrent: int) -> None:
        assert self._engine is not None
        began = time.monotonic()
        words = ["--server", self._server, "--log", str(self._engine.log), "--observation", start.observation["id"]]
        words += ["--prompt-tokens", str(tokens), "--concurrent", str(concurrent)]
        words += ["--no-answer-check"] if self._options.no_answer_check else []
        posted, said = self._both("verify", *words)
        lowest = self._lowest(began)
        note = "" if posted else _last_word(said)
        before = self._sampler.trace().free_gib(began, self._gpus)
        start.prompts.append(Prompt(tokens, concurrent, posted[-1] if posted else None, lowest, before, note))
        _say(f"verified {concurrent} x {tokens:,} tokens: lowest {lowest:.2f} GiB by the sampler {note}")

    def _lowest(self, since: float) -> float:
        return self._sampler.trace().lowest_gib(since, time.monotonic(), self._gpus)

    def _advised(self, start: Start) -> Mapping[str, Any] | None:
        """Advice that changes the flags: for what was asked, else for a little more than the pool holds, else less."""
        for tokens, concurrent, prefer in self._questions(start):
            advice = self._recommend(tokens, concurrent, prefer)
            self.result.advice, self.result.target_tokens, self.result.concurrent = advice, tokens, concurrent
            if advice["status"] in ("ok", "at_risk") and advice["changes"]:
                return advice
            self.result.notes.append(f"{concurrent} x {tokens:,} tokens: {advice['headline']['text']}")
        self.result.notes.append("no advice changed the flags, so the engine was not restarted")
        return None

    def _questions(self, start: Start) -> list[tuple[int, int, str]]:
        options = self._options
        if options.target_tokens:
            return [(options.target_tokens, options.concurrent, "keep")]
        served = [one.prompt_tokens for one in start.prompts if one.verification and one.verification["passed"]]
        if not served:
            raise TrialError("no prompt was served: nothing to base advice on; see commands.txt and the engine's log")
        longest, pool = max(served), start.observation["measurements"]["pool_tokens"] or 0
        more, fewer = pool // longest + 1, int(0.9 * pool) // longest
        return [(longest, more, "keep"), *([(longest, fewer, "headroom")] if fewer else [])]

    def _recommend(self, tokens: int, concurrent: int, prefer: str) -> Mapping[str, Any]:
        words = ["--target-tokens", str(tokens), "--concurrent", str(concurrent), "--prefer", prefer]
        answers, said = self._both("recommend", *words, "--store")
        if not answers:
            raise TrialError(f"recommend gave no answer: {_last_word(said)}")
        _say(f"advice for {concurrent} x {tokens:,} tokens: {answers[-1]['headline']['text']}")
        answer: Mapping[str, Any] = answers[-1]
        return answer

    def _stop(self) -> None:
        """Ends the engine and waits until the GPUs have their memory back."""
        assert self._engine is not None
        first = self._sampler.trace().free[0]
        self.result.stop_seconds = self._engine.stop()
        end = time.monotonic() + MEMORY_SECONDS
        while any(first[gpu] - self._sampler.now()[gpu] > BACK_GIB * GIB for gpu in self._gpus):
            if time.monotonic() > end:
                raise TrialError(f"the engine's GPU memory was not free again {MEMORY_SECONDS:.0f} s after it ended")
            time.sleep(0.1)

    def _json(self, command: str, *words: str) -> list[Any]:
        return self._both(command, *words)[0]

    def _both(self, command: str, *words: str) -> tuple[list[Any], str]:
        """Runs one of the product's commands: the objects that it printed, and its words for a person."""
        given = [command, *words, "--local", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "kvyield", *given],
            capture_output=True,
            text=True,
            env=self._client_environment(),
            timeout=COMMAND_SECONDS,
            check=False,
        )
        with (self._out / "commands.txt").open("a") as file:
            file.write(f"$ kvyield {shlex.join(given)}\n{done.stderr}{done.stdout}exit code {done.returncode}\n\n")
        try:
            return [json.loads(line) for line in done.stdout.splitlines() if line.strip()], done.stderr
        except json.JSONDecodeError:
            raise TrialError(
                f"kvyield {command} printed no JSON (exit code {done.returncode}): {done.stderr}"
            ) from None

    def _client_environment(self) -> dict[str, str]:
        """Without this user's settings, and with a ledger of the trial's own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KVYIELD_")}
        if "KVYIELD_SERVER_KEY" in os.environ:
            kept["KVYIELD_SERVER_KEY"] = os.environ["KVYIELD_SERVER_KEY"]
        home = str(self._out / "home")
        return {**kept, "XDG_DATA_HOME": home, "XDG_CONFIG_HOME": home, "XDG_STATE_HOME": home}


def _last_word(said: str) -> str:
    lines = said.strip().splitlines()
    return lines[-1].removeprefix("kvyield: ") if lines else "without a word"


def _say(text: str) -> None:
    print(f"trial: {text}", file=sys.stderr, flush=True)


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; the engine command comes after ``--`` or from ENGINE_COMMAND."""
    parser = argparse.ArgumentParser(prog="trial.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--server", help="where the engine serves, if the command does not say it with --port")
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=list(PROMPTS), metavar="N")
    parser.add_argument("--target-tokens", type=int, help="what to ask advice for (default: more than the pool holds)")
    parser.add_argument("--concurrent", type=int, default=1, help="such prompts at once, with --target-tokens")
    parser.add_argument("--no-answer-check", action="store_true", help="for weights that cannot answer (dummy ones)")
    parser.add_argument("--ready-seconds", type=float, default=1800.0, help="how long a start may take")
    parser.add_argument("--out", type=Path, help="a new folder for everything (default: gpu-trial-DATE-TIME)")
    parser.add_argument("engine", nargs="*", metavar="-- ENGINE COMMAND")
    options = parser.parse_args(arguments)
    options.engine_command = shlex.join(options.engine) if options.engine else os.environ.get("ENGINE_COMMAND", "")
    options.out = (options.out or Path(time.strftime("gpu-trial-%Y%m%d-%H%M%S"))).resolve()
    return options


def main(arguments: Sequence[str]) -> int:
    """Runs a trial and prints its report: 0 when every step was done, 1 when one could not be, 2 for wrong usage."""
    options = options_of(arguments)
    try:
        options.out.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        _say(f"{options.out} exists already: give --out a folder that does not")
        return 2
    try:
        command_of(options.engine_command)
        with Sampler(options.out / "sampler.jsonl") as sampler:
            return _carried_out(Trial(options, sampler), options.out)
    except (EngineError, SamplerError) as error:
        _say(str(error))
        return 2


def _carried_out(trial: Trial, out: Path) -> int:
    status = 0
    try:
        trial.run()
    except (TrialError, EngineError, SamplerError, subprocess.TimeoutExpired) as error:
        _say(str(error))
        trial.result.notes.append(f"the trial ended early: {error}")
        status = 1
    text = table_of(trial.result)
    (out / "report.md").write_text(text)
    (out / "report.json").write_text(json.dumps(trial.result, default=vars, indent=1))
    print(text)
    _say(f"all of it is in {out}; look through the logs before you share them")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
