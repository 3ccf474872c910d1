"""Flags of an engine's command line, read and replaced as the engine's own parser would read them.

A flag is replaced where it stands, in the spelling that it has; a new one is appended; every other word stays byte for
byte and in its order. Nothing here starts a process or writes a file; a configuration file that the command line names
is read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from kvyield._errors import TuneError
from kvyield.engines._start import EngineName, Scalar
from kvyield.tune.spellings import GRAMMARS, Option
from kvyield.tune.values import (
    DECIMAL,
    is_same,
    json_or_text,
    listed,
    look_like_options,
    object_of,
    parsed,
    scalar_of,
    variable_of,
    words_of,
)

Reader = Callable[[str], str | None]
"""Returns the text of a configuration file, None where it cannot be read."""

LARGEST_CONFIG_BYTES = 1 << 20

_SHELLS = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "csh", "tcsh", "busybox"))
_REMOTE = frozenset(
    ["docker", "podman", "nerdctl", "kubectl", "ssh", "systemd-run", "crictl", "apptainer", "singularity"]
)
_PYTHON = re.compile(r"(?:python|pypy)(?:\d+(?:\.\d+)?)?t?")
_MODULES: Mapping[str, tuple[EngineName, tuple[str, ...]]] = {
    "vllm.entrypoints.openai.api_server": ("vllm", ()),
    "vllm.entrypoints.api_server": ("vllm", ()),
    "vllm.entrypoints.cli.main": ("vllm", ("serve",)),
    "vllm": ("vllm", ("serve",)),
    "sglang.launch_server": ("sglang", ()),
    "sglang": ("sglang", ("serve",)),
    "sglang.cli.main": ("sglang", ("serve",)),
    "tensorrt_llm.commands.serve": ("tensorrt-llm", ()),
    "lmdeploy": ("lmdeploy", ("serve", "api_server")),
}
_PROGRAMS: Mapping[str, tuple[EngineName, tuple[str, ...]]] = {
    "vllm": ("vllm", ("serve",)),
    "sglang": ("sglang", ("serve",)),
    "trtllm-serve": ("tensorrt-llm", ()),
    "lmdeploy": ("lmdeploy", ("serve", "api_server")),
}
_TRTLLM_OTHER = frozenset(["disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve", "grpc"])
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SUFFIXED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")


@dataclass(frozen=True)
class Edited:
    """A command line with other flags. ``origins`` has for each word the index of the old one that it is, unchanged."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    notes: tuple[str, ...] = ()
    origins: tuple[int | None, ...] = ()


def read_config(path: str) -> str | None:
    """The text of a configuration file of this host, None when it is not there, no text, or over 1 MiB."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST_CONFIG_BYTES + 1)
        return content.decode() if len(content) <= LARGEST_CONFIG_BYTES else None
    except (OSError, ValueError):
        return None


def engine_of(argv: Sequence[str]) -> EngineName | None:
    """The engine that a command line starts, behind ``env``, ``numactl``, ``nice`` and the like; None when it is none.

    Raises:
        TuneError: the engine is started by a shell's text, in a container or on another host, where its flags
            cannot be edited.
    """
    found = _engine_at(argv)
    before = argv if found is None else argv[: found[1]]
    for index, word in enumerate(before):
        name = word.rpartition("/")[2]
        following = before[index + 1 : index + 2]
        if name in _SHELLS and _is_program(before, index):
            what = f"`{name} {following[0]} ...`" if following else f"`{name}`"
            raise TuneError(
                f"the command is run by a shell, {what}, whose text kvyield does not edit; "
                "give the engine's own command instead, for example vllm serve MODEL ..."
            )
        if name in _REMOTE and _is_program(before, index):
            raise TuneError(
                f"the command starts the engine through `{name}`, out of this process; give the engine's own command, "
                "or use --write FILE with --restart-command"
            )
    return found[0] if found else None


def _is_program(argv: Sequence[str], index: int) -> bool:
    """Whether a word can be a program: the first, or after wrappers, their options and assignments."""
    return all(
        word.startswith("-") or "=" in word or word.rpartition("/")[2] in _WRAPPERS or DECIMAL.fullmatch(word)
        for word in argv[:index]
    )


_WRAPPERS = frozenset(
    (
        *("env", "numactl", "nice", "ionice", "taskset", "chrt", "nohup", "setsid", "stdbuf", "exec", "sudo", "doas"),
        *("tini", "dumb-init", "time", "timeout"),
    )
)


def _engine_at(argv: Sequence[str]) -> tuple[EngineName, int, int] | None:
    """The engine, the index of its program, and that of its first argument."""
    for index, word in enumerate(argv):
        name = word.rpartition("/")[2]
        if name in _PROGRAMS:
            found = _after(argv, index + 1, *_PROGRAMS[name])
        elif _PYTHON.fullmatch(name):
            found = _python(argv, index + 1)
        else:
            continue
        if found is not None:
            return found[0], index, found[1]
    return None


def _after(
    argv: Sequence[str], index: int, engine: EngineName, subcommand: Sequence[str]
) -> tuple[EngineName, int] | None:
    if engine == "tensorrt-llm":
        following = argv[index : index + 1]
        if following and following[0] in _TRTLLM_OTHER:
            return None
        return engine, index + (tuple(following) == ("serve",))
    end = index + len(subcommand)
    return (engine, end) if tuple(argv[index:end]) == tuple(subcommand) else None


def _python(argv: Sequence[str], index: int) -> tuple[EngineName, int] | None:
    """What an interpreter runs: ``-m MODULE`` or a script, after its own options."""
    while index < len(argv) and argv[index].startswith("-"):
        word = argv[index]
        if word.startswith("-m"):
            module = word[2:] or next(iter(argv[index + 1 : index + 2]), "")
            known = _MODULES.get(module)
            return _after(argv, index + (1 if word[2:] else 2), *known) if known else None
        if word == "-c":
            return None
        index += 2 if word in ("-X", "-W") else 1
    if index >= len(argv):
        return None
    script = argv[index]
    name = script.rpartition("/")[2]
    if name in _PROGRAMS:
        return _after(argv, index + 1, *_PROGRAMS[name])
    known = _MODULES.get(".".join(script.removesuffix(".py").split("/")[-2:]))
    known = known or _MODULES.get(".".join(script.removesuffix(".py").split("/")[-4:]))
    return _after(argv, index + 1, *known) if script.endswith(".py") and known else None


def flags_of(
    argv: Sequence[str],
    engine: str,
    environment: Mapping[str, str] | None = None,
    read: Reader = read_config,
) -> dict[str, Scalar]:
    """The flags that a command line sets, under the engine's own names: of each the value that the engine takes.

    Only flags that kvyield knows are told; those of a configuration file are among them. A switch is True or False, a
    list is its values with blanks between, JSON stays text.
    """
    return _Line(argv, engine, environment or {}, read).flags()


def edit(
    argv: Sequence[str],
    engine: str,
    flags: Mapping[str, Scalar],
    environment: Mapping[str, str] | None = None,
    read: Reader = read_config,
) -> Edited:
    """Set ``flags`` (engine's own names) on a command line; None removes a flag.

    What is already so stays as it is written. Of a repeated flag the last counts, and it is the one replaced.

    Raises:
        TuneError: the command line cannot hold a flag, or a configuration file has the last word on it.
    """
    for name, value in flags.items():
        if (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, str) and "\0" in value):
            raise TuneError(f"flag {name}: {value!r} is not a value that a command line can hold")
    line = _Line(argv, engine, environment or {}, read)
    asked = {line.grammar.option(name, value).name: value for name, value in flags.items()}
    for name, value in asked.items():
        line.set(name, value)
    told = line.flags()
    for name, value in asked.items():
        option = line.grammar.option(name, value)
        if not is_same(option, told.get(name), value):
            raise TuneError(
                f"{engine} would still read {name}={told.get(name)} where {value} was asked for: "
                f"{' '.join(line.words[line.begin :])[:200]}"
            )
    return Edited(tuple(line.words), line.environment, tuple(line.notes), tuple(line.origins))


@dataclass(frozen=True)
class _Occurrence:
    """One flag where it stands: its word at ``begin``, its values up to ``end``."""

    option: Option
    begin: int
    end: int
    values: tuple[str, ...]
    is_negated: bool = False
    path: tuple[str, ...] = ()
    is_joined: bool = False


@dataclass
class _Config:
    """A configuration file that the command line names, and what was read of it."""

    path: str
    flags: dict[str, Scalar] = field(default_factory=dict)
    is_known: bool = True


class _Line:
    """A command line while it is edited."""

    def __init__(self, argv: Sequence[str], engine: str, environment: Mapping[str, str], read: Reader) -> None:
        if engine not in GRAMMARS:
            raise TuneError(f"engine {engine!r} is none of {', '.join(GRAMMARS)}")
        found = _engine_at(argv)
        self.grammar = GRAMMARS[engine]
        self.words = [*argv]
        self.origins: list[int | None] = [*range(len(argv))]
        self.begin = found[2] if found and found[0] == engine else 0
        self.program = found[1] if found else 0
        self.environment = dict(environment)
        self.notes: list[str] = []
        self._asked: dict[str, Option] = {}
        self.config = self._read_config(read)

    @property
    def end(self) -> int:
        """Where options end: at ``--``, after which every word is positional, or after the last word."""
        rest = self.words[self.begin :]
        return self.begin + (rest.index("--") if "--" in rest else len(rest))

    def flags(self) -> dict[str, Scalar]:
        """What the engine reads, a later word before an earlier one, the configuration file by the engine's rule."""
        given: dict[str, Scalar] = {}
        nested: dict[str, dict[str, object]] = {}
        for one in self._occurrences():
            if one.path:
                _put(nested.setdefault(one.option.name, {}), one.path, json_or_text(one.values))
            else:
                given[one.option.name] = _value(one)
        # vLLM adds dotted forms after all else as one JSON text, which replaces what was given whole.
        given.update({name: json.dumps(value) for name, value in nested.items()})
        config = self.config.flags if self.config else {}
        found = {**given, **config} if self.grammar.config_wins else {**config, **given}
        for option in self.grammar.options.values():
            if option.within and option.name not in given:
                inner = object_of(found.get(option.within[0])).get(option.within[1])
                if inner is not None:
                    found[option.name] = scalar_of(inner)
        for name in {*self.grammar.environment, *(name for name, one in self._asked.items() if not one.spellings)}:
            value = self._assigned().get(name, self.environment.get(name))
            if value is not None:
                found[name] = parsed(value)
        return found

    def set(self, name: str, value: Scalar) -> None:
        """Bring one flag to a value."""
        option = self.grammar.option(name, value)
        self._asked[option.name] = option
        if option.kind == "environment":
            self._set_environment(option.name, value)
            return
        now = self.flags().get(option.name)
        self._refuse_ambiguous(option)
        found = [one for one in self._occurrences() if one.option.name == option.name]
        if is_same(option, now, value) and not (value is None and found):
            return
        self._refuse_config(option, value)
        if option.within and self._set_within(option, value):
            return
        if len(found) > 1:
            self.notes.append(f"{option.name} is given {len(found)} times; the last one counts and was changed")
        if value is None or (value is False and not self._takes_no(option, now)):
            for one in reversed(found):
                self._replace(one.begin, one.end, [])
            return
        direct = [one for one in found if not one.path]
        for one in reversed([one for one in found if one.path]):
            self._replace(one.begin, one.end, [])
            direct = [other for other in self._occurrences() if other.option.name == option.name and not other.path]
        if direct:
            self._rewrite(direct[-1], value)
        else:
            self._append(option, value)

    def _refuse_ambiguous(self, option: Option) -> None:
        """Raise for an abbreviation that means this flag in some versions of the engine and another in others."""
        for word in self.words[self.begin : self.end]:
            fitting = self.grammar.fitting(word.partition("=")[0])
            if len(fitting) > 1 and option.name in fitting:
                raise TuneError(f"{word} may mean {' or '.join(fitting)}: write the flag's whole name")

    def _set_within(self, option: Option, value: Scalar) -> bool:
        """Set a flag inside another's JSON, where it stands there or has no spelling of its own.

        vLLM refuses a start that gives ``cudagraph_capture_sizes`` both ways.
        """
        assert option.within is not None
        outer, key = option.within
        rest = self.words[self.begin : self.end]
        for word, following in zip(rest, [*rest[1:], ""], strict=True):
            if word.startswith("-O") and (word[2:].lstrip("=") or following).startswith("{"):
                raise TuneError(
                    f"{word} holds the compilation config in some versions of vLLM: write --compilation-config instead"
                )
        holders = [one for one in self._occurrences() if one.option.name == outer]
        holds = key in object_of(self.flags().get(outer))
        if not holds and (option.spellings or value is None):
            return False
        dotted = [one for one in holders if one.path == (key,)]
        inner = listed(value) if option.kind == "list" and value is not None else value
        if dotted:
            self._replace(dotted[-1].begin, dotted[-1].end, [])
        configured = object_of((self.config.flags if self.config else {}).get(outer))
        if configured and not holders:  # a dotted form would replace the whole of the file's object
            configured.pop(key, None)
            whole = configured if value is None else {**configured, key: inner}
            self._append(self.grammar.options[outer], json.dumps(whole))
            return True
        if any(one.path for one in holders) or not holders:
            if value is not None:
                name = self.grammar.options[outer].spellings[0]
                at = dotted[-1].begin if dotted else self.end
                self._replace(at, at, [f"{name}.{key}", json.dumps(inner) if not isinstance(inner, str) else inner])
            return True
        whole = object_of(holders[-1].values[0] if holders[-1].values else None)
        whole.pop(key, None)
        self._rewrite(holders[-1], json.dumps(whole if value is None else {**whole, key: inner}))
        return True

    def _refuse_config(self, option: Option, value: Scalar) -> None:
        """Raise where a configuration file keeps the command line from setting a flag; note where it is overridden."""
        config, wins = self.config, self.grammar.config_wins
        if config is None:
            if value is not None and not option.spellings and option.within is None:
                raise TuneError(f"{self.grammar.engine} takes {option.name} from a configuration file alone")
            return
        if option.name in config.flags:
            negates = self.grammar.negates and option.kind == "switch" and value is False
            if wins or value is None or (value is False and not negates):
                raise TuneError(
                    f"{config.path} sets {option.name}={config.flags[option.name]}, which the command line cannot "
                    f"{'override' if wins else 'unset'}: change it there, or remove it there, and run again"
                )
            self.notes.append(f"{config.path} sets {option.name} too; the command line overrides it")
        elif not config.is_known:
            self.notes.append(f"{config.path} could not be read: flags in it are not known")
        elif value is not None and not option.spellings and option.within is None:
            raise TuneError(f"{self.grammar.engine} takes {option.name} from {config.path} alone: set it there")

    def _takes_no(self, option: Option, now: Scalar) -> bool:
        """Whether False is written as ``--no-...``: argparse's BooleanOptionalAction, which vLLM uses throughout."""
        return self.grammar.negates and (option.is_on_by_default or now is True)

    def _rewrite(self, one: _Occurrence, value: Scalar) -> None:
        word = self.words[one.begin]
        name = word.partition("=")[0] if one.is_joined else word
        if one.option.kind == "switch":
            name = name if name.startswith("--") else one.option.spellings[0]
            self._replace(one.begin, one.end, [_switched(name, one.is_negated, on=value is not False)])
            return
        values = words_of(one.option, value)
        if one.is_joined and len(values) == 1:
            self._replace(one.begin, one.end, [f"{name}={values[0]}"])
        elif one.is_joined or look_like_options(values):
            self._replace(one.begin, one.end, _given(name, values))
        else:
            self._replace(one.begin + 1, one.end, values)

    def _append(self, option: Option, value: Scalar) -> None:
        if not option.spellings:
            raise TuneError(f"{self.grammar.engine} has no option for {option.name}")
        if option.kind == "switch":
            self._replace(self.end, self.end, [_switched(option.spellings[0], False, on=value is not False)])
        else:
            self._replace(self.end, self.end, _given(option.spellings[0], words_of(option, value)))

    def _set_environment(self, name: str, value: Scalar) -> None:
        text = None if value is None else variable_of(value)
        for index in range(self.program - 1, -1, -1):
            match = _ASSIGNMENT.fullmatch(self.words[index])
            if match and match[1] == name and "env" in [word.rpartition("/")[2] for word in self.words[:index]]:
                if text is None or match[2] != text:
                    self._replace(index, index + 1, [] if text is None else [f"{name}={text}"])
                if text is not None:
                    return
        if text is None:
            self.environment.pop(name, None)
        else:
            self.environment[name] = text

    def _assigned(self) -> dict[str, str]:
        """Variables that ``env NAME=VALUE`` before the program sets."""
        before = self.words[: self.program]
        if "env" not in [word.rpartition("/")[2] for word in before]:
            return {}
        return {match[1]: match[2] for word in before if (match := _ASSIGNMENT.fullmatch(word))}

    def _replace(self, begin: int, end: int, words: Sequence[str]) -> None:
        if begin < self.program:
            change = len(words) - (end - begin)
            self.program += change
            self.begin += change
        self.words[begin:end] = words
        self.origins[begin:end] = [None] * len(words)

    def _occurrences(self) -> list[_Occurrence]:
        return [*self._scan(self.begin, self.end)]

    def _scan(self, index: int, end: int) -> Iterator[_Occurrence]:
        while index < end:
            word = self.words[index]
            name, equals, joined = word.partition("=")
            found = self.grammar.find(name, self._asked.values()) if word.startswith("-") and len(word) > 1 else None
            if found is None:
                index += 1
                continue
            values = [joined] if equals else []
            after = index + 1
            if not equals and found.option.kind != "switch":
                after = self._values_end(found.option, after, end)
                values = self.words[index + 1 : after]
            yield _Occurrence(
                found.option, index, after, tuple(values), found.is_negated, found.path, is_joined=bool(equals)
            )
            index = after

    def _values_end(self, option: Option, index: int, end: int) -> int:
        """Where a flag's values end: after one word, of a list after all numbers; argparse ends them at an option."""
        begin = index
        while index < end and (not self.grammar.abbreviates or not look_like_options(self.words[index : index + 1])):
            if option.kind == "list" and index > begin and not DECIMAL.fullmatch(self.words[index]):
                break
            index += 1
            if option.kind != "list":
                break
        return index

    def _read_config(self, read: Reader) -> _Config | None:
        for index in range(self.begin, self.end):
            name, equals, joined = self.words[index].partition("=")
            # vLLM and SGLang look for the bare word, click takes both forms.
            if name not in self.grammar.config or (equals and self.grammar.abbreviates):
                continue
            path = joined if equals else next(iter(self.words[index + 1 : index + 2]), "")
            return self._parsed_config(path, read(path))
        return None

    def _parsed_config(self, path: str, text: str | None) -> _Config:
        try:
            content = yaml.safe_load(text) if text is not None else None
        except (yaml.YAMLError, RecursionError, ValueError):
            text = None
        if text is None or not isinstance(content, dict | None):
            return _Config(path, is_known=False)
        config = _Config(path)
        for key, value in (content or {}).items():
            found = self.grammar.find("--" + str(key))
            name = found.option.name if found else str(key).replace("-", "_")
            if found and not self.grammar.config_keys.get(name):
                config.flags[name] = (not value) if found.is_negated else scalar_of(value)
        for name, keys in self.grammar.config_keys.items():
            inner: object = content or {}
            for key in keys:
                inner = inner.get(key) if isinstance(inner, dict) else None
            if inner is not None:
                config.flags[name] = scalar_of(inner)
        if self.grammar.config_wins and isinstance((content or {}).get("kv_cache_config"), dict):
            self.notes.append(
                f"{path} has a kv_cache_config: a version that takes it whole ignores the command line's fraction; "
                "the log will show it"
            )
        return config


def _switched(name: str, is_negated: bool, *, on: bool) -> str:
    """A switch's word, with or without ``no-``, in the spelling that stands there."""
    if is_negated == (not on):
        return name
    return f"--no-{name.lstrip('-')}" if not on else f"--{name[5:]}"


def _given(name: str, values: Sequence[str]) -> list[str]:
    return [f"{name}={values[0]}"] if len(values) == 1 and look_like_options(values) else [name, *values]


def _value(one: _Occurrence) -> Scalar:
    if one.option.kind == "switch":
        is_off = bool(one.values) and one.values[0].lower() in ("false", "0", "no")
        return one.is_negated if is_off else not one.is_negated
    if one.option.kind == "list":
        return " ".join(one.values)
    if not one.values:
        return None
    suffixed = _SUFFIXED.fullmatch(one.values[0]) if one.option.counts_with_suffix else None
    if suffixed:
        power = "kmgt".index(suffixed[2].lower()) + 1
        return int(float(suffixed[1]) * (1000 if suffixed[2].islower() else 1024) ** power)
    return parsed(one.values[0])


def _put(place: dict[str, object], path: Sequence[str], value: object) -> None:
    for key in path[:-1]:
        inner = place.setdefault(key, {})
        if not isinstance(inner, dict):
            inner = place[key] = {}
        place = inner
    place[path[-1]] = value
