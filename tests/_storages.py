"""Fresh storages for tests: a copy of a SQLite file that was migrated once."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from itertools import count
from pathlib import Path

from kvyield_server.storage.engine import open_storage
from kvyield_server.storage.uow import Storage

_numbers = count()


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="kvyield-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    open_storage(f"sqlite:///{folder / 'template.db'}").close()
    return folder


def fresh_storage() -> Storage:
    """Return an empty storage on a file of its own."""
    file = _folder() / f"{next(_numbers)}.db"
    shutil.copyfile(_folder() / "template.db", file)
    return open_storage(f"sqlite:///{file}")
