"""Unit files of systemd: their entries, and the words of a command as systemd splits, unquotes and expands them.

Sources: systemd.syntax(7), systemd.service(5) "Command lines", systemd.exec(5) "EnvironmentFile=", systemd.unit(5)
"Specifiers".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvyield._errors import TuneError

BLANKS = " \t\n\r"
_PREFIXES = "-:+!"  # "@" names another argv[0] and "|" a shell: the words after them are not the program's
_ESCAPES = {**dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)), "s": " ", "\\": "\\", '"': '"', "'": "'"}
_VARIABLE = re.compile(r"\$(?:\$|\{(\w+)\})")
_SPECIFIER = re.compile(r"%(.)")
_PLAIN = re.compile(r"[\w@+=:,./-]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Word:
    """One word of a command: as it stands in the file, unquoted, and where it begins and ends in the value."""

    raw: str
    text: str
    begin: int = 0
    end: int = 0


@dataclass(frozen=True)
class Command:
    """One ``ExecStart=``. ``argv`` are the words that the program gets, ``origins`` the index of the word of each.

    A variable whose value is not known stays as it is written. ``unclear`` are indexes of ``argv`` that hold a
    specifier which only systemd knows.
    """

    prefix: str
    words: tuple[Word, ...]
    argv: tuple[str, ...]
    origins: tuple[int, ...]
    unclear: frozenset[int] = frozenset()

    def written(self, argv: tuple[str, ...], origins: tuple[int | None, ...]) -> str:
        """The line for other words; ``origins`` has the index in ``self.argv`` of each that did not change.

        What did not change is written as it stands: variables and specifiers stay what they are.

        Raises:
            TuneError: a word that must be written anew holds a specifier.
        """
        parts, index = [], 0
        while index < len(argv):
            origin = origins[index]
            whole = self._whole(origins, index) if origin is not None else 0
            if origin is not None and whole:
                parts.append(self.words[self.origins[origin]].raw)
                index += whole
                continue
            if origin in self.unclear:
                raise TuneError(
                    f"{argv[index]} comes from a variable and holds a % specifier; write it into ExecStart="
                )
            parts.append(quoted(argv[index], has_variables=":" not in self.prefix))
            index += 1
        return self.prefix + " ".join(parts)

    def _whole(self, origins: tuple[int | None, ...], index: int) -> int:
        """How many words from ``index`` on are all of one word of the file; 0 when one of them is missing or new."""
        first = origins[index]
        word = self.origins[first] if first is not None else -1
        mine = [place for place, owner in enumerate(self.origins) if owner == word]
        return len(mine) if list(origins[index : index + len(mine)]) == mine else 0


@dataclass(frozen=True)
class Entry:
    """One assignment of a unit file, and the lines (from 0) that it is on."""

    section: str
    key: str
    value: str
    first: int
    last: int


def entries(text: str) -> Iterator[tuple[str, str, str]]:
    """Section, key and value of every assignment, lines that are continued joined by a blank."""
    return ((one.section, one.key, one.value) for one in placed_entries(text))


def placed_entries(text: str) -> Iterator[Entry]:
    """Every assignment with its place. A comment may stand between the lines of one."""
    section, held, first = "", "", 0
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n")):
        stripped = line.strip(BLANKS)
        if stripped.startswith(("#", ";")) or (not stripped and not held):
            continue
        first = first if held else number
        whole = held + (line if held else line.lstrip(BLANKS)).rstrip("\r")
        if (len(whole) - len(whole.rstrip("\\"))) % 2:
            held = whole[:-1] + " "
            continue
        held = ""
        whole = whole.strip(BLANKS)
        if whole.startswith("[") and whole.endswith("]"):
            section = whole[1:-1]
        elif "=" in whole:
            key, _, value = whole.partition("=")
            yield Entry(section, key.strip(BLANKS), value.strip(BLANKS), first, number)


def words(value: str) -> list[Word]:
    """The words of a value.

    Raises:
        TuneError: a quote that does not end, or a second command after ``;``.
    """
    found: list[Word] = []
    at = 0
    while True:
        while at < len(value) and value[at] in BLANKS:
            at += 1
        if at >= len(value):
            return found
        for separator in (";", "\\;"):
            end = at + len(separator)
            if value[at:end] == separator and (end >= len(value) or value[end] in BLANKS):
                if separator == ";":
                    raise TuneError("it holds several commands, separated by `;`")
                found.append(Word(separator, ";", at, end))
                at = end
                break
        else:
            begin, (text, at) = at, _word(value, at)
            found.append(Word(value[begin:at], text, begin, at))


def _word(value: str, at: int) -> tuple[str, int]:
    text, quote = bytearray(), ""
    while at < len(value) and (quote or value[at] not in BLANKS):
        sign = value[at]
        if sign == "\\":
            content, at = _escaped(value, at + 1)
            text += content
            continue
        if sign == quote:
            quote = ""
        elif not quote and sign in "\"'":
            quote = sign
        else:
            text += sign.encode("utf-8", "surrogateescape")
        at += 1
    if quote:
        raise TuneError(f"a quote {quote} does not end: {value[-60:]}")
    return text.decode("utf-8", "surrogateescape"), at


def _escaped(value: str, at: int) -> tuple[bytes, int]:
    """The bytes of an escape whose backslash is before ``at``: a byte by its code, a character by its code point."""
    sign = value[at : at + 1]
    if sign in _ESCAPES and sign:
        return _ESCAPES[sign].encode(), at + 1
    if re.fullmatch(r"[0-3][0-7]{2}", value[at : at + 3]) and value[at : at + 3] != "000":
        return bytes([int(value[at : at + 3], 8)]), at + 3
    for letter, length in (("x", 2), ("u", 4), ("U", 8)):
        digits = value[at + 1 : at + 1 + length]
        if sign == letter and re.fullmatch(rf"[0-9a-fA-F]{{{length}}}", digits) and 0 < int(digits, 16) <= 0x10FFFF:
            code = int(digits, 16)
            return bytes([code]) if letter == "x" else chr(code).encode("utf-8", "replace"), at + 1 + length
    return b"\\" + sign.encode("utf-8", "surrogateescape"), at + 1  # systemd warns of it, and keeps it as it stands


def command(value: str, environment: Mapping[str, str], specifiers: Mapping[str, str]) -> Command:
    """A command's words with variables and specifiers replaced, as the program would get them.

    Raises:
        TuneError: systemd would not read it, or reads it in a way that kvyield cannot write again.
    """
    found = words(value)
    if not found:
        raise TuneError("it is empty")
    prefix = re.match(rf"[{_PREFIXES}]*", found[0].raw)
    begin = prefix[0] if prefix else ""
    head = Word(found[0].raw[len(begin) :], found[0].text[len(begin) :], found[0].begin + len(begin), found[0].end)
    if not head.text or head.text[0] in "@|":
        raise TuneError(f"its first word is {found[0].raw!r}, which kvyield does not edit")
    found = [head, *found[1:]]
    argv: list[str] = []
    origins: list[int] = []
    unclear: set[int] = set()
    for index, word in enumerate(found):
        text, is_unclear = specified(word.text, specifiers)
        expanded = [text] if index == 0 or ":" in begin else _expanded(text, environment)
        if is_unclear:
            unclear |= set(range(len(argv), len(argv) + len(expanded)))
        argv += expanded
        origins += [index] * len(expanded)
    return Command(begin, tuple(found), tuple(argv), tuple(origins), frozenset(unclear))


def specified(text: str, specifiers: Mapping[str, str]) -> tuple[str, bool]:
    """A text with specifiers replaced, and whether one stayed that only systemd knows."""
    known = {"%": "%", **specifiers}
    unknown = [found for found in _SPECIFIER.findall(text) if found not in known]
    return _SPECIFIER.sub(lambda found: known.get(found[1], found[0]), text), bool(unknown)


def _expanded(text: str, environment: Mapping[str, str]) -> list[str]:
    """``$NAME`` alone becomes the words of its value, ``${NAME}`` its value; an unknown one stays as it is written."""
    name = text[1:]
    if text.startswith("$") and name[:1] not in ("", "{", "$"):
        split = [word.text for word in words(environment[name])] if name in environment else []
        return split or [text]
    return [_VARIABLE.sub(lambda found: "$" if not found[1] else environment.get(found[1], found[0]), text)]


def assignments(value: str, specifiers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Names and values of ``Environment=``; without those whose value only systemd knows."""
    for word in words(value):
        text, is_unclear = specified(word.text, specifiers)
        name, equals, content = text.partition("=")
        if equals and not is_unclear:
            yield name, content


def environment_file(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of an ``EnvironmentFile=``: of a shell's assignments what systemd reads."""
    joined = re.sub(r"(?<!\\)((?:\\\\)*)\\\n", r"\1", text)
    for line in joined.split("\n"):
        name, equals, value = line.strip(BLANKS).partition("=")
        if equals and name and name[0] not in "#;":
            yield name.strip(BLANKS).removeprefix("export "), _assigned(value.strip(BLANKS))


def _assigned(value: str) -> str:
    text, quote, at = [], "", 0
    while at < len(value):
        sign, following = value[at], value[at + 1 : at + 2]
        if sign == "\\" and quote != "'" and following and (not quote or following in '"\\`$'):
            text.append(following)
            at += 1
        elif sign == quote:
            quote = ""
        elif not quote and sign in "\"'":
            quote = sign
        else:
            text.append(sign)
        at += 1
    return "".join(text)


def quoted(word: str, *, has_variables: bool = True) -> str:
    """A word as systemd reads it back: percent and dollar doubled, quoted where it needs to be."""
    text = word.replace("%", "%%")
    text = text.replace("$", "$$") if has_variables else text
    if _PLAIN.fullmatch(word):
        return text
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text) + '"'
