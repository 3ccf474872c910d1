"""Serves the application with uvicorn: one process on uvloop, a stop that loses nothing."""

from __future__ import annotations

import signal
import socket

import structlog
import uvicorn

from kvyield_server.api.middleware import EarlyAnswers
from kvyield_server.api.telemetry import configure_logs
from kvyield_server.app import create_app
from kvyield_server.errors import KvyieldError
from kvyield_server.protocol import http_protocol
from kvyield_server.settings import Settings, without_password

SECONDS_TO_FINISH = 20
BACKLOG = 2048


def run(settings: Settings) -> None:
    """Serve until a signal; then finish running requests, drain the writer and return.

    Raises:
        KvyieldError: the address is taken, not ours, or may not be served without tokens; the database is not usable.
    """
    configure_logs(settings.log_level)
    listener = _listener(settings.host, settings.port)
    with listener:
        app = EarlyAnswers(create_app(settings), settings.body_seconds)
        port = listener.getsockname()[1]
        config = uvicorn.Config(
            app,
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
        structlog.get_logger("kvyield").info(
            "serving", url=f"http://{settings.host}:{port}", database=without_password(settings.database)
        )
        server.run(sockets=[listener])


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
