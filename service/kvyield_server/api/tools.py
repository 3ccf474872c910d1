"""Tools for agents: each is one request of the API, made within this process, and its answer in few words.

The request passes the same routes as one from outside, so that its token, its body and its errors are judged alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from kvyield_server.api.problems import ProblemContext, problem_of
from kvyield_server.api.request import with_days
from kvyield_server.schemas.observations import ObservationIn
from kvyield_server.schemas.paging import ObservationsQuery, PairsQuery
from kvyield_server.schemas.predictions import PredictionsIn
from kvyield_server.schemas.strict import FaultyBodyError, faults_of
from kvyield_server.schemas.tools import FitArguments, RecommendArguments, StartArguments, VerificationArguments

MOST_CHARACTERS = 4_000
LINKS = "kvyield://"
_LONGEST_TEXT = 500
_LONGEST_FIRST = 1_500
_LONGEST_LINK = 800
_MOST_MEMBERS = 100
_ROWS = 10


class Sent(NamedTuple):
    """One request of the API; ``path`` has its query. ``rest`` is the path at which the whole answer can be read."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    rest: str | None = None


class Received(NamedTuple):
    """What the API answered: its status and its decoded body."""

    status: int
    body: Any


class Told(NamedTuple):
    """What an agent is shown."""

    text: str
    is_error: bool


Send = Callable[[Sent], Awaitable[Received]]
Arguments = Mapping[str, Any]


class Shape(NamedTuple):
    """What is told of an answer: a first line, the part of the answer, and the fields that go first when it is long.

    ``rest`` is the path of the whole answer; where it has none, ``advice`` says how to have it.
    """

    value: dict[str, Any]
    first: str = ""
    cheap: Sequence[str] = ()
    rest: str | None = None
    advice: str = ""


class Tool(NamedTuple):
    """A tool: what it takes, which request it makes and what it shows of the answer."""

    name: str
    title: str
    description: str
    arguments: type[Struct]
    request: Callable[[Arguments], Sent]
    shape: Callable[[Received], Shape]
    is_read_only: bool = True


async def use(tool: Tool, given: Arguments, send: Send, where: ProblemContext) -> Told:
    """Use a tool: at most ``MOST_CHARACTERS`` of what the API answers, or its problem."""
    arguments = with_days(given)
    if faults := await asyncio.to_thread(faults_of, arguments, tool.arguments):
        return problem_told(msgspec.to_builtins(problem_of(FaultyBodyError(faults), where)))
    sent = tool.request({name: value for name, value in arguments.items() if value is not None})
    received = await send(sent)
    if received.status >= 400:
        return problem_told(received.body)
    shape = tool.shape(received)
    return Told(told(shape, shape.rest or sent.rest), is_error=False)


def problem_told(problem: Mapping[str, Any]) -> Told:
    """Return a problem (RFC 9457) as an agent is told it: what hosts wrote is within the JSON, never beside it."""
    first = f"{problem['title']} (HTTP {problem['status']})."
    return Told(told(Shape(dict(problem), first, cheap=("matches", "nearest")), None), is_error=True)


def told(shape: Shape, rest: str | None) -> str:
    """Return a first line and JSON of at most ``MOST_CHARACTERS``, with a link to the whole when some is left out."""
    first = _cut(shape.first, _LONGEST_FIRST)
    whole = _text(shape.value)
    if len(first) + 2 + len(whole) <= MOST_CHARACTERS:
        return "\n\n".join(filter(None, (first, whole)))
    note, link = _left_out(shape.cheap), _link(rest) if rest else shape.advice
    room = MOST_CHARACTERS - len(first) - len(note) - len(link) - 4
    value, left_out = dict(shape.value), []
    for name in shape.cheap:
        if name in value and len(_text(value)) > room:
            del value[name]
            left_out.append(name)
    return "\n\n".join(filter(None, (first, _text(shortened(value, room)), _left_out(left_out)))) + link


def _left_out(names: Sequence[str]) -> str:
    return f"Left out for its length: {', '.join(names) or 'some of it'}."


def _link(rest: str) -> str:
    if len(rest) > _LONGEST_LINK:
        return f"\n\nThe whole answer: GET {_cut(rest.partition('?')[0], 200)} with the same arguments."
    return f"\n\nThe whole answer: GET {rest}, or the resource {LINKS}{rest}"


def shortened(value: Any, most: int) -> Any:
    """Return a JSON value of at most ``most`` characters: of its longest texts, lists and objects the beginning."""
    value = _bounded(value)
    while value and len(_text(value)) > most:
        value = _halved(value)
    return value


def _bounded(value: Any) -> Any:
    """Bound each part first, so that halving takes few steps whatever was sent."""
    if isinstance(value, str):
        return _cut(value, _LONGEST_TEXT)
    if isinstance(value, dict):
        return {_cut(name, _LONGEST_TEXT): _bounded(each) for name, each in list(value.items())[:_MOST_MEMBERS]}
    return [_bounded(each) for each in value[:_MOST_MEMBERS]] if isinstance(value, list) else value


def _halved(value: Any) -> Any:
    """Return a value without the later half of its longest part."""
    if isinstance(value, str):
        return f"{value[: len(value) // 2 - 1]}…" if len(value) > 3 else ""
    if isinstance(value, list):
        return value[: len(value) // 2]
    if not isinstance(value, dict):
        return None
    name, longest = max(value.items(), key=lambda item: len(_text(item[1])), default=("", None))
    if 2 * len(_text(longest)) > len(_text(value)) or not value:
        return {**value, name: _halved(longest)} if longest else {}
    return dict(list(value.items())[: len(value) // 2])


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _with_query(path: str, arguments: Arguments) -> str:
    words = {name: _word(value) for name, value in arguments.items()}
    return f"{path}?{urlencode(words)}" if words else path


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _recommend(arguments: Arguments) -> Sent:
    question = {name: value for name, value in arguments.items() if name != "store"}
    if arguments.get("store") or question.keys() & {"facts", "memory_gib", "unified_memory"}:
        return Sent("POST", "/recommendations", question)
    path = _with_query("/recommend", question)
    return Sent("GET", path, rest=path)


def _recommended(received: Received) -> Shape:
    answer = dict(received.body)
    headline = answer["headline"]
    rest = f"/recommendations/{answer['id']}" if "id" in answer else None
    cheap = ("question", "basis", "explanation", "alternatives")
    return Shape(answer, headline["text"] if headline else "", cheap, rest)


def _listing(path: str) -> Callable[[Arguments], Sent]:
    def request(arguments: Arguments) -> Sent:
        whole = _with_query(path, {"page_size": _ROWS, **arguments})
        return Sent("GET", whole, rest=whole)

    return request


def _pairs(received: Received) -> Shape:
    rows = [
        {
            "pair_id": pair["id"],
            **{name: pair["hardware"][name] for name in ("gpu", "gpu_count", "memory_gib")},
            "model": pair["model"]["name"],
            "engines": pair["engines"],
            "starts": pair["observation_count"],
            "last_observed_at": pair["last_observed_at"],
        }
        for pair in received.body["items"]
    ]
    return Shape({"next_page_token": received.body["next_page_token"], "pairs": rows})


def _starts(received: Received) -> Shape:
    rows = [_row(start) for start in received.body["items"]]
    return Shape({"next_page_token": received.body["next_page_token"], "starts": rows})


def _row(start: dict[str, Any]) -> dict[str, Any]:
    measured = start["measurements"]
    passed = [each["prompt_tokens"] for each in start["verifications"] if each["passed"]]
    return {
        "id": start["id"],
        "observed_at": start["observed_at"],
        "host": start["host"],
        "model": start["model"]["name"],
        "gpu": start["hardware"]["gpu"],
        "gpu_count": start["hardware"]["gpu_count"],
        "engine": start["engine"]["name"],
        "version": start["engine"]["version"],
        "outcome": start["outcome"],
        "pool_tokens": measured["pool_tokens"],
        "free_at_ready_gib": measured["free_at_ready_gib"],
        "verified_prompt_tokens": max(passed, default=None),
        "retracted": start["retracted_at"] is not None,
    }


def _start(received: Received) -> Shape:
    first = ("id", "observed_at", "outcome", "failure", "measurements", "engine", "hardware", "verifications", "flags")
    ordered = {name: received.body[name] for name in first} | received.body
    return Shape(ordered, cheap=("log_excerpt", "history"), rest=f"/observations/{received.body['id']}")


def _stored(received: Received) -> Shape:
    start = received.body
    kept = {"stored": "new" if received.status == 201 else "known", "pair_id": start["pair_id"], **_row(start)}
    return Shape(kept | {"retraction_reason": start["retraction_reason"]}, rest=f"/observations/{start['id']}")


def _verify(arguments: Arguments) -> Sent:
    body = {name: value for name, value in arguments.items() if name != "observation_id"}
    return Sent("POST", f"/observations/{arguments['observation_id']}/verifications", body)


def _fits(received: Received) -> Shape:
    pair_id, fits = received.body["pair_id"], received.body["items"]
    deployments = [{**fit, "evidence": _evidence(fit["evidence"])} for fit in fits]
    return Shape({"pair_id": pair_id, "deployments": deployments})


def _evidence(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    uses = [each["use"] for each in items]
    return {
        "used": {use: uses.count(use) for use in dict.fromkeys(uses)},
        "set_aside": [each for each in items if each["use"] == "set_aside"],
    }


def _predicted(received: Received) -> Shape:
    return Shape(dict(received.body), advice="\n\nFor the rest ask again with fewer sets of flags.")


def _at(template: str, name: str) -> Callable[[Arguments], Sent]:
    def request(arguments: Arguments) -> Sent:
        path = template.format(quote(str(arguments[name]), safe=""))
        return Sent("GET", path, rest=path)

    return request


def _posting(path: str) -> Callable[[Arguments], Sent]:
    return lambda arguments: Sent("POST", path, dict(arguments))


TOOLS = (
    Tool(
        "recommend",
        "Recommend memory flags",
        """Answer which memory flags to restart an LLM engine with, so that its KV pool holds target_tokens and the
        server survives a prompt of that length. The first line is the answer in one sentence; then flags, command line,
        probabilities and warnings. Restart nothing when the status is infeasible or not_enough_evidence.""",
        RecommendArguments,
        _recommend,
        _recommended,
    ),
    Tool(
        "predict",
        "Predict pool and free memory",
        """Predict pool tokens and free memory, each with an interval, for sets of flags, in the order given. Flags not
        given are those of the deployment's newest start.""",
        PredictionsIn,
        _posting("/predictions"),
        _predicted,
    ),
    Tool(
        "find_pair",
        "Find a pair of hardware and model",
        """List pairs (one GPU model and count, and one model) with their ids, which other tools take as pair_id. Names
        may be loose: case, spaces, punctuation and vendor do not count. search is part of a name.""",
        PairsQuery,
        _listing("/pairs"),
        _pairs,
    ),
    Tool(
        "list_starts",
        "List engine starts",
        """List engine starts of the ledger, newest first, with their outcome, pool tokens and free memory; failed
        starts too. get_start has all of one.""",
        ObservationsQuery,
        _listing("/observations"),
        _starts,
    ),
    Tool(
        "get_start",
        "Read one engine start",
        """Return one engine start: flags, measurements, outcome, failure, verifications, log excerpt and history.""",
        StartArguments,
        _at("/observations/{}", "observation_id"),
        _start,
    ),
    Tool(
        "post_start",
        "Record an engine start",
        """Record one engine start, good or bad. The same id or the same content again changes nothing. Give what was
        measured or logged, and null for what is unknown: never an estimate.""",
        ObservationIn,
        _posting("/observations"),
        _stored,
        is_read_only=False,
    ),
    Tool(
        "post_verification",
        "Record a verification",
        """Record a long prompt that was sent to a running server, and the lowest free GPU memory while it ran. The same
        one again changes nothing.""",
        VerificationArguments,
        _verify,
        _stored,
        is_read_only=False,
    ),
    Tool(
        "explain_fit",
        "Explain the yield model of a pair",
        """Explain the fitted deployments of a pair: parameters with their uncertainty, basis, labels, warnings, how
        many starts were used, and which were set aside and why.""",
        FitArguments,
        _at("/pairs/{}/fits", "pair_id"),
        _fits,
    ),
)
