"""The command line: what each source of values decides, and one line for whatever cannot be followed."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

import tasks
import zoo
from lab import config as cli
from lab.config.bind import fit
from lab.plain import read_text, read_yaml
from tests import ROOT, python, refused, slow
from tests.cases import KINDS
from tests.lab.runs import shown
from zoo.errors import UsageError

SHIPPED = sorted((ROOT / "configs").glob("mixer/*.yaml")) + sorted((ROOT / "configs").glob("task/*.yaml"))

PUBLISHED = sorted((ROOT / "configs").glob("task/published/*.yaml"))


def parse(*argv: str) -> dict[str, Any]:
    return cli.parse(argv).config


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def parse_text(tmp_path: Path, text: str, *argv: str) -> dict[str, Any]:
    return parse("--config", write(tmp_path / "given.yaml", text), *argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["--task.test_lengths", "64,256,1024"],
        ["--task.test_lengths=64,256,1024"],
        ["--task.test_lengths", "[64, 256, 1024]"],
        ["--task.test_lengths=[64,256,1024]"],
    ],
)
def test_lengths_are_a_list_in_each_form(argv: list[str], tmp_path: Path) -> None:
    assert parse(*argv)["task"]["test_lengths"] == [64, 256, 1024]
    assert parse("--task.test_lengths", "64")["task"]["test_lengths"] == [64]
    assert parse_text(tmp_path, "task: {test_lengths: [64, 256]}")["task"]["test_lengths"] == [64, 256]
    assert parse("--task", "needle")["task"]["test_lengths"] is None


@pytest.mark.parametrize(
    "text",
    ["{seq_len: 32, weight: 3}, {seq_len: 64, n_pairs: 8}", "[{seq_len: 32, weight: 3}, {seq_len: 64, n_pairs: 8}]"],
)
def test_a_mixture_is_a_list_of_mappings_in_each_form(text: str, tmp_path: Path) -> None:
    segments = [{"seq_len": 32, "weight": 3}, {"seq_len": 64, "n_pairs": 8}]
    assert parse("--task.mixture", text)["task"]["mixture"] == segments
    assert parse("--task.test_segments", "{seq_len: 32}")["task"]["test_segments"] == [{"seq_len": 32}]
    file = "task:\n  mixture:\n  - {seq_len: 32, weight: 3}\n  - {seq_len: 64, n_pairs: 8}\n"
    assert parse_text(tmp_path, file)["task"]["mixture"] == segments
    assert parse_text(tmp_path, file, "--task.mixture", "{seq_len: 16}")["task"]["mixture"] == [{"seq_len": 16}]


# Names come before everything else


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--help"], "mixers:"),
        (["-h", "--mixer", "hybrid"], "examples:"),
        (["--mixer", "hybridd"], "did you mean 'hybrid'?"),
        (["--mixer=hybridd"], "choose from: attention, "),
        (["--task", "mqra"], "did you mean 'mqar'?"),
        (["--mixer.help", "atention"], "did you mean 'attention'?"),
        (["--config", "no/such/file.yaml"], "no/such/file.yaml: cannot be read: No such file or directory"),
    ],
)
def test_names_and_help_answer_without_the_heavy_imports(argv: list[str], said: str) -> None:
    code = (
        "import sys; from lab import train; status = 0\n"
        "try: status = train.main(sys.argv[1:])\n"
        "except SystemExit as stop: status = stop.code\n"
        "heavy = {'torch', 'lightning', 'jsonargparse', 'numpy', 'rich', 'tqdm'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    wrong = "did you mean" in said or "choose" in said or "read" in said
    done = python("-c", code, *argv, status=2 if wrong else 0)
    assert said in (done.stderr if wrong else done.stdout)
    if wrong:
        assert re.fullmatch(r"train\.py: error: [^\n]+\n", done.stderr)


def test_help_names_every_mixer_and_task_and_only_flags_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--help")
    for registry in cli.REGISTRIES.values():
        for name in registry:
            assert re.search(rf"^  {name} +{re.escape(registry.summary(name))}$", text, re.MULTILINE)
    options = cli.declared((choice := cli.choose([])).names, choice.entries)
    known = {*options, "mixer", "task", "config", "ckpt_path", "test_only", "no_test", "stop_at", "overwrite"}
    known |= {f"{group}.{word}" for group in cli.GROUPS for word in ("help", "OPTION")}
    known |= {"print_config", "FLAG", "task.distance"}  # the latter of needle, in an example
    assert set(re.findall(r"--([\w.]+)", text)) <= known


def test_help_of_a_group_says_type_default_recipe_and_meaning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    lines_of = {
        "--mixer.help attention": [
            "  --mixer.n_kv_heads ",
            "  --mixer.n_heads  int; default 4\n      query heads.\n",
            "  --mixer.position  'none' | 'rope' | 'alibi' | 'relative'; default none; rope in the recipe\n",
            "  --mixer.d_head  int | null; default null\n      width of a head; default d_model / n_heads.\n",
        ],
        "--mixer.help gdn2": ["  --mixer.gates  'head' | 'channel'; default channel\n"],
        "--mixer.help": ["  --mixer.n_heads  int\n", "of attention only:\n", "  --mixer.attention.n_heads "],
        "--task.help needle": ["  --task.distance "],
        "--task.help": [
            "  --task.n_train ",
            "  --task.test_lengths  list[int] | null; default null\n      further lengths",
        ],
        "--model.help": [
            "  --warmup_steps ",
            "  --lr  float; default 0.005\n",
            "  --run_dir  str; default runs\n      folder that holds",
        ],
        "--trainer.help": ["  --trainer.max_steps  int; default -1; 400 in the recipe\n", "logger.help CLASS"],
    }
    for argv, lines in lines_of.items():
        text = shown(capsys, *argv.split())
        assert [line for line in lines if line not in text] == []


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
    config = parse("--seed", "6", "--config", first, "--config", second)
    got = [config[key] for key in ("lr", "d_model", "n_layers", "warmup_steps", "batch_size", "seed", "beta1")]
    assert got == [1, 2, 3, 4, 5, 6, 0.9]
    assert config["mixer"]["name"] == "lstm"
    assert config["task"]["name"] == "needle"


def test_defaults_are_the_layers_below_files_and_flags(tmp_path: Path) -> None:
    path = write(tmp_path / "given.yaml", "lr: 0.5")
    command = cli.parse(["--config", path, "--mixer", "attention", "--mixer.n_heads", "2"])
    assert (command.defaults["lr"], command.config["lr"]) == (0.005, 0.5)
    assert (command.defaults["mixer"]["n_heads"], command.config["mixer"]["n_heads"]) == (4, 2)
    assert command.defaults["mixer"]["position"] == command.config["mixer"]["position"] == "rope"


def test_another_name_drops_the_group_of_a_file(tmp_path: Path) -> None:
    text = "mixer: {name: attention, n_heads: 8}\ntask: {name: needle, distance: 16}\nlr: 1e-2\n"
    assert parse_text(tmp_path, text)["mixer"]["n_heads"] == 8
    changed = parse_text(tmp_path, text, "--mixer", "lstm", "--task", "mqar")
    assert changed["mixer"] == {"name": "lstm"} | cli.parse(["--mixer", "lstm"]).config["mixer"]
    assert changed["task"]["name"] == "mqar"
    assert changed["lr"] == 0.01  # what is not the mixer's stays
    above = write(tmp_path / "above.yaml", "mixer: lstm")
    assert parse_text(tmp_path, text, "--config", above)["mixer"]["name"] == "lstm"


def test_a_task_made_for_one_mixer_names_it_unless_another_is_given(tmp_path: Path) -> None:
    assert parse("--task", "ssm_teacher")["mixer"]["name"] == "factorized"
    assert parse("--task", "ssm_teacher", "--mixer", "lstm")["mixer"]["name"] == "lstm"
    assert parse_text(tmp_path, "mixer: lstm", "--task", "ssm_teacher")["mixer"]["name"] == "lstm"


def test_numbers_without_a_point_are_numbers(tmp_path: Path) -> None:
    config = parse_text(tmp_path, "lr: 5e-3\nmixer: {pattern: [{name: selective_ssm, dt_max: 2e-1}]}\n")
    assert config["lr"] == 0.005
    assert config["mixer"]["pattern"] == [{"name": "selective_ssm", "dt_max": 0.2}]


@pytest.mark.parametrize(
    "argv",
    [
        *(slow(["--mixer", name], unless=name in KINDS) for name in zoo.list_mixers()),
        *(slow(["--task", name], unless=name == "mqar") for name in tasks.list_tasks()),
        ["--mixer.pattern", "[lstm, {name: attention, n_heads: 2}, attention]", "--mixer.n_kv_heads", "1"],
        ["--mixer", "attention", "--lr", "1e-05", "--d_channel", "0", "--trainer.precision", "bf16-mixed"],
        ["--run_dir", "1e3", "--trainer.callbacks", "LearningRateMonitor"],
    ],
    ids=" ".join,
)
def test_print_config_is_read_back(argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_text(tmp_path, shown(capsys, *argv, "--print_config")) == parse(*argv)


# Hybrids


def member(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Options with which the hybrid of a configuration builds a member."""
    options = {key: value for key, value in config["mixer"].items() if key not in ("name", "pattern")}
    distribute = cli.REGISTRIES["mixer"]["hybrid"].distribute
    return next(entry for entry in distribute(config["mixer"]["pattern"], options) if entry["name"] == name)


def test_options_of_a_hybrid_reach_its_members() -> None:
    assert member(parse("--mixer.n_heads", "2"), "attention")["n_heads"] == 2
    assert member(parse("--mixer.attention.n_heads", "2"), "attention")["n_heads"] == 2
    both = parse("--mixer.d_conv", "3", "--mixer.attention.d_conv", "2")
    assert (member(both, "selective_ssm")["d_conv"], member(both, "attention")["d_conv"]) == (3, 2)


def test_a_higher_layer_wins_in_whatever_form_it_speaks(tmp_path: Path) -> None:
    # configs/mixer/hybrid.yaml says attention.position by member; a bare flag stands above it.
    assert member(parse(), "attention")["position"] == "rope"
    assert member(parse("--mixer.position", "alibi"), "attention")["position"] == "alibi"
    text = "mixer: {pattern: [{name: attention, n_heads: 8, d_head: 2}]}"
    assert member(parse_text(tmp_path, text), "attention")["n_heads"] == 8
    flagged = member(parse_text(tmp_path, text, "--mixer.n_heads", "2"), "attention")
    assert (flagged["n_heads"], flagged["d_head"]) == (2, 2)


def test_an_entry_wins_over_options_given_beside_it() -> None:
    config = parse("--mixer.pattern", "[{name: attention, n_heads: 8}]", "--mixer.n_heads", "2")
    assert member(config, "attention")["n_heads"] == 8


def test_another_pattern_drops_what_lower_layers_say_of_absent_members(tmp_path: Path) -> None:
    text = "mixer: {name: hybrid, attention: {n_heads: 2}, lstm: {forget_bias: 2.0}, pattern: [attention, lstm]}"
    config = parse_text(tmp_path, text, "--mixer.pattern", "[lstm]")
    assert set(config["mixer"]) == {"name", "pattern", "lstm"}
    assert member(config, "lstm")["forget_bias"] == 2.0
    with pytest.raises(UsageError, match=r"given.yaml: unknown key mixer.attention.n_heads"):
        parse_text(tmp_path, "mixer: {attention: {n_heads: 2}, pattern: [lstm]}")


# Shipped files


PRESETS = {"attention_canon", "hgrn2_bounded", "jamba"}  # files for --config, which name their mixer themselves


def names_of(path: Path) -> list[str]:
    if path.stem in PRESETS:
        return ["--config", str(path)]
    # One layer, as the ssm_teacher's file says, holds no hybrid.
    return ["--mixer", "factorized", f"--{path.parent.name}", path.stem]


def task_of(config: dict[str, Any]) -> tasks.Task:
    """The task of a configuration, whose group also holds the options of the data."""
    from tasks.data.datamodule import TaskDataModule

    of_data = inspect.signature(TaskDataModule).parameters
    return tasks.create_task(**{key: value for key, value in config["task"].items() if key not in of_data})


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_published_shapes_are_configurations_of_the_task_that_names_them(path: Path) -> None:
    config = parse("--config", str(path))
    assert task_of(config).name == config["task"]["name"]
    assert re.match(rf"{config['task']['name']}(-|$)", path.stem)
    assert path.read_text(encoding="utf-8").startswith("# ")  # where the shape was published


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_published_shape_takes_no_option_of_the_task_from_the_small_recipe(path: Path) -> None:
    published = yaml.safe_load(path.read_text(encoding="utf-8"))["task"]
    small = yaml.safe_load((ROOT / "configs/task" / f"{published['name']}.yaml").read_text(encoding="utf-8"))
    assert set(small["task"]) <= set(published)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_shipped_files_build_and_refuse_unknown_keys(path: Path, tmp_path: Path) -> None:
    from zoo.training import SequenceModule

    config = parse(*names_of(path))
    spec = task_of(config).spec
    apart = {"task", "trainer", "batch_size", "seed", "run_dir", "figures_every"}
    shape = {key: getattr(spec, key) for key in ("vocab_size", "d_input", "n_outputs", "loss")}
    model = SequenceModule(**{key: value for key, value in config.items() if key not in apart}, **shape)
    assert model.hparams["mixer"] == config["mixer"]
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    for group in (values, *(value for value in values.values() if isinstance(value, dict))):
        group["no_such_key"] = 1
        with pytest.raises(UsageError, match="unknown key"):
            parse_text(tmp_path, yaml.safe_dump(values), *names_of(path))
        del group["no_such_key"]


def test_shipped_files_are_named_after_what_they_configure() -> None:
    for path in SHIPPED:
        group = path.parent.name
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        registry = cli.REGISTRIES[group]
        named = values.get(group, {}).get("name", path.stem)
        assert named in registry if path.stem in PRESETS else named == path.stem
        assert (path.stem in registry) != (path.stem in PRESETS)


# What cannot be followed


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            "--mixer.n_headz 4",
            "unknown flag --mixer.n_headz (did you mean --mixer.n_heads?); choose from: mixer.pattern",
        ),
        ("--mixer.atention.n_heads 4", "did you mean --mixer.attention.n_heads?"),
        (
            "--mixer lstm --mixer.n_heads 4",
            "unknown flag --mixer.n_heads; choose from: mixer.d_inner, mixer.forget_bias",
        ),
        ("--n_heads 4", "did you mean --mixer.n_heads?"),
        ("--d_modle 4", "did you mean --d_model?"),
        ("--trainer.max_step 4", "did you mean --trainer.max_steps?); see --trainer.help"),
        ("--task needle --task.n_pairs 4", "choose from: task.distance"),
        ("hybrid", "unrecognized arguments: hybrid"),
        ("--mixer", "expected one argument"),
        ("--lr", "expected one argument"),
        ("--lr fast", "lr: expected float; got fast"),
        ("--d_model 6.5", "d_model: expected int; got 6.5"),
        ("--trainer.max_steps four", "trainer.max_steps: expected int; got four"),
        ("--mixer.position up", "mixer.position: expected one of 'none', 'rope', 'alibi', 'relative'; got up"),
        ("--backbone soft", "backbone: expected one of 'residual', 'bare'; got soft"),
        ("--mixer.pattern lstm", "must be a list of mixers"),
        ("--mixer.pattern []", "pattern must name at least one mixer"),
        ("--mixer.pattern [lstmm]", "did you mean 'lstm'?"),
        ("--mixer.pattern [hybrid]", "a hybrid cannot be a member of a hybrid"),
        ("--mixer.pattern [{n_heads:4}]", "needs a name"),
        ("--mixer.pattern [{name: lstm, d_iner: 4}]", "did you mean mixer.lstm.d_inner?"),
        ("--mixer.pattern [{name: lstm, d_inner: wide}]", "mixer.lstm.d_inner: expected one of int, null; got wide"),
        ("--mixer.pattern [lstm", "--mixer.pattern: not valid YAML"),
        ("--mixr lstm", "unknown flag --mixr (did you mean --mixer?); choose from: mixer, task, "),
        ("--tsk=mqar", "unknown flag --tsk (did you mean --task?)"),
        ("--overwrit", "unknown flag --overwrit (did you mean --overwrite?)"),
        ("--confg x.yaml", "unknown flag --confg (did you mean --config?)"),
        ("--overwrite=yes", "--overwrite takes no value, got yes"),
        ("--model.help lstm", "--model.help takes no value, got lstm"),
        ("--task.n_pairs --lr 1", "--task.n_pairs: expected one argument"),
        ("--seed true", "seed: expected int; got true"),
        ("--lr true", "lr: expected float; got true"),
        ("--compile 1", "compile: expected bool; got 1"),
        ("--task.test_lengths 64,x", "task.test_lengths: expected one of list[int], null; got 64,x"),
        ("--lr.final 1", "unknown flag --lr.final (did you mean --final_lr?)"),
        ("--trainer.max_steps+ 4", "unknown flag --trainer.max_steps+ (did you mean --trainer.max_steps?)"),
        ("--trainer.logger 5", "trainer.logger: expected one of Logger, Iterable[Logger], bool, null; got 5"),
        ("--trainer.logger Nonsense", "trainer.logger: no such class, got Nonsense; see --trainer.logger.help CLASS"),
        ("--trainer.logger.save_dir x", "trainer.logger: name the class before its arguments: --trainer.logger CLASS"),
        ("--trainer.logger CSVLogger", "CSVLogger: the following arguments are required: save_dir"),
        ("--trainer.logger CSVLogger --trainer.logger.dir x", "CSVLogger: Option 'dir' is not accepted"),
        ("--trainer.callbacks [EarlyStopping", "--trainer.callbacks: not valid YAML"),
    ],
)
def test_flags_that_cannot_be_followed(argv: str, said: str) -> None:
    flag, bracket, value = argv.partition(" [")
    with refused(re.escape(said), UsageError):
        cli.parse([*flag.split(), *([f"[{value}"] if bracket else [])])


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("5", int, 5),
        ("5", float, 5.0),
        ("5", str, "5"),
        ("5", int | str, 5),
        ("null", str | None, None),
        ("null", str, "null"),
        ("2026-11-21", str, "2026-11-21"),
        ("[x", str, "[x"),
        ("true", bool, True),
        ("off", Literal["on", "off"], "off"),
        ("64", list[int], [64]),
        ("64,256", list[int] | None, [64, 256]),
        ("1,2", list[int] | str | int, "1,2"),
        ("[]", list[object] | None, []),
        ("{factor: 2}", Mapping[str, Any] | None, {"factor": 2}),
    ],
)
def test_a_flags_text_means_what_its_option_takes(text: str, hint: Any, value: Any) -> None:
    found = fit(read_text(text), hint)
    assert found == value
    assert type(found) is type(value)


def test_every_item_of_a_list_counts() -> None:
    for items in ([*range(99), "x"], [*range(99), True]):
        with pytest.raises(ValueError, match="expected list"):
            fit(items, list[int])


def test_objects_are_given_by_class_in_each_form(tmp_path: Path) -> None:
    stopping, watching = "trainer.callbacks EarlyStopping", "--trainer.callbacks.monitor val/loss"
    flags = parse(*f"--{stopping} {watching} --trainer.callbacks+=LearningRateMonitor".split())["trainer"]["callbacks"]
    text = "trainer: {callbacks: [{class_path: EarlyStopping, init_args: {monitor: val/loss}}, LearningRateMonitor]}"
    assert parse_text(tmp_path, text)["trainer"]["callbacks"] == flags
    assert [each["class_path"].rpartition(".")[2] for each in flags] == ["EarlyStopping", "LearningRateMonitor"]
    command = cli.parse(["--config", str(tmp_path / "given.yaml")])
    assert [type(each).__name__ for each in command.trainer["callbacks"]] == ["EarlyStopping", "LearningRateMonitor"]
    assert command.defaults["trainer"]["callbacks"] is None
    assert parse_text(tmp_path, text, "--trainer.callbacks", "null")["trainer"]["callbacks"] is None


def test_what_reads_classes_is_imported_for_them_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonargparse", None)
    assert parse("--trainer.logger", "false", "--trainer.max_steps", "3")["trainer"]["logger"] is False
    with pytest.raises(ImportError, match="jsonargparse"):
        parse("--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "x")


def test_an_alias_makes_the_same_run(tmp_path: Path) -> None:
    named = parse("--mixer", "selective_ssm", "--mixer.d_state", "8")
    assert named["mixer"]["name"] == "selective_ssm"
    assert parse("--mixer", "mamba", "--mixer.d_state", "8") == named
    assert parse_text(tmp_path, "mixer: {name: mamba, d_state: 8}") == named
    assert parse_text(tmp_path, "mixer: mamba", "--mixer.d_state", "8") == named
    pattern = parse("--mixer.pattern", "[selective_ssm, {name: ssd, d_state: 8}]")
    assert pattern["mixer"]["pattern"] == ["selective_ssm", {"name": "ssd", "d_state": 8}]
    assert parse("--mixer.pattern", "[mamba, {name: mamba2, d_state: 8}]") == pattern
    assert parse_text(tmp_path, "mixer: {pattern: [mamba, {name: mamba2, d_state: 8}]}") == pattern


@pytest.mark.parametrize(
    ("text", "number"), [("1e3", 1000.0), ("2E5", 2e5), ("5e-3", 0.005), ("1.e+2", 100.0), ("-1.5E-2", -0.015)]
)
def test_numbers_with_an_exponent_are_floats(text: str, number: float) -> None:
    found = read_yaml(text, "here")
    assert type(found) is float
    assert found == number


@pytest.mark.parametrize("text", ["e3", "1e", "1e3x", "x1e3"])
def test_words_that_look_like_numbers_stay_words(text: str) -> None:
    assert read_yaml(text, "here") == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr: [1", "not valid YAML"),
        ("- lr", "must hold a mapping"),
        ("1: 2", "must hold a mapping"),
        ("mixer: [attention]", "mixer must be a mapping"),
        ("trainer: 5", "trainer must be a mapping"),
        ("mixer: {name: atention}", "did you mean 'attention'?"),
        ("mixer: {name: 5}", "unknown mixer 5"),
        ("task: mqra", "did you mean 'mqar'?"),
        ("mixer: {n_headz: 5}", "unknown key mixer.n_headz (did you mean mixer.n_heads?)"),
        ("mixer: {attention: 5}", "unknown key mixer.attention"),
        ("lrate: 5", "unknown key lrate"),
        ("lr: fast", "lr: expected float; got fast"),
        ("trainer: {max_steps: four}", "trainer.max_steps: expected int; got four"),
    ],
)
def test_files_that_cannot_be_followed_are_named(text: str, said: str, tmp_path: Path) -> None:
    with refused(rf"--config \S+given\.yaml: .*{re.escape(said)}", UsageError):
        parse_text(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for path, said in (
        (tmp_path, "Is a directory"),
        (tmp_path / "binary.yaml", "not UTF-8"),
        (tmp_path / "no", "No such"),
    ):
        with pytest.raises(UsageError, match=f"--config {re.escape(str(path))}: cannot be read: {said}"):
            cli.parse(["--config", str(path)])
