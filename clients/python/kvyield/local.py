"""A ledger without a service: ``kvyield-server`` as a child on a private socket, for the length of a command."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kvyield._disk import own, reason_of
from kvyield._errors import ConfigError, ServiceError

if TYPE_CHECKING:
    from kvyield._client import Client
    from kvyield._transfer import Limits

START_SECONDS = 60.0
STOP_SECONDS = 25.0
LEDGER = "ledger.db"
URL = "http://localhost"
NO_TOKEN = "local"  # noqa: S105  # a ledger without tokens asks for none: this keeps another service's from being sent
_INSTALL = "pip install 'kvyield[local]'"
_running: dict[Path, LocalService] = {}
_starting = threading.Lock()


class LocalService:
    """A service on the ledger in a folder. Nothing listens on the network; it ends with this process, however it ends.

    Standard input of the child is a pipe that nobody writes to: the kernel closes it when this process dies.
    """

    def __init__(self, folder: Path) -> None:
        """Starts the child and waits until it can work. Raises `ConfigError`."""
        _require_server()
        _prepare(folder)
        self._private = Path(tempfile.mkdtemp(prefix="kvyield-"))
        self.socket = self._private / "socket"
        self._log = self._private / "log"
        try:
            with _locked(folder):  # two commands at once must not both make the schema
                self._process = self._start(folder)
                self._wait()
        except BaseException:
            self.stop()
            raise

    def client(self, limits: Limits) -> Client:
        """A client of this service."""
        from kvyield._client import Client, unix_transport

        return Client(URL, NO_TOKEN, limits=limits, transport=unix_transport(self.socket))

    def stop(self) -> None:
        """Ends the child; what it queued is written first."""
        process = getattr(self, "_process", None)
        if process is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._private, ignore_errors=True)

    def _start(self, folder: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "kvyield_server", "serve", "--log-level", "error"]
        command += ["--socket", str(self.socket), "--database", f"sqlite:///{folder / LEDGER}"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KVYIELD_")}
        with self._log.open("wb") as log:
            return subprocess.Popen(  # noqa: S603  # this interpreter, no shell
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                umask=0o077,
                start_new_session=True,  # an interrupt is the command's to answer
            )

    def _wait(self) -> None:
        from kvyield._transfer import Limits

        ends = time.monotonic() + START_SECONDS
        while time.monotonic() < ends:
            if self._process.poll() is not None:
                words = self._log.read_text(errors="replace").strip().splitlines()
                raise ConfigError(f"the local ledger cannot be used: {words[-1] if words else 'no word of why'}")
            if self.socket.exists():
                with contextlib.suppress(ServiceError), self.client(Limits(total_seconds=5.0, retries=0)) as client:
                    client.health()
                    return
            time.sleep(0.05)
        raise ConfigError(f"the local ledger was not ready within {START_SECONDS:.0f} s")


def local_service(folder: Path) -> LocalService:
    """The service of this process on a ledger; started by the first who asks, ended with the process.

    Threads that ask meanwhile wait for that start.
    """
    with _starting:
        if folder not in _running:
            service = _running[folder] = LocalService(folder)
            atexit.register(service.stop)
        return _running[folder]


def _require_server() -> None:
    if find_spec("kvyield_server") is None:
        if sys.version_info < (3, 11):
            version = ".".join(map(str, sys.version_info[:2]))
            raise ConfigError(f"a local ledger needs Python 3.11 or newer, this is {version}: then {_INSTALL}")
        raise ConfigError(f"a local ledger needs kvyield-server: {_INSTALL}; or name a service with KVYIELD_URL")


def _prepare(folder: Path) -> None:
    """Makes the folder, and closes it and every file in it to others."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        own(folder)
        for file in folder.iterdir():
            if stat.S_ISREG(file.lstat().st_mode) and file.stat().st_mode & 0o077:
                file.chmod(0o600)
    except OSError as error:
        raise ConfigError(f"the folder {folder} of the local ledger cannot be used: {reason_of(error)}") from None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
