"""From a reader's start to the observation that is posted."""

from __future__ import annotations

import itertools
import os
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from kvyield import IncompleteError, SourceError
from kvyield._bounds import LONGEST_EXCERPT
from kvyield._secrets import looks_secret, redacted
from kvyield.assemble import Extras, assemble
from kvyield.engines import Sourced, Start
from kvyield.modelconfig import find_model_config, kept_facts, name_in_config, read_model_config

GPU = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


def said(value: bool | int | float | str | None, source: str = "line 1: x") -> Sourced:
    return Sourced(value, source)


def start(**changes: object) -> Start:
    known: dict[str, object] = {
        "engine": "sglang",
        "outcome": "ready",
        "flags": {"mem_fraction_static": said(0.92), "tp_size": said(8), "quantization": said(None)},
        "measurements": {"pool_tokens": said(192_406), "free_at_ready_gib": said(6.1)},
        "facts": {"model_name": said("moonshotai/Kimi-K2.6"), "engine_version": said("0.5.12")},
        "observed_at": datetime.fromisoformat("2026-05-30T22:00:23+00:00"),
    }
    return Start(**(known | changes))  # type: ignore[arg-type]  # the keys are the fields


def options(**values: bool | int | float | str | None) -> dict[str, Sourced]:
    return {name: said(value, f"option --{name}") for name, value in values.items()}


def detected(**values: bool | int | float | str | None) -> dict[str, Sourced]:
    return {name: said(value, "this host") for name, value in values.items()}


def test_the_same_start_gives_the_same_id_and_another_one_another() -> None:
    """Reading a log twice gives one id, of version 7 with the start's time in it; another model gives another."""
    extras = Extras(options=options(gpu=GPU))
    one, again = (assemble(start(), extras).observation() for _ in range(2))
    other = assemble(start(facts={"model_name": said("other")}), extras).observation()
    assert one == again
    assert one.id != other.id
    assert one.id is not None
    assert (one.id.version, one.id.int >> 80) == (7, 1_780_178_423_000)


def test_no_time_in_the_log_leaves_the_time_null() -> None:
    """Without a time in the log nothing of the clock gets in: the id and the content always stay the same."""
    made = assemble(start(observed_at=None), Extras(options=options(gpu=GPU))).observation()
    assert made.observed_at is None
    assert made.id is not None
    assert made.id.int >> 80 == 0


def test_flags_keep_off_apart_from_unknown() -> None:
    """A flag known to be off is null, an unknown one is absent, and one named by hand fills only what is unknown."""
    extras = Extras(options=options(gpu=GPU), flags={"page_size": said(64), "mem_fraction_static": said(0.9)})
    made = assemble(start(), extras)
    flags = made.observation().flags
    assert flags == {"mem_fraction_static": 0.92, "tp_size": 8, "quantization": None, "page_size": 64}
    assert any("mem_fraction_static: 0.92" in text for text in made.contradictions)


def test_names_come_from_options_first_and_measures_from_the_log() -> None:
    """An option overrides the log's model and GPU names; a measured size of the log overrides the option."""
    facts = {"model_name": said("/models/other"), "gpu": said("RTX PRO 6000"), "gpu_memory_gib": said(94.97)}
    extras = Extras(options=options(gpu=GPU, model="moonshotai/Kimi-K2.6", gpu_memory_gib=95.59))
    made = assemble(start(facts=facts), extras)
    observation = made.observation()
    assert (observation.hardware.gpu, observation.hardware.memory_gib) == (GPU, 94.97)
    assert observation.model.name == "moonshotai/Kimi-K2.6"
    assert made.sources["hardware.memory_gib"] == "line 1: x"
    assert [text.split(":")[0] for text in made.contradictions] == ["model.name"]


def test_gpu_count_follows_from_the_parallel_flags() -> None:
    """The GPUs are the product of the parallel sizes; many GPUs on the host do not mean that all are used."""
    made = assemble(start(), Extras(detected=detected(gpu=GPU, gpu_count=16, gpu_memory_gib=95.59)))
    assert made.observation().hardware.gpu_count == 8
    flags = {"mem_fraction_static": said(0.9)}
    lone = assemble(start(flags=flags), Extras(detected=detected(gpu=GPU, gpu_count=1)))
    several = assemble(start(flags=flags), Extras(detected=detected(gpu=GPU, gpu_count=2)))
    assert lone.observation().hardware.gpu_count == 1
    assert several.missing == ("hardware.gpu_count",)


@pytest.mark.parametrize(
    ("engine", "flags", "count"),
    [
        ("sglang", {"tp_size": 4, "dp_size": 2}, 8),
        ("sglang", {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, 8),
        ("vllm", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 2}, 8),
        ("lmdeploy", {"tp": 2}, 2),
    ],
)
def test_each_engine_counts_gpus_its_own_way(engine: str, flags: dict[str, int], count: int) -> None:
    """Data parallel ranks have GPUs of their own, except inside SGLang's DP attention."""
    told = {name: said(value) for name, value in flags.items()}
    made = assemble(start(engine=engine, flags=told, outcome="failed"), Extras(options=options(gpu=GPU)))
    assert made.observation().hardware.gpu_count == count


def test_a_gpu_of_another_kind_is_left_out() -> None:
    """When the log names another GPU than this host has, none of the GPU's facts are used, and it is reported."""
    facts = {"model_name": said("m"), "gpu": said("NVIDIA A100")}
    made = assemble(start(facts=facts), Extras(detected=detected(gpu="NVIDIA H200", gpu_count=8, gpu_memory_gib=139.8)))
    assert made.observation().hardware.memory_gib is None
    assert any("left out" in text for text in made.contradictions)


def test_free_memory_at_pool_end_never_stands_for_free_at_ready() -> None:
    """A figure fills the field of its own moment: what was free before the graphs is not what is free at ready."""
    made = assemble(
        start(measurements={"pool_tokens": said(101_134), "free_at_pool_end_gib": said(10.37, "line 9")}),
        Extras(options=options(gpu=GPU)),
    )
    assert made.observation().measurements.free_at_ready_gib is None
    assert made.observation().measurements.free_at_pool_end_gib == 10.37


@pytest.mark.parametrize(
    ("unified", "phase", "outcome"),
    [
        (False, "serving", "failed"),
        (None, "pool", "failed"),
        (True, "serving", "oom_runtime"),
        (True, "pool", "oom_startup"),
    ],
)
def test_host_memory_is_gpu_memory_only_where_they_are_one(unified: bool | None, phase: str, outcome: str) -> None:
    """An end for want of host memory says nothing of the GPU, unless the GPU has no other memory."""
    failure = {"phase": said(phase), "message": said("Out of memory"), "cause": said("host_memory")}
    detected = {} if unified is None else {"unified_memory": said(unified)}
    made = assemble(start(outcome="failed", failure=failure), Extras(options=options(gpu=GPU), detected=detected))
    assert made.observation().outcome == outcome
    assert made.draft["failure"]["cause"] == "host_memory"


@pytest.mark.parametrize(
    ("unified", "phase", "outcome", "cause"),
    [
        (False, "pool", "failed", "killed"),
        (True, "serving", "failed", "killed"),
        (True, "pool", "oom_startup", "host_memory"),
        (True, "load", "oom_startup", "host_memory"),
    ],
)
def test_a_kill_while_starting_is_want_of_memory_where_the_host_shares_it(
    unified: bool, phase: str, outcome: str, cause: str
) -> None:
    """On a Jetson or a Spark the kernel kills what fills the memory, and the log holds "Killed" alone."""
    failure = {"phase": said(phase), "message": said("Killed"), "cause": said("killed")}
    extras = Extras(options=options(gpu=GPU), detected={"unified_memory": said(unified)})
    made = assemble(start(outcome="failed", failure=failure), extras)
    assert (made.observation().outcome, made.draft["failure"]["cause"]) == (outcome, cause)


def test_missing_facts_are_named_with_the_option_that_gives_them() -> None:
    """What the service always needs is asked for by option; the draft still shows all that is known."""
    made = assemble(start(facts={}, flags={}, measurements={}))
    assert made.missing == (
        "hardware.gpu", "hardware.gpu_count", "model.name", "flags.mem_fraction_static", "measurements.pool_tokens",
    )  # fmt: skip
    with pytest.raises(IncompleteError, match="--gpu") as caught:
        made.observation()
    assert caught.value.missing == made.missing
    draft = msgspec.json.decode(made.json())
    assert draft["hardware"]["gpu"] is None
    assert draft["id"] is None


def test_impossible_figures_are_left_out_and_reported() -> None:
    """A negative size, a NaN or a pool of nothing never reaches the service."""
    measured = {
        "pool_tokens": said(0),
        "kv_cache_gib": said(1.5),
        "free_at_ready_gib": said(-1.0),
        "graph_gib": said(float("nan")),
    }
    made = assemble(start(measurements=measured), Extras(options=options(gpu=GPU)))
    found = made.observation().measurements
    assert (found.pool_tokens, found.kv_cache_gib, found.free_at_ready_gib, found.graph_gib) == (None, 1.5, None, None)
    assert len(made.contradictions) == 3


def test_failures_carry_phase_and_words_and_ready_starts_none() -> None:
    """A failed start tells its phase and its words; a ready one has no failure at all."""
    failure = {"phase": said("pool"), "message": said("Not enough memory"), "minimum_fraction": said(0.83)}
    made = assemble(start(outcome="refused", failure=failure), Extras(options=options(gpu=GPU))).observation()
    assert made.failure is not None
    assert (made.failure.phase, made.failure.minimum_fraction) == ("pool", 0.83)
    assert assemble(start(failure=failure), Extras(options=options(gpu=GPU))).observation().failure is None


def test_secrets_do_not_leave_the_host() -> None:
    """API keys vanish from flags, excerpt, failure words and sources, wherever they stand in the text."""
    secret = "sk-abcdefghij0123456789"
    made = assemble(
        start(
            outcome="failed",
            flags={
                "api_key": said(secret),
                "hf_token": said(secret),
                "max_total_tokens": said(5),
                "url": said(f"http://u:{secret}@h/"),
            },
            failure={"message": said(f"bad call, Authorization: Bearer {secret}")},
            excerpt=[f"ServerArgs(api_key='{secret}', tp_size=8)", f"--api-key {secret}", f"['--api-key', '{secret}']"],
            contradictions=[f"api_key: {secret}"],
        ),
        Extras(options=options(gpu=GPU)),
    )
    everything = made.json().decode() + str(made.sources) + str(made.contradictions)
    assert secret not in everything
    assert '"max_total_tokens":5' in everything
    assert "tp_size=8" in everything


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [("api_key", True), ("adminApiKey", True), ("HF_TOKEN", True), ("ssl_keyfile_password", True), ("auth", True),
     ("full_token", False), ("swa_token", False),
     ("max_total_tokens", False), ("tokenizer_path", False), ("eos_token", False),  ("num_draft_tokens", False),
     ("tokenizer_mode", False), ("token", True), ("mem_fraction_static", False), ("keep_alive", False)],
)  # fmt: skip
def test_secret_names_are_told_from_counts_of_tokens(name: str, is_secret: bool) -> None:
    """Keys named like secrets are secrets; counts and kinds of text tokens are not."""
    assert looks_secret(name) is is_secret


def test_redaction_is_quick_on_hostile_text() -> None:
    """Text made to slow a pattern down is redacted in well under a second."""
    for text in (
        "a" * 20_000 + "=" * 2_000,
        "--" * 50_000,
        "token " * 20_000 + "'" + "\\" * 10_000,
        "://" + ":" * 50_000,
        "0a" * 20_000,
    ):
        redacted(text)
    assert redacted("nothing to hide: tp_size=8") == "nothing to hide: tp_size=8"


def test_excerpt_is_bounded_and_printable() -> None:
    """The excerpt holds whole lines up to a few KB, without control signs."""
    made = assemble(
        start(excerpt=[f"\x1b[31m{number} " + "x" * 900 + "\0" for number in range(50)]),
        Extras(options=options(gpu=GPU)),
    )
    excerpt = made.observation().log_excerpt or ""
    assert 0 < len(excerpt) <= LONGEST_EXCERPT
    assert all(sign.isprintable() or sign == "\n" for sign in excerpt)


def test_unfinished_starts_are_never_posted() -> None:
    """A start that was neither ready nor failed when the log ended cannot become an observation."""
    with pytest.raises(IncompleteError):
        assemble(start(outcome="unfinished"), Extras(options=options(gpu=GPU))).observation()


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("/models/cache/hub/models--moonshotai--Kimi-K2.6/snapshots/0a1b2c", "moonshotai/Kimi-K2.6"),
        ("/data/models/Kimi-K2.6/", "Kimi-K2.6"),
        ("./Kimi-K2.6", "Kimi-K2.6"),
        ("moonshotai/Kimi-K2.6", "moonshotai/Kimi-K2.6"),
    ],
)
def test_model_paths_become_names(told: str, name: str) -> None:
    """A cache folder gives the hub's name and any other path its last part, and the source says so."""
    made = assemble(start(facts={"model_name": said(told)}), Extras(options=options(gpu=GPU)))
    assert made.observation().model.name == name
    assert (told in made.sources["model.name"]) == (told != name)


@pytest.mark.parametrize(
    ("told", "served", "configured", "name"),
    [
        ("/model", "deepseek-v4-flash-0731", None, "deepseek-v4-flash-0731"),
        ("/models/model/", "dsv4-pro", "org/DSV4", "dsv4-pro"),
        ("/models/x/snapshots/0a1b2c3d4e5f", "x-served", None, "x-served"),
        ("/models/x/snapshots/0a1b2c3d4e5f", None, None, "x"),
        ("/cache/models--a--B-7B/snapshots/0a1b2c3d4e5f", "served", None, "a/B-7B"),
        ("/model", "/model", "org/Name-7B", "org/Name-7B"),
        ("/weights", None, "/home/trainer/out/Name-7B", "Name-7B"),
        ("s3://bucket/qwen3/weights/", "qwen3-8b", None, "qwen3-8b"),
        ("/models/Qwen3-8B", "alias", None, "Qwen3-8B"),
        ("/data/checkpoint-1200", "tuned", None, "tuned"),
        (None, "served", None, "served"),
    ],
)
def test_a_path_that_names_no_model_takes_the_served_name(
    told: str | None, served: str | None, configured: str | None, name: str
) -> None:
    """A mount path gives way to the served name, then to the folder above a snapshot, then to the config's name."""
    facts = {"model_name": told and said(told), "served_model_name": served and said(served)}
    extras = Extras(options=options(gpu=GPU), model_name=configured and said(configured, "config.json"))  # type: ignore[arg-type]  # None stays None
    made = assemble(start(facts={key: value for key, value in facts.items() if value}), extras)
    assert made.observation().model.name == name


@pytest.mark.parametrize("told", ["/model", "/models/model/", "/mnt/data/", "/checkpoint", "/models/latest"])
def test_a_path_that_names_no_model_is_asked_for(told: str) -> None:
    """Two models never share the name of a mount: without another name, the name is missing."""
    made = assemble(start(facts={"model_name": said(told)}), Extras(options=options(gpu=GPU)))
    assert made.missing == ("model.name",)


def test_config_keeps_sizes_and_lifts_the_language_part(tmp_path: Path) -> None:
    """Numbers, short texts and lists are kept, the language part of a multimodal model comes to the top."""
    config = {"model_type": "x", "text_config": {"num_hidden_layers": 61, "layer_types": ["full"] * 61},
              "vision_config": {"depth": 3}, "id2label": {"0": "a"}, "long": "x" * 1000, "nothing": None}  # fmt: skip
    file = tmp_path / "config.json"
    file.write_bytes(msgspec.json.encode(config))
    facts = {"model_type": "x", "num_hidden_layers": 61, "layer_types": ["full"] * 61}
    assert read_model_config(tmp_path) == read_model_config(file) == kept_facts(config) == facts


def test_config_gives_what_sizes_the_caches_and_nothing_else(tmp_path: Path) -> None:
    """Secrets and fields that nobody asked for stay on the host, at the top, nested, and inside of texts."""
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128], "api_key": "k1", "ignore": ["lm_head"]}
    config = {"num_hidden_layers": 61, "quantization_config": quantised, "rope_scaling": {"factor": 4.0, "x": "k2"},
              "text_config": {"head_dim": 128, "aws_secret_access_key": "k3"}, "api_key": "k4", "hf_token": "k5",
              "password": "k6", "internal_note": "k7", "model_type": "sk-abcdefghij0123456789"}  # fmt: skip
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    assert read_model_config(tmp_path) == {
        "num_hidden_layers": 61,
        "head_dim": 128,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        "rope_scaling": {"factor": 4.0},
    }


def test_config_names_its_model(tmp_path: Path) -> None:
    """The name that the model was saved under is read; one that looks like a secret is not."""
    (tmp_path / "config.json").write_text('{"_name_or_path": "org/Name-7B"}')
    assert name_in_config(tmp_path) == name_in_config(tmp_path / "config.json") == "org/Name-7B"
    for other in (
        '{"_name_or_path": ""}',
        "{}",
        '{"_name_or_path": 7}',
        '{"_name_or_path": "sk-abcdefghij0123456789"}',
    ):
        (tmp_path / "config.json").write_text(other)
        assert name_in_config(tmp_path) is None


def test_a_pipe_is_no_model_config(tmp_path: Path) -> None:
    """A named pipe that nobody writes to is refused at once."""
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(SourceError, match="not a regular file"):
        read_model_config(tmp_path / "config.json")


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_wrong_config_files_are_named(tmp_path: Path, content: bytes) -> None:
    """A config that is no JSON object is an error with the file's name; so is one that is not there."""
    file = tmp_path / "config.json"
    file.write_bytes(content)
    for path in (file, tmp_path / "nowhere"):
        with pytest.raises(SourceError, match=str(path)):
            read_model_config(path)


def test_config_is_found_where_the_engine_found_the_model(tmp_path: Path) -> None:
    """The newest snapshot of the hub's cache, or the model's own folder, gives the config."""
    snapshot = tmp_path / "hub" / "models--a--b" / "snapshots" / "1"
    for folder in (snapshot, tmp_path / "local"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    environment = {"HF_HOME": str(tmp_path)}
    assert find_model_config("a/b", environment) == snapshot / "config.json"
    assert find_model_config(str(tmp_path / "local"), environment) == tmp_path / "local" / "config.json"
    assert find_model_config("a/c", environment) is None


def test_every_combination_of_sources_is_stable() -> None:
    """Whatever sources are present, assembling never fails, and is the same each time."""
    pieces: list[dict[str, Sourced]] = [{}, options(gpu=GPU), options(gpu="Other", host="h", gpu_count=2)]
    for first, second, third in itertools.product(pieces, pieces, pieces):
        extras = Extras(options=first, detected=second, configured=third)
        assert assemble(start(), extras).json() == assemble(start(), extras).json()


def test_a_gpu_that_is_only_named_is_unified_where_the_table_has_it() -> None:
    """A name in the table is unified memory, another name is unknown, and the GPU's own tool wins."""
    named = {
        gpu: assemble(start(), Extras(options=options(gpu=gpu))).observation().hardware.unified_memory
        for gpu in ("NVIDIA GB10", "AMD Radeon 8060S Graphics", "NVIDIA GB200", GPU)
    }
    assert list(named.values()) == [True, True, None, None]
    told = Extras(detected=detected(gpu="NVIDIA GB10", gpu_count=1, unified_memory=False))
    assert assemble(start(), told).observation().hardware.unified_memory is False
