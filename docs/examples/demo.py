"""The main job, end to end: real engine logs in, advice out, on an embedded database in .demo/.

Starts the service on a free port, runs the same `kvyield` commands that a person would, and stops the service again.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = Path("docs/examples")
HOME = ROOT / ".demo"
BIN = Path(sys.executable).parent
READY_WITHIN_SECONDS = 30

BLACKWELL = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
KIMI = ["--model", "moonshotai/Kimi-K2.6", "--gpu", BLACKWELL, "--gpu-count", "8"]
H200 = ["--gpu", "NVIDIA H200", "--gpu-count", "1"]


def main() -> None:
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    with service() as url:
        env = client_environment(url)
        import_logs(env)
        record_verification(env)
        ask(env)
    say("Nothing is left running. The ledger is kept until the next demo; to look at it in a browser:")
    print("$ .venv/bin/kvyield-server serve --database sqlite:///.demo/kvyield.db")


def import_logs(env: dict[str, str]) -> None:
    say("Read the logs of three starts of Kimi K2.6 and post them")
    facts = ["--gpu-memory-gib", "95.59", "--model-config", str(EXAMPLES / "kimi-k2.6/config.json")]
    run(env, "kvyield", "import", *KIMI, *facts, *logs("kimi-k2.6/*.log"))
    say("Real starts of SGLang and vLLM on one H200, one of them refused by the engine")
    for name, pattern, config_name in (
        ("Qwen/Qwen3-8B", "h200/*qwen3-8b*.log", "qwen3-8b"),
        ("deepseek-ai/DeepSeek-V2-Lite", "h200/*dsv2-lite*.log", "dsv2-lite"),
    ):
        config = str(EXAMPLES / f"h200/{config_name}.json")
        run(env, "kvyield", "import", "--model", name, *H200, "--model-config", config, *logs(pattern))
    say("Logs from public sources")
    run(env, "kvyield", "import", "--gpu", "NVIDIA L4", "--gpu-count", "4", *logs("public/sg-l4x4*.log"))


def record_verification(env: dict[str, str]) -> None:
    say("What was verified by hand on the last start: a 60,010-token prompt, answered in 45.9 s")
    code = (
        "import os, kvyield\n"
        "with kvyield.Client(os.environ['KVYIELD_URL']) as client:\n"
        "    start = max(client.observations(model='moonshotai/Kimi-K2.6'), key=lambda o: o.observed_at)\n"
        "    client.add_verification(start.id, kvyield.Verification(prompt_tokens=60010, completion_tokens=4,\n"
        "        elapsed_seconds=45.9, answer_expected='Dog.', answer_received='Dog.', passed=True))\n"
    )
    print(code, flush=True)
    subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, check=True)


def ask(env: dict[str, str]) -> None:
    say("Which flags hold a 200,000-token prompt on Kimi K2.6?")
    run(env, "kvyield", "recommend", *KIMI, "--engine", "sglang", "--target-tokens", "200000")
    say("Six prompts of 120,000 tokens at once with Qwen3-8B on the H200, where SGLang only ever ran at 0.8?")
    question = ["--engine", "sglang", "--target-tokens", "120000", "--concurrent", "6"]
    run(env, "kvyield", "recommend", "--model", "Qwen/Qwen3-8B", *H200, *question)


@contextmanager
def service() -> Iterator[str]:
    port = free_port()
    command = [str(BIN / "kvyield-server"), "serve", "--port", str(port), "--database", f"sqlite:///{HOME}/kvyield.db"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("KVYIELD_")}
    with (HOME / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, process)
            say(f"The service runs on {url}, embedded SQLite in {HOME.relative_to(ROOT)}/kvyield.db")
            yield url
        finally:
            process.terminate()
            process.wait(timeout=30)


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health/ready", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit(f"the service did not come up; its log:\n{(HOME / 'server.log').read_text()}")


def client_environment(url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KVYIELD_", "XDG_"))}
    return kept | {"KVYIELD_URL": url, "HOME": str(HOME), "COLUMNS": os.environ.get("COLUMNS", "110")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def logs(pattern: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / EXAMPLES).glob(pattern))]


def run(env: dict[str, str], *command: str) -> None:
    print("$", shlex.join(command), flush=True)
    subprocess.run([str(BIN / command[0]), *command[1:]], env=env, cwd=ROOT, check=True)


def say(text: str) -> None:
    print(f"\n# {text}", flush=True)


if __name__ == "__main__":
    main()
