"""Stand-in engines, one process a module, with their faults taken back before every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import standin
from kvyield._engine_http import open_engine
from kvyield.gpu import FreeReader
from kvyield.verify import Order, Progress, Report, verify
from standin import Standin

Verify = Callable[..., Report]


@pytest.fixture(scope="module")
def sglang_process() -> Iterator[Standin]:
    """The worked case: pool 218,484, context length 200,000."""
    with standin.start("sglang") as engine:
        yield engine


@pytest.fixture
def sglang(sglang_process: Standin) -> Standin:
    """A healthy SGLang."""
    sglang_process.set_faults()
    return sglang_process


@pytest.fixture(scope="module")
def vllm_process() -> Iterator[Standin]:
    """vLLM with a context length of 100,000."""
    with standin.start("vllm", fraction=0.95, context_length=100_000) as engine:
        yield engine


@pytest.fixture
def vllm(vllm_process: Standin) -> Standin:
    """A healthy vLLM."""
    vllm_process.set_faults()
    return vllm_process


@pytest.fixture
def run() -> Verify:
    """Verifies against a stand-in, its own memory as the GPUs and its own log as the last words."""

    def call(engine: Standin, tokens: int, *, heard: list[Progress] | None = None, **order: object) -> Report:
        reader: FreeReader = engine
        grace = {"grace_seconds": 1.0, **order}
        with open_engine(engine.url, engine.config.api_key) as http:
            return verify(
                http,
                Order(tokens, **grace),  # type: ignore[arg-type]  # Order checks the names
                reader=reader,
                progress=heard.append if heard is not None else lambda _step: None,
                last_words=engine.log_path.read_text,
            )

    return call
