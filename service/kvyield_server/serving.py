"""Serves the application with uvicorn: one process on uvloop, a stop that loses nothing."""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import structlog
import uvicorn

from kvyield_server.api.middleware import EarlyAnswers, OriginForm
from kvyield_server.api.telemetry import configure_logs
from kvyield_server.api.tracing import tracer_provider
from kvyield_server.app import create_app
from kvyield_server.errors import KvyieldError
from kvyield_server.protocol import http_protocol
from kvyield_server.settings import Settings, without_password

SECONDS_TO_FINISH = 20
BACKLOG = 2048


def run(settings: Settings, socket_path: Path | None = None) -> None:
    """Serve until a signal; then finish running requests, drain the writer and return.

    With ``socket_path`` a Unix socket of that name is served instead of an address, for whoever holds the other end of
    standard input: when that is closed the service stops, so that it never outlives the command that started it.

    Raises:
        KvyieldError: the address is taken, not ours, or may not be served without tokens; the database is not usable.
    """
    configure_logs(settings.log_level)
    with ExitStack() as stack:
        listener = None if socket_path else stack.enter_context(_listener(settings.host, settings.port))
        app = EarlyAnswers(OriginForm(create_app(settings, traces=tracer_provider(os.environ))), settings.body_seconds)
        config = uvicorn.Config(
            app,
            uds=str(socket_path) if socket_path else None,
            loop="uvloop",
            http=http_protocol(settings.body_seconds),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=SECONDS_TO_FINISH,
        )
        server = uvicorn.Server(config)
        # Uvicorn listens for signals only while it serves: one that comes before must stop it too, and the one that it
        # raises again after an orderly stop must leave the exit status at 0.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, server.handle_exit)
        url = f"http://{settings.host}:{listener.getsockname()[1]}" if listener else f"unix:{socket_path}"
        structlog.get_logger("kvyield").info("serving", url=url, database=without_password(settings.database))
        if listener is None:
            Thread(target=_stop_with_parent, args=(server,), daemon=True).start()
        server.run(sockets=[listener] if listener else None)


def _stop_with_parent(server: uvicorn.Server) -> None:
    while sys.stdin.buffer.read(1):
        pass
    server.should_exit = True


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise KvyieldError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from None
    return listener
