"""AIConfigurator's `estimate_kv_cache` behind a pipe: one question a line, one answer a line.

Runs in an environment of its own, without network. A question is {"model", "system", "backend", "fraction", "tp"}; an
answer is {"tokens"} or {"error"}.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from aiconfigurator_core.sdk.memory import (  # type: ignore[import-not-found]  # it lives in its own environment
    estimate_kv_cache,
)


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Return the pool that it expects, or why it expects none; prefill chunks of 8,192 tokens, as the engines had."""
    try:
        found = estimate_kv_cache(
            question["model"],
            question["system"],
            question["backend"],
            "current",
            max_num_tokens=8192,
            max_batch_size=256,
            memory_fraction_kind="of_total",
            memory_fraction_value=question["fraction"],
            tp_size=question["tp"],
            moe_tp_size=question["tp"],
            moe_ep_size=1,
        )
    except (ValueError, KeyError, TypeError, RuntimeError, OSError) as error:
        return {"error": " ".join(str(error).split())[:160]}
    return {"tokens": found["total_kv_size_tokens"]}


def main() -> None:
    """Answer every line of the standard input."""
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
