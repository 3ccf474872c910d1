"""Plan, ask, apply, restart, wait, observe, verify, learn; again until the target is verified.

Whatever fails, the last good flags are put back and serve before `Tune.run` returns: the newest that passed the
verification asked for, else those that ran before. Every step is in the journal before it is carried out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID

import msgspec

from kvyield import _wire
from kvyield._errors import IncompleteError, KvyieldError, TuneError
from kvyield._wire import Scalar
from kvyield.assemble import FRACTION_FLAG, Assembled, verified_start
from kvyield.tune import accounts, plan
from kvyield.tune.journal import Good, Journal
from kvyield.tune.launchers import Launcher
from kvyield.tune.ledger import Ledger, Row
from kvyield.tune.plan import Desk, Goal, Result
from kvyield.tune.starting import Look, Site, Starter
from kvyield.tune.waiting import Memory, Pause, StoppedError, wait_until_idle

POLL_SECONDS = 0.2
DEATH_SECONDS = 5.0
"""After a prompt broke off, its process is watched for so long: the last words come late."""
MOST_ATTEMPTS = 6
"""To bring the last good flags back: two, and more while memory is still held."""
HELD_SECONDS = 2.0


class _NotRestoredError(Exception):
    """The last good flags could not be brought to serve."""


@dataclass
class Tune:
    """One run on one engine. ``is_parent``: the engine is a child, and a signal ends both."""

    goal: Goal
    launcher: Launcher
    site: Site
    ledger: Ledger
    journal: Journal
    starter: Starter
    memory: Memory
    pause: Pause
    desk: Desk
    is_parent: bool = False
    restarts: int = field(default=0, init=False)
    _row: Row | None = field(default=None, init=False)
    _has_served: bool = field(default=True, init=False)
    """Whether the last good flags ever came up: those that did not before cannot be brought back."""
    _is_good: bool = field(default=True, init=False)
    """Whether what runs, or ran last, are the last good flags."""
    _failed: list[dict[str, Scalar]] = field(default_factory=list, init=False)
    _rounds: plan.Rounds = field(init=False)

    def __post_init__(self) -> None:
        self._rounds = plan.Rounds(self.desk.record)

    def run(self) -> Result:
        """Works until the target is verified or it cannot go on; raises nothing but faults of kvyield itself."""
        try:
            result = self._run()
        except StoppedError:
            result = self._stopped()
        except _NotRestoredError as error:
            result = Result("not_restored", str(error))
        except KvyieldError as error:
            result = self._given_up(str(error))
        except Exception as error:  # whatever it is, the engine must serve
            result = self._given_up(f"internal fault, {type(error).__name__}: {error}")
        self._end_round(result.end, result.reason)
        return result

    def undo(self) -> Result:
        """Puts back what an unfinished run left, else what was there before ``tune`` changed anything."""
        record = self.journal.record
        try:
            if record.good is None or not record.before:
                return Result("verified", "there is nothing to undo")
            if record.intent is None:
                record.good = Good(snapshot=record.before, startup_seconds=record.good.startup_seconds)
            if self.launcher.snapshot() == record.good.snapshot and record.intent is None:
                self.journal.forget()
                return Result("verified", "there is nothing to undo: the engine has the flags that it had before")
            self._restore()
            told = self.good_text()
            self.journal.forget()
        except StoppedError:
            return self._stopped()
        except (_NotRestoredError, TuneError) as error:
            return Result("not_restored", str(error))
        return Result("verified", f"what was there before is back: {told}")

    def _run(self) -> Result:
        self._recover()
        self._check_service()
        self._take(self._present())
        while True:
            self._check_alive()
            result = self._verified_first() or self._advised()
            if result is not None:
                return result

    # What runs

    def _recover(self) -> None:
        """Puts back what a run left that was killed."""
        record = self.journal.record
        if record.intent is None or record.good is None:
            return
        step = record.intent.step
        self.desk.say(f"an earlier run was killed at the step {step}: going back to {self.good_text()}")
        if self.goal.is_dry:
            return
        if step == "apply" and self.launcher.state() == "running":
            self.launcher.restore(record.good.snapshot)
            self.journal.settle()
        elif not (self.is_parent and step == "start"):
            if (why := self._busy()) is not None:
                raise KvyieldError(f"the flags of a killed run are not put back: {why}")
            self._restore()

    def _check_service(self) -> None:
        """A token that is refused is told before an engine is started or asked; a child is started all the same."""
        why = self.ledger.refusal(self.goal.is_dry)
        if why is not None and not self.is_parent:
            raise KvyieldError(f"{why}: nothing was changed")
        if why is not None:
            self.desk.say(f"{why}: the engine will serve, and nothing can be tuned")

    def _present(self) -> Assembled | None:
        """The start that runs, else the first one."""
        if self._row is not None:
            return self._row.start
        if self.launcher.state() == "running":
            found = self.site.present()
            if found is None:
                raise KvyieldError("the engine's log shows no running start that is ready: nothing was changed")
            return found
        if self.goal.is_dry:
            raise KvyieldError("no engine runs, and nothing is started with --dry-run")
        if self.site.is_healthy():  # its answers would be taken for those of the engine that is started
            raise KvyieldError(f"{self.launcher.name} does not run, and something else answers at its address")
        if not self.is_parent and (why := self._asked([f"the engine does not run: {self.launcher.name} is started"])):
            raise KvyieldError(f"the engine does not run, and it is not started: {why}")
        self._note_before(None)
        self.journal.intend("start")
        self.memory.note_free(self.memory.now())
        return self._started(None)

    def _take(self, start: Assembled | None) -> None:
        """Makes a start that came up, or the first one that did not, a row, and its flags the last good ones."""
        if start is None:
            raise KvyieldError("the engine did not come up with its own flags, and nothing can be learned from its log")
        self.launcher.learn(start.draft["engine"]["name"])
        if self._row is not None:  # a killed run was put back
            return
        if self.goal.is_dry:
            self._row = Row(start)
        else:
            self._post(start)
        self._note_before(start)
        self._has_served = start.draft["outcome"] == "ready"
        if self.journal.record.intent is not None and start.draft["outcome"] == "ready":
            self.journal.settle()

    def _note_before(self, start: Assembled | None) -> None:
        record, now = self.journal.record, self.launcher.snapshot()
        flags, seconds = (self._flags(start), _seconds_of(start)) if start is not None else ({}, None)
        if record.good is not None and record.good.snapshot == now and record.before:
            record.good.flags = flags or record.good.flags
            record.good.startup_seconds = seconds or record.good.startup_seconds
            return
        record.before = now
        record.good = Good(snapshot=now, flags=flags, startup_seconds=seconds)

    def _post(self, start: Assembled) -> Row:
        self._row = row = self.ledger.post(start)
        draft = start.draft
        measured = draft["measurements"]
        self._rounds.note(
            observation_id=row.id,
            flags=accounts.telling(draft["flags"]),
            outcome=draft["outcome"],
            pool_tokens=measured["pool_tokens"],
            free_at_ready_gib=measured["free_at_ready_gib"],
        )
        self.memory.note_before_load(measured["free_before_load_gib"])
        self.starter.note_seconds(_seconds_of(start))
        return row

    def _check_alive(self) -> None:
        """An engine that ended between two steps is no doing of the flags that were being tried."""
        row = self._row
        if row is None or row.start.draft["outcome"] != "ready" or self.launcher.state() == "running":
            return
        self.tell_end()
        self._end_round("continue", "the engine ended by itself")
        if self._is_good:
            raise KvyieldError("the engine ended by itself, with its last good flags")
        self._restore()

    def tell_end(self) -> None:
        """Posts the end of the start that ran last, by its log, once."""
        row = self._row
        if row is None or row.is_settled:
            return
        look = self._last_look()
        if look.has_ended and look.start is not None and not look.start.missing:
            self.ledger.end(row, look.start)

    def _last_look(self) -> Look:
        """The log once the process is gone, or after a while."""
        ends = time.monotonic() + DEATH_SECONDS
        look = self.site.look(None)
        while not (look.has_ended and self.launcher.state() != "running") and time.monotonic() < ends:
            time.sleep(POLL_SECONDS)
            look = self.site.look(None)
        return look

    # Verify

    def _verified_first(self) -> Result | None:
        """Verifies what runs where it holds the target; None when it does not, or when it failed."""
        row = self._row
        assert row is not None
        if (
            row.start.draft["outcome"] != "ready"
            or not accounts.holds(row.start, self.goal.tokens, self.goal.concurrent)
            or self._has_failed(row.start)
        ):
            return None
        if self.ledger.is_verified(row, self.goal.tokens, self.goal.concurrent):
            self._passed(row)
            return Result("verified", f"already verified with {self._flags_text()}: nothing to do")
        if self.goal.is_dry:
            return Result("not_verified", "what runs holds the target: a prompt would be sent, without a restart")
        return self._verified()

    def _verified(self) -> Result | None:
        row = self._row
        assert row is not None
        with self._rounds.on_the_engine(), self.pause.interrupting():
            report = self.site.verify(self.ledger.pace(row), lambda result: self.ledger.add(row, result))
        self.pause.check()  # an engine that a signal ended was not ended by the prompt
        if report.results:
            found = cast("dict[str, Any]", msgspec.to_builtins(report.results[-1].verification))
            self._rounds.note(verification=found)
        if report.outcome is not None or self.launcher.state() != "running":
            self._died(row)
            return None
        self.ledger.send(row)
        if report.passed and report.answered:
            self._passed(row)
            return Result("verified", f"a prompt of {self.goal.tokens:,} tokens was served with {self._flags_text()}")
        why = report.refusal or next((one.verification.error for one in report.results if one.verification.error), None)
        if report.passed:
            why = "the answer was wrong"
        self.desk.say(f"not verified: {why}")
        self._failed.append(self._flags(row.start))
        return None

    def _died(self, row: Row) -> None:
        """An engine that crashed on the prompt: its end is evidence, and the last good flags are put back."""
        look = self._last_look()
        end = verified_start(row.start, row.results[-1:])
        if look.start is not None and look.has_ended:
            end = accounts.merged(end, look.start)
        elif end.draft["outcome"] == "ready":
            end = accounts.ended(
                end, "failed", "serving", look.words or "the engine ended while a prompt was being served"
            )
        if self.memory.is_held:
            end = accounts.no_evidence(end)
        sent = end.draft["failure"]["prompt_tokens"] if end.draft["failure"] else None
        where = f" on a prompt of {sent:,} tokens" if sent else ""
        self.desk.say(f"the engine crashed{where} ({end.draft['outcome']}) with {self._flags_text()}")
        self.ledger.end(row, end)
        self._failed.append(self._flags(row.start))
        self._rounds.note(outcome=end.draft["outcome"])
        self._end_round("continue", "the engine crashed while it was verified")
        self._restore()

    def _passed(self, row: Row) -> None:
        """What runs are the last good flags from now on."""
        record = self.journal.record
        if not record.before:
            record.before = self.launcher.snapshot()
        record.good = Good(
            snapshot=self.launcher.snapshot(),
            flags=self._flags(row.start),
            verified_tokens=self.goal.tokens,
            concurrent=self.goal.concurrent,
            startup_seconds=_seconds_of(row.start),
        )
        self._is_good = self._has_served = True
        self.journal.settle()

    # Ask

    def _advised(self) -> Result | None:
        """Asks for advice and follows it; None when another round is to come."""
        row = self._row
        assert row is not None
        advice = self._advice(row)
        self._rounds.note(advice=plan.advised(advice))
        refusal = self._refusal(row, advice)
        if refusal is not None:
            return self._back(refusal)
        if not advice.changes:
            if self._has_failed(row.start):
                return self._back(Result("not_verified", "the running flags did not pass; none better is known"))
            if self.goal.is_dry:
                return Result("not_verified", "the running flags are kept: a prompt would be sent, without a restart")
            return self._verified()
        if (why := self._may_restart(row, advice)) is not None:
            return self._back(Result("not_verified", why))
        self._restart(advice)
        return None

    def _advice(self, row: Row) -> _wire.Recommendation:
        subject = {
            "model": row.start.draft["model"]["name"],
            "gpu": row.start.draft["hardware"]["gpu"],
            "gpu_count": row.start.draft["hardware"]["gpu_count"],
            "engine": row.start.draft["engine"]["name"],
        }
        like = {"like": row.id} if row.id is not None and row.start.draft["outcome"] == "ready" else {}
        question = {**subject, **like, **self.goal.question, "target_tokens": self.goal.tokens}
        question |= {"concurrent": self.goal.concurrent} if self.goal.concurrent > 1 else {}
        if self.goal.is_dry:
            return self.ledger.look_up(question)
        if row.id is None:
            raise KvyieldError("the service has not this start yet, so its advice would not be about what runs")
        return self.ledger.advise(question)

    def _refusal(self, row: Row, advice: _wire.Recommendation) -> Result | None:
        """Why advice is not followed, None when it is."""
        told = advice.headline.text if advice.headline else advice.explanation or advice.status
        if advice.status == "infeasible":
            return Result("infeasible" if self.restarts == 0 else "not_verified", told)
        if advice.status not in ("ok", "at_risk"):
            hint = "; a dry run posts no start: `kvyield observe` does" if self.goal.is_dry else ""
            return Result("not_verified", told + hint)
        then = {**self._flags(row.start), **{one.flag: cast("Scalar", one.to_value) for one in advice.changes}}
        if any(accounts.same_flags(then, failed) for failed in self._failed):
            return Result("not_verified", f"the advice is again what was tried and failed: {plan.flags_text(then)}")
        return None

    def _may_restart(self, row: Row, advice: _wire.Recommendation) -> str | None:
        """Why there is no restart: too many, a no, requests in flight. None when there may be one."""
        if self.restarts >= self.goal.max_restarts:
            return f"not verified after {self.restarts} restart(s), which is what --max-restarts allows"
        good = self.journal.record.good
        assert good is not None
        told = plan.lines(
            advice,
            self.launcher,
            good.snapshot,
            row.start.draft["flags"],
            tokens=self.goal.tokens,
            restart=self.restarts + 1,
            at_most=self.goal.max_restarts,
        )
        with self._rounds.on_the_engine():  # a person's time is not this command's
            if (why := self._asked(told)) is not None:
                return why
            return self._busy()

    def _asked(self, told: Iterable[str]) -> str | None:
        with self.pause.interrupting():
            return self.desk.ask([*told])

    def _busy(self) -> str | None:
        if self.goal.restarts_busy or self.launcher.state() != "running":
            return None
        left = wait_until_idle(self.site.in_flight, self.goal.idle_seconds, self.pause, self.desk.say)
        if left is None:
            self.desk.say("the engine does not report whether requests are in flight")
        return f"{left} request(s) are in flight: --restart-busy restarts all the same" if left else None

    def _back(self, result: Result) -> Result:
        """Ends with the last good flags serving."""
        if not self._is_good:
            self._end_round("continue", result.reason)
            self.desk.say(f"{result.reason}")
            self._restore()
        return result

    # Restart

    def _restart(self, advice: _wire.Recommendation) -> None:
        """Starts the engine with the advised flags. When it does not come up, the last good ones are put back."""
        row = self._row
        assert row is not None
        flags = {one.flag: cast("Scalar", one.to_value) for one in advice.changes}
        tried = {**self._flags(row.start), **flags}
        self._end_round("continue", "restarted with other flags")
        self._rounds.begin()
        self._apply(flags)
        self._is_good = False
        self.restarts += 1
        self.desk.say(f"restarting with {plan.flags_text(flags)}")
        start = self._started(advice.id, advice)
        if start is not None and start.draft["outcome"] != "ready" and self.memory.is_held:
            self.desk.say("the start was made while memory was still held: once more with the same flags")
            self._post_quietly(accounts.no_evidence(start))
            self.pause.sleep(HELD_SECONDS)
            start = self._started(advice.id, advice)
        self._judge(start, row, flags, tried)

    def _apply(self, flags: dict[str, Scalar]) -> None:
        """Writes the flags, and that the engine is to be restarted with them; both or neither."""
        before = self.launcher.snapshot()
        self.journal.intend("apply", flags)
        try:
            self.launcher.apply(flags)
            self.journal.intend("restart", flags)
        except TuneError:
            self.launcher.restore(before)
            with suppress(TuneError):
                self.journal.settle()
            raise

    def _judge(self, start: Assembled | None, before: Row, flags: dict[str, Scalar], tried: dict[str, Scalar]) -> None:
        if start is None:
            words = self.site.look(None).words
            start = replace(
                accounts.ended(before.start, "failed", "unknown", words or "the engine did not come up"), sources={}
            )
            start = accounts.unread(start, tried, self.starter.started_at)
        if self.memory.is_held and start.draft["outcome"] != "ready":
            start = accounts.no_evidence(start)
        wrong = plan.ignored(flags, start.draft["flags"]) if start.draft["outcome"] == "ready" else []
        self._post_quietly(start)
        if wrong:
            raise KvyieldError(f"the flags did not reach the engine: {'; '.join(wrong)}")
        if start.draft["outcome"] != "ready":
            failure = start.draft["failure"] or {}
            self.desk.say(f"it did not come up: {start.draft['outcome']}: {failure.get('message') or 'no word of why'}")
            self._failed += [] if self.memory.is_held else [tried]
            self._end_round("continue", "the engine did not come up with the advised flags")
            self._restore()

    def _started(self, recommendation_id: UUID | None, advice: _wire.Recommendation | None = None) -> Assembled | None:
        with self._rounds.on_the_engine():
            start = self.starter.start(recommendation_id, advice)
        self.pause.check()  # what a signal ended did not fail
        return start

    def _post_quietly(self, start: Assembled) -> None:
        """Posts a start in mid-round: what the service does not take stops no restore."""
        try:
            self._post(start)
        except (IncompleteError, KvyieldError) as error:
            self.desk.say(f"a start could not be posted: {error}")
            self._row = Row(start)

    # Put back

    def _restore(self) -> None:
        """Brings the last good flags to serve. Raises `_NotRestoredError`; signals do not interrupt it."""
        good = self.journal.record.good
        assert good is not None
        self._rounds.begin()
        self.desk.say(f"putting back {self.good_text()}")
        if not self._has_served:
            self.launcher.restore(good.snapshot)
            has_ended = self.launcher.stop() or self.launcher.state() != "running"
            self._is_good = True
            now = "does not run now" if has_ended else "is not ended: only its own command can do that"
            self.desk.say(f"the engine did not run before, and {now}")
            return
        self.starter.note_seconds(good.startup_seconds)
        self.pause.is_shielded = not self.is_parent
        try:
            self._intend_restore()
            fault = self._put_back(good)
            for attempt in range(1, MOST_ATTEMPTS):
                if fault is None or (attempt > 1 and not self.memory.is_held):
                    break
                self.pause.sleep(2.0**attempt if self.memory.is_held else 0.0)
                fault = self._put_back(good)
        finally:
            self.pause.is_shielded = False
        if fault is not None:
            commands = "\n  ".join(self.launcher.restore_commands(good.snapshot))
            raise _NotRestoredError(f"the last good flags do not serve: {fault}. By hand:\n  {commands}")
        self._is_good = True
        try:
            self.journal.settle()
        except TuneError as error:
            self.desk.say(str(error))
        self.desk.say(f"the last good flags serve again: {self.good_text()}")
        self.pause.check()

    def _intend_restore(self) -> None:
        """A disk that takes no more must not keep the engine down: the journal says already what is good."""
        try:
            self.journal.intend("restore")
        except TuneError as error:
            self.desk.say(str(error))

    def _put_back(self, good: Good) -> str | None:
        """One attempt; returns why it failed."""
        try:
            self.launcher.restore(good.snapshot)
            start = self._started(None)
        except TuneError as error:
            return str(error)
        if start is None:
            return self.site.look(None).words or "the engine did not come up"
        self._post_quietly(accounts.no_evidence(start) if self.memory.is_held and accounts.is_dead(start) else start)
        if accounts.is_dead(start):
            failure = start.draft["failure"] or {}
            return failure.get("message") or str(start.draft["outcome"])
        fraction = FRACTION_FLAG[start.draft["engine"]["name"]]
        meant = {fraction: good.flags[fraction]} if fraction in good.flags else {}
        if wrong := plan.ignored(meant, start.draft["flags"]):
            return f"another engine serves: {wrong[0]}"
        good.flags = good.flags or self._flags(start)
        return None

    def _given_up(self, reason: str) -> Result:
        """After an error: the last good flags serve before it is told."""
        try:
            if self.is_parent and self._is_good and self.launcher.state() != "running":
                return Result("ended", reason)
            if not self._is_good:
                self.desk.say(reason)
                self._end_round("continue", reason)
                self._restore()
        except _NotRestoredError as error:
            return Result("not_restored", f"{reason}; {error}")
        except StoppedError:
            return self._stopped()
        return Result("not_verified", reason)

    def _stopped(self) -> Result:
        """A signal: a child ends with this command; any other engine gets its last good flags back first."""
        if self.is_parent:
            self.launcher.stop()
            with suppress(TuneError):  # nothing runs: the next run begins with the last good flags
                self.journal.settle()
            return Result("ended", "stopped by a signal")
        try:
            if not self._is_good:
                self.desk.say("stopped by a signal")
                with suppress(StoppedError):
                    self._restore()
        except _NotRestoredError as error:
            return Result("not_restored", str(error))
        return Result("not_verified", "stopped by a signal")

    # Tell

    def _end_round(self, result: str, reason: str | None) -> None:
        good = self.journal.record.good
        self._rounds.end(result, reason, restarts=self.restarts, good_flags=good.flags if good else {})

    def _flags(self, start: Assembled) -> dict[str, Scalar]:
        return accounts.telling(start.draft["flags"])

    def _flags_text(self) -> str:
        assert self._row is not None
        return plan.flags_text(self._flags(self._row.start))

    def good_text(self) -> str:
        """The last good flags in words."""
        good = self.journal.record.good
        if good is None:
            return "those of the command line"
        return plan.flags_text(good.flags) if good.flags else "what was there before"

    def _has_failed(self, start: Assembled) -> bool:
        return any(accounts.same_flags(self._flags(start), failed) for failed in self._failed)


def _seconds_of(start: Assembled) -> float | None:
    """What a start that came up took; None where its log does not tell."""
    seconds: float | None = start.draft["measurements"]["startup_seconds"]
    return seconds if start.draft["outcome"] == "ready" else None
