"""One question, one headline: JSON, stored answer, command line and page say the same in every situation."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from api.samples import VERIFICATION, start
from e2e.running import Server
from kvyield.cli import main

PROOF = {**VERIFICATION, "prompt_tokens": 100_000}
BARE = {"pool_tokens": 218_484, "startup_seconds": 360}
SITUATIONS = {
    "keep": (("first", "second", "proved"), 100_000, "keep", "ok"),
    "keep at risk": (("bare",), 100_000, "keep", "at_risk"),
    "change": (("roomy at 0.70", "roomy at 0.75"), 190_000, "change", "ok"),
    "at risk": (("first", "second", "third"), 200_000, "at_risk", "at_risk"),
    "infeasible": (("first", "second", "third"), 290_000, "infeasible", "infeasible"),
    "not enough": (("bare",), 250_000, "not_enough_evidence", "not_enough_evidence"),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service with one pair for each situation."""
    server = Server(tmp_path_factory.mktemp("server"))
    with server.client() as opened:
        for name, (starts, *_) in SITUATIONS.items():
            for number, kind in enumerate(starts, 1):
                opened.post("/observations", json=_start(name, kind, number)).raise_for_status()
        yield opened
    server.stop()


def _start(name: str, kind: str, number: int) -> dict[str, Any]:
    body = start(min(number, 3), id=None, model=_model(name))
    if kind == "bare":
        flags = {"mem_fraction_static": 0.94, "max_running_requests": 8, "context_length": 300_000}
        return {**body, "hardware": {"gpu": "Unknown GPU", "gpu_count": 8}, "flags": flags, "measurements": BARE}
    if kind.startswith("roomy"):
        fraction = float(kind[-4:])
        figures = {"pool_tokens": round(1e6 * (fraction - 0.6)), "free_at_ready_gib": round(95.6 * (1.0 - fraction), 2)}
        flags = {**body["flags"], "mem_fraction_static": fraction, "max_running_requests": 8}
        return {**body, "flags": flags, "measurements": figures}
    return {**body, "verifications": [PROOF]} if kind == "proved" else body


def _model(name: str) -> dict[str, Any]:
    facts = {} if name in ("not enough", "keep at risk", "change") else start(1)["model"].get("facts", {})
    return {"name": f"parity/{name.replace(' ', '-')}", "facts": facts}


def _asked(name: str) -> dict[str, Any]:
    starts, target, *_ = SITUATIONS[name]
    hardware = _start(name, starts[0], 1)["hardware"]
    chosen = {"gpu": hardware["gpu"], "gpu_count": hardware["gpu_count"], "model": _model(name)["name"]}
    return {**chosen, "engine": "sglang", "target_tokens": target}


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_way_to_ask_prints_the_same_headline(client: httpx.Client, name: str) -> None:
    """The code is that of the situation; the text is the same wherever it is read."""
    _, _, code, status = SITUATIONS[name]
    asked = _asked(name)
    answer = client.get("/recommend", params=asked).raise_for_status().json()
    headline = answer["headline"]
    assert (headline["code"], answer["status"]) == (code, status), answer["explanation"]
    assert headline["estimate"] is False
    stored = client.post("/recommendations", json=asked).raise_for_status().json()
    assert stored["headline"] == headline
    assert client.get(f"/recommendations/{stored['id']}").json()["headline"] == headline
    assert _printed(client, asked).splitlines()[0] == headline["text"]
    page = client.get(f"/ui/pairs/{answer['pair_id']}", params={"target_tokens": asked["target_tokens"]})
    shown = re.search(r'<p class="headline">(.*?)</p>', page.text)
    assert shown is not None
    assert html.unescape(shown[1]) == headline["text"]


@pytest.mark.parametrize("name", [name for name, (*_, status) in SITUATIONS.items() if status in ("ok", "at_risk")])
def test_flags_to_paste_are_never_empty_where_there_are_any(client: httpx.Client, name: str) -> None:
    """What is kept has its flags too, the same from the service and from the command line."""
    text = client.get("/recommend", params={**_asked(name), "format": "args"}).raise_for_status().text
    assert text.startswith("--mem-fraction-static ")
    assert _printed(client, _asked(name), "--format", "args").strip() == text.strip()


def _printed(client: httpx.Client, asked: dict[str, Any], *more: str) -> str:
    options = [f"--{key.replace('_', '-')}={value}" for key, value in asked.items()]
    result = CliRunner().invoke(main, ["recommend", "--url", str(client.base_url), *options, *more])
    assert result.exit_code == 0, result.output
    return result.stdout
