"""One question, one headline: JSON, stored answer, command line, text to paste and pages all say the same."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from api.samples import VERIFICATION, start
from e2e.running import Server
from kvyield.cli import main

PROOF = {**VERIFICATION, "prompt_tokens": 100_000}
CONFIG = Path(__file__).parents[2] / "docs" / "examples" / "h200" / "qwen3-8b.json"
QWEN = json.loads(CONFIG.read_text())
H200 = {"gpu": "NVIDIA H200", "gpu_count": 1, "memory_gib": 139.8}
FORMS = ("systemd", "docker", "compose", "kubernetes")


@dataclass(frozen=True)
class Situation:
    """The starts of a pair, a question, and what the answer must be; ``estimate`` tells that no start gave a point."""

    starts: tuple[dict[str, Any], ...]
    target_tokens: int
    code: str
    status: str
    engine: str = "sglang"
    estimate: bool = False


def kimi(number: int, **changes: Any) -> dict[str, Any]:
    """Return a start of the worked case."""
    return start(number, **changes)


def bare() -> dict[str, Any]:
    """Return a start of which only the pool is known, on a GPU that nothing is known of."""
    flags = {"mem_fraction_static": 0.94, "max_running_requests": 8, "context_length": 300_000}
    figures = {"pool_tokens": 218_484, "startup_seconds": 360}
    return start(1, hardware={"gpu": "Unknown GPU", "gpu_count": 8}, flags=flags, measurements=figures)


def roomy(fraction: float, pool: int | None = None) -> dict[str, Any]:
    """Return a start on a plain line with much memory left."""
    figures = {
        "pool_tokens": pool or round(1e6 * (fraction - 0.6)),
        "free_at_ready_gib": round(95.6 * (1.0 - fraction), 2),
    }
    flags = {**start(2)["flags"], "mem_fraction_static": fraction}
    return start(2, flags=flags, measurements=figures)


def qwen(engine: str, flags: dict[str, Any], pool: int | None, **changes: Any) -> dict[str, Any]:
    """Return a start of a small model on one H200 under another engine."""
    figures = {"pool_tokens": pool, "free_at_ready_gib": 20.0, "startup_seconds": 60}
    versions = {"vllm": "0.11.0", "tensorrt-llm": "1.0.0", "lmdeploy": "0.9.2", "sglang": "0.5.12"}
    body = start(2, hardware=H200, engine={"name": engine, "version": versions[engine]}, flags=flags)
    return {**body, "measurements": figures if pool else None, **changes}


def vllm(fraction: float, pool: int, **changes: Any) -> dict[str, Any]:
    flags = {"gpu_memory_utilization": fraction, "max_model_len": 40960, "max_num_seqs": 256}
    figures = {"pool_tokens": pool, "free_at_ready_gib": round(139.8 * (1 - fraction), 1), "startup_seconds": 60}
    return {**qwen("vllm", flags, pool), "measurements": figures, **changes}


def laptop(fraction: float, pool: int, **changes: Any) -> dict[str, Any]:
    """Return a start with little memory to spare, of which no free memory is known."""
    hardware = {"gpu": "NVIDIA GeForce RTX 5090 Laptop GPU", "gpu_count": 1, "memory_gib": 23.9}
    flags = {"gpu_memory_utilization": fraction, "max_model_len": 124_000, "max_num_seqs": 1}
    body = start(2, hardware=hardware, engine={"name": "vllm", "version": "0.29.1"}, flags=flags)
    return {**body, "measurements": {"pool_tokens": pool, "startup_seconds": 80}, **changes}


TRTLLM = {"free_gpu_memory_fraction": 0.8, "max_seq_len": 40960, "max_batch_size": 64, "tp_size": 1}
LMDEPLOY = {"cache_max_entry_count": 0.7, "session_len": 40960, "max_batch_size": 64, "tp": 1}
CAPTURED = {"outcome": "oom_startup", "failure": {"phase": "graph_capture", "message": "CUDA out of memory"}}
UNSERVED = {
    **VERIFICATION,
    "prompt_tokens": 140_000,
    "passed": False,
    "answer": None,
    "error": "no answer within 420 s",
}
DEAD = {"outcome": "oom_startup", "measurements": None, "failure": {"phase": "load", "message": "CUDA out of memory"}}
SITUATIONS = {
    "keep": Situation((kimi(1), kimi(2), kimi(3, verifications=[PROOF])), 100_000, "keep", "ok"),
    "keep at risk": Situation((bare(),), 100_000, "keep", "at_risk"),
    "change": Situation((roomy(0.70), roomy(0.75)), 190_000, "change", "ok"),
    "at risk": Situation((kimi(1), kimi(2), kimi(3)), 200_000, "at_risk", "at_risk"),
    "infeasible": Situation((kimi(1), kimi(2), kimi(3)), 290_000, "infeasible", "infeasible"),
    "not enough": Situation((bare(),), 250_000, "not_enough_evidence", "not_enough_evidence"),
    "drift": Situation((roomy(0.70), roomy(0.72), roomy(0.74), roomy(0.75, 90_000)), 140_000, "at_risk", "at_risk"),
    "vllm keep": Situation((vllm(0.8, 642_304), vllm(0.9, 744_160)), 40_000, "keep", "ok", engine="vllm"),
    "vllm infeasible": Situation((vllm(0.8, 642_304), vllm(0.9, 744_160)), 900_000, "infeasible", "infeasible", "vllm"),
    "tensorrt-llm": Situation((qwen("tensorrt-llm", TRTLLM, 600_000),), 30_000, "keep", "ok", engine="tensorrt-llm"),
    "lmdeploy": Situation((qwen("lmdeploy", LMDEPLOY, 500_000),), 30_000, "keep", "ok", engine="lmdeploy"),
    "death above": Situation(
        (laptop(0.97, 138_900), laptop(0.98, 150_745, **CAPTURED)), 130_000, "at_risk", "at_risk", "vllm"
    ),
    "unserved": Situation((roomy(0.70), {**roomy(0.75), "verifications": [UNSERVED]}), 140_000, "keep", "at_risk"),
    "estimate": Situation(
        (qwen("sglang", {"mem_fraction_static": 0.98, "tp_size": 1}, None, **DEAD),),
        30_000,
        "at_risk",
        "at_risk",
        estimate=True,
    ),
}
NO_FACTS = {"death above", "unserved", "not enough", "keep at risk", "change", "drift"}
PASTED = [name for name, each in SITUATIONS.items() if each.status in ("ok", "at_risk")]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service with one pair for each situation."""
    server = Server(tmp_path_factory.mktemp("server"))
    with server.client() as opened:
        for name, situation in SITUATIONS.items():
            for number, body in enumerate(situation.starts):
                named = {"id": None, "model": model(name), "observed_at": f"2026-05-30T2{number}:00:23Z"}
                opened.post("/observations", json={**body, **named}).raise_for_status()
        yield opened
    server.stop()


def model(name: str) -> dict[str, Any]:
    """Return the model of a situation; its facts, where they may tell something."""
    is_kimi = SITUATIONS[name].starts[0]["hardware"]["gpu"] != H200["gpu"]
    facts = {} if name in NO_FACTS else start(1)["model"]["facts"] if is_kimi else QWEN
    return {"name": f"parity/{name.replace(' ', '-')}", "facts": facts}


def question(name: str) -> dict[str, Any]:
    situation = SITUATIONS[name]
    hardware = situation.starts[0]["hardware"]
    chosen = {"gpu": hardware["gpu"], "gpu_count": hardware["gpu_count"], "model": model(name)["name"]}
    return {**chosen, "engine": situation.engine, "target_tokens": situation.target_tokens}


def printed(client: httpx.Client, asked: dict[str, Any], *more: str) -> tuple[str, str]:
    """Return what the command line prints on standard output and on standard error."""
    options = [f"--{key.replace('_', '-')}={value}" for key, value in asked.items()]
    result = CliRunner().invoke(main, ["recommend", "--url", str(client.base_url), *options, *more])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def headlines_of(page: str) -> list[str]:
    """Return the headlines that a page shows, with plain spaces for those that join a number and its unit."""
    found = re.findall(r'<p class="headline">(?:<bdi>)?(.*?)(?:</bdi>)?</p>', page)
    return [html.unescape(text).replace("\u00a0", " ") for text in found]


def unwrapped(text: str) -> str:
    """Return the comments of a text to paste as one line."""
    return " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_way_to_ask_says_the_same_headline(client: httpx.Client, name: str) -> None:
    """The code is that of the situation; the text is the same wherever it is read."""
    situation, asked = SITUATIONS[name], question(name)
    answer = client.get("/recommend", params=asked).raise_for_status().json()
    headline, text = answer["headline"], answer["headline"]["text"]
    assert (headline["code"], answer["status"]) == (situation.code, situation.status), answer["explanation"]
    assert (headline["estimate"], text.startswith("Estimate")) == (situation.estimate, situation.estimate)
    stored = client.post("/recommendations", json=asked).raise_for_status().json()
    assert stored["headline"] == headline
    assert client.get(f"/recommendations/{stored['id']}").json()["headline"] == headline
    assert printed(client, asked)[0].splitlines()[0] == text
    assert json.loads(printed(client, asked, "--json")[0])["headline"] == headline
    for form in ("--format=args", "--diff"):
        assert printed(client, asked, *form.split("="))[1].splitlines()[0] == f"kvyield: {text}"
    for form in FORMS:
        assert text in unwrapped(client.get("/recommend", params={**asked, "format": form}).text)
    page = client.get(f"/ui/pairs/{answer['pair_id']}", params={"target_tokens": asked["target_tokens"]})
    assert headlines_of(page.text) == [text]
    assert text in headlines_of(client.get("/ui/advice").text)


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_fleet_says_the_same_as_the_pair(client: httpx.Client, name: str) -> None:
    """What runs answers its last question where the headline keeps it; else the fleet shows the same headline."""
    situation, asked = SITUATIONS[name], question(name)
    answer = client.post("/recommendations", json=asked).raise_for_status().json()
    row = fleet_row(client, asked["model"])
    words = {"keep": "yes" if situation.status == "ok" else "at risk"}
    if situation.estimate:
        assert "nothing runs" in row
        return
    assert f">{words.get(situation.code, 'no')}</span>" in row
    assert (html.escape(answer["headline"]["text"]).replace("&#x27;", "&#39;") in row) == (
        words.get(situation.code) != "yes"
    )


def fleet_row(client: httpx.Client, name: str) -> str:
    """Return a pair's row of the fleet once it is up to date."""
    for _ in range(100):
        page = client.get("/ui/fleet", params={"search": name}).raise_for_status().text
        if "being brought up to date" not in page:
            break
    rows = (
        page.replace("\u00a0", " ")
        .partition('<tbody role="rowgroup">')[2]
        .partition("</tbody>")[0]
        .split('<tr role="row">')
    )
    return next(row for row in rows if f"<bdi>{name}</bdi>" in row)


@pytest.mark.parametrize("name", PASTED)
def test_flags_to_paste_are_never_empty_where_there_are_any(client: httpx.Client, name: str) -> None:
    """What is kept has its flags too, the same from the service and from the command line."""
    text = client.get("/recommend", params={**question(name), "format": "args"}).raise_for_status().text
    assert text.startswith("--")
    assert printed(client, question(name), "--format", "args")[0].strip() == text.strip()


def test_an_answer_from_no_start_is_called_an_estimate(client: httpx.Client) -> None:
    """A model that was never started here is answered from its config, and the headline says so everywhere."""
    named = {"gpu": "NVIDIA H200", "gpu_count": 1, "model": "parity/never-started", "engine": "vllm"}
    asked = {**named, "target_tokens": 30_000}
    facts = {"facts": QWEN, "memory_gib": 139.8}
    answer = client.post("/recommendations", json={**asked, **facts}).raise_for_status().json()
    headline, text = answer["headline"], answer["headline"]["text"]
    assert headline["estimate"] is True
    assert text.startswith("Estimate, no start was used. Start with --gpu-memory-utilization ")
    told = printed(client, asked, "--model-config", str(CONFIG), "--gpu-memory-gib", "139.8")[0].splitlines()[0]
    assert told.startswith("Estimate, no start was used. ")
    assert text in headlines_of(client.get("/ui/advice").text)
    for form in FORMS:
        said = client.get(f"/recommendations/{answer['id']}", params={"format": form}).text
        assert text in unwrapped(said)
