"""An advice as text to paste: arguments, a systemd drop-in, docker, compose, a Kubernetes patch."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from kvyield_server.domain.answers import Advice, Status
from kvyield_server.domain.engines.registry import NAMES
from kvyield_server.domain.facts.observation import EngineName, Flags

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_UNPRINTED = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
_DOLLAR_READ = re.compile(r"\$(?=[$(])")
_PLAIN_WORD = re.compile(r"[\w@%+=:,./$-]+")
_SPELLED = {(EngineName.TENSORRT_LLM, "free_gpu_memory_fraction"): "--kv_cache_free_gpu_memory_fraction"}


def flag_words(engine: EngineName, flags: Flags) -> tuple[str, ...]:
    """Return the words of a command line that sets ``flags``; flags that are off are left out."""
    words: list[str] = []
    for key, value in flags.items():
        if value is None or value is False:
            continue
        name = _SPELLED.get((engine, key)) or f"--{key if NAMES[engine].underscores else key.replace('_', '-')}"
        words.extend((name,) if value is True else _given(name, value))
    return tuple(words)


def _given(name: str, value: float | str) -> tuple[str, ...]:
    """Return an option with its value; text that begins with a dash is joined to it, or it would be an option."""
    is_dashed = isinstance(value, str) and value.startswith("-")
    return (f"{name}={value}",) if is_dashed else (name, _spelled(value))


def command_line(engine: EngineName, flags: Flags) -> str:
    """Return ``flags`` as one shell-safe line, as the engine's own command line takes them."""
    return shlex.join(flag_words(engine, flags))


def render(advice: Advice, form: str) -> str:
    """Return an advice as text to paste: ``args``, ``systemd``, ``docker``, ``compose`` or ``kubernetes``.

    Comments say what to merge with one's own configuration. An advice with nothing to restart with renders as comments
    alone.

    Raises:
        ValueError: the form is none of these.
    """
    if form not in _FORMS:
        raise ValueError(f"{form!r} is none of {', '.join(_FORMS)}")
    if advice.status in (Status.INFEASIBLE, Status.NOT_ENOUGH_EVIDENCE):
        return _comments(_headline(advice), "Nothing to restart with.", advice.explanation)
    return _FORMS[form](advice)


def _args(advice: Advice) -> str:
    return advice.command_line + "\n"


def _systemd(advice: Advice) -> str:
    unit = advice.engine.value
    value = _systemd_text(command_line(advice.engine, advice.flags))
    program = " ".join(_systemd_word(word) for word in ("/usr/bin/env", *_program(advice)))
    return (
        _status_comment(advice)
        + _comments(
            f"Drop-in: /etc/systemd/system/{unit}.service.d/50-kvyield.conf, then systemctl daemon-reload and restart.",
            f"Merge once: replace the ExecStart= below by that of `systemctl cat {unit}.service`, remove "
            f"{_named(advice)} from it, and end it with $KVYIELD_FLAGS. The empty ExecStart= clears the unit's own.",
        )
        + f'[Service]\nEnvironment="KVYIELD_FLAGS={value}"\n'
        + f"# ExecStart=\n# ExecStart={program} $KVYIELD_FLAGS\n"
    )


def _docker(advice: Advice) -> str:
    words = shlex.join((*_image_command(advice), *flag_words(advice.engine, advice.flags)))
    return (
        _status_comment(advice)
        + _comments(f"Merge: keep your own docker options and flags; replace {_named(advice)}.")
        + f'docker run --gpus all --ipc host "$IMAGE" \\\n  {words}\n'
    )


def _compose(advice: Advice) -> str:
    words = [word.replace("$", "$$") for word in (*_image_command(advice), *flag_words(advice.engine, advice.flags))]
    return (
        _status_comment(advice)
        + _comments(
            "Merge: this command replaces the whole command of the service. Keep your other flags in it; replace "
            f"{_named(advice)}."
        )
        + f"services:\n  {advice.engine.value}:\n    command:\n{_listed(words, 6)}"
    )


def _kubernetes(advice: Advice) -> str:
    name = advice.engine.value
    words = [
        _DOLLAR_READ.sub("$$", word) for word in (*_image_command(advice), *flag_words(advice.engine, advice.flags))
    ]
    return (
        _status_comment(advice)
        + _comments(
            f"kubectl patch deployment {name} --type strategic --patch-file FILE",
            "Merge: these args replace all args of the container. Keep your other flags in them; replace "
            f"{_named(advice)}. Containers are matched by name.",
        )
        + f"apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {name}\nspec:\n  template:\n    spec:\n"
        + f"      containers:\n        - name: {name}\n          args:\n{_listed(words, 12)}"
    )


_FORMS: Mapping[str, Callable[[Advice], str]] = MappingProxyType(
    {"args": _args, "systemd": _systemd, "docker": _docker, "compose": _compose, "kubernetes": _kubernetes}
)


def _program(advice: Advice) -> tuple[str, ...]:
    names, model = NAMES[advice.engine], advice.model_name or "MODEL"
    if names.model_option is not None:
        return (*names.program, *_given(names.model_option, model))
    if not model.startswith("-"):
        return (*names.program, model)
    return (*names.program, f"--model={model}" if advice.engine is EngineName.VLLM else f"./{model}")


def _image_command(advice: Advice) -> tuple[str, ...]:
    """Return what comes after the image: the whole program unless the image's entry point is the program."""
    names, program = NAMES[advice.engine], _program(advice)
    return program[len(names.program) :] if names.image_runs_program else program


def _named(advice: Advice) -> str:
    names = (flag_words(advice.engine, {key: value})[:1] for key, value in advice.flags.items())
    return ", ".join(word.partition("=")[0] for words in names for word in words)


def _systemd_text(text: str) -> str:
    """Return text as it stands between systemd's double quotes: escapes are read there, and so are specifiers."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return _CONTROL.sub(lambda found: "".join(f"\\x{byte:02x}" for byte in found[0].encode()), quoted)


def _systemd_word(word: str) -> str:
    """Return a word of ExecStart, quoted where it needs to be; a dollar is doubled, or a variable would be read."""
    text = _systemd_text(word).replace("$", "$$")
    return text if _PLAIN_WORD.fullmatch(text) else f'"{text}"'


def _status_comment(advice: Advice) -> str:
    removed = [change.flag for change in advice.changes if change.to_value is None]
    words = ", ".join(word for flag in removed for word in flag_words(advice.engine, {flag: True}))
    return _comments(
        f"kvyield: {_headline(advice)}",
        *(() if advice.status is Status.OK else (advice.explanation,)),
        *((f"Remove {words}.",) if words else ()),
    )


def _headline(advice: Advice) -> str:
    return f"{advice.status.value}." if advice.headline is None else advice.headline.text


def _comments(*paragraphs: str) -> str:
    plain = (_CONTROL.sub(" ", text) for text in paragraphs)
    lines = (
        line for text in plain for line in textwrap.wrap(text, 110, break_long_words=False, break_on_hyphens=False)
    )
    return "".join(f"# {line}\n" for line in lines)


def _listed(words: Sequence[str], indent: int) -> str:
    """Return words as a YAML list."""
    return "".join(f"{' ' * indent}- {_yaml_string(word)}\n" for word in words)


def _yaml_string(text: str) -> str:
    """Return a double-quoted string: JSON's, but for what YAML reads in another way than JSON.

    Characters beyond the basic plane stand as they are (YAML joins no surrogates), and what it takes for a break of
    lines or does not print is escaped.
    """
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNPRINTED.sub(lambda found: f"\\u{_escaped(found[0]):04x}", quoted)


def _escaped(character: str) -> int:
    return 0xFFFD if "\ud800" <= character <= "\udfff" else ord(character)


def _spelled(value: float | str) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
