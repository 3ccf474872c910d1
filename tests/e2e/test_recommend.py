"""``kvyield recommend`` against the real service: every form is what its own tool reads."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from api.samples import GPU, MODEL, VERIFICATION, start
from e2e.running import Server
from kvyield._wire import Change, Recommendation
from kvyield.cli import main
from kvyield.cli._difference import difference

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
SGLANG = ("--model", MODEL, "--gpu", GPU, "--gpu-count", "8", "--engine", "sglang", "--target-tokens", "200000")
VLLM = ("--model", "qwen3", "--gpu", "H200", "--gpu-count", "1", "--engine", "vllm", "--target-tokens", "100000")
ADVISED = {
    "sglang": ["--mem-fraction-static", "0.926", "--context-length", "200007", "--max-running-requests", "8"],
    "vllm": ["--gpu-memory-utilization"],
}
ASKED = {"sglang": SGLANG, "vllm": VLLM}
PROGRAM = {"sglang": ["python3", "-m", "sglang.launch_server", "--model-path", MODEL], "vllm": ["qwen3"]}
ENGINES = pytest.mark.parametrize("engine", ["sglang", "vllm"])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service that knows the worked case, and vLLM on one H200."""
    server = Server(tmp_path_factory.mktemp("server"))
    with httpx.Client(base_url=server.url) as client:
        for number in (1, 2, 3):
            assert client.post("/observations", json=start(number)).status_code == 201
        client.post(f"/observations/{start(3)['id']}/verifications", json=VERIFICATION)
        for number, (fraction, pool) in enumerate([(0.8, 689_248), (0.9, 791_072)]):
            assert client.post("/observations", json=vllm_start(number, fraction, pool)).status_code == 201
    yield server.url
    server.stop()


def vllm_start(number: int, fraction: float, pool: int) -> dict[str, Any]:
    flags = {"gpu_memory_utilization": fraction, "max_model_len": 131_072, "max_num_seqs": 8, "tensor_parallel_size": 1}
    return start(
        id=None,
        observed_at=f"2026-06-0{number + 1}T12:00:00Z",
        hardware={"gpu": "NVIDIA H200", "gpu_count": 1, "memory_gib": 139.8},
        model={"name": "qwen3", "facts": {"num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 128}},
        engine={"name": "vllm", "version": "0.26.0"},
        flags=flags,
        measurements={"pool_tokens": pool, "free_at_ready_gib": 139.8 * (1 - fraction), "startup_seconds": 60},
    )


def ask(url: str, *words: str) -> Result:
    result = CliRunner().invoke(main, ["recommend", "--url", url, *words])
    assert result.exit_code == 0, result.output
    return result


def has(words: list[str], engine: str) -> bool:
    """Whether the advised flags stand in a command, in their order and as whole words."""
    wanted = ADVISED[engine]
    return any(words[at : at + len(wanted)] == wanted for at in range(len(words)))


@ENGINES
def test_args_are_words_of_a_command_line(url: str, engine: str) -> None:
    """The arguments are one line that a shell splits into the advised flags."""
    [line] = ask(url, *ASKED[engine], "--format", "args").stdout.splitlines()
    assert has(shlex.split(line), engine)


@ENGINES
def test_compose_is_a_service_with_a_command_of_strings(url: str, engine: str) -> None:
    """The compose file is YAML with one service whose command is a list of strings and holds the program."""
    document = yaml.safe_load(ask(url, *ASKED[engine], "--format", "compose").stdout)
    [(_, service)] = document["services"].items()
    command = service["command"]
    assert all(isinstance(word, str) for word in command)
    assert command[: len(PROGRAM[engine])] == PROGRAM[engine]
    assert has(command, engine)


@ENGINES
def test_kubernetes_is_a_patch_of_a_deployment(url: str, engine: str) -> None:
    """The patch holds nothing but what an apps/v1 Deployment has, with arguments as strings."""
    patch = yaml.safe_load(ask(url, *ASKED[engine], "--format", "kubernetes").stdout)
    assert (patch["apiVersion"], patch["kind"], set(patch)) == (
        "apps/v1",
        "Deployment",
        {"apiVersion", "kind", "metadata", "spec"},
    )
    assert set(patch["metadata"]) == {"name"}
    assert (set(patch["spec"]), set(patch["spec"]["template"])) == ({"template"}, {"spec"})
    pod = patch["spec"]["template"]["spec"]
    assert set(pod) == {"containers"}
    [container] = pod["containers"]
    assert set(container) <= {"name", "image", "command", "args", "env"}
    assert all(isinstance(word, str) for word in container["args"])
    assert has(container["args"], engine)


@ENGINES
def test_docker_is_one_command(url: str, engine: str) -> None:
    """The docker command is one command for a shell that ends with the advised flags."""
    text = ask(url, *ASKED[engine], "--format", "docker").stdout
    words = shlex.split(text, comments=True)
    assert words[:2] == ["docker", "run"]
    assert has(words, engine)


@ENGINES
def test_systemd_takes_the_drop_in(url: str, engine: str, tmp_path: Path) -> None:
    """As it is and with its comment merged, systemd finds no fault in the drop-in."""
    text = ask(url, *ASKED[engine], "--format", "systemd").stdout
    head, section, body = text.partition("[Service]\n")
    merged = head + section + body.replace("# ExecStart=", "ExecStart=")
    value = next(line for line in text.splitlines() if line.startswith("Environment="))
    assert has(shlex.split(shlex.split(value.removeprefix("Environment="))[0].partition("=")[2]), engine)
    for drop_in in (text, merged):
        (tmp_path / f"{engine}.service").write_text("[Service]\nExecStart=/usr/bin/env true\n")
        folder = tmp_path / f"{engine}.service.d"
        folder.mkdir(exist_ok=True)
        (folder / "50-kvyield.conf").write_text(drop_in)
        if shutil.which("systemd-analyze"):
            command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / f"{engine}.service")]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            assert f"{engine}.service" not in done.stderr, done.stderr


def test_the_change_is_a_unified_diff(url: str) -> None:
    """The running flags stand against the advised ones, a flag a line, with nothing else on standard output."""
    assert ask(url, *SGLANG, "--diff").stdout.splitlines() == [
        "--- running",
        "+++ advised",
        "@@ -1,3 +1,3 @@",
        "-  --mem-fraction-static 0.94",
        "-  --context-length 200000",
        "+  --mem-fraction-static 0.926",
        "+  --context-length 200007",
        "   --max-running-requests 8",
    ]


@pytest.mark.parametrize("text_format", ["args", "systemd", "docker", "compose", "kubernetes", "json"])
def test_stored_advice_has_every_form(url: str, text_format: str) -> None:
    """Advice that is kept prints in every form, the id on standard error alone."""
    plain = ask(url, *SGLANG, "--format", text_format).stdout
    result = ask(url, *SGLANG, "--store", "--format", text_format)
    if text_format == "json":
        assert msgspec.json.decode(result.stdout)["flags"] == msgspec.json.decode(plain)["flags"]
    else:
        assert result.stdout == plain
    assert "stored as" in result.stderr


def test_a_model_without_starts_has_every_form(url: str) -> None:
    """With a model's config.json and one GPU's memory there is advice, in any form, before the first start."""
    config = ("--model-config", str(EXAMPLES / "h200" / "qwen3-8b.json"), "--gpu-memory-gib", "139.8")
    asked = ("--model", "new/model", "--gpu", "NVIDIA H200", "--gpu-count", "1", "--engine", "vllm")
    for words in (("--format", "args"), ("--format", "kubernetes"), ("--diff",)):
        result = ask(url, *asked, "--target-tokens", "30000", *config, *words)
        assert "kvyield" in result.stderr


@pytest.mark.parametrize(
    ("engine", "name", "value", "line"),
    [
        ("vllm", "enforce_eager", True, "+  --enforce-eager"),
        ("tensorrt-llm", "free_gpu_memory_fraction", 0.5, "+  --kv_cache_free_gpu_memory_fraction 0.5"),
        ("tensorrt-llm", "max_seq_len", 8, "+  --max_seq_len 8"),
        ("lmdeploy", "model_name", "a b", "+  --model-name 'a b'"),
    ],
)
def test_flags_that_were_unknown_are_added(engine: str, name: str, value: object, line: str) -> None:
    """A flag that the running engine does not tell appears as added, as the engine's command line spells it."""
    change = Change(flag=name, from_value=None, to_value=value)
    lines = list(difference(Recommendation(status="ok", engine=engine, flags={name: value}, changes=[change])))
    assert lines[3:] == [line]
    assert list(difference(Recommendation(status="infeasible", engine=engine, flags={name: value}))) == []
