"""Tiny whole runs of train.py: output, files and curves, validation intervals, run names, one-line errors."""

from __future__ import annotations

import json
import logging
import random
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import zoo
from lab import config as cli
from lab import training as train
from lab.hparams import compared_options
from lab.run import identity
from lab.run.files import HPARAMS
from lab.run.folder import RunFolder
from lab.run.record import read_rungs
from tests import error_line, python, raising, slow
from tests.lab.runs import TINY, TinyRuns, metrics, results
from tests.training import small
from zoo.training import SequenceModule

RUNS = TinyRuns(f"{TINY} --trainer.max_steps 6 --trainer.val_check_interval 2")
command, go, folder, trained = RUNS.command, RUNS.go, RUNS.folder, RUNS.trained


def contents(path: Path) -> dict[str, tuple[int, int]]:
    """{file below path: (time of writing, size)}."""
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file): (file.stat().st_mtime_ns, file.stat().st_size) for file in files}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run_dir of a finished run."""
    run_dir = tmp_path_factory.mktemp("finished")
    trained(run_dir)
    return run_dir


# A run's files, output and curves


@pytest.mark.slow
def test_a_run_prints_its_progress_and_one_table(tmp_path: Path) -> None:
    done = python("train.py", *command(tmp_path))
    path, found = folder(tmp_path), metrics(folder(tmp_path))
    first, *table, last = done.stdout.splitlines()
    assert first == f"{path}: {found['params']:,} parameters on cpu (1 thread)"
    assert last == str(path)
    for row in (
        rf"test accuracy .* {found['test']['accuracy']:.4f}   \(chance {found['chance']:.4f}\)",
        rf"parameters .* {found['params']:,}",
        rf"training .* {found['tokens_per_second']:,.0f} tokens/s",
    ):
        assert sum(bool(re.search(row, line)) for line in table) == 1, row
    # On stderr only the progress bar, and in a new clone the notice of compiling: no warnings, no advice.
    assert "loss=" in done.stderr or "6/6" in done.stderr
    bar = ("training: ", "compiling the scan (once;")
    assert all(line.startswith(bar) for line in re.split(r"[\r\n]+", done.stderr) if line), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("mixer", random.Random(0).sample(zoo.list_mixers(), 8))
def test_a_run_of_any_mixer_ends_and_logs_theory_figures(mixer: str, tmp_path: Path) -> None:
    TinyRuns(f"{TINY} --mixer {mixer} --trainer.max_steps 1").without("--figures_every").trained(tmp_path)
    events = EventAccumulator(str(next(tmp_path.rglob("events*")).parent)).Reload()
    assert "theory/layer 0" in events.Tags()["images"]


def test_a_run_leaves_its_configuration_environment_checkpoints_and_metrics(finished: Path) -> None:
    path = folder(finished)
    files = {p.name if p.name[:6] != "events" else "events" for p in path.rglob("*") if p.is_file()}
    kept = {"config.yaml", "environment.json", "metrics.json", "hparams.yaml", "events"}
    assert files == kept | {"best.ckpt", "last.ckpt", "previous.ckpt"}
    found, model = metrics(path), zoo.load(path)
    assert found["params"] == sum(p.numel() for p in model.parameters())
    assert found["state_bytes"] == model.state_bytes(16)
    assert found["chance"] == pytest.approx(1 / 16)
    assert found["step"] in (2, 4, 6)
    assert all(found[split][name] >= 0 for split in ("test", "val") for name in ("accuracy", "loss"))
    environment = json.loads((path / "environment.json").read_text(encoding="utf-8"))
    assert environment["versions"]["torch"] == torch.__version__
    saved = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))
    assert (saved["mixer"]["name"], saved["task"]["n_pairs"]) == ("hybrid", 2)
    assert "run_dir" not in saved


def test_tensorboard_has_each_curve_once_and_the_results(finished: Path) -> None:
    found, curves = metrics(folder(finished)), small.curves(folder(finished))
    # Validation follows steps 2, 4 and 6; Lightning counts from 0.
    assert [step for step, _ in curves["val/loss"]] == [1, 3, 5]
    assert [value for _, value in curves["test/loss"]] == pytest.approx([found["test"]["loss"]])
    result = {tag: points[0][1] for tag, points in curves.items() if tag.startswith("result/")}
    expected = {"accuracy": found["test"]["accuracy"]}
    expected |= {"parameters": found["params"], "state_bytes": found["state_bytes"]}
    assert result == pytest.approx({f"result/{name}": value for name, value in expected.items()})


def test_a_finished_run_is_shown_or_tested_without_changing_its_files(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(finished)
    assert go(finished) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("this run is finished; use --overwrite")
    assert go(finished, "--test_only") == 0
    accuracy = re.compile(r"test accuracy.*\)")
    assert accuracy.findall(shown) == accuracy.findall(capsys.readouterr().out) != []
    assert go(finished, "--test_only", "--ckpt_path", str(folder(finished) / "checkpoints" / "last.ckpt")) == 0
    best = folder(finished) / "checkpoints" / "best.ckpt"
    elsewhere = shutil.copy(best, tmp_path)
    for checkpoint in (best, elsewhere):
        capsys.readouterr()
        assert go(finished, "--ckpt_path", str(checkpoint)) == 0
        assert capsys.readouterr().out == shown
    assert contents(finished) == before


def test_overwrite_restarts_a_run_even_if_its_files_are_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trained(tmp_path)
    before, n_events = results(path), len(list(path.glob("events.*")))
    (path / "metrics.json").write_text("{", encoding="utf-8")
    capsys.readouterr()
    assert go(tmp_path) == 2
    assert f"{path / 'metrics.json'} cannot be read" in error_line(capsys)
    assert go(tmp_path, "--overwrite") == 0
    assert results(path) == before
    assert len(list(path.glob("events.*"))) == n_events


def test_a_run_overwritten_from_another_ones_checkpoint_keeps_nothing_of_its_own(tmp_path: Path) -> None:
    last = str(trained(tmp_path / "first") / "checkpoints" / "last.ckpt")
    anew = results(trained(tmp_path / "new", "--seed", "1", "--ckpt_path", last))
    path = trained(tmp_path / "old", "--seed", "1", "--trainer.log_every_n_steps", "1")
    assert go(tmp_path / "old", "--seed", "1", "--overwrite", "--ckpt_path", last) == 0
    assert results(path) == anew
    assert small.curves(path).keys() == small.curves(folder(tmp_path / "new", "--seed", "1")).keys()


def test_the_bar_shows_the_reason_of_a_long_wait_only_during_that_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    training_step, logger = SequenceModule.training_step, logging.getLogger("zoo.ops.anything")

    def compiling(self: Any, *rest: Any) -> Any:
        if self.trainer.global_step == 2:
            for _ in range(2):
                logger.info("compiling (once)")
        return training_step(self, *rest)

    monkeypatch.setattr(SequenceModule, "training_step", compiling)
    assert go(tmp_path) == 0
    shown = [line.split(":")[0].strip() for line in re.split(r"[\r\n]+", capsys.readouterr().err)]
    assert shown.count("compiling (once)") == 1
    assert shown[shown.index("compiling (once)") + 1] == "training"
    ops = logging.getLogger("zoo.ops")
    assert (ops.handlers, ops.level) == ([], logging.NOTSET)


# Steps, epochs and splits


def test_a_run_of_steps_is_one_epoch_that_may_stop_early(tmp_path: Path) -> None:
    early = "--trainer.callbacks EarlyStopping --trainer.callbacks.monitor val/loss --trainer.callbacks.min_delta 1e9"
    argv = f"{early} --trainer.callbacks.patience 1 --trainer.max_steps 40 --trainer.min_steps 3".split()
    path = trained(tmp_path, *argv)
    last, found = torch.load(path / "checkpoints" / "last.ckpt", weights_only=True), metrics(path)
    assert (last["global_step"], last["epoch"]) == (4, 1)  # after two validations
    assert (list(found["curve"]), found["stopped_early"], found["converged"]) == (["2", "4"], True, True)
    trained(tmp_path, *argv, "--stop_at", "0.5")  # step 20, after the run had stopped early
    assert read_rungs(path)[0]["val"] == found["val"]


def test_a_run_out_of_time_stops_early_and_has_not_converged(tmp_path: Path) -> None:
    found = metrics(trained(tmp_path, "--trainer.max_time", "{milliseconds: 1}"))
    assert found["stopped_early"]
    assert not found["converged"]


@pytest.mark.parametrize(("interval", "validated"), [("0.5", [3, 7]), slow("99", [8])])  # 8 is the end
def test_a_validation_interval_is_in_steps_or_a_share_of_the_run(
    tmp_path: Path, interval: str, validated: list[int]
) -> None:
    epoch = ("--trainer.check_val_every_n_epoch", "1", "--trainer.max_steps", "8", "--trainer.val_check_interval")
    assert [step for step, _ in small.curves(trained(tmp_path, *epoch, interval))["val/loss"]] == validated


def test_a_validation_interval_may_be_a_share_of_an_epoch(tmp_path: Path) -> None:
    argv = "--trainer.max_steps -1 --trainer.max_epochs 2 --trainer.val_check_interval 0.5"
    assert [*metrics(trained(tmp_path, *argv.split()))["curve"]] == ["4", "8", "12", "16"]


def test_a_short_run_is_validated_five_times(tmp_path: Path) -> None:
    argv = "--trainer.max_steps 11 --trainer.accumulate_grad_batches 2 --trainer.val_check_interval null --lr 30"
    found = metrics(trained(tmp_path, *argv.split()))
    assert found["step"] < 10  # the best validation, whose weights are tested; the curve continues after it
    assert [*found["curve"]] == ["2", "4", "6", "8", "10"]


@pytest.mark.parametrize(
    ("more", "validated"), [("", [4, 8, 12, 16, 20]), ("--trainer.limit_train_batches 5", [2, 4, 6, 8, 10])]
)
def test_a_short_run_in_epochs_is_validated_five_times(tmp_path: Path, more: str, validated: list[int]) -> None:
    """And its HParams file has the sizes of its data, given or default."""
    argv = "--trainer.max_steps -1 --trainer.max_epochs 2 --trainer.val_check_interval null --task.n_train 80"
    path = trained(tmp_path, *argv.split(), *more.split(), "--batch_size", "8", "--task.n_test", "null")
    assert [*metrics(path)["curve"]] == [str(step) for step in validated]
    hparams = (path / HPARAMS).read_bytes()
    assert all(f"task.{name}".encode() in hparams for name in ("n_train", "n_val", "n_test"))


def test_a_run_in_epochs_on_several_devices_is_validated_five_times() -> None:
    sizes: dict[str, Any] = {"max_steps": -1, "max_epochs": 2, "limit_train_batches": 1.0}
    trainer: Any = SimpleNamespace(accumulate_grad_batches=1, world_size=2, **sizes)
    assert train.usual_interval(trainer, per_epoch=20) == 4


def test_the_curve_has_the_score_that_judges_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.generators.structure.lano.Lano.floors", lambda self: {})  # takes seconds
    text = RUNS.without("--task.n_pairs", "--task.vocab_size")
    found = metrics(text.trained(tmp_path, "--task", "lano", "--task.n_levels", "2"))
    assert min(found["curve"].values()) == pytest.approx(found["val"]["perplexity"])
    assert (found["steps_to_90"], found["converged"]) == (None, None)


def test_a_run_too_short_to_validate_still_has_a_best_checkpoint(tmp_path: Path) -> None:
    path = trained(tmp_path, "--trainer.max_steps", "1")
    assert metrics(path)["step"] == 1
    assert (path / "checkpoints" / "best.ckpt").exists()
    assert small.curves(path)["val/loss"] == [(1, pytest.approx(metrics(path)["val"]["loss"]))]


def test_validation_testing_and_logging_can_be_disabled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = "--trainer.limit_val_batches 0 --trainer.limit_test_batches 0 --trainer.log_every_n_steps 0"
    found = metrics(trained(tmp_path, *argv.split()))
    assert found["test"]["accuracy"] is found["val"]["loss"] is None
    assert found["params"] > 0
    assert "test loss" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_with_no_test_can_be_tested_later_with_the_same_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once = trained(tmp_path / "once")
    unread = raising(AssertionError("the test split was read"))
    with patch("tasks.datamodule.TaskDataModule.test_dataloader", unread):
        for _ in range(2):  # the second time the run is finished
            later = trained(tmp_path / "later", "--no_test")
    untested = metrics(later)
    assert "test" not in untested
    assert "(not tested)" in capsys.readouterr().out
    assert results(trained(tmp_path / "later")) == results(once)
    assert metrics(later) | untested == metrics(later)


@pytest.mark.slow
def test_regression_reports_its_error_and_no_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = TinyRuns(
        "--mixer factorized --task ssm_teacher --batch_size 8 --task.n_train 64 --task.n_val 8 --task.n_test 8 "
        "--trainer.max_steps 2 --trainer.accelerator cpu"
    )
    found = metrics(runs.trained(tmp_path))
    assert found["test"]["accuracy"] is found["val"]["accuracy"] is found["chance"] is None
    assert found["test"]["relative_squared_error"] > 0
    assert 1 > found["floor_at_heads"]["1"] > found["floor_at_heads"]["3"] > 1e-3 > 1e-20 > found["floor_at_heads"]["4"]
    assert "accuracy" not in capsys.readouterr().out


def test_other_lengths_are_tested_logged_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], logged: list[str]
) -> None:
    lengths = ("--task", "needle", "--task.distance", "9", "--task.test_lengths", "24,12,40")
    mixer = ("--mixer", "factorized", "--mixer.kernel", "toeplitz", "--mixer.max_seq_len", "32", "--lr", "0.01")
    path = RUNS.without("--task.seq_len", "--task.n_pairs", "--task.vocab_size").trained(tmp_path, *lengths, *mixer)
    found = metrics(path)
    at = {length: found["test"]["at_length"][str(length)]["accuracy"] for length in (12, 24, 40)}
    assert at[40] is None
    assert 0 <= at[12] <= 1
    assert logged == ["length 40 is not tested: sequence of 40 positions exceeds max_seq_len=32"]
    assert re.search(rf"test accuracy at length 24 .* {at[24]:.4g}", capsys.readouterr().out)
    curves = small.curves(path)
    assert curves["test_by_length/accuracy"] == [(length, pytest.approx(at[length])) for length in (12, 24)]
    assert len(curves["test/accuracy"]) == 1


@pytest.mark.slow
def test_a_mixture_is_trained_together_and_each_segment_tested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixture = ("--task.mixture", "{seq_len: 16, n_pairs: 2, weight: 3}, {seq_len: 24}")
    tested = ("--task.test_segments", "{seq_len: 30, n_pairs: 7}")
    path = RUNS.without("--task.seq_len").trained(tmp_path, *mixture, *tested)
    found = metrics(path)["test"]
    names = [f"seq_len={length},n_pairs={pairs}" for length, pairs in ((16, 2), (24, 2), (30, 7))]
    assert list(found["by_segment"]) == names
    table, curves = capsys.readouterr().out, small.curves(path)
    for name, scores in found["by_segment"].items():
        assert re.search(rf"test accuracy at {name} .* {scores['accuracy']:.4f}", table)
        assert curves[f"test_accuracy_by_segment/{name}"][0][1] == pytest.approx(scores["accuracy"])
    # The resolved configuration gives the same run, which is finished.
    assert train.main(["--config", str(path / "config.yaml"), "--run_dir", str(tmp_path)]) == 0
    assert "this run is finished" in capsys.readouterr().out


# Resuming


def test_continuing_in_another_folder_copies_the_best_checkpoint(finished: Path, tmp_path: Path) -> None:
    source, new = folder(finished) / "checkpoints", RunFolder(tmp_path, "new", 0)
    new.prepare({}, source / "last.ckpt", {})
    assert new.best.read_bytes() == (source / "best.ckpt").read_bytes()
    assert [file.name for file in new.best.parent.iterdir()] == ["best.ckpt"]
    new.best.write_bytes(b"better")
    new.prepare({}, source / "last.ckpt", {})
    assert new.best.read_bytes() == b"better"  # the new run's own is kept


def test_the_command_to_resume_omits_flags_that_would_restart() -> None:
    argv = shlex.split("--mixer.pattern '[lstm, attention]' --overwrite --ckpt_path a.ckpt --ckpt_path=b.ckpt --lr 1")
    assert train.resume_command(argv) == "python train.py --mixer.pattern '[lstm, attention]' --lr 1"


def test_the_command_to_resume_a_run_without_checkpoints_keeps_the_given_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "run", raising(KeyboardInterrupt()))
    for begun in (False, True):
        assert go(tmp_path, "--ckpt_path", "a.ckpt") == 130
        assert ("--ckpt_path a.ckpt" in capsys.readouterr().err) is not begun
        (folder(tmp_path) / "checkpoints").mkdir(parents=True, exist_ok=True)
        (folder(tmp_path) / "checkpoints" / "last.ckpt").touch()


# Errors


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--mixer.n_heads 3", "d_model=16 is not divisible by n_heads=3"),
        ("--trainer.accelerator abacus", "Available names are: auto"),
        ("--ckpt_path nowhere.ckpt", "no checkpoint at nowhere.ckpt"),
        ("--test_only", "no run at "),
        ("--run_dir ~nobody-here/runs", "~nobody-here/runs: there is no home folder of ~nobody-here"),
        ("--test_only --stop_at 2", "--test_only trains nothing and tests: leave out --stop_at"),
        ("--task.cache true --task.cache_dir {file}", "cannot write the task cache"),
        ("--mixer factorized --mixer.max_seq_len 15", "sequence of 16 positions exceeds max_seq_len=15"),
        ("--mixer dsa --mixer.top_k 17", "top_k=17 is more than the 16 positions"),
        (
            "--mixer factorized --mixer.max_seq_len 20 --task.test_segments {{seq_len:\\ 24}}",
            "sequence of 24 positions exceeds",
        ),
        ("--trainer.max_steps -1 --trainer.max_epochs -1", "the learning rate schedule needs an end"),
        ("--trainer.check_val_every_n_epoch 2", "=2: a run of trainer.max_steps is one epoch; give"),
        ("--trainer.max_steps 0", "trainer.max_steps must be positive, got 0"),
        ("--trainer.limit_train_batches 0", "trainer.limit_train_batches must be positive, got 0"),
        ("--trainer.accumulate_grad_batches -1", "trainer.accumulate_grad_batches must be positive, got -1"),
        ("--trainer.val_check_interval 0", "trainer.val_check_interval must be positive, got 0"),
        ("--trainer.max_time 00:00:00:00", "trainer.max_time must be positive, got 00:00:00:00"),
        (
            "--trainer.callbacks LearningRateFinder",
            "LearningRateFinder is not supported, because a run has a fixed learning rate",
        ),
        (
            "--trainer.callbacks BatchSizeFinder",
            "BatchSizeFinder is not supported, because a run has steps of one size; give --batch",
        ),
        (
            "--trainer.callbacks GradientAccumulationScheduler --trainer.callbacks.scheduling '{{0: 2}}'",
            "give --trainer.accumulate_grad_batches",
        ),
        (
            "--trainer.callbacks StochasticWeightAveraging --trainer.callbacks.swa_lrs 1 "
            "--trainer.callbacks.device null",
            "StochasticWeightAveraging is not supported",
        ),
        ("--figures_every -1", "figures_every must not be negative, got -1"),
        ("--threads -2", "--threads must be a positive integer, got -2"),
        ("--seed 99999999999999999999", "seed must lie in 0..9223372036854775807, got 99999999999999999999"),
        ("--mixer attention --ckpt_path {run}/checkpoints/best.ckpt", "has mixer 'hybrid'"),
        ("--d_model 32 --test_only --ckpt_path {run}/checkpoints/best.ckpt", "d_model=16"),
    ],
)
def test_bad_input_is_a_one_line_error_and_leaves_no_files(
    argv: str, message: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert go(tmp_path / "runs", *shlex.split(argv.format(file=tmp_path / "file", run=folder(finished)))) == 2
    assert message in error_line(capsys)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--trainer.limit_train_batches 0.001", "limit_train_batches"),
        ("--trainer.limit_test_batches 0.001", "limit_test_batches"),
        ("--trainer.callbacks EarlyStopping --trainer.callbacks.monitor val/los", "`val/loss`"),
    ],
)
def test_an_error_of_lightning_is_one_line(
    argv: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert go(tmp_path, *argv.split(), "--trainer.enable_progress_bar", "false") == 2
    assert message in error_line(capsys)


def test_a_folder_of_another_run_or_without_write_access_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder(tmp_path)
    path.mkdir(parents=True)
    config = cli.parse(command(tmp_path)).config
    (path / "config.yaml").write_text(yaml.safe_dump(config | {"lr": 0.25}), encoding="utf-8")
    before = contents(tmp_path)
    assert go(tmp_path) == 2
    assert "lr is 0.25 there, 0.005 here; give another --run_dir, or --overwrite" in error_line(capsys)
    assert contents(tmp_path) == before
    assert go(path / "config.yaml") == 2
    assert f"cannot write the run folder {path / 'config.yaml'}" in error_line(capsys)


def test_a_non_finite_loss_stops_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--lr", "1e30", "--warmup_steps", "0", "--trainer.enable_progress_bar", "false")
    assert go(tmp_path, *argv) == 1
    assert re.search(r"(loss|weight) is (nan|inf) at step \d+|is not finite at step \d+", error_line(capsys))
    path = folder(tmp_path, *argv)
    assert not (path / "metrics.json").exists()
    for checkpoint in path.glob("checkpoints/*.ckpt"):
        weights = torch.load(checkpoint, weights_only=True)["state_dict"].values()
        assert all(bool(torch.isfinite(weight).all()) for weight in weights)


# The folder and name of a run


def test_options_that_do_not_affect_results_do_not_change_the_folder(tmp_path: Path) -> None:
    usual = folder(tmp_path)
    assert folder(tmp_path, "--trainer.enable_progress_bar", "false", "--task.cache", "true") == usual
    assert folder(tmp_path, "--seed", "3") == usual.with_name("seed3")
    stopping = ("--trainer.callbacks", "EarlyStopping", "--trainer.callbacks.monitor", "val/loss")
    assert folder(tmp_path, *stopping) != usual
    assert folder(tmp_path, *stopping, "--trainer.callbacks+=LearningRateMonitor") == folder(tmp_path, *stopping)


@pytest.mark.slow
def test_loggers_and_monitors_do_not_change_results_or_the_folder(finished: Path, tmp_path: Path) -> None:
    argv = (
        "--trainer.logger CSVLogger --trainer.logger.save_dir elsewhere --trainer.callbacks LearningRateMonitor "
        "--trainer.log_every_n_steps 1 --trainer.num_sanity_val_steps 2 --trainer.profiler simple "
        "--trainer.inference_mode false --trainer.enable_model_summary true --trainer.enable_progress_bar false "
        "--trainer.limit_predict_batches 1 --figures_every 3 --trainer.default_root_dir"
    )
    path = trained(tmp_path, *argv.replace("elsewhere", str(tmp_path / "csv")).split(), str(tmp_path))
    assert path.relative_to(tmp_path) == folder(finished).relative_to(finished)
    assert results(path) == results(folder(finished))
    assert go(tmp_path) == 0  # without them it is the same finished run


def test_compared_options_have_the_names_of_their_flags_and_short_file_names() -> None:
    config: dict[str, Any] = {"mixer": {"name": "/a/m.py:Mine", "n_heads": 2}, "task": {"name": "mqar", "n_pairs": 4}}
    config |= {"seed": 1, "lr": 0.1, "run_dir": "x", "trainer": {"max_steps": 5, "logger": True}}
    named = {"mixer": "m.Mine", "task": "mqar", "seed": 1}
    others = {"mixer.n_heads": 2, "task.n_pairs": 4, "model.lr": 0.1, "trainer.max_steps": 5}
    assert compared_options(config) == named | others


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ("", "mqar/hybrid"),
        ("--seed 7 --run_dir elsewhere --mixer.attention.n_heads 4", "mqar/hybrid"),
        ("--mixer.attention.n_heads 2 --d_model 128", "mqar/hybrid-attention.n_heads2-d_model128"),
        ("--mixer attention --mixer.d_conv 0 --d_conv 4", "mqar/attention-mixer.d_conv0-d_conv4"),
        ("--trainer.max_steps 800 --task.n_pairs 2 --compile true", "mqar-n_pairs2/hybrid-compile_true-max_steps800"),
        ("--mixer.pattern [lstm,lstm,lstm,attention]", "mqar/hybrid-pattern_3xlstm+attention"),
        # Long names are cut and end with a digest.
        ("--trainer.callbacks EarlyStopping --trainer.callbacks.monitor val/loss", "mqar/hybrid-*"),
        (
            "--batch_size 8 --d_model 32 --trainer.max_steps 60 --mixer.attention.n_heads 2 --task.n_train 640 "
            "--task.n_val 80 --task.test_lengths 64,128 --task.n_pairs 8",
            "mqar-n_pairs8-*",
        ),
        (
            "--batch_size 8 --trainer.strategy ddp --trainer.devices 2 --trainer.max_steps 60 --mixer lstm",
            "mqar/lstm-strategy_ddp-*",
        ),
    ],
)
def test_the_name_of_a_run_has_the_options_that_differ_from_the_defaults(argv: str, name: str) -> None:
    parsed = cli.parse(argv.split())
    made = identity.run_name(parsed.config, parsed.defaults)
    assert made.startswith(name[:-1]) if name.endswith("*") else made == name
    assert all(len(part) <= identity.LONGEST_NAME for part in made.split("/"))


def test_names_are_short_safe_and_distinct() -> None:
    def name(option: Any, mixer: str = "m") -> str:
        return identity.run_name({"mixer": {"name": mixer, "x": option}, "task": {"name": "t"}}, {})

    strange = [
        *map(name, ("a/b", "a:b", "a b", "../..", "x" * 300, "x" * 299 + "y", [{"a": 1}, {"a": 2}])),
        *(name(1, mixer) for mixer in ("/a/m.npz", "/b/m.npz", "/b/m.py:Class", "/c/m.py:Class")),
        identity.run_name({"mixer": {"name": "/a/m b"}, "task": {"name": "t"}}, {}),
    ]
    assert len(set(strange)) == len(strange)
    for made in strange:
        assert re.fullmatch(r"t/m[._-][A-Za-z0-9._+-]+", made)
        assert len(made) <= identity.LONGEST_NAME + 2
