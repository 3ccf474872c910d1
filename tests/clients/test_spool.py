"""The disk queue: nothing is lost, nothing is doubled, whatever dies and whatever is full."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

import _spool_child
import _stand_in_service as faults
from _samples_client import sample
from _stand_in_service import StandIn
from kvyield import Client, KvyieldError, Observation, ServiceUnreachableError, SpoolError
from kvyield._received import Receipt
from kvyield._transfer import Limits
from kvyield.delivery import deliver_batch, spool_observations
from kvyield.spool import Spool

QUICK = Limits(retries=0, total_seconds=5.0)
CHILD = Path(_spool_child.__file__)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


def child(*arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen([sys.executable, str(CHILD), *arguments], stdout=subprocess.PIPE, env=environment)


def taken(observation: Observation) -> Receipt:
    return Receipt(id=observation.id or UUID(int=0))


def away(observation: Observation) -> Receipt:
    raise ServiceUnreachableError("away")


def client_of(service: StandIn) -> Client:
    return Client(service.url, limits=QUICK)


def test_files_are_whole_ordered_and_only_the_owners(spool: Spool) -> None:
    """Each observation is one file of the JSON to post, in folders and files that nobody else can read."""
    for number in range(3):
        spool.add(sample(number))
    assert [item.observation for item in spool.items()] == [sample(number) for number in range(3)]
    folders, files = [spool.root, spool.root / "pending", spool.root / "refused"], list(spool.root.rglob("*.json"))
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert len(files) == 3


def test_open_queues_are_closed(spool: Spool) -> None:
    """A queue that others could read is closed before anything is written; a folder that was there stays as it is."""
    spool.root.mkdir(mode=0o755)
    spool.root.chmod(0o755)
    (spool.root / "pending").mkdir()
    (spool.root / "pending").chmod(0o755)
    spool.add(sample())
    assert spool.root.stat().st_mode & 0o777 == 0o755
    assert (spool.root / "pending").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_is_no_spool_is_left_as_it_is(tmp_path: Path) -> None:
    """A link, a folder with other things, and one that others may write into are refused, untouched, with advice."""
    other = tmp_path / "other"
    other.mkdir()
    other.chmod(0o755)
    (tmp_path / "link").symlink_to(other)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    full = tmp_path / "full"
    full.mkdir()
    (full / "letters.txt").write_text("x")
    full.chmod(0o755)
    for root, words in (("link", "symbolic link"), ("shared", "chmod 700"), ("full", "other things")):
        with pytest.raises(SpoolError, match=words):
            Spool(tmp_path / root).add(sample())
        with pytest.raises(SpoolError, match=words):
            Spool(tmp_path / root).drop_refused()
    assert [folder.stat().st_mode & 0o777 for folder in (other, shared, full)] == [0o755, 0o777, 0o755]
    assert list(other.iterdir()) == list(shared.iterdir()) == []


def test_a_pipe_in_the_queue_is_damage_and_is_not_waited_for(spool: Spool) -> None:
    """Listing and sending pass a named pipe by at once."""
    spool.add(sample())
    os.mkfifo(spool.root / "pending" / "00000000000000000001-pipe.json")
    assert "not a regular file" in str(spool.items()[0].reason)
    assert len(spool.send(taken).sent) == 1


def test_the_same_observation_waits_once(spool: Spool) -> None:
    """Adding what waits already does not add a second file."""
    first = spool.add(sample())
    assert first == spool.add(sample()) == Spool(spool.root).add(sample())
    assert spool.pending_count() == 1
    first.unlink()
    assert spool.add(sample()).exists()


def test_a_damaged_file_does_not_stand_for_its_observation(spool: Spool) -> None:
    """When the file that waits under an id is damaged, adding the observation again writes it anew."""
    spool.add(sample()).write_bytes(b"{")
    assert [item.observation for item in spool.items() if item.observation] == []
    spool.add(sample())
    assert len(spool.send(taken).sent) == 1


def test_sending_goes_oldest_first_and_empties(spool: Spool) -> None:
    """What waited longest is sent first, and what was sent is gone."""
    seen: list[Observation] = []

    def posting(observation: Observation) -> Receipt:
        seen.append(observation)
        return taken(observation)

    for number in (5, 1, 3):
        spool.add(sample(number))
    outcome = spool.send(posting)
    assert seen == [sample(number) for number in (5, 1, 3)]
    assert (len(outcome.sent), outcome.pending, spool.items()) == (3, 0, [])


def test_a_service_that_is_away_changes_nothing(spool: Spool) -> None:
    """After a failed round everything still waits, and the reason is told."""
    for number in range(3):
        spool.add(sample(number))
    outcome = spool.send(away)
    assert (outcome.pending, str(outcome.stopped_by)) == (3, "away")


@pytest.mark.parametrize("code", [400, 409, 413, 422])
def test_refused_is_set_aside_with_the_reason_and_does_not_block(spool: Spool, service: StandIn, code: int) -> None:
    """A refused observation steps aside with the service's words; the ones behind it are sent."""
    service.faults.append(faults.status(code))
    for number in range(2):
        spool.add(sample(number))
    with client_of(service) as client:
        outcome = spool.send(client.post_observation)
    assert (len(outcome.sent), outcome.pending) == (1, 0)
    [item] = spool.items()
    assert item.observation == sample(0)
    assert f"status {code}" in (item.reason or "")


@pytest.mark.parametrize("code", [401, 403, 408, 429, 502, 503])
def test_what_may_pass_later_stays(spool: Spool, service: StandIn, code: int) -> None:
    """An expired token, a limit or a failing service set nothing aside: all waits for the next time."""
    service.faults.append(faults.status(code))
    for number in range(2):
        spool.add(sample(number))
    with client_of(service) as client:
        assert spool.send(client.post_observation).pending == 2
        assert spool.send(client.post_observation).pending == 0
    assert len(service.stored) == 2


def test_refused_can_be_tried_again_or_dropped(spool: Spool, service: StandIn) -> None:
    """What was refused goes back into the queue on request; dropping asks for a name that fits one item."""
    for number in range(2):
        spool.add(sample(number, model="refused/model"))
    with client_of(service) as client:
        assert len(spool.send(client.post_observation).refused) == 2
        assert spool.retry_refused() == 2
        assert len(spool.send(client.post_observation).refused) == 2
    names = [item.name for item in spool.items()]
    assert len(names) == 2
    with pytest.raises(SpoolError, match="fits 2 items"):
        spool.drop("019")
    assert not spool.drop("nothing")
    assert spool.drop(names[0])
    assert spool.drop_refused() == 1
    assert spool.items() == []


@pytest.mark.parametrize("damage", [b"", b"{", b"\x00" * 4096, b'{"id": 1}', b"[" * 200_000])
def test_damaged_files_step_aside(spool: Spool, damage: bytes) -> None:
    """A file that a disk or a person damaged is kept aside, and the others are sent."""
    first = spool.add(sample(0))
    spool.add(sample(1))
    first.write_bytes(damage)
    outcome = spool.send(taken)
    assert (len(outcome.sent), len(outcome.refused), outcome.pending) == (1, 1, 0)
    assert (spool.root / "refused" / first.name).read_bytes() == damage
    assert spool.items()[0].reason


def test_folders_and_links_in_the_queue_do_not_stop_it(spool: Spool) -> None:
    """Something that is not a file under a file's name steps aside like a damaged file."""
    spool.add(sample())
    (spool.root / "pending" / "00000000000000000001-folder.json").mkdir()
    (spool.root / "pending" / "00000000000000000002-dangling.json").symlink_to("nowhere")
    outcome = spool.send(taken)
    assert len(outcome.sent) == 1
    assert outcome.stopped_by is None


def test_a_full_disk_is_an_error_and_leaves_nothing_behind(spool: Spool) -> None:
    """When a file cannot be written whole, `add` says so and no part of it is left."""
    spool.add(sample(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(SpoolError, match="could not be written"):
            spool.add(sample(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert len(list((spool.root / "pending").iterdir())) == 1
    assert spool.add(sample(1)).exists()


def test_a_full_disk_still_sends(spool: Spool, service: StandIn) -> None:
    """With a spool that cannot be written the observation is sent directly; with both away it is reported lost."""
    spool.root.write_text("a file where the folder should be")
    with client_of(service) as client:
        assert [one.result for one in spool_observations([sample()], spool).send(client)] == ["stored"]
        service.faults += [faults.cut] * 2
        [lost] = spool_observations([sample(1)], spool).send(client)
    assert lost.result == "lost"
    assert "spool" in (lost.reason or "")


def test_delivery_tells_what_became_of_each(spool: Spool, service: StandIn) -> None:
    """Stored, known and refused are told apart, and what waited from before goes along first."""
    spool.add(sample(9))
    mixed = [sample(0), sample(1, model="refused/model"), sample(2)]
    with client_of(service) as client:
        assert [one.result for one in spool_observations(mixed, spool).send(client)] == ["stored", "refused", "stored"]
        assert [one.result for one in spool_observations(mixed[:1], spool).send(client)] == ["known"]
    assert service.posts[0] == str(sample(9).id)


def test_batches_spool_what_the_service_does_not_take(spool: Spool, service: StandIn) -> None:
    """An import while the service is away lands in the spool, and the next round brings it over."""
    many = [sample(number) for number in range(5)]
    with client_of(service) as client:
        service.faults.append(faults.status(503))
        assert {one.result for one in deliver_batch(many, spool, client)} == {"spooled"}
        assert len(spool.send(client.post_observation).sent) == 5
        assert {one.result for one in deliver_batch(many, spool, client)} == {"known"}
    assert len(service.stored) == 5


def test_killed_while_writing_loses_nothing_that_was_promised(spool: Spool) -> None:
    """A process killed at a random moment leaves every observation whose `add` had returned, and no half file."""
    dice = random.Random(7)
    promised: set[int] = set()
    for round_number in range(4):
        process = child("add", str(spool.root), str(round_number * 100_000))
        assert process.stdout is not None
        promised.add(int(process.stdout.readline()))
        time.sleep(dice.uniform(0.0, 0.15))
        process.kill()
        promised |= {int(line) for line in process.stdout.read().split(b"\n")[:-1]}
        process.wait()
        process.stdout.close()
    found = {(item.observation.measurements.pool_tokens or 0) - 192_406 for item in spool.items() if item.observation}
    assert promised <= found
    assert all(item.reason is None for item in spool.items())


def test_killed_while_sending_loses_and_doubles_nothing(spool: Spool, service: StandIn) -> None:
    """A sender killed again and again at random moments brings everything over once."""
    dice = random.Random(11)
    for number in range(150):
        spool.add(sample(number))
    for _ in range(4):
        process = child("send", str(spool.root), service.url)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(dice.uniform(0.0, 0.1))
        process.kill()
        process.wait()
        process.stdout.close()
    with client_of(service) as client:
        spool.send(client.post_observation)
    assert len(service.stored) == 150
    assert spool.items() == []


def test_two_processes_send_one_spool_without_doubling_work(spool: Spool, service: StandIn) -> None:
    """Two senders at once share the queue by turns: everything arrives, and nothing is posted twice."""
    for number in range(60):
        spool.add(sample(number))
    senders = [child("send", str(spool.root), service.url) for _ in range(2)]
    outputs = [sender.communicate(timeout=60)[0] for sender in senders]
    assert sum(int(output.split()[2]) for output in outputs) == 60
    assert len(service.posts) == len(set(service.posts)) == 60


def test_a_sender_waits_for_its_turn_a_bounded_time(spool: Spool) -> None:
    """While another process sends, a sender gives up its turn after the time it was told, and loses nothing."""
    spool.add(sample())
    inside, leave = threading.Event(), threading.Event()

    def slow(observation: Observation) -> Receipt:
        inside.set()
        leave.wait(10)
        return taken(observation)

    thread = threading.Thread(target=spool.send, args=(slow,))
    thread.start()
    inside.wait(10)
    outcome = Spool(spool.root).send(taken, wait_seconds=0.2)
    leave.set()
    thread.join()
    assert (outcome.sent, outcome.pending) == ([], 1)
    assert spool.pending_count() == 0


def test_items_added_while_sending_go_along(spool: Spool) -> None:
    """What another process adds while the queue is being sent is sent in the same turn."""
    spool.add(sample(0))
    added = iter([sample(1), sample(2)])

    def posting(observation: Observation) -> Receipt:
        for one in added:
            spool.add(one)
            break
        return taken(observation)

    assert len(spool.send(posting).sent) == 3


def test_leftovers_of_killed_processes_are_swept(spool: Spool) -> None:
    """A draft that is hours old belongs to no living process and is removed; a young one is left alone."""
    spool.add(sample())
    old, young = spool.root / "pending" / ".old.json.1.1", spool.root / "pending" / ".young.json.1.1"
    for path in (old, young):
        path.write_bytes(b"{")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    Spool(spool.root).add(sample(1))
    assert (old.exists(), young.exists(), len(spool.items())) == (False, True, 2)


def _unwritable(spool: Spool) -> None:
    spool.root.parent.joinpath("spool").write_text("not a folder")


@pytest.mark.parametrize("action", [lambda s: s.add(sample()), lambda s: s.send(taken)])
def test_disk_trouble_is_an_error_of_the_tree(spool: Spool, action: Callable[[Spool], object]) -> None:
    """Whatever the disk does, callers see one kind of error with the folder's name in it."""
    _unwritable(spool)
    with pytest.raises(KvyieldError, match="spool"):
        action(spool)
