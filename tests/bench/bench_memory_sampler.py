"""The sampler against a known pattern of allocations on a real NVIDIA GPU.

Checks that each step of the pattern is seen to within one allocation granule (2 MiB), that a dip which lasts three
sampling intervals is never missed, and prints what the sampler itself costs. Needs a GPU; says so where there is none.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import subprocess
import sys
import time

from kvyield.gpu import GpuError, MemorySampler, find_gpus, open_reader

MIB = 1 << 20
GRANULE_GIB = 2 / 1024
INTERVAL_SECONDS = 0.02


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--hold", action="store_true", help="the child's part: allocate and free on request")
    if arguments.parse_args().hold:
        return hold()
    try:
        found = find_gpus()
    except GpuError as error:
        print(f"SKIPPED, no GPU to measure on: {error}")
        return 0
    gpu = found[0]
    print(f"{gpu.name}: {gpu.memory_gib:.2f} GiB, {gpu.free_gib:.2f} free, unified={gpu.unified_memory}, {gpu.tool}")
    return 0 if steps_are_seen() and dips_are_seen() and cost_is_small() else 1


def steps_are_seen() -> bool:
    """Allocate known sizes one by one; after each, the sampler's lowest is what was there before less the size."""
    rng, worst = random.Random(7), 0.0
    with Holder() as holder, open_reader(find_gpus()) as reader:
        for _ in range(30):
            size = rng.choice([2, 4, 10, 64, 130, 512, 1000, 4096, 16384]) * MIB
            with MemorySampler(reader) as sampler:
                holder.allocate(size)
                time.sleep(3 * INTERVAL_SECONDS)
                seen = sampler.stop()
            taken = seen.first_gib[0] - seen.lowest_gib[0]
            worst = max(worst, abs(taken - size / (1 << 30)))
            if rng.random() < 0.5:
                holder.free()
    print(f"steps: 30 allocations of 2 MiB to 16 GiB, largest error {worst * 1024:.2f} MiB (bar: one granule, 2 MiB)")
    return worst <= GRANULE_GIB


def dips_are_seen() -> bool:
    """Short dips of one size: how many are seen, by how long they last."""
    size, fine = 1024 * MIB, True
    with Holder() as holder, open_reader(find_gpus()) as reader:
        for milliseconds in (5, 10, 20, 40, 60, 100):
            seen_dips = 0
            for _ in range(40):
                with MemorySampler(reader) as sampler:
                    time.sleep(random.random() * INTERVAL_SECONDS)
                    holder.dip(size, milliseconds)
                    seen = sampler.stop()
                seen_dips += seen.first_gib[0] - seen.lowest_gib[0] >= size / (1 << 30) - GRANULE_GIB
            print(f"dips of {milliseconds:3d} ms: {seen_dips} of 40 seen")
            fine = fine and (milliseconds < 60 or seen_dips == 40)
    return fine


def cost_is_small() -> bool:
    """Ten seconds of sampling: what share of one core it takes and how long its longest gap is."""
    with open_reader(find_gpus()) as reader, MemorySampler(reader) as sampler:
        time.sleep(10)
        seen = sampler.stop()
    share = seen.cpu_seconds / 10
    gap = seen.longest_gap_seconds * 1e3
    print(f"cost: {seen.samples} samples in 10 s, {share:.2%} of a core, longest gap {gap:.1f} ms")
    return share < 0.05


class Holder:
    """A child process that holds device memory through the driver, so that nothing of it is in this process."""

    def __enter__(self) -> Holder:
        command = [sys.executable, __file__, "--hold"]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._child.communicate("quit\n", timeout=30)

    def allocate(self, size: int) -> None:
        self._tell(f"allocate {size}")

    def free(self) -> None:
        self._tell("free")

    def dip(self, size: int, milliseconds: int) -> None:
        self._tell(f"dip {size} {milliseconds}")

    def _tell(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._answer()

    def _answer(self) -> None:
        assert self._child.stdout is not None
        answer = self._child.stdout.readline().strip()
        if answer != "done":
            raise RuntimeError(f"the child that holds memory said {answer!r}")


def hold() -> int:
    driver = ctypes.CDLL("libcuda.so.1")
    context, held = ctypes.c_void_p(), list[ctypes.c_uint64]()

    def call(name: str, *arguments: object) -> None:
        status = getattr(driver, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} gave {status}")

    def allocate(size: int) -> None:
        pointer = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        held.append(pointer)

    def free() -> None:
        while held:
            call("cuMemFree_v2", held.pop())

    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    print("done", flush=True)
    for line in sys.stdin:
        verb, *numbers = line.split()
        if verb == "quit":
            break
        if verb == "free":
            free()
        else:
            allocate(int(numbers[0]))
        if verb == "dip":
            time.sleep(int(numbers[1]) / 1000)
            free()
        print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
