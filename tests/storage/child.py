"""A process that writes: ``python -m storage.child URL COUNT THREADS`` prints each id once it is acknowledged."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from kvyield_server.storage.engine import open_storage
from kvyield_server.storage.uow import Storage
from storage.samples import recording, start


def write(storage: Storage, count: int) -> None:
    for _ in range(count):
        observation = start()
        storage.write(recording(observation)).result()
        sys.stdout.write(f"{observation.id}\n")
        sys.stdout.flush()


def main(url: str, count: int, threads: int) -> None:
    storage = open_storage(url)
    with ThreadPoolExecutor(threads) as pool:
        for running in [pool.submit(write, storage, count) for _ in range(threads)]:
            running.result()
    storage.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
