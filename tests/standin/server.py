"""The stand-in engine's process: ``python -m standin.server LOG FREE``, its configuration on standard input."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from standin.answers import gets
from standin.config import Config, Faults
from standin.logs import Log
from standin.logs_sglang import sglang_lines
from standin.logs_vllm import vllm_lines
from standin.memory import FreeMemoryFile, Memory, OutOfMemoryError, plan
from standin.prompts import PATHS, Asked, RefusedError, asked, check_length, event, events, tokenized
from standin.state import Answer, State

FLUSH_PATH = {"sglang": "/flush_cache", "vllm": "/reset_prefix_cache", "openai": ""}


class Handler(BaseHTTPRequestHandler):
    """One connection. ``state`` is set on the class before the server starts."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: State

    def log_message(self, format: str, *args: object) -> None:
        """The access log, in the engine's log."""
        now = datetime.now().astimezone()
        self.state.log.write(f"[{now:%Y-%m-%d %H:%M:%S}] INFO:     127.0.0.1 - {format % args}")

    def do_GET(self) -> None:
        """Answers an information endpoint."""
        found = gets(self.state).get(self.path.partition("?")[0])
        if not self._allowed():
            return
        if found is None:
            self._send(404, {"detail": "Not Found"})
        elif self.state.config.faults.huge_body_mib:
            self._send_padding(self.state.config.faults.huge_body_mib)
        else:
            self._send(200, found(self.state))

    def do_POST(self) -> None:
        """Answers a prompt, a count of tokens, a flush, or the tests' own controls."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        path = self.path.partition("?")[0]
        if path.startswith("/standin/"):
            self._control(path, body)
        elif not self._allowed():
            return
        elif path in PATHS[self.state.config.engine]:
            self._prompt(path, body)
        elif path == "/tokenize" and self.state.config.engine != "openai" and not self.state.config.faults.no_tokenize:
            self._send(200, tokenized(self.state, body))
        elif path == FLUSH_PATH[self.state.config.engine] and path and not self.state.config.faults.no_flush:
            flushed = self.state.flush()
            self._send(
                200 if flushed else 400,
                "Cache flushed.\n" if flushed else "Cache not flushed because of pending requests.\n",
            )
        else:
            self._send(404, {"detail": "Not Found"})

    def _control(self, path: str, body: dict[str, Any]) -> None:
        if path == "/standin/faults":
            self.state.config.faults = Faults(**body)
        self._send(200, {"prompts": self.state.prompts, "flushes": self.state.flushes})

    def _allowed(self) -> bool:
        key = self.state.config.api_key
        if key is None or self.path == "/health" or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self._send(401, {"error": "Unauthorized"})
        return False

    def _prompt(self, path: str, body: dict[str, Any]) -> None:
        try:
            request = asked(path, body)
            answer = self.state.admit(request.text, request.completion_tokens)
            check_length(self.state, answer.prompt_tokens, request.completion_tokens)
            if self.state.config.faults.error_status is not None:
                raise RefusedError(self.state.config.faults.error_status, "as asked")
        except RefusedError as error:
            self._send(
                error.status, {"error": {"message": str(error), "type": "BadRequestError", "code": error.status}}
            )
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._answer(request, answer)

    def _answer(self, request: Asked, answer: Answer) -> None:
        try:
            if request.streamed:
                self._stream(events(self.state, request, answer))
            else:
                text = "".join(self.state.run(answer))
                self._send(200, event(self.state, request, answer, text, last=True))
        except OutOfMemoryError:
            if self.state.config.engine == "vllm":
                self._chunk(b'data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}\n\n')
            self.state.die_of_memory()

    def _stream(self, items: Iterator[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for item in items:
            self._chunk(f"data: {json.dumps(item)}\n\n".encode())
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _send(self, status: int, body: object) -> None:
        text = isinstance(body, str)
        data = str(body).encode() if text else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8" if text else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_padding(self, mib: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(mib):
                self._chunk(b" " * (1 << 20))
            self._chunk(b"")


class Server(ThreadingHTTPServer):
    """A server whose open connections never keep the process alive."""

    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    """Starts as an engine does: log lines first, then the address on standard output; exits 1 when the start fails."""
    config = _config(json.loads(sys.stdin.readline()))
    run(config, Path(sys.argv[1]), Path(sys.argv[2]), tell=lambda url: print(url, flush=True), is_free_port=True)


def run(
    config: Config,
    log_path: Path,
    free_path: Path,
    *,
    tell: Callable[[str], object] = lambda _url: None,
    is_free_port: bool = False,
) -> None:
    """Serves until it is killed, at ``config.port`` or at a port that is free; ``tell`` is given the address.

    Free memory is written to ``free_path``. Exits 1 when the start does not fit.
    """
    log, allocated = Log(log_path), plan(config)
    server = Server(("127.0.0.1", 0 if is_free_port else config.port), Handler)
    config.port = server.server_port
    lines = vllm_lines if config.engine == "vllm" else sglang_lines
    log.write(*lines(config, allocated, datetime.now().astimezone()))
    too_small = config.engine == "vllm" and allocated.pool_tokens < config.context_length
    if too_small or not allocated.pool_tokens or allocated.at_ready_gib < 0:
        sys.exit(1)
    memory = Memory(config, allocated.at_ready_gib, FreeMemoryFile(free_path))
    Handler.state = State(config, allocated, memory, log)
    tell(f"http://127.0.0.1:{server.server_port}")
    server.serve_forever()


def _config(table: dict[str, Any]) -> Config:
    return Config(**{**table, "faults": Faults(**table["faults"])})


if __name__ == "__main__":
    main()
