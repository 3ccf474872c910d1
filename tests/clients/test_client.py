"""The client against services that are away, slow, broken or hostile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

import _stand_in_service as faults
from _samples_client import sample
from _stand_in_service import StandIn
from kvyield import (
    AnswerTooLargeError,
    AsyncClient,
    Client,
    ConfigError,
    ConflictError,
    DeadlineError,
    InvalidError,
    NotAllowedError,
    NotFoundError,
    ServiceError,
    ServiceFailedError,
    ServiceUnreachableError,
    UnexpectedAnswerError,
)
from kvyield._transfer import Attempts, Limits

QUICK = Limits(total_seconds=1.0, read_seconds=0.5, connect_seconds=0.5, retries=0, answer_bytes=2**20)
PATIENT = Limits(total_seconds=10.0, first_pause_seconds=0.01)


def client_of(service: StandIn, limits: Limits = QUICK, token: str | None = None) -> Client:
    return Client(service.url, token, limits=limits)


def test_post_is_stored_and_again_is_known(service: StandIn) -> None:
    """Posting an observation twice stores it once, and the receipt says which it was."""
    with client_of(service) as client:
        first, second = client.post_observation(sample()), client.post_observation(sample())
    assert (first.created, second.created) == (True, False)
    assert first.id == second.id == sample().id
    assert len(service.stored) == 1


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_retries_what_may_work_later(service: StandIn, code: int) -> None:
    """A service that fails twice and then works costs the caller nothing but time."""
    service.faults += [faults.status(code), faults.cut]
    with client_of(service, PATIENT) as client:
        assert client.post_observation(sample()).created
    assert len(service.requests) == 3


def test_answer_lost_after_storing_is_not_doubled(service: StandIn) -> None:
    """When the answer is lost after the service stored the observation, the retry finds it stored."""
    service.faults.append(faults.stored_but_cut)
    with client_of(service, PATIENT) as client:
        assert not client.post_observation(sample()).created
    assert len(service.stored) == 1


def test_calls_that_are_not_idempotent_are_tried_once(service: StandIn) -> None:
    """A retraction or a stored recommendation is never sent twice by itself."""
    service.faults += [faults.cut, faults.cut]
    with client_of(service, PATIENT) as client:
        with pytest.raises(ServiceUnreachableError):
            client.retract(sample().id or "", "wrong log")
        with pytest.raises(ServiceUnreachableError):
            client.store_recommendation(target_tokens=1000, model="m", gpu="g", gpu_count=1, engine="vllm")
    assert len(service.requests) == 2


def test_retry_after_is_honoured_within_the_deadline(service: StandIn) -> None:
    """A service that asks for a second gets it; one that asks for an hour gets an error at once, with its wish."""
    service.faults.append(faults.status(429, retry_after="1"))
    began = time.monotonic()
    with client_of(service, PATIENT) as client:
        client.post_observation(sample())
        assert time.monotonic() - began >= 1.0
        service.faults.append(faults.status(503, retry_after="3600"))
        with pytest.raises(ServiceFailedError) as caught:
            client.pair("x")
    assert caught.value.retry_after_seconds == 3600


@pytest.mark.parametrize(
    ("code", "kind"),
    [(400, InvalidError), (401, NotAllowedError), (403, NotAllowedError), (404, NotFoundError), (409, ConflictError),
     (413, InvalidError), (422, InvalidError), (500, ServiceFailedError)],
)  # fmt: skip
def test_problems_become_the_errors_of_the_tree(service: StandIn, code: int, kind: type[ServiceError]) -> None:
    """Each status is its own error, with the problem's words in its text."""
    service.faults.append(faults.status(code))
    with client_of(service) as client, pytest.raises(kind, match=f"status {code}"):
        client.pair("x")


@pytest.mark.parametrize("fault", [faults.drip_headers, faults.drip_body, faults.silent])
def test_no_answer_can_hold_the_caller(service: StandIn, fault: Callable[[faults.Handler], None]) -> None:
    """Headers or bodies that drip without end, or silence, end at the deadline; the client works again at once."""
    service.faults.append(fault)
    with client_of(service) as client:
        began = time.monotonic()
        with pytest.raises(DeadlineError):
            client.pair("x")
        assert time.monotonic() - began < faults.SILENT_SECONDS / 2
        assert client.post_observation(sample()).created


def test_body_without_end_is_refused(service: StandIn) -> None:
    """A body larger than the limit ends in an error, not in the host's memory."""
    service.faults.append(faults.huge)
    with client_of(service) as client, pytest.raises(AnswerTooLargeError, match="1,048,576 bytes"):
        client.pair("x")


def test_declared_length_over_the_limit_is_not_read(service: StandIn) -> None:
    """An answer that declares itself too large is not read at all."""
    service.faults.append(faults.body(b"x" * (2**20 + 1)))
    with client_of(service) as client, pytest.raises(AnswerTooLargeError):
        client.pair("x")


@pytest.mark.parametrize(
    "raw",
    [b"<html>login</html>", b"", b"[]", b"{}", b'{"id": 5}', b'{"id": "not-an-id"}', b"\xff\xfe", b"[" * 100_000,
     b'{"id": null}', b"null"],
)  # fmt: skip
def test_wrong_bodies_never_count_as_stored(service: StandIn, raw: bytes) -> None:
    """A proxy's page, broken JSON or another shape is an error, never a receipt."""
    service.faults.append(faults.body(raw))
    with client_of(service) as client, pytest.raises(UnexpectedAnswerError):
        client.post_observation(sample())


def test_redirects_are_not_followed(service: StandIn) -> None:
    """A redirect ends in an error that names its target, and the token goes nowhere else."""
    with faults.stand_in() as other:
        service.faults.append(faults.body(b"", code=307, location=other.url + "/observations"))
        with client_of(service, token="t0k") as client, pytest.raises(UnexpectedAnswerError, match="redirects"):
            client.post_observation(sample())
        assert other.requests == []
    assert service.tokens == ["Bearer t0k"]


def test_compressed_answers_are_refused(service: StandIn) -> None:
    """A compressed body, which was not asked for, is refused before it can unfold."""
    service.faults.append(faults.body(b"\x1f\x8b", content_encoding="gzip"))
    with client_of(service) as client, pytest.raises(UnexpectedAnswerError, match="compressed"):
        client.pair("x")


def test_a_page_that_is_not_ours_is_not_a_refusal(service: StandIn) -> None:
    """A 404 that is not a problem document means a wrong address, not a refused observation."""
    service.faults.append(lambda handler: handler.raw(
        b"HTTP/1.1 404 Not Found\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\nnope"
    ))  # fmt: skip
    with client_of(service) as client, pytest.raises(UnexpectedAnswerError, match="is the address right"):
        client.post_observation(sample())


def test_nobody_listening_is_said_quickly() -> None:
    """A refused connection is an error that names the address, within a second or two."""
    with faults.stand_in() as gone:
        url = gone.url
    began = time.monotonic()
    with Client(url, limits=PATIENT) as client, pytest.raises(ServiceUnreachableError, match=url):
        client.post_observation(sample())
    assert time.monotonic() - began < PATIENT.total_seconds


def test_plain_http_port_asked_for_tls_is_unreachable(service: StandIn) -> None:
    """A TLS handshake that fails is an error of the tree, not of the TLS library."""
    url = service.url.replace("http://", "https://")
    with Client(url, limits=QUICK) as client, pytest.raises(ServiceUnreachableError):
        client.health()


@pytest.mark.parametrize(
    "url", ["kvyield", "ftp://h", "http://", "http://u:p@h", "http://h:99999", "http://h?x=1", "http://[::1"]
)
def test_wrong_addresses_are_told_before_any_call(url: str) -> None:
    """An address that cannot be right is a ConfigError."""
    with pytest.raises(ConfigError):
        Client(url)


@pytest.mark.parametrize("token", ["a\nb", "t\u00f6ken", "a\x00"])
def test_wrong_tokens_are_told_before_any_call(token: str) -> None:
    """A token that no header can carry is a ConfigError that does not repeat it."""
    with pytest.raises(ConfigError) as caught:
        Client("http://127.0.0.1:1", token)
    assert token not in str(caught.value)


def test_loopback_ignores_proxies(service: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment does not come between the client and a service on the same host."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with client_of(service) as client:
        assert client.health().status == "ready"


def test_unknown_fields_of_a_newer_service_are_tolerated(service: StandIn) -> None:
    """Fields that this client does not know do not stop it."""
    service.faults.append(faults.body(b'{"id": "01970000-0000-7000-8000-000000000002", "brand_new": {"a": 1}}'))
    with client_of(service) as client:
        assert client.post_observation(sample()).created is False


def test_batches_keep_the_order_and_the_limits(service: StandIn) -> None:
    """More observations than a batch holds go in several, and items come back in the order of the input."""
    many = [sample(number) for number in range(1201)]
    many[7] = sample(7, model="refused/model")
    with client_of(service, PATIENT) as client:
        items = client.post_observations(many)
    assert [item.index for item in items] == list(range(1201))
    assert [item.index for item in items if item.status != 201] == [7]
    assert [path for _, path in service.requests] == ["/observations/batch"] * 3


def test_async_twin_has_the_same_bounds(service: StandIn) -> None:
    """The asynchronous client stores, retries and gives up like the synchronous one."""

    async def story() -> None:
        async with AsyncClient(service.url, limits=PATIENT) as client:
            service.faults += [faults.status(503), faults.cut]
            assert (await client.post_observation(sample())).created
            assert [one.id async for one in client.observations()] == [sample().id]
        async with AsyncClient(service.url, limits=QUICK) as client:
            for fault in (faults.drip_headers, faults.drip_body):
                service.faults.append(fault)
                began = time.monotonic()
                with pytest.raises(DeadlineError):
                    await client.pair("x")
                assert time.monotonic() - began < faults.SILENT_SECONDS / 2
            service.faults.append(faults.huge)
            with pytest.raises(AnswerTooLargeError):
                await client.pair("x")

    asyncio.run(story())


def test_pages_end_even_when_the_token_repeats(service: StandIn) -> None:
    """A service that gives the same page token each time does not trap the iterator."""
    page = b'{"items": [], "next_page_token": "again"}'
    service.faults += [faults.body(page)] * 5
    with client_of(service) as client:
        assert list(client.observations()) == []
    assert len(service.requests) == 2


def test_numbers_that_json_cannot_say_are_not_sent(service: StandIn) -> None:
    """NaN would silently become null on the wire, so it is an error here."""
    observation = sample()
    observation.measurements.free_at_ready_gib = float("nan")
    with client_of(service) as client, pytest.raises(ConfigError, match="NaN"):
        client.post_observation(observation)
    assert service.requests == []


def test_pauses_grow_and_stay_within_the_total() -> None:
    """Pauses double with jitter, and no pause reaches past the deadline."""
    attempts = Attempts(
        Limits(retries=9, total_seconds=60.0, first_pause_seconds=1.0), idempotent=True, clock=lambda: 0.0
    )
    pauses = [attempts.pause_after(ServiceUnreachableError("x")) for _ in range(6)]
    assert all(
        low <= pause <= high for pause, low, high in zip(pauses, (0.5, 1, 2, 4, 4, 4), (1, 2, 4, 8, 8, 8), strict=True)
    )
    spent = Attempts(Limits(total_seconds=0.1, first_pause_seconds=5.0), idempotent=True, clock=lambda: 0.0)
    with pytest.raises(ServiceUnreachableError):
        spent.pause_after(ServiceUnreachableError("x"))


def test_export_streams_and_ends_in_an_error_when_cut(service: StandIn) -> None:
    """An export comes in chunks; a cut connection raises instead of looking complete."""
    service.faults += [faults.body(b'{"a":1}\n{"a":2}\n', "application/x-ndjson"), faults.cut, faults.status(403)]
    with client_of(service) as client:
        assert b"".join(client.export()) == b'{"a":1}\n{"a":2}\n'
        with pytest.raises(ServiceUnreachableError):
            list(client.export())
        with pytest.raises(NotAllowedError):
            list(client.export("csv"))
        with pytest.raises(ConfigError):
            list(client.export("xlsx"))
