"""The command line of train.py: parsing of values, help, precedence of files and flags, one-line errors."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import tasks
import zoo
from lab import config as cli
from lab.build import build, build_task
from lab.config.bind import fit
from lab.plain import read_mapping, read_text
from tests import ROOT, python, refused
from tests.lab.runs import shown
from zoo.errors import UsageError
from zoo.mixers.hybrid import Hybrid

CONFIGS = ROOT / "configs"
DRAWN = random.Random(0)


def parse(*argv: str) -> dict[str, Any]:
    return cli.parse(argv).config


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def parse_text(tmp_path: Path, text: str, *argv: str) -> dict[str, Any]:
    return parse("--config", write(tmp_path / "given.yaml", text), *argv)


# Values


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("5", int, 5),
        ("5", float, 5.0),
        ("5", str, "5"),
        ("null", str | None, None),
        ("null", str, "null"),
        ("2026-11-21", str, "2026-11-21"),
        ("[x", str, "[x"),
        ("true", bool, True),
        ("5e-3", float, 0.005),
        ("1e", str, "1e"),
        ("off", Literal["on", "off"], "off"),
        ("64", list[int], [64]),
        ("64,256", list[int] | None, [64, 256]),
        ("[64,256]", list[int] | None, [64, 256]),
        ("1,2", list[int] | str | int, "1,2"),
        ("[]", list[object] | None, []),
        ("{factor: 2}", Mapping[str, Any] | None, {"factor": 2}),
        ("{a: 1}, {a: 2}", list[dict[str, int]], [{"a": 1}, {"a": 2}]),
    ],
)
def test_a_flags_text_is_parsed_by_the_type_of_its_option(text: str, hint: Any, value: Any) -> None:
    found = fit(read_text(text), hint)
    assert found == value
    assert type(found) is type(value)


def test_flags_and_files_mean_the_same(tmp_path: Path) -> None:
    file = "lr: 5e-3\ntask: {mixture: [{seq_len: 32, weight: 3}, {seq_len: 64, n_pairs: 8}], test_lengths: [64, 256]}\n"
    flags = "--lr=5e-3", "--task.mixture", "{seq_len: 32, weight: 3}, {seq_len: 64, n_pairs: 8}"
    config = parse(*flags, "--task.test_lengths", "64,256")
    assert parse_text(tmp_path, file) == config
    assert config["task"]["test_lengths"] == [64, 256]
    assert config["task"]["mixture"] == [{"seq_len": 32, "weight": 3}, {"seq_len": 64, "n_pairs": 8}]


# Help


WITHOUT_TORCH = """
import sys
from lab import training as train
for argv in map(str.split, sys.argv[1:]):
    try:
        print(train.main(argv))
    except SystemExit as stop:
        print(stop.code)
heavy = {"torch", "lightning", "jsonargparse", "numpy", "rich", "tqdm"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""


def test_help_and_errors_of_names_need_no_heavy_imports() -> None:
    helps = ("--help", "-h --mixer hybrid")
    wrong = ("--mixer hybridd", "--task=mqra", "--mixer.help atention", "--config no/such/file.yaml")
    done = python("-c", WITHOUT_TORCH, *helps, *wrong)
    assert [line for line in done.stdout.splitlines() if line.isdigit()] == ["0"] * len(helps) + ["2"] * len(wrong)
    lines = done.stderr.splitlines()
    assert len(lines) == len(wrong)
    for line, word in zip(lines, ("'hybrid'?", "'mqar'?", "'attention'?", "cannot be read"), strict=True):
        assert line.startswith("train.py: error: ")
        assert word in line


def test_help_lists_every_mixer_and_task_and_only_existing_flags(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--help")
    for registry in cli.REGISTRIES.values():
        for name in registry:
            assert re.search(rf"^  {name} +{re.escape(registry.summary(name))}$", text, re.MULTILINE)
    choice = cli.choose([])
    known = {*cli.declared(choice.names, choice.entries), "mixer", "task", "config", "ckpt_path", "stop_at"}
    known |= {f"{group}.{word}" for group in cli.GROUPS for word in ("help", "OPTION")}
    known |= {*cli.layers.SWITCHES, "FLAG", "task.distance"}  # the last is an option of needle
    assert set(re.findall(r"--([\w.]+)", text)) <= known


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("--mixer.help attention", "  --mixer.n_heads  int; default 4\n      query heads.\n"),
        ("--mixer.help", "\nattention only:\n"),
        ("--task.help needle", "  --task.distance "),
        ("--task.help", "  --task.test_lengths  list[int] | null; default null\n"),
        ("--model.help", "  --lr  float; default 0.005\n"),
        ("--trainer.help", "  --trainer.max_steps  int; default -1; 400 in the recipe\n"),
    ],
)
def test_help_of_a_group_shows_type_default_recipe_and_description(
    argv: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in shown(capsys, *argv.split())


# Layers


def test_later_layers_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("mixer", "task"):
        (tmp_path / folder).mkdir()
    names = "mixer: {name: lstm}\ntask: {name: needle}\n"
    write(tmp_path / "default.yaml", names + "lr: 1\nd_model: 1\nn_layers: 1\nwarmup_steps: 1\nbatch_size: 1\n")
    write(tmp_path / "mixer" / "lstm.yaml", "d_model: 2\nn_layers: 2\nwarmup_steps: 2\nbatch_size: 2\n")
    write(tmp_path / "task" / "needle.yaml", "n_layers: 3\nwarmup_steps: 3\nbatch_size: 3\n")
    monkeypatch.setattr("lab.config.layers.CONFIGS", tmp_path)
    first = write(tmp_path / "first.yaml", "warmup_steps: 4\nbatch_size: 4\nseed: 4")
    second = write(tmp_path / "second.yaml", "batch_size: 5\nseed: 5")
    command = cli.parse(["--seed", "6", "--config", first, "--config", second])
    keys = ("lr", "d_model", "n_layers", "warmup_steps", "batch_size", "seed", "beta1")
    assert [command.config[key] for key in keys] == [1, 2, 3, 4, 5, 6, 0.9]
    assert [command.defaults[key] for key in keys] == [1, 2, 3, 3, 3, 0, 0.9]  # without the given files and flags
    assert (command.config["mixer"]["name"], command.config["task"]["name"]) == ("lstm", "needle")


def test_another_name_drops_the_group_of_a_file(tmp_path: Path) -> None:
    text = "mixer: {name: attention, n_heads: 8}\ntask: {name: needle, distance: 16}\nlr: 1e-2\n"
    assert parse_text(tmp_path, text)["mixer"]["n_heads"] == 8
    changed = parse_text(tmp_path, text, "--mixer", "lstm", "--task", "mqar")
    assert changed["mixer"] == parse("--mixer", "lstm")["mixer"]
    assert changed["task"]["name"] == "mqar"
    assert changed["lr"] == 0.01  # other options stay
    above = write(tmp_path / "above.yaml", "mixer: lstm")
    assert parse_text(tmp_path, text, "--config", above)["mixer"]["name"] == "lstm"


def test_the_recipe_of_a_task_may_set_the_mixer_unless_one_is_given(tmp_path: Path) -> None:
    assert parse("--task", "ssm_teacher")["mixer"]["name"] == "factorized"
    assert parse("--task", "ssm_teacher", "--mixer", "lstm")["mixer"]["name"] == "lstm"
    assert parse_text(tmp_path, "mixer: lstm", "--task", "ssm_teacher")["mixer"]["name"] == "lstm"


@pytest.mark.parametrize(
    "argv",
    [
        *(["--mixer", name] for name in ("attention", "hybrid", *DRAWN.sample(zoo.list_mixers(), 4))),
        *(["--task", name] for name in DRAWN.sample(tasks.list_tasks(), 4)),
        ["--mixer.pattern", "[lstm, {name: attention, n_heads: 2}, attention]", "--mixer.n_kv_heads", "1"],
        ["--run_dir", "1e3", "--lr", "1e-05", "--trainer.callbacks", "LearningRateMonitor"],
    ],
    ids=" ".join,
)
def test_the_output_of_print_config_is_a_config_of_the_same_run(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse_text(tmp_path, shown(capsys, *argv, "--print_config")) == parse(*argv)


def test_an_alias_makes_the_same_run(tmp_path: Path) -> None:
    named = parse("--mixer", "selective_ssm", "--mixer.d_state", "8")
    assert parse("--mixer", "mamba", "--mixer.d_state", "8") == named
    assert parse_text(tmp_path, "mixer: {name: mamba, d_state: 8}") == named
    pattern = parse("--mixer.pattern", "[selective_ssm, {name: ssd, d_state: 8}]")
    assert parse("--mixer.pattern", "[mamba, {name: mamba2, d_state: 8}]") == pattern


# Hybrids


def member(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The options with which a hybrid builds this member."""
    options = {key: value for key, value in config["mixer"].items() if key not in ("name", "pattern")}
    return next(entry for entry in Hybrid.distribute(config["mixer"]["pattern"], options) if entry["name"] == name)


def test_options_of_a_hybrid_reach_its_members() -> None:
    assert member(parse("--mixer.n_heads", "2"), "attention")["n_heads"] == 2
    both = parse("--mixer.attention.d_conv", "2", "--mixer.d_conv", "3")
    assert (member(both, "selective_ssm")["d_conv"], member(both, "attention")["d_conv"]) == (3, 2)
    entry = parse("--mixer.pattern", "[{name: attention, n_heads: 8}]", "--mixer.n_heads", "2")
    assert member(entry, "attention")["n_heads"] == 8


def test_a_higher_layer_wins_in_any_form_of_an_option(tmp_path: Path) -> None:
    # configs/mixer/hybrid.yaml sets attention.position; a flag for all members takes precedence.
    assert member(parse(), "attention")["position"] == "rope"
    assert member(parse("--mixer.position", "alibi"), "attention")["position"] == "alibi"
    text = "mixer: {pattern: [{name: attention, n_heads: 8, d_head: 2}]}"
    assert member(parse_text(tmp_path, text), "attention")["n_heads"] == 8
    flagged = member(parse_text(tmp_path, text, "--mixer.n_heads", "2"), "attention")
    assert (flagged["n_heads"], flagged["d_head"]) == (2, 2)


def test_another_pattern_drops_lower_layers_options_of_absent_members(tmp_path: Path) -> None:
    text = "mixer: {name: hybrid, attention: {n_heads: 2}, lstm: {forget_bias: 2.0}, pattern: [attention, lstm]}"
    config = parse_text(tmp_path, text, "--mixer.pattern", "[lstm]")
    assert set(config["mixer"]) == {"name", "pattern", "lstm"}
    assert member(config, "lstm")["forget_bias"] == 2.0
    with pytest.raises(UsageError, match=r"given.yaml: unknown key mixer.attention.n_heads"):
        parse_text(tmp_path, "mixer: {attention: {n_heads: 2}, pattern: [lstm]}")


# Files in configs/


@pytest.mark.parametrize(
    "path", [*CONFIGS.glob("mixer/*.yaml"), *CONFIGS.glob("task/*.yaml")], ids=lambda path: path.stem
)
def test_a_recipe_builds_the_mixer_or_the_task_of_its_name(path: Path) -> None:
    group = path.parent.name
    if path.stem in cli.REGISTRIES[group]:  # recipes with one layer, such as ssm_teacher's, do not fit a hybrid
        config = parse("--mixer", "factorized", f"--{group}", path.stem)
        assert read_mapping(path).get(group, {}).get("name", path.stem) == path.stem
    else:
        config = parse("--config", str(path))  # such a file sets its mixer itself
    with torch.device("meta" if group == "mixer" else "cpu"):
        task, _ = build(config)
    assert group == "mixer" or task.name == path.stem


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("task/published/*.yaml")), ids=lambda path: path.stem)
def test_a_published_shape_overrides_every_option_of_the_small_recipe(path: Path) -> None:
    task = read_mapping(path)["task"]
    assert path.stem.partition("-")[0] == build_task(parse("--config", str(path))).name == task["name"]
    assert set(read_mapping(CONFIGS / "task" / f"{task['name']}.yaml")["task"]) <= set(task)


# Bad input


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--mixer.n_headz 4", "flag --mixer.n_headz (did you mean --mixer.n_heads?); choose from: mixer.pattern"),
        ("--mixer lstm --mixer.n_heads 4", "choose from: mixer.d_inner, mixer.forget_bias"),
        ("--n_heads 4", "did you mean --mixer.n_heads?"),
        ("--trainer.max_step 4", "did you mean --trainer.max_steps?); see --trainer.help"),
        ("--task needle --task.n_pairs 4", "choose from: task.distance"),
        ("hybrid", "unrecognized argument: hybrid; give --mixer hybrid"),
        ("--steps 5", "(did you mean --trainer.max_steps?)"),
        ("--device cpu", "(did you mean --trainer.accelerator?)"),
        ("--mixer attention,lstm", "--mixer attention,lstm: to run several, use sweep.py"),
        ("--seed 0-4", "seed: expected int; got 0-4; for several values, use sweep.py"),
        ("--seed 0..3", "seed: expected int; got 0..3; for several values, use sweep.py"),
        ("--trainer.callbacks+=Timer", "Timer has arguments that YAML cannot represent"),
        ("--mixer", "--mixer: expected one argument"),
        ("--lr fast", "lr: expected float; got fast"),
        ("--compile 1", "compile: expected bool; got 1"),
        ("--mixer.position up", "mixer.position: expected one of 'none', 'rope', 'alibi', 'relative'; got up"),
        ("--task.test_lengths 1,x", "task.test_lengths: expected one of list[int], null; got 1,x"),
        ("--task.test_lengths [64", "--task.test_lengths: not valid YAML"),
        ("--mixer.pattern lstm", "must be a list of mixers"),
        ("--mixer.pattern []", "pattern must name at least one mixer"),
        ("--mixer.pattern [{n_heads:4}]", "needs a name"),
        ("--mixer.pattern [{name: lstm, d_iner: 4}]", "did you mean mixer.lstm.d_inner?"),
        ("--mixr lstm", "unknown flag --mixr (did you mean --mixer?); choose from: mixer, task, "),
        ("--overwrit", "unknown flag --overwrit (did you mean --overwrite?)"),
        ("--overwrite=yes", "--overwrite takes no value, got yes"),
        ("--model.help lstm", "--model.help takes no value, got lstm"),
        ("--lr.final 1", "unknown flag --lr.final (did you mean --final_lr?)"),
        ("--stop_at 1.5", "--stop_at must be a number of steps"),
        ("--trainer.logger Nonsense", "trainer.logger: no such class, got Nonsense; see --trainer.logger.help CLASS"),
        ("--trainer.logger.save_dir x", "trainer.logger: name the class before its arguments: --trainer.logger CLASS"),
        ("--trainer.logger CSVLogger", "CSVLogger: the following arguments are required: save_dir"),
        ("--trainer.logger CSVLogger --trainer.logger.dir x", "CSVLogger: Option 'dir' is not accepted"),
    ],
)
def test_a_bad_flag_is_a_one_line_error(argv: str, message: str) -> None:
    flag, bracket, value = argv.partition(" [")
    with refused(re.escape(message), UsageError):
        cli.parse([*flag.split(), *([f"[{value}"] if bracket else [])])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr: [1", "not valid YAML"),
        ("mixer: {name: hybrid}\nlr: 1e-3\nlr: 1e-2", "line 3: lr is given twice"),
        ("1: 2", "must contain a mapping"),
        ("mixer: [attention]", "mixer must be a mapping"),
        ("mixer: {name: 5}", "unknown mixer 5"),
        ("mixer: {n_headz: 5}", "unknown key mixer.n_headz (did you mean mixer.n_heads?)"),
        ("mixer: {attention: 5}", "unknown key mixer.attention"),
        ("ckpt_path: last.ckpt", "unknown key ckpt_path"),
        ("trainer: {logger: {class_path: CSVLogger}}", "CSVLogger: the following arguments are required: save_dir"),
        (b"\xff\xfe\x00", "cannot be read: not UTF-8"),
        (None, "cannot be read: Is a directory"),
    ],
)
def test_a_bad_file_is_a_one_line_error_with_its_name(text: str | bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "given.yaml"
    if text is None:
        path.mkdir()
    else:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    with refused(rf"--config \S+given\.yaml: .*{re.escape(message)}", UsageError):
        parse("--config", str(path))


# Objects


def test_objects_can_be_given_by_class_in_flags_and_files(tmp_path: Path) -> None:
    flags = "EarlyStopping --trainer.callbacks.monitor val/loss --trainer.callbacks+=LearningRateMonitor"
    command = cli.parse(["--trainer.callbacks", *flags.split()])
    text = "trainer: {callbacks: [{class_path: EarlyStopping, init_args: {monitor: val/loss}}, LearningRateMonitor]}"
    assert parse_text(tmp_path, text) == command.config
    names = ["EarlyStopping", "LearningRateMonitor"]
    assert [each["class_path"].rpartition(".")[2] for each in command.config["trainer"]["callbacks"]] == names
    assert [type(each).__name__ for each in command.trainer["callbacks"]] == names
    assert command.defaults["trainer"]["callbacks"] is None
    assert parse_text(tmp_path, text, "--trainer.callbacks", "null")["trainer"]["callbacks"] is None


# An environment without the packages


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "absent", "argv"),
    [
        ("lab.training", "torch", ""),
        ("lab.training", "lightning", "--mixer lstm"),
        ("lab.sweep.sweep", "torch", "--mixer lstm"),
        ("lab.__main__", "rich", "leaderboard"),
        ("zoo.__main__", "torch", "measure"),
    ],
)
def test_a_missing_package_is_a_one_line_error(module: str, absent: str, argv: str) -> None:
    """For example if `python train.py` runs outside the environment."""
    without = f"import sys; sys.modules[{absent!r}] = None; from {module} import main; sys.exit(main({argv.split()}))"
    done = python("-c", without, status=2)
    assert absent in done.stderr
    assert done.stderr.count("\n") == 1
