"""Which of this host's GPUs a server runs on."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from kvyield.gpu import Gpu
from kvyield.verify._server import Server


def is_on_this_host(url: str) -> bool:
    """Whether the address belongs to this host: only then do this host's GPUs tell anything of the server."""
    host = urlsplit(url).hostname
    if not host:
        return False
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_is_own(family, address) for family, _, _, _, address in found)


def _is_own(family: int, address: tuple[object, ...]) -> bool:
    """An address that a socket can be bound to is this host's."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def engine_gpus(gpus: Sequence[Gpu], server: Server | None) -> list[Gpu]:
    """The GPUs that the server says it uses, by device number; all of them where it does not say."""
    if server is None or server.gpus is None or max(server.gpus) >= len(gpus):
        return list(gpus)
    return [gpus[number] for number in server.gpus]
