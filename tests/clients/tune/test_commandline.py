"""Editing a command line: the engine's own parser reads what was asked for, and all else as before."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _engine_parsers import (
    LISTS,
    OPTIONS,
    PROGRAM,
    UNKNOWN_SWITCHES,
    UNKNOWN_VALUES,
    is_switch,
    meant,
    parsed,
)
from kvyield._errors import TuneError
from kvyield.engines._start import Scalar
from kvyield.tune.commandline import edit, engine_of, flags_of
from kvyield.tune.spellings import GRAMMARS

ENGINES = tuple(OPTIONS)


def line(text: str, engine: str, **flags: Scalar) -> str:
    """A command line with other flags, as text."""
    return shlex.join(edit(shlex.split(text), engine, flags).argv)


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("vllm serve meta-llama/Llama-3.1-8B", "vllm"),
        ("/opt/venv/bin/vllm serve m", "vllm"),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", "vllm"),
        ("/usr/bin/python3.12 -u -X dev /opt/venv/bin/vllm serve m", "vllm"),
        ("python -m sglang.launch_server --model-path m", "sglang"),
        ("python /sgl/python/sglang/launch_server.py --model-path m", "sglang"),
        ("sglang serve --model-path m", "sglang"),
        ("env -u A CUDA_VISIBLE_DEVICES=0,1 numactl --cpunodebind=0 -m 0 nice -n 5 vllm serve m", "vllm"),
        ("mpirun -n 2 --allow-run-as-root trtllm-llmapi-launch trtllm-serve m", "tensorrt-llm"),
        ("trtllm-serve serve m", "tensorrt-llm"),
        ("lmdeploy serve api_server m", "lmdeploy"),
        ("vllm bench serve", None),
        ("trtllm-serve disaggregated -c x.yaml", None),
        ("python -m http.server", None),
        ("python -c 'import vllm'", None),
        ("lmdeploy serve proxy", None),
        ("python", None),
        ("", None),
    ],
)
def test_the_engine_is_known_behind_what_starts_it(command: str, engine: str | None) -> None:
    """Wrappers, interpreters and paths do not hide it; another program of the same package is not it."""
    assert engine_of(shlex.split(command)) == engine


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("sh -c 'vllm serve m'", "sh -c"),
        ("/bin/bash -lc 'exec vllm serve m'", "bash -lc"),
        ("nice bash start.sh", "bash start.sh"),
        ("docker run --rm vllm/vllm-openai vllm serve m", "docker"),
        ("ssh gpu vllm serve m", "ssh"),
    ],
)
def test_a_command_whose_words_are_not_the_engines_is_refused(command: str, named: str) -> None:
    """The reason names what stands in the way."""
    with pytest.raises(TuneError, match=named):
        engine_of(shlex.split(command))


@pytest.mark.parametrize(
    ("before", "engine", "flags", "after"),
    [
        (
            "python -m sglang.launch_server --model-path m --mem-fraction-static 0.94 --port 30000",
            "sglang",
            {"mem_fraction_static": 0.926, "context_length": 200007},
            "python -m sglang.launch_server --model-path m --mem-fraction-static 0.926 --port 30000 "
            "--context-length 200007",
        ),
        (
            "vllm serve m --gpu_memory_utilization=0.9 -tp 8 --max-model-len 8k",
            "vllm",
            {"gpu_memory_utilization": 0.85, "tensor_parallel_size": 4, "max_model_len": 8000},
            "vllm serve m --gpu_memory_utilization=0.85 -tp 4 --max-model-len 8k",
        ),
        (
            "vllm serve m --enforce-eager --max-num-seqs 8 --max-num-seqs 16",
            "vllm",
            {"enforce_eager": False, "max_num_seqs": 32},
            "vllm serve m --no-enforce-eager --max-num-seqs 8 --max-num-seqs 32",
        ),
        (
            "vllm serve m --max-num-seqs 8 --enforce-eager --max-num-seqs 16 -- tail",
            "vllm",
            {"enforce_eager": None, "max_num_seqs": None, "enable_prefix_caching": False},
            "vllm serve m --no-enable-prefix-caching -- tail",
        ),
        (
            "trtllm-serve m --kv_cache_free_gpu_memory_fraction 0.9",
            "tensorrt-llm",
            {"free_gpu_memory_fraction": 0.8, "max_seq_len": 4096},
            "trtllm-serve m --kv_cache_free_gpu_memory_fraction 0.8 --max_seq_len 4096",
        ),
        (
            "python -m sglang.launch_server --model m --chunked-prefill-size -1 --mem-frac 0.9 --cuda-graph-bs 1 2 4",
            "sglang",
            {"chunked_prefill_size": 4096, "mem_fraction_static": 0.8, "cuda_graph_bs": "[1,2]"},
            "python -m sglang.launch_server --model m --chunked-prefill-size 4096 --mem-frac 0.8 --cuda-graph-bs 1 2",
        ),
        (
            "python -m sglang.launch_server --disable-cuda-graph-padding --cuda-graph-max-bs 8",
            "sglang",
            {"disable_cuda_graph": True, "cuda_graph_max_bs_decode": 4},
            "python -m sglang.launch_server --disable-cuda-graph-padding --cuda-graph-max-bs 8 --disable-cuda-graph "
            "--cuda-graph-max-bs-decode 4",
        ),
        (
            """vllm serve m --compilation-config '{"level": 3, "max_cudagraph_capture_size": 512}'""",
            "vllm",
            {"max_cudagraph_capture_size": 64},
            """vllm serve m --compilation-config '{"level": 3, "max_cudagraph_capture_size": 64}'""",
        ),
        (
            "vllm serve m -cc.level=3 -cc.cudagraph_mode=FULL --port 1",
            "vllm",
            {"cudagraph_mode": "PIECEWISE"},
            "vllm serve m -cc.level=3 --compilation-config.cudagraph_mode PIECEWISE --port 1",
        ),
        (
            "vllm serve m --speculative-config.method mtp --speculative-config.num_speculative_tokens 3 --port 1",
            "vllm",
            {"speculative_config": None},
            "vllm serve m --port 1",
        ),
        (
            "lmdeploy serve api_server m --cache-max-entry-count 0.8 --tp 2",
            "lmdeploy",
            {"cache_max_entry_count": 0.5, "session_len": 32768},
            "lmdeploy serve api_server m --cache-max-entry-count 0.5 --tp 2 --session-len 32768",
        ),
    ],
)
def test_a_flag_is_replaced_where_it_stands(before: str, engine: str, flags: dict[str, Scalar], after: str) -> None:
    """In its own spelling; a new one is appended; nothing else moves."""
    assert line(before, engine, **flags) == after
    assert line(after, engine, **flags) == after


def test_an_abbreviation_that_versions_read_differently_is_refused() -> None:
    """``--cuda-graph-b`` was ``--cuda-graph-bs`` until there were others that begin so."""
    argv = ["python3", "-m", "sglang.launch_server", "--cuda-graph-b", "1"]
    with pytest.raises(TuneError, match=r"--cuda-graph-b may mean cuda_graph_b\w+ or .*whole name"):
        edit(argv, "sglang", {"cuda_graph_bs": "1 2"})
    assert edit(argv, "sglang", {"context_length": 5}).argv == (*argv, "--context-length", "5")


def test_an_object_that_versions_of_vllm_read_differently_is_refused() -> None:
    """``-O {...}`` was the compilation config; a second one would replace it whole."""
    for words in (["-O", '{"level": 3}'], ['-O={"level": 3}']):
        with pytest.raises(TuneError, match="write --compilation-config instead"):
            edit(["vllm", "serve", "m", *words], "vllm", {"max_cudagraph_capture_size": 64})
        assert edit(["vllm", "serve", "m", *words], "vllm", {"max_num_seqs": 4}).argv[-1] == "4"
    assert edit(["vllm", "serve", "m", "-O3"], "vllm", {"max_cudagraph_capture_size": 64}).argv[-1] == "64"


@st.composite
def commands(draw: st.DrawFn, engine: str) -> list[str]:
    """Any command line of an engine, in any spelling that its parser takes."""
    words = [*PROGRAM[engine]]
    if engine != "sglang":
        words.append("org/Model-8B")
    for _ in range(draw(st.integers(0, 8))):
        words += draw(_flag(engine) | _unknown())
    return words


@st.composite
def _unknown(draw: st.DrawFn) -> list[str]:
    if draw(st.booleans()):
        return [draw(st.sampled_from(UNKNOWN_SWITCHES))]
    name, value = draw(st.sampled_from(UNKNOWN_VALUES)), draw(st.text("abc/{}\"' é$%", min_size=1, max_size=8))
    return draw(st.sampled_from([[name, value], [f"{name}={value}"]]))


@st.composite
def _flag(draw: st.DrawFn, engine: str) -> list[str]:
    name = draw(st.sampled_from(sorted(OPTIONS[engine])))
    spelled = draw(st.sampled_from(OPTIONS[engine][name]))
    if engine != "tensorrt-llm" and spelled.startswith("--"):
        spelled = draw(st.sampled_from([spelled, *_prefixes(engine, spelled)]))
    if is_switch(name):
        negated = engine == "vllm" and spelled.startswith("--en") and draw(st.booleans())
        return [f"--no-{spelled[2:]}" if negated and spelled in OPTIONS[engine][name] else spelled]
    if engine == "vllm" and spelled.startswith("--") and draw(st.booleans()):
        spelled = "--" + spelled[2:].replace("-", "_")
    value = meant(name, draw(values(name)))
    if name in LISTS:
        return [spelled, *map(str, value)]
    is_dashed = engine != "tensorrt-llm" and value.startswith("-o")
    return draw(st.sampled_from([[f"{spelled}={value}"], *([] if is_dashed else [[spelled, value]])]))


def _prefixes(engine: str, spelled: str) -> Sequence[str]:
    """The abbreviations of one option that no other option of the parser shares."""
    known = [one for spellings in OPTIONS[engine].values() for one in spellings]
    known += [*UNKNOWN_VALUES, *UNKNOWN_SWITCHES, "--help"]
    known += [f"--no-{one[2:]}" for one in known if engine == "vllm"]
    others = [one for one in known if one != spelled]
    return [
        spelled[:length]
        for length in range(6, len(spelled))
        if not any(one.startswith(spelled[:length]) for one in others) and GRAMMARS[engine].find(spelled[:length])
    ]


def values(name: str) -> st.SearchStrategy[Scalar]:
    """Values of a flag, as the service would advise them."""
    if is_switch(name):
        return st.booleans()
    if name in LISTS:
        return st.lists(st.integers(1, 512), min_size=1, max_size=4).map(lambda sizes: " ".join(map(str, sizes)))
    if name in ("model_path", "quantization", "kv_cache_dtype"):
        return st.sampled_from(["fp8", "auto", "-odd", "a b", "fp8_e4m3"])
    if name == "speculative_config":
        return st.sampled_from(['{"method": "mtp"}', '{"method": "eagle", "num_speculative_tokens": 3}'])
    return st.integers(-1, 300_000) | st.floats(0.01, 1.0).map(lambda number: round(number, 4))


@st.composite
def edits(draw: st.DrawFn, engine: str) -> tuple[list[str], dict[str, Scalar]]:
    """A command line and what is asked of it."""
    names = draw(st.lists(st.sampled_from(sorted(OPTIONS[engine])), unique=True, max_size=4))
    return draw(commands(engine)), {name: draw(st.none() | values(name)) for name in names}


def _read(engine: str, argv: Sequence[str]) -> dict[str, Any]:
    """What the engine's parser reads, a switch that is off by default and off being as good as not given."""
    return {name: value or None if is_switch(name) else value for name, value in parsed(engine, argv).items()}


@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_the_engines_parser_reads_what_was_asked_and_all_else_as_before(engine: str, data: st.DataObject) -> None:
    """Whatever the spelling, the order and the repetition."""
    argv, flags = data.draw(edits(engine))
    edited = edit(argv, engine, flags)
    before, after = _read(engine, argv), _read(engine, edited.argv)
    for name, value in flags.items():
        assert _same(after[name], meant(name, value)), name
    assert {name: after[name] for name in after.keys() - flags.keys()} == {
        name: before[name] for name in before.keys() - flags.keys()
    }
    assert edit(edited.argv, engine, flags).argv == edited.argv


def _same(read: Any, asked: Any) -> bool:
    return read == asked or (isinstance(read, str) and isinstance(asked, str) and json_or(read) == json_or(asked))


def json_or(text: str) -> Any:
    """JSON's value, or the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_editing_back_gives_the_meaning_of_before(engine: str, data: st.DataObject) -> None:
    """What `flags_of` told of the line is enough to put it back."""
    argv, flags = data.draw(edits(engine))
    told = flags_of(argv, engine)
    edited = edit(argv, engine, flags)
    back = edit(edited.argv, engine, {name: told.get(name) for name in flags})
    assert {name: json_or(str(value)) for name, value in _read(engine, back.argv).items()} == {
        name: json_or(str(value)) for name, value in _read(engine, argv).items()
    }
    assert flags_of(back.argv, engine) == told or _of_switches_off(told, flags_of(back.argv, engine))


def _of_switches_off(one: dict[str, Scalar], other: dict[str, Scalar]) -> bool:
    return {name: value for name, value in one.items() if value is not False} == {
        name: value for name, value in other.items() if value is not False
    }


@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_words_that_stay_are_told_as_they_were(engine: str, data: st.DataObject) -> None:
    """`origins` lets a caller keep what it does not understand (a variable, a quoted word) byte for byte."""
    argv, flags = data.draw(edits(engine))
    edited = edit(argv, engine, flags)
    kept = [origin for origin in edited.origins if origin is not None]
    assert kept == sorted(set(kept))
    assert len(edited.origins) == len(edited.argv)
    for word, origin in zip(edited.argv, edited.origins, strict=True):
        assert origin is None or word == argv[origin]


@settings(deadline=None)
@given(st.lists(st.text(max_size=6) | st.sampled_from(["--", "-", "-O", "-O3", "--max-num-seqs", "-tp", "--x.y"])))
def test_any_words_are_read_and_edited_or_refused_plainly(words: list[str]) -> None:
    """Nothing that a person can type ends in a traceback."""
    for engine in ENGINES:
        argv = [*PROGRAM[engine], *words]
        with contextlib.suppress(TuneError):
            edited = edit(argv, engine, {"max_num_seqs": 8, "context_length": None})
            assert flags_of(edited.argv, engine).get("context_length") is None


def test_variables_are_set_where_the_command_sets_them() -> None:
    """``env NAME=VALUE`` before the program, else the environment that the caller starts it with."""
    name = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
    argv = ["env", f"{name}=1", "vllm", "serve", "m"]
    assert flags_of(argv, "vllm") == {name: 1}
    assert edit(argv, "vllm", {name: False}).argv == ("env", f"{name}=0", "vllm", "serve", "m")
    assert edit(argv[2:], "vllm", {name: False}, {"A": "b"}).environment == {"A": "b", name: "0"}
    assert edit(argv, "vllm", {name: None, "max_num_seqs": 4}).argv == ("env", *argv[2:], "--max-num-seqs", "4")


def _with_config(tmp_path: Path, content: str, command: str) -> tuple[list[str], str]:
    path = tmp_path / "engine.yaml"
    path.write_text(content)
    return shlex.split(command.format(path)), str(path)


def test_the_command_line_overrides_the_file_of_vllm_and_sglang(tmp_path: Path) -> None:
    """What stands in the file alone is read, and set on the command line."""
    argv, path = _with_config(tmp_path, "gpu-memory-utilization: 0.9\ntp: 2\n", "vllm serve m --config {} -tp 4")
    assert flags_of(argv, "vllm") == {"gpu_memory_utilization": 0.9, "tensor_parallel_size": 4}
    edited = edit(argv, "vllm", {"gpu_memory_utilization": 0.8})
    assert edited.argv == (*argv, "--gpu-memory-utilization", "0.8")
    assert edited.notes == (f"{path} sets gpu_memory_utilization too; the command line overrides it",)
    assert edit(argv, "vllm", {"gpu_memory_utilization": 0.9}).argv == tuple(argv)


def test_what_a_file_sets_and_the_command_line_cannot_unset_is_refused(tmp_path: Path) -> None:
    """SGLang's switches and values of a file, and all that TensorRT-LLM's file sets: it has the last word."""
    argv, _ = _with_config(
        tmp_path, "disable-cuda-graph: true\nmax-total-tokens: 5\n", "sglang serve --config {} --port 1"
    )
    with pytest.raises(TuneError, match=r"engine\.yaml sets disable_cuda_graph=True"):
        edit(argv, "sglang", {"disable_cuda_graph": False})
    with pytest.raises(TuneError, match=r"engine\.yaml sets max_total_tokens=5"):
        edit(argv, "sglang", {"max_total_tokens": None})
    argv, _ = _with_config(
        tmp_path, "kv_cache_config:\n  free_gpu_memory_fraction: 0.5\n", "trtllm-serve m --extra_llm_api_options={}"
    )
    assert flags_of(argv, "tensorrt-llm") == {"free_gpu_memory_fraction": 0.5}
    with pytest.raises(TuneError, match=r"free_gpu_memory_fraction=0.5, which the command line cannot override"):
        edit(argv, "tensorrt-llm", {"free_gpu_memory_fraction": 0.6})
    assert edit(argv, "tensorrt-llm", {"max_seq_len": 8}).argv[-2:] == ("--max_seq_len", "8")
    with pytest.raises(TuneError, match="max_tokens"):
        edit(["trtllm-serve", "m"], "tensorrt-llm", {"max_tokens": 5})


def test_an_object_of_the_file_is_kept_whole_when_one_key_changes(tmp_path: Path) -> None:
    """vLLM replaces an object by the command line's; it does not merge them."""
    argv, _ = _with_config(
        tmp_path, "compilation-config:\n  level: 3\n  max_cudagraph_capture_size: 512\n", "vllm serve m --config {}"
    )
    edited = edit(argv, "vllm", {"max_cudagraph_capture_size": 64})
    assert edited.argv[-2] == "--compilation-config"
    assert json.loads(edited.argv[-1]) == {"level": 3, "max_cudagraph_capture_size": 64}


@pytest.mark.parametrize("content", ["[1, 2]", "a: [", "\x00", "a: &a [*a]\n", "- " * 5000])
def test_a_file_that_is_no_configuration_is_told(tmp_path: Path, content: str) -> None:
    """It is the engine that will refuse it; the flags are edited all the same."""
    argv, path = _with_config(tmp_path, content, "vllm serve m --config {}")
    edited = edit(argv, "vllm", {"max_num_seqs": 4})
    assert edited.argv == (*argv, "--max-num-seqs", "4")
    assert any(path in note for note in edited.notes) or content.startswith("a: &")
    gone = edit(["vllm", "serve", "m", "--config", "/nowhere.yaml"], "vllm", {"max_num_seqs": 4})
    assert "/nowhere.yaml could not be read" in gone.notes[0]


@pytest.mark.parametrize(
    "flags", [{"max_num_seqs": float("nan")}, {"a b": 1}, {"--x": 1}, {"": 1}, {"max_num_seqs": "a\0b"}]
)
def test_a_flag_that_no_command_line_can_hold_is_refused(flags: dict[str, Scalar]) -> None:
    """By its name and value."""
    with pytest.raises(TuneError, match="flag"):
        edit(["vllm", "serve", "m"], "vllm", flags)
