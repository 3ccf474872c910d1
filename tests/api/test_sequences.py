"""Random sequences of what people and hosts do to a ledger: after each step all questions are answered."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from litestar.testing import TestClient

from _storages import fresh_storage
from api.samples import GPU, MODEL, VERIFICATION, start
from kvyield_server.app import create_app
from kvyield_server.schemas.exports import ndjson
from kvyield_server.settings import Settings
from kvyield_server.usecases.refit import refit
from kvyield_server.usecases.retention import retire

GPUS = ("NVIDIA H200", GPU)
MODELS = (MODEL, "Qwen/Qwen3-8B")
OUTCOMES = ("ready", "ready", "ready", "oom_startup", "oom_runtime", "refused", "failed")
FRACTIONS = st.sampled_from((0.5, 0.85, 0.9, 0.92, 0.94, 0.99))
BEGUN = datetime(2026, 5, 30, tzinfo=UTC)
ENGINES = {"sglang": "mem_fraction_static", "vllm": "gpu_memory_utilization"}
CONTEXTS = {"sglang": "context_length", "vllm": "max_model_len"}
STARTS = st.fixed_dictionaries(
    {
        "gpu": st.sampled_from(GPUS),
        "model": st.sampled_from(MODELS),
        "engine": st.sampled_from(sorted(ENGINES)),
        "outcome": st.sampled_from(OUTCOMES),
        "fraction": FRACTIONS,
        "pool": st.integers(1_000, 500_000),
        "free": st.floats(0, 20),
        "source": st.sampled_from(("log", "endpoint", "manual")),
    }
)
SHORT = settings(max_examples=20, stateful_step_count=10)
LONG = settings(max_examples=100, stateful_step_count=30)


class Ledger(RuleBasedStateMachine):
    """A service over an empty ledger, and what was posted to it."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = fresh_storage()
        self.client: TestClient[Any] = TestClient(create_app(Settings(), self.storage), raise_server_exceptions=False)
        self.client.__enter__()
        self.ids: list[str] = []
        self.answers: list[str] = []
        self.number = 0

    def teardown(self) -> None:
        self.client.__exit__(None, None, None)

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Call the service; whatever it says, it is not that it failed."""
        answer = self.client.request(method, path, **options)
        assert answer.status_code < 500, (method, path, options, answer.text)
        return answer

    def pick(self, choice: int, among: list[str]) -> str:
        return among[choice % len(among)] if among else "0197b0a0-0000-7000-8000-000000000000"

    @rule(told=STARTS, is_again=st.booleans(), follows=st.one_of(st.none(), st.integers(0, 9)))
    def post(self, told: dict[str, Any], is_again: bool, follows: int | None) -> None:
        """A start, or a further account of the last one."""
        self.number += not is_again
        engine, outcome, source = told["engine"], told["outcome"], told["source"]
        died = {"phase": "serving", "message": "m"} if outcome in ("oom_runtime", "failed") else None
        body = start(
            id=None,
            observed_at=None if source == "endpoint" else (BEGUN + timedelta(minutes=5 * self.number)).isoformat(),
            hardware={"gpu": told["gpu"], "gpu_count": 8},
            model={"name": told["model"]},
            engine={"name": engine},
            flags={ENGINES[engine]: told["fraction"], CONTEXTS[engine]: 32768},
            outcome=outcome,
            source=source,
            measurements=None
            if outcome == "refused"
            else {"pool_tokens": told["pool"], "free_at_ready_gib": told["free"]},
            failure=died or ({"phase": "pool"} if outcome in ("refused", "oom_startup") else None),
            recommendation_id=self.pick(follows, self.answers) if follows is not None and self.answers else None,
        )
        answer = self.ask("POST", "/observations", json=body)
        if answer.status_code in (200, 201):
            self.ids.append(answer.json()["id"])

    @rule(choice=st.integers(0, 99))
    def retract(self, choice: int) -> None:
        self.ask("POST", f"/observations/{self.pick(choice, self.ids)}/retraction", json={"reason": "r"})

    @rule(choice=st.integers(0, 99), passed=st.booleans(), lowest=st.floats(0, 10), prompt=st.integers(1, 300_000))
    def verify(self, choice: int, passed: bool, lowest: float, prompt: int) -> None:
        body = {**VERIFICATION, "passed": passed, "lowest_free_gib": lowest, "prompt_tokens": prompt}
        self.ask("POST", f"/observations/{self.pick(choice, self.ids)}/verifications", json=body)

    @rule(choice=st.integers(0, 99), gpu=st.sampled_from(GPUS), model=st.sampled_from(MODELS), fraction=FRACTIONS)
    def correct(self, choice: int, gpu: str, model: str, fraction: float) -> None:
        """Another GPU, model or fraction: the start may move to another pair."""
        body = {"reason": "r", "hardware": {"gpu": gpu, "memory_gib": 141}, "model": {"name": model}}
        body["flags"] = {"mem_fraction_static": fraction}
        self.ask("POST", f"/observations/{self.pick(choice, self.ids)}/corrections", json=body)

    @rule(gpu=st.sampled_from(GPUS), model=st.sampled_from(MODELS), engine=st.sampled_from(sorted(ENGINES)))
    def keep_advice(self, gpu: str, model: str, engine: str) -> None:
        body = {"gpu": gpu, "gpu_count": 8, "model": model, "engine": engine, "target_tokens": 20_000}
        answer = self.ask("POST", "/recommendations", json=body)
        if answer.status_code == 201:
            self.answers.append(answer.json()["id"])

    @rule(answer=st.integers(0, 99), start=st.integers(0, 99))
    def settle(self, answer: int, start: int) -> None:
        body = {"observation_id": self.pick(start, self.ids)}
        self.ask("POST", f"/recommendations/{self.pick(answer, self.answers)}/settlement", json=body)

    @rule(days=st.integers(0, 400))
    def retire(self, days: int) -> None:
        """Old starts that are retracted leave the ledger."""
        with tempfile.TemporaryDirectory() as folder:
            now = datetime.now(UTC)
            retire(self.storage, now - timedelta(days=days), Path(folder) / "gone.ndjson", ndjson, now=now)

    @rule()
    def fit_anew(self) -> None:
        assert not [line for line in refit(self.storage) if "could not be fitted" in line]

    @invariant()
    def everything_answers(self) -> None:
        """Lists, pairs, fits, curves, advice, calibration, export and pages."""
        for path in ("/observations", "/calibration", "/export/observations.ndjson", "/export/observations.csv"):
            assert self.ask("GET", path).status_code == 200
        for pair in self.ask("GET", "/pairs").json()["items"]:
            own = f"/pairs/{pair['id']}"
            assert self.ask("GET", f"{own}/fits").status_code == 200
            for path in (f"{own}/curve", f"/ui{own}", f"/observations?pair_id={pair['id']}"):
                self.ask("GET", path)
            for engine in ENGINES:
                asked = {"pair_id": pair["id"], "engine": engine, "target_tokens": 20_000}
                answer = self.ask("GET", "/recommend", params=asked)
                assert answer.status_code == 200, answer.text
            if pair["observation_count"] == 0:
                assert answer.json()["status"] == "not_enough_evidence"
        for each in (*self.ids[-2:], *self.answers[-2:]):
            self.ask("GET", f"/observations/{each}")
            self.ask("GET", f"/recommendations/{each}")


def run(amount: settings) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(
        Ledger, settings=settings(amount, deadline=None, suppress_health_check=checks, database=None)
    )


def test_a_ledger_answers_whatever_happens_to_it() -> None:
    """Twenty sequences, within a minute."""
    run(SHORT)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_ledger_answers_whatever_happens_to_it_at_length() -> None:
    """Some hundred sequences."""
    run(LONG)
