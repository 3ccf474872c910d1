"""``kvyield recommend``: the flags for a target, as a table, as JSON, or as what a launcher takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from kvyield.cli._advice import headline_of, show_advice
from kvyield.cli._asking import selection, selector_options
from kvyield.cli._difference import show_difference
from kvyield.cli._options import client_of, service_options, settings_of, token_count
from kvyield.cli._run import BELOW, DONE, safe, say

if TYPE_CHECKING:
    from kvyield import _wire
    from kvyield._client import Client

Function = TypeVar("Function", bound=Callable[..., Any])
QUESTION = (
    "target_tokens",
    "reply_tokens",
    "concurrent",
    "max_running_requests",
    "confidence",
    "prompt_need_gib",
    "kv_cache_dtype",
    "chunked_prefill_size",
    "prefer",
)
_REQUIRED = {"ok": ("ok",), "at_risk": ("ok", "at_risk")}
FORMATS = ("systemd", "docker", "compose", "kubernetes", "args", "json")


def question_options(function: Function) -> Function:
    """What is asked for, and how the answer is printed."""
    options = [
        click.option(
            "--target-tokens",
            type=token_count(1),
            required=True,
            help="The longest prompt that must fit: 200000, 200_000, 200k or 1m (k = 1,000).",
        ),
        click.option("--reply-tokens", type=token_count(0), help="Tokens of the reply to it.  [default: 0]"),
        click.option(
            "--concurrent", type=click.IntRange(1), help="Number of such prompts at the same time.  [default: 1]"
        ),
        click.option("--max-running-requests", type=click.IntRange(1), help="Advise only with this value of the flag."),
        click.option(
            "--confidence",
            type=click.FloatRange(0.5, 0.9999),
            help="Probability wanted, of pool and of memory.  [default: 0.95]",
        ),
        click.option(
            "--prompt-need-gib", type=click.FloatRange(0), help="Memory that a prompt takes, if you know it better."
        ),
        click.option("--kv-cache-dtype", help="Advise only with this value of the flag."),
        click.option("--chunked-prefill-size", type=int, help="Advise only with this value of the flag."),
        click.option(
            "--prefer",
            type=click.Choice(("keep", "headroom", "pool")),
            help="keep: what runs if it holds the target, else the nearest fraction; headroom: the smallest; pool: the "
            "largest.  [default: keep]",
        ),
        click.option("--format", "text_format", type=click.Choice(FORMATS), help="Print only this."),
        click.option("--diff", "as_diff", is_flag=True, help="Print only how the running flags change."),
        click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object on one line."),
        click.option(
            "--require",
            type=click.Choice(tuple(_REQUIRED)),
            help="Exit code 5 when the advice is worse.  [default: any]",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@question_options
@click.option("--model-config", metavar="FILE", help="The model's config.json, for a model without any start.")
@click.option(
    "--gpu-memory-gib", type=click.FloatRange(0, min_open=True), help="With --model-config: memory of one GPU."
)
@click.option("--store", is_flag=True, help="Store the answer; `observe --recommendation ID` compares it with a start.")
@selector_options
@service_options
@click.pass_context
def recommend(ctx: click.Context, /, **given: Any) -> None:
    """Ask for the memory flags that hold a prompt of a given length, and what they put at risk.

    Advice that is at risk or infeasible is an answer too: exit code 0, unless --require asks for more. With --format
    args standard output holds flags or nothing; notes about them go to standard error.
    """
    settings = settings_of(given)
    with client_of(settings, is_one_question=True) as client:
        ctx.exit(answer(client, selection(client, settings, given), given))


def answer(client: Client, selector: Mapping[str, Any], given: Mapping[str, Any]) -> int:
    """Asks about what was selected, prints the answer in the form that is wanted, and returns the exit code."""
    if (given["text_format"] or given["as_json"]) and given["as_diff"]:
        raise click.UsageError("give --diff or a format, not both")
    question = {**selector, **{name: given[name] for name in QUESTION if given[name] is not None}}
    stored = _store(client, question, given) if given["model_config"] or given["store"] else None
    status = _show(client, question, stored, given)
    return BELOW if status not in _REQUIRED.get(given["require"], (status,)) else DONE


def _show(
    client: Client, question: dict[str, Any], stored: _wire.StoredRecommendation | None, given: Mapping[str, Any]
) -> str:
    """Prints the answer in the form that was asked for and returns its status."""
    text_format = "json" if given["as_json"] else given["text_format"]
    if text_format == "json":
        text = _text(client, question, stored, "json")
        _show_json(text, on_one_line=given["as_json"])
        return str(msgspec.json.decode(text)["status"])
    advice = stored or client.recommend(**question)
    if text_format == "args":
        _show_args(advice)
    elif text_format:
        click.echo(safe(_text(client, question, stored, text_format).rstrip("\n")))
    else:
        (show_difference if given["as_diff"] else show_advice)(advice, given["target_tokens"])
    return advice.status


def _text(client: Client, question: dict[str, Any], stored: _wire.StoredRecommendation | None, text_format: str) -> str:
    if stored is not None:
        return client.recommendation_text(stored.id or "", text_format)
    return client.recommend_text(text_format, **question)


def _show_args(advice: _wire.Recommendation) -> None:
    """Flags for a command line, nothing when there are none; the headline and the rest are for the person."""
    say(f"kvyield: {headline_of(advice)}")
    if advice.status in _REQUIRED["at_risk"] and advice.command_line:
        click.echo(safe(advice.command_line))
    elif advice.explanation:
        say(f"kvyield: {advice.explanation}")


def _store(client: Client, question: dict[str, Any], given: Mapping[str, Any]) -> _wire.StoredRecommendation:
    """A question with the model's facts does not fit into an address, so it is stored too."""
    if given["model_config"]:
        from kvyield.modelconfig import read_model_config

        question["facts"] = read_model_config(Path(given["model_config"]).expanduser())
        if given["gpu_memory_gib"]:
            question["memory_gib"] = given["gpu_memory_gib"]
    stored = client.store_recommendation(**question)
    say(f"kvyield: stored as {stored.id}; after the restart: kvyield observe --recommendation {stored.id} ...")
    return stored


def _show_json(text: str, *, on_one_line: bool) -> None:
    click.echo(safe(msgspec.json.format(text.encode(), indent=-1 if on_one_line else 2).decode()))
