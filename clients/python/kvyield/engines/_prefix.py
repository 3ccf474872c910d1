"""What surrounds an engine's own line: journald, docker, compose, Kubernetes, Ray, colours, progress bars.

Every prefix is optional and they nest in any order, so they are peeled one by one from the left. What is left is the
engine's text; what was peeled tells the time and the stream (unit, container, pod) that the line belongs to."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

UNKNOWN_YEAR = 4
"""Stands for the year in times that name none; it is a leap year, so that 29 February exists."""

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MOST_PREFIXES = 8
LONGEST_PREFIX = 400

_ANSI = re.compile(r"(?:\x1b|#033|\^\[|\\u001b)\[[0-9;?]{0,16}[A-Za-z]|\[(?:[0-9]{1,3};){0,4}[0-9]{1,3}m")
_MAYBE_ANSI = re.compile(r"\[[0-9;?]{0,16}[A-Za-z]")
_STAMP = re.compile(r"(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_ISO = r"(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?) ?(?P<zone>Z|[+-]\d\d:?\d\d|UTC)?"
_WHO = r"(?P<host>[\w.\-]{1,64}) (?:(?P<unit>[\w.@:/\-\\]{1,96}?)\[(?P<pid>\d{1,10})\]|(?P<kernel>kernel)): ?"
_PREFIXES = (
    re.compile(rf"{_ISO} (?P<stream>stdout|stderr) (?P<flag>[FP]) ?"),
    re.compile(rf"(?:[A-Z][a-z]{{2}} )?{_ISO} {_WHO}"),
    re.compile(
        rf"(?P<month>[A-Z][a-z]{{2}}) {{1,2}}(?P<day>\d{{1,2}}) (?P<clock>\d\d:\d\d:\d\d)(?:\.\d{{1,9}})? {_WHO}"
    ),
    re.compile(rf"(?P<epoch>\d{{9,11}}\.\d{{1,9}}) {_WHO}"),
    re.compile(rf"\[ {{0,6}}\d{{1,9}}\.\d{{1,9}}\] {_WHO}"),
    re.compile(r"\[(?P<pod>(?:pod/)?[\w.\-]{1,253}(?:/[\w.\-]{1,253}){1,2})\] ?"),
    re.compile(r"(?P<service>[\w.\-]{1,128}) {1,40}\| ?"),
    re.compile(r"\((?P<process>(?:[A-Za-z_][\w.:=\- ]{0,80}?,? )?pid=\d{1,10})(?:, ip=[\w.:]{1,64})?\) ?"),
    re.compile(rf"{_ISO}(?: |$)"),
    re.compile(r"\s+"),
)


@dataclass(frozen=True)
class Record:
    """One piece of an engine's output, free of prefixes. ``time`` is the outermost prefix's, aware only if it names a
    zone.
    """

    number: int
    text: str
    key: str = ""
    pid: int | None = None
    process: str = ""
    host: str = ""
    time: datetime | None = None
    partial: bool = False
    cut: bool = False


def read_line(number: int, raw: bytes, *, cut: bool = False) -> list[Record]:
    """Take one line apart: usually one record, more when progress bars or several stamped lines share it."""
    text = raw.decode("utf-8", "replace").rstrip("\n")
    if cut:
        text = text.rstrip("0123456789.,-")
    whole = _from_json(Record(number, text, cut=cut)) if text.startswith("{") else Record(number, text, cut=cut)
    plain = _without_colours(whole.text).rstrip("\r\n")
    head, *others = re.split(r"[\r\n]+", plain) if "\r" in plain or "\n" in plain else [plain]
    first = peel(replace(whole, text=head))
    pieces = [first, *(replace(first, text=other.strip()) for other in others)]
    return [record for piece in pieces for record in _at_stamps(piece) if record.text]


def peel(record: Record) -> Record:
    """Remove what known prefixes there are, outermost first."""
    for _ in range(MOST_PREFIXES):
        match = next(filter(None, (prefix.match(record.text, 0, LONGEST_PREFIX) for prefix in _PREFIXES)), None)
        if match is None:
            return record
        record = _peeled(record, match)
    return record


def _peeled(record: Record, match: re.Match[str]) -> Record:
    found = {name: value for name, value in match.groupdict().items() if value is not None}
    source = "/".join(found[name] for name in ("host", "unit", "kernel", "pod", "service") if name in found)
    pid = found.get("pid")
    return Record(
        number=record.number,
        text=record.text[match.end() :],
        key=f"{record.key}/{source}" if record.key and source else record.key or source,
        pid=int(pid) if pid and record.pid is None else record.pid,
        process=found.get("process", record.process),
        host=record.host or found.get("host", ""),
        time=record.time or _time(found),
        partial=record.partial or found.get("flag") == "P",
        cut=record.cut,
    )


def _time(found: dict[str, str]) -> datetime | None:
    try:
        if "iso" in found:
            return parse_time(found["iso"], found.get("zone"))
        if "epoch" in found:
            return datetime.fromtimestamp(float(found["epoch"]), timezone.utc)
        if "month" in found:
            hour, minute, second = map(int, found["clock"].split(":"))
            month, day = MONTHS.index(found["month"]) + 1, int(found["day"])
            return datetime(UNKNOWN_YEAR, month, day, hour, minute, second)  # noqa: DTZ001  # journald names no zone
    except (ValueError, OverflowError):
        return None
    return None


def parse_time(iso: str, zone: str | None = None) -> datetime | None:
    """Read ``2026-11-29 12:19:17.123`` with an optional ``Z``, ``UTC`` or ``+01:00``; naive without one, None when
    impossible.
    """
    try:
        moment = datetime.fromisoformat(iso[:19].replace("T", " "))
    except ValueError:
        return None
    fraction = re.fullmatch(r"[.,](\d{1,9})", iso[19:])
    if fraction:
        moment = moment.replace(microsecond=int(fraction[1][:6].ljust(6, "0")))
    if zone is None:
        return moment
    if zone in ("Z", "UTC"):
        return moment.replace(tzinfo=timezone.utc)
    minutes = int(zone[1:3]) * 60 + int(zone[-2:])
    offset = timedelta(minutes=minutes if zone[0] == "+" else -minutes)
    return moment.replace(tzinfo=timezone(offset)) if abs(offset) < timedelta(hours=24) else None


def _without_colours(text: str) -> str:
    return _ANSI.sub("", text) if _MAYBE_ANSI.search(text) else text


def _at_stamps(record: Record) -> list[Record]:
    if record.text.find("[20", 1) < 0:
        return [record]
    return [replace(record, text=piece) for piece in _STAMP.split(record.text)]


def _from_json(record: Record) -> Record:
    """A line of docker's json-file driver, of journald's JSON export, or of an engine's JSON formatter."""
    try:
        fields = json.loads(record.text)
    except (ValueError, RecursionError):
        return record
    if not isinstance(fields, dict):
        return record
    for name in ("log", "MESSAGE", "message", "msg"):
        if name in fields:
            return _json_record(record, fields, name)
    return record


def _json_record(record: Record, fields: dict[str, object], name: str) -> Record:
    text = _json_text(fields[name])
    return replace(
        record,
        text=text,
        key=_json_key(fields),
        pid=_whole(fields.get("_PID")),
        process=str(fields.get("processName", "")),
        host=_json_text(fields.get("_HOSTNAME")),
        time=_json_time(fields),
        partial=(name == "log" and not text.endswith("\n")) or fields.get("CONTAINER_PARTIAL_MESSAGE") == "true",
    )


def _json_key(fields: dict[str, object]) -> str:
    """The stream of a JSON record. A line of systemd or of the kernel about a unit is not the unit's own."""
    own = ("_HOSTNAME", "CONTAINER_NAME", "_SYSTEMD_UNIT")
    system = fields.get("SYSLOG_IDENTIFIER") in ("systemd", "kernel")
    names = ("_HOSTNAME", "SYSLOG_IDENTIFIER") if system else own
    return "/".join(str(fields[name]) for name in names if name in fields)


def _json_text(value: object) -> str:
    if isinstance(value, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        return bytes(value).decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _json_time(fields: dict[str, object]) -> datetime | None:
    micro = _whole(fields.get("__REALTIME_TIMESTAMP"))
    if micro is not None and micro < 10**17:
        return datetime.fromtimestamp(micro / 1e6, timezone.utc)
    for name in ("time", "timestamp", "ts", "asctime"):
        match = re.match(_ISO, str(fields.get(name, "")))
        if match:
            return parse_time(match["iso"], match["zone"])
    return None


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, str | int) and re.fullmatch(r"\d{1,18}", str(value)) else None
