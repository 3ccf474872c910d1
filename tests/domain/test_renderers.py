"""Advice as text to paste into a shell, a unit, a compose file or a patch."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest
import yaml

from domain.advice_fits import worked
from kvyield_server.domain.advice.recommend import recommend
from kvyield_server.domain.advice.render import command_line, render
from kvyield_server.domain.answers import Advice, Question, Status
from kvyield_server.domain.engines.registry import translated
from kvyield_server.domain.facts.observation import EngineName, Scalar

FLAG_WORDS = ["--mem-fraction-static", "0.926", "--context-length", "200007", "--max-running-requests", "8"]
FORMS = ("args", "systemd", "docker", "compose", "kubernetes")


@pytest.fixture(scope="module")
def advice() -> Advice:
    return recommend(worked(), Question(target_tokens=200_000))


def test_args_are_the_command_line(advice: Advice) -> None:
    """Arguments render as one line of shell words and nothing else."""
    assert shlex.split(render(advice, "args")) == FLAG_WORDS


def test_systemd_sets_the_flags_and_says_what_to_merge(advice: Advice) -> None:
    """A drop-in that is applied as it is changes no command; its comments say how ExecStart is reset and merged."""
    text = render(advice, "systemd")
    active = [line for line in text.splitlines() if not line.startswith("#")]
    assert active == ["[Service]", f'Environment="KVYIELD_FLAGS={" ".join(FLAG_WORDS)}"']
    assert "# ExecStart=\n" in text
    assert "# ExecStart=/usr/bin/env python3 -m sglang.launch_server" in text
    assert "--model-path moonshotai/Kimi-K2.6 $KVYIELD_FLAGS" in text


def test_compose_is_yaml_with_the_whole_command(advice: Advice) -> None:
    """The compose file parses, and its command is the program with the advised flags."""
    command = yaml.safe_load(render(advice, "compose"))["services"]["sglang"]["command"]
    assert command[:3] == ["python3", "-m", "sglang.launch_server"]
    assert command[-6:] == FLAG_WORDS


def test_kubernetes_is_a_strategic_merge_patch(advice: Advice) -> None:
    """The patch parses, names the container to merge with, and gives its arguments as strings."""
    patch = yaml.safe_load(render(advice, "kubernetes"))
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    assert (patch["kind"], container["name"]) == ("Deployment", "sglang")
    assert container["args"][-6:] == FLAG_WORDS


def test_docker_ends_with_the_flags(advice: Advice) -> None:
    """The docker command is one continued line that ends with the advised flags."""
    command = "".join(line for line in render(advice, "docker").splitlines(keepends=True) if not line.startswith("#"))
    assert shlex.split(command)[-6:] == FLAG_WORDS


PATH = "/models/kimi/snapshots/a1b2c3"


@pytest.mark.parametrize("form", [form for form in FORMS if form != "args"])
@pytest.mark.parametrize("flag", ["model_path", "model"])
def test_the_model_is_named_as_it_was_when_it_ran(form: str, flag: str) -> None:
    """Where a start's path of the model is known, that path is printed, not the pair's name of the model."""
    model = worked()
    ran = replace(model.starts[-1], flags={**model.starts[-1].flags, flag: PATH})
    text = render(recommend(worked(ran), Question(target_tokens=200_000)), form)
    assert re.search(rf"--model-path\W+{PATH}", text)
    assert "moonshotai/Kimi-K2.6" not in text


@pytest.mark.parametrize("form", FORMS)
def test_nothing_to_restart_with_renders_as_comments(advice: Advice, form: str) -> None:
    """Infeasible advice never renders flags, whatever the form."""
    text = render(replace(advice, status=Status.INFEASIBLE), form)
    assert text
    assert all(line.startswith("# ") for line in text.splitlines())


def test_an_unknown_form_is_refused(advice: Advice) -> None:
    """A form that does not exist is an error that names those that do."""
    with pytest.raises(ValueError, match="kubernetes"):
        render(advice, "nomad")


def test_odd_values_survive_yaml(advice: Advice) -> None:
    """Values that look like YAML or shell syntax come back as the same words."""
    odd: dict[str, Scalar] = {
        "mem_fraction_static": 0.9,
        "served_model_name": "a: b #c 'd' \"e\"",
        "enable_metrics": True,
        "off": None,
    }
    command = yaml.safe_load(render(replace(advice, flags=odd), "compose"))["services"]["sglang"]["command"]
    assert command[-5:] == [
        "--mem-fraction-static",
        "0.9",
        "--served-model-name",
        odd["served_model_name"],
        "--enable-metrics",
    ]


@pytest.mark.parametrize(
    ("engine", "flags", "line"),
    [
        (
            EngineName.VLLM,
            {"gpu_memory_utilization": 0.9, "max_model_len": 8192, "max_num_seqs": 64},
            "--gpu-memory-utilization 0.9 --max-model-len 8192 --max-num-seqs 64",
        ),
        (
            EngineName.TENSORRT_LLM,
            {"free_gpu_memory_fraction": 0.9, "max_seq_len": 8192, "max_batch_size": 64},
            "--kv_cache_free_gpu_memory_fraction 0.9 --max_seq_len 8192 --max_batch_size 64",
        ),
        (
            EngineName.LMDEPLOY,
            {"cache_max_entry_count": 0.8, "session_len": 8192},
            "--cache-max-entry-count 0.8 --session-len 8192",
        ),
    ],
)
def test_each_engine_has_its_own_spelling(engine: EngineName, flags: dict[str, Scalar], line: str) -> None:
    """Flags are spelled as the engine's own command line takes them."""
    assert command_line(engine, flags) == line


def test_flags_are_taken_under_another_engines_names() -> None:
    """A question in SGLang's words is understood for vLLM, and own names are left alone."""
    assert translated(EngineName.VLLM, {"max_running_requests": 8, "chunked_prefill_size": 2048, "seed": 1}) == {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "seed": 1,
    }
    assert translated(EngineName.TENSORRT_LLM, {"tp_size": 2}) == {"tp_size": 2}


def test_signs_that_a_format_replaces_are_doubled(advice: Advice) -> None:
    """Dollars and percents in a value reach the engine: compose, Kubernetes and systemd would replace them."""
    odd = replace(advice, flags={"served_model_name": "a$(b)%c"}, model_name="m$x" + "y" * 200)
    assert yaml.safe_load(render(odd, "compose"))["services"]["sglang"]["command"][-1] == "a$$(b)%c"
    (container,) = yaml.safe_load(render(odd, "kubernetes"))["spec"]["template"]["spec"]["containers"]
    assert container["args"][-1] == "a$$(b)%c"
    assert "a$(b)%%c" in render(odd, "systemd")
    [merged] = [line for line in render(odd, "systemd").splitlines() if line.startswith("# ExecStart=/")]
    assert merged.endswith("m$$x" + "y" * 200 + " $KVYIELD_FLAGS")


ODD_TEXTS = (
    "-x",
    "--trust-remote-code",
    "a\nb: c",
    "a\n- --api-key",
    "$HOME",
    "$$x$",
    "$(id)",
    "$$(id)",
    "100%i",
    "\N{GRINNING FACE}",
    "a\x85b\u2028c\ufeff",
    'it\'s "so"\\n',
    "a b",
)


def expanded(text: str) -> str:
    """Return text as Kubernetes hands it to the container, where no variable is known."""
    return re.sub(r"\$(\$|\([^)]*\))", lambda found: "$" if found[1] == "$" else found[0], text)


@pytest.mark.parametrize("engine", list(EngineName))
@pytest.mark.parametrize("odd", ODD_TEXTS)
def test_odd_models_and_values_survive_every_form(advice: Advice, engine: EngineName, odd: str) -> None:
    """A dash, a line break, a dollar, a per cent sign or an emoji reaches the engine as the one word that it is."""
    told = replace(advice, engine=engine, model_name=odd, flags={"served_model_name": odd})
    compose = yaml.safe_load(render(told, "compose"))["services"][engine.value]["command"]
    (container,) = yaml.safe_load(render(told, "kubernetes"))["spec"]["template"]["spec"]["containers"]
    assert (container["name"], list(container)) == (engine.value, ["name", "args"])
    docker = render(told, "docker").partition('"$IMAGE"')[2].replace("\\\n", "", 1)
    words = shlex.split(docker)
    assert [word.replace("$$", "$") for word in compose] == words
    assert [expanded(word) for word in container["args"]] == words
    assert not any(word.startswith("-") and word == odd for word in words)
    given = [word for word in words if word.endswith(odd)]
    assert len(given) == 2
    assert all(word == odd or word.endswith((f"={odd}", f"./{odd}")) for word in given)


@pytest.mark.parametrize("odd", ODD_TEXTS)
def test_a_unit_file_keeps_its_lines(advice: Advice, odd: str) -> None:
    """Whatever the model and the values hold, a drop-in is its own comments, a section and one variable."""
    lines = render(replace(advice, model_name=odd, flags={"served_model_name": odd}), "systemd").split("\n")
    active = [line for line in lines if not line.startswith("#")]
    assert (active[0], active[2:]) == ("[Service]", [""])
    assert active[1].startswith('Environment="KVYIELD_FLAGS=')
    assert "%i" not in "".join(lines).replace("%%", "")
    assert not re.search("[\x85\u2028]", "".join(lines))
    program = next(line for line in lines if line.startswith("# ExecStart=/"))
    assert "$" not in program.replace("$$", "").replace("$KVYIELD_FLAGS", "")
