"""Train one sequence mixer on one task: `python train.py --mixer hybrid --task mqar`; see `--help`.

This module joins the zoo, the tasks and Lightning. The task's spec sets the model's sizes. The run's folder
`<run_dir>/<task>/<mixer and its changed options>/seed<k>/` keeps the configuration, checkpoints, TensorBoard events and
metrics. The same command resumes an unfinished run and shows a finished one.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from lab.build import build_task, declared, find_leak, model_options, task_options
from lab.config import PROGRAM, Command, choose, parse
from lab.config import declared as run_options
from lab.config.layers import SWITCHES
from lab.hparams import compared_options, compared_results
from lab.plain import flag_text, flatten
from lab.run.files import ENVIRONMENT, FIRST_LOSS, FIRST_SCORE, HPARAMS
from lab.run.folder import RunFolder
from lab.run.metrics import Metrics, is_tested, number_at
from lab.run.record import LEAK, MARK, MARKED, Run, read_fields, read_run, rung_at
from lab.run.score import first_at, has_converged, level, score_text
from zoo import training
from zoo.errors import UsageError
from zoo.report.numbers import count, duration, number
from zoo.report.terminal import ends_unread, in_words, make_console, make_facts, say
from zoo.signals import CTRL_C, SCHEDULER, handled

if TYPE_CHECKING:
    import lightning as L
    from lightning.pytorch.callbacks import Callback


Key = TypeVar("Key")
# A waiting OpenMP thread should yield its core: if other processes keep the cores busy, spinning makes a step of small
# kernels two to five times slower. torch reads this when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
CHECKPOINT_EVERY, VALIDATE_EVERY = 100, 100
REQUEUE = 75
"""Exit status that asks a scheduler to run the same command again: EX_TEMPFAIL of sysexits.h."""
SHOWN = "accuracy_macro", "sequence_accuracy", "perplexity", "bits_per_token", "relative_squared_error", "r2", "loss"
"""Test metrics in the table, below the accuracy."""


@ends_unread
def main(argv: Sequence[str]) -> int:
    """Run a command line and return the exit status.

    0: done. 1: training failed (a loss that is not finite, a full disk). 2: invalid command line.
    75 (`REQUEUE`): stopped by SIGTERM or SIGUSR1, which schedulers send; the same command resumes. 130: Ctrl-C.
    """
    with handled(SCHEDULER, _terminate), _quiet_writers():
        return _status(argv)


def _status(argv: Sequence[str]) -> int:
    command = None
    try:
        command = parse(argv)
        run(command)
    except (UsageError, ImportError) as error:
        if "--traceback" in argv:
            traceback.print_exc()
        return _fail(error, 2)
    except KeyboardInterrupt:
        return _stopped("interrupted outside training", argv, command, 130)
    except Terminated as stop:
        return _stopped(stop, argv, command, REQUEUE)
    except (BrokenPipeError, SystemExit):
        raise  # closed standard output (`ends_unread`), or the exit of --help: the names below would import torch
    except OSError as error:
        # An error has the file's name if opening it failed, but not if writing failed, as on a full disk.
        if command is None or error.errno is None or error.filename is not None:
            return _fail(error, 1)
        return _fail(f"cannot write to {RunFolder.of(command).path}: {error.strerror}", 1)
    except training.Interrupted as stop:
        return _stopped(stop, argv, command, 130 if stop.signal == CTRL_C else REQUEUE)
    except training.NonFiniteLossError as error:  # in all processes at once
        return _fail(error, 1) if is_first_process() else 0
    return 0


def run(command: Command) -> Metrics:
    """Train and test, or only test, as `command` specifies; return the content of `metrics.json`.

    Nothing is written until data, model and trainer have been built. A lock keeps a second process from training in the
    same folder.

    Raises:
        UsageError: contradictory options, a checkpoint of another model, a folder of another run or in use.
        NonFiniteLossError: the loss, or a weight, is nan or infinite; the checkpoints are of earlier steps.
        Interrupted: a signal asked the run to stop.
    """
    from zoo.threads import threads

    n_threads = 1 if command.config["threads"] is None else command.config["threads"]
    if n_threads < 1:
        raise UsageError(f"--threads must be a positive integer, got {n_threads}")
    # Silence Lightning's notes on hardware, tips and worker counts.
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    with threads(n_threads):
        return _run(command)


def _run(command: Command) -> Metrics:
    warnings.filterwarnings("ignore", module=r"lightning\.")
    folder, stop_at, trained = RunFolder.of(command), command.stop_at, None
    if command.test_only:
        session = Session(command, folder)
        assert session.checkpoint is not None
        return show(session.evaluate(session.checkpoint), session.checkpoint)
    if not command.overwrite:
        folder.check_config(command.config)
        trained = folder.metrics()
        if trained is not None or stop_at is not None:  # otherwise `Session` checks
            folder.check_data(_fingerprint(command))
        if (known := _known_result(command, folder, trained)) is not None:
            return show(known, folder.path)
    with folder.lock() if is_first_process() else nullcontext():
        session = Session(command, folder)
        if session.trainer.is_global_zero:
            if session.checkpoint is not None:
                for aside in folder.set_aside_damaged():
                    _say(f"{aside.stem} is damaged, renamed to {aside}; the run resumes from {session.checkpoint}")
            if session.leak and not command.config["looks_ahead"]:
                say(make_console(), f"{session.leak}. {MARKED}", "bold red")
            folder.prepare(
                command.config,
                session.checkpoint,
                session.data.task.fingerprint(),
                session.leak,
                overwrite=command.overwrite,
            )
            if any(isinstance(logger, training.CurveLogger) for logger in session.trainer.loggers):
                options = compared_options(command.config)
                options |= {f"task.{name}": n for name, n in session.data.n_rows().items()}
                options["mixer"] += MARK if session.leak else ""
                training.write_hparams(folder.path / HPARAMS, options, folder.trial, time.time())
        try:
            session.fit()
        except training.Paused:
            assert stop_at is not None
            rung = session.evaluate(folder.last, test=False, log=False)
            if session.trainer.is_global_zero:
                folder.write_rung(stop_at, rung)
                show(rung, folder.path)
            return rung
        except training.NonFiniteLossError as error:
            if stop_at is not None and session.trainer.is_global_zero:
                folder.write_rung(stop_at, {"diverged": str(error), "step": error.step})
            raise
        # A run that was trained with --no_test keeps the cost of its training.
        cost = {key: trained[key] for key in ("tokens_per_second", "seconds") if trained and key in trained}
        metrics = session.evaluate(folder.best, test=not command.no_test and stop_at is None) | cost
        training.log_result(session.trainer, compared_results(metrics))
        if session.trainer.is_global_zero:
            folder.write_metrics(metrics)
            if stop_at is not None:
                folder.write_rung(stop_at, metrics)
            show(metrics, folder.path)
        return metrics


def train(
    mixer: str | Mapping[str, Any] | None = None, task: str | Mapping[str, Any] | None = None, **options: Any
) -> Run:
    """Train one mixer on one task as train.py does, and return the run: its metrics, curves and model.

        run = lab.train("attention", "mqar", seed=1, d_model=64, trainer={"max_steps": 200})
        run.metrics["test"]["accuracy"], run.curves["val/accuracy"], run.model

    A finished run is only read; an interrupted run is resumed.

    Args:
        mixer: name, package.module:Class or path/file.py:Class; or a mapping, {"name": "attention", "n_heads": 4}.
            Default as in train.py: the mixer of `config` or of the task's recipe, else hybrid.
        task: the same for the task; default the task of `config`, else mqar.
        **options: the flags of train.py, nested or flat: trainer={"max_steps": 200}, lr=1e-3, overwrite=True.

    Raises:
        UsageError: an invalid option; a ValueError with a message of one line.
        NonFiniteLossError: the loss, or a weight, is nan or infinite.
    """
    named = {key: value for key, value in (("mixer", mixer), ("task", task)) if value is not None}
    values = {**named, **options}
    choice = choose(_flags(flatten(values)))
    known = run_options(choice.names, choice.entries)
    whole = {key for key, option in known.items() if not option.takes_objects}  # rope_scaling is itself a mapping
    command = parse(_flags(flatten(values, whole)))
    run(command)
    return read_run(RunFolder.of(command).path, {})


def _flags(values: Iterable[tuple[str, Any]]) -> list[str]:
    """Return options as flags of train.py.

    Raises:
        UsageError: a value that is not plain data.
    """
    flags: list[str] = []
    for key, value in values:
        name = key.removesuffix(".name") if key in ("mixer.name", "task.name") else key
        if name in SWITCHES:
            flags += [f"--{name}"] if value else []
            continue
        try:
            flags.append(f"--{name}={flag_text(value)}")
        except TypeError as error:
            raise UsageError(f"{name}: {error}") from None
    return flags


def _fingerprint(command: Command) -> Mapping[str, Any]:
    """Return the fingerprint of the command's data."""
    try:
        return build_task(command.config).fingerprint()
    except (ValueError, TypeError) as error:
        raise UsageError(error) from error


def _known_result(command: Command, folder: RunFolder, trained: Metrics | None) -> Metrics | None:
    """Return the result of a command if it needs no training: from a finished run, or from an earlier stop.

    Args:
        command: without --overwrite.
        folder: folder of the run.
        trained: the metrics of the run, if it is finished.

    Raises:
        UsageError: the run has finished without stopping at --stop_at.
    """
    stop_at = command.stop_at
    if stop_at is None:
        if trained is None or not (command.no_test or is_tested(trained)):
            return None
        print("this run is finished; use --overwrite to rerun")
        return trained
    rung = rung_at(folder.path, stop_at) or {}
    if "val" in rung:
        print(f"this run has stopped at step {rung['step']} before; to resume it, leave out --stop_at")
        return rung
    if trained is None:
        return None
    if not trained.get("stopped_early") and (isinstance(stop_at, int) or stop_at < 1):
        raise UsageError(f"{folder.path} finished without stopping at {stop_at}; use --overwrite to rerun")
    rung = {name: value for name, value in trained.items() if name != "test"}
    folder.write_rung(stop_at, rung)
    return rung


def is_first_process() -> bool:
    """Return whether this process has rank zero; works before there is a trainer."""
    from lightning.pytorch.utilities import rank_zero_only

    return getattr(rank_zero_only, "rank", 0) == 0


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn Lightning's errors about invalid options into UsageErrors; some come as late as the test."""
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    try:
        yield
    except MisconfigurationException as error:
        raise UsageError(error) from error
    except (RuntimeError, ValueError) as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if type(error) not in (RuntimeError, ValueError) or not frame.f_globals["__name__"].startswith("lightning."):
            raise
        raise UsageError(error) from error


class Session:
    """The data, model and trainer of a command; nothing is written to the run folder.

    Attributes:
        folder: folder of the run.
        elapsed: callback that counts the seconds of the run, building data and model included.
        progress: whether progress bars are shown.
        data: data module of the task.
        model: training module around the backbone.
        n_params: number of trained parameters.
        state_bytes: size of the model's state after the task's sequence, batch of one; None if the mixer does not
            stream.
        throughput: callback that measures the speed of training.
        curve: callback that keeps the score of each validation.
        stopped_early: whether a callback ended the training.
        out_of_time: whether --trainer.max_time ended it.
        trainer: Lightning's trainer.
        checkpoint: checkpoint to resume from, or to test.
        step: optimizer step at which the checkpoint was saved.
        leak: how the model reads later positions; empty if it does not.

    Raises:
        UsageError: see `run`.
    """

    @_refusals()
    def __init__(self, command: Command, folder: RunFolder) -> None:
        from lightning.pytorch.plugins import DoublePrecision

        from tasks.datamodule import TaskDataModule
        from zoo.backbone import Backbone
        from zoo.loading.saved import check_checkpoint

        self.folder, self.elapsed, config = folder, training.Elapsed(), command.config
        self.stopped_early = self.out_of_time = False
        try:
            shared = {name: config[name] for name in ("batch_size", "seed")}
            options = declared(config["task"], TaskDataModule)
            self.data = data = TaskDataModule(task_options(config), **options, **shared)
            task = data.task
            options = model_options(config, task, Backbone, training.SequenceModule)
            self.model = model = training.SequenceModule(**options)
            self.n_params = sum(p.numel() for p in model.parameters() if p.requires_grad)
            self.checkpoint = folder.checkpoint_for(command)
            if self.checkpoint is not None and command.ckpt_path is None:
                folder.check_data(task.fingerprint())
            recorded = {} if self.checkpoint is None else read_fields(folder.path / ENVIRONMENT)
            self.leak = recorded[LEAK] if LEAK in recorded else find_leak(model.backbone, task.spec.seq_len)
            options = model_options(config, task, Backbone)
            self.step = None if self.checkpoint is None else check_checkpoint(self.checkpoint, **options)
            for segment in data.segments:
                model.backbone.state_bytes(segment.task.spec.seq_len)  # raises if the mixer cannot read that length
            self.state_bytes = model.backbone.state_bytes(task.spec.seq_len)
            if self.checkpoint is None:
                for trained in (task, *(segment.task for segment in data.segments if segment.share)):
                    model.backbone.require_choice(trained.spec.seq_len)
            self.progress = command.trainer["enable_progress_bar"] is not False
            score = "perplexity" if task.spec.perplexity else model.score_name
            self.throughput, self.curve = training.Throughput(), training.ValidationCurve(score)
            measuring = [self.throughput, self.curve, self.elapsed]
            per_epoch = data.n_rows()["n_train"] // config["batch_size"]
            self.trainer = build_trainer(command, folder, measuring, score, self.step, per_epoch)
            if isinstance(self.trainer.precision_plugin, DoublePrecision):
                # Lightning converts only after reading a checkpoint, which would round its float64 weights.
                model.double()
            if self.trainer.max_steps == -1 and self.trainer.max_epochs == -1:
                raise ValueError(
                    "the learning rate schedule needs an end: give trainer.max_steps or trainer.max_epochs"
                )
            data.setup("fit")
            if not command.no_test and command.stop_at is None:
                data.setup("test")
        except (ValueError, TypeError) as error:
            raise UsageError(error) from error

    @_refusals()
    def fit(self) -> None:
        """Train, from the checkpoint if there is one, and make sure that a best checkpoint exists."""
        import torch
        from lightning.pytorch.callbacks import Timer

        if self.trainer.is_global_zero:
            resumed = "" if self.checkpoint is None else f", resumed from step {self.step} ({self.checkpoint})"
            device = self.trainer.strategy.root_device
            threads = count(torch.get_num_threads(), "thread") if device.type == "cpu" else ""
            where = f"on {device}{f' ({threads})' if threads else ''}{resumed}"
            print(f"{self.folder.path}: {self.n_params:,} parameters {where}", flush=True)
        with _ctrl_c():
            self.trainer.fit(self.model, self.data, ckpt_path=self.checkpoint, weights_only=True)
        self.stopped_early = self.trainer.should_stop  # the next validation resets it
        callbacks: list[Callback] = self.trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        left = [each.time_remaining() for each in callbacks if isinstance(each, Timer)]
        self.out_of_time = any(seconds is not None and seconds <= 0 for seconds in left)
        if self.trainer.strategy.broadcast(not self.folder.best.is_file()):
            # No validation has saved one: training ended before the first validation, or there is none.
            self.trainer.save_checkpoint(self.folder.best)

    @_refusals()
    def evaluate(self, checkpoint: Path, test: bool = True, log: bool = True) -> Metrics:
        """Return a checkpoint's metrics on the validation and, by default, test splits, and the run's cost.

        Args:
            checkpoint: file with the weights.
            test: whether to test as well.
            log: whether to add a point to the validation curves if they have none.
        """
        from zoo.loading.saved import read_checkpoint

        trainer, options = self.trainer, {"ckpt_path": checkpoint, "weights_only": True, "verbose": False}
        # Reading the checkpoint resets curve and seconds to their values when it was written.
        trained_points, trained_seconds, start = dict(self.curve.points), self.elapsed.seconds, time.perf_counter()
        splits = ("test", "val") if test else ("val",)
        with _ctrl_c():
            # Add a point to the validation curves only if training, also before it was resumed, left none.
            loggers = trainer.loggers
            kept = (each for each in trainer.checkpoint_callbacks if isinstance(each, training.Checkpoints))
            has_validated = any(each.best_score is not None for each in kept)
            trainer.loggers = loggers if log and not has_validated else []
            self.model.results = results = {}
            trainer.validate(self.model, self.data, **options)
            trainer.loggers = loggers
            if test:
                trainer.test(self.model, self.data, **options)
            # A split has no results if --trainer.limit_val_batches or limit_test_batches is zero.
            metrics: Metrics = {split: {"accuracy": None, "loss": None, **results.get(split, {})} for split in splits}
            if test:
                metrics["test"] |= self._test_at_lengths() | self._test_segments()
        score, points, early = self.curve.score, self.curve.points | trained_points, self.stopped_early
        return metrics | {
            "chance": self.data.chance,
            **({} if self.data.is_mixture else self.data.task.floors()),
            "params": self.n_params,
            "state_bytes": self.state_bytes,
            "tokens_per_second": self.throughput.tokens_per_second,
            "curve": {str(step): value for step, value in points.items()},
            "steps_to_90": first_at(points, score, level(score, self.data.chance)),
            "converged": (early and not self.out_of_time) or has_converged(points, score),
            "stopped_early": early,
            "step": int(read_checkpoint(checkpoint)["global_step"]),
            "seconds": max(self.elapsed.seconds, trained_seconds + time.perf_counter() - start),
        }

    def _test_at_lengths(self) -> Metrics:
        """Return scores at the task's test lengths, and log them next to the run's curves."""
        batches = self._with_bars(self.data.length_batches(), "testing at length {}")
        scores = training.scores_at_lengths(self.trainer, self.model, batches)
        if not scores:
            return {}
        name = self.model.score_name
        training.log_lengths(self.trainer, name, scores)
        return {"at_length": {str(length): {name: score} for length, score in scores.items()}}

    def _test_segments(self) -> Metrics:
        """Return scores of each segment, and log them next to the run's curves."""
        batches = self._with_bars(self.data.segment_batches(), "testing at {}")
        scores = training.scores_apart(self.trainer, self.model, batches)
        if not scores:
            return {}
        training.log_split_scores(self.trainer, {"by_segment": scores})
        chance = {segment.name: segment.task.of_split("test").spec.chance for segment in self.data.segments}
        return {"by_segment": {name: {**found, "chance": chance[name]} for name, found in scores.items()}}

    def _with_bars(self, batches: Iterator[tuple[Key, Any]], title: str) -> Iterator[tuple[Key, Any]]:
        """Yield the test batches of each key, with a progress bar if they take long."""
        from tqdm.auto import tqdm

        disable = None if self.progress and self.trainer.is_global_zero else True
        for key, each in batches:
            yield key, tqdm(each, title.format(key), unit=" batches", delay=2, leave=False, disable=disable)


def build_trainer(
    command: Command, folder: RunFolder, measuring: Sequence[Callback], score: str, step: int | None, per_epoch: int
) -> L.Trainer:
    """Build Lightning's Trainer from the command's options; for training, add our callbacks, logger and checkpoints.

    Args:
        command: command of the run.
        folder: folder for checkpoints and TensorBoard events.
        measuring: callbacks that measure the training.
        score: validation score that TensorBoard shows first.
        step: optimizer step to resume from; events of later steps are purged.
        per_epoch: number of batches per epoch of all processes together.
    """
    from lightning.pytorch import Trainer

    options: dict[str, Any] = dict(command.trainer)
    config = command.config
    callbacks, plugins = (_as_list(options.pop(key)) for key in ("callbacks", "plugins"))
    if options["enable_progress_bar"] is not False:
        callbacks.append(training.Progress(options["log_every_n_steps"] or 50))
    options["enable_progress_bar"] = False
    usual = options["val_check_interval"] is None and options["check_val_every_n_epoch"] is None
    if usual:
        options["val_check_interval"] = VALIDATE_EVERY
    if options["max_epochs"] in (None, -1):
        options |= _in_one_epoch(options)
    elif isinstance(options["val_check_interval"], float) and options["check_val_every_n_epoch"] is None:
        options["check_val_every_n_epoch"] = 1
    if options["strategy"] in ("fsdp", training.SHARDED):
        options["strategy"] = training.SHARDED  # Lightning's own fsdp is torch's FSDP1, for GPUs only
    options["default_root_dir"] = options["default_root_dir"] or str(folder.run_dir)
    if command.test_only:
        options |= {"logger": False, "enable_checkpointing": False}
        return Trainer(**options, callbacks=callbacks, plugins=plugins)
    _check_steps(options, callbacks)
    if (config["figures_every"] or 0) < 0:
        raise ValueError(f"figures_every must not be negative, got {config['figures_every']}")
    if options["logger"] in (None, True):
        options["logger"] = training.CurveLogger(
            folder.run_dir,
            folder.name,
            f"seed{folder.seed}",
            default_hp_metric=False,
            purge_step=step,
            first={f"val/{score}": f"{FIRST_SCORE}{score}", "train/loss": FIRST_LOSS},
        )
    checkpoints = training.Checkpoints(folder.checkpoints, every_n_steps=CHECKPOINT_EVERY)
    callbacks += [training.ReseedEachStep(config["seed"]), training.NonFiniteLoss(), *measuring]
    callbacks += [training.Interrupt(checkpoints), checkpoints]
    if command.stop_at is not None:
        callbacks.append(training.Pause(checkpoints, command.stop_at))
    if config["figures_every"] != 0:
        callbacks.append(training.TheoryFigures(config["figures_every"]))
    trainer = Trainer(**options, callbacks=callbacks, plugins=[*plugins, training.AtomicCheckpointIO()])
    if usual:  # only now, because the number of processes may have been "auto"
        trainer.val_check_interval = usual_interval(trainer, per_epoch)
    return trainer


def usual_interval(trainer: L.Trainer, per_epoch: int) -> int:
    """Return the number of batches between validations: `VALIDATE_EVERY` steps, or a fifth of a shorter run.

    Args:
        trainer: trainer of the run.
        per_epoch: number of batches per epoch of all processes together.
    """
    limit, per_step = trainer.limit_train_batches, trainer.accumulate_grad_batches
    per_process = per_epoch // trainer.world_size
    batches = min(per_process, limit) if isinstance(limit, int) else int(per_process * limit)
    ends = trainer.max_steps, (trainer.max_epochs or -1) * batches // per_step
    steps = min((end for end in ends if end >= 0), default=5 * VALIDATE_EVERY)
    return per_step * min(VALIDATE_EVERY, max(1, steps // 5))


def _check_steps(options: Mapping[str, Any], callbacks: Sequence[Callback]) -> None:
    """Raise ValueError for Trainer options that leave no step to train, or callbacks that override run options."""
    from lightning.pytorch import callbacks as known

    least = {"max_steps": -1, "max_epochs": -1, "accumulate_grad_batches": 1}
    for name in (*least, "limit_train_batches", "val_check_interval"):
        value = options[name]
        if isinstance(value, int | float) and (value == 0 or value < least.get(name, 0)):
            raise ValueError(f"trainer.{name} must be positive, got {value}")
    seconds = known.Timer(options["max_time"]).time_remaining()
    if seconds is not None and seconds <= 0:
        raise ValueError(f"trainer.max_time must be positive, got {options['max_time']}")
    instead = {
        known.BatchSizeFinder: "steps of one size; give --batch_size",
        known.GradientAccumulationScheduler: "steps of one size; give --trainer.accumulate_grad_batches",
        known.LearningRateFinder: "a fixed learning rate; give --lr, or sweep.py --tune lr=1e-4..1e-2",
        known.StochasticWeightAveraging: "one schedule, from which it resumes exactly; give EMAWeightAveraging",
    }
    for kind, reason in instead.items():
        if any(isinstance(each, kind) for each in callbacks):
            raise ValueError(f"trainer.callbacks: {kind.__name__} is not supported, because a run has {reason}")


def _in_one_epoch(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Trainer's options for a run of max_steps, which is one epoch.

    Raises:
        ValueError: options that make sense only with several epochs.
    """
    for name in ("min_epochs", "check_val_every_n_epoch"):
        if options[name] not in (None, 0, 1):
            raise ValueError(
                f"trainer.{name}={options[name]}: a run of trainer.max_steps is one epoch; give trainer.max_epochs, or "
                "trainer.min_steps and trainer.val_check_interval in steps"
            )
    # By default Lightning does not stop a run with min_steps before its first epoch ends. val_check_interval may be a
    # number of steps only if check_val_every_n_epoch is None, and a share of an epoch only if it is not.
    return {"min_epochs": 0, "check_val_every_n_epoch": 1 if isinstance(options["val_check_interval"], float) else None}


class Terminated(BaseException):
    """SIGTERM or SIGUSR1 outside training; during training `Interrupt` handles them."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} outside training")
        self.signal = number


def _terminate(number: int, frame: FrameType | None) -> None:
    """Unwind the stack as Ctrl-C does; a second signal ends the process."""
    signal.signal(number, signal.SIG_DFL)
    raise Terminated(number)


@contextmanager
def _quiet_writers() -> Iterator[None]:
    """Hide the error that ends TensorBoard's writing thread: the run raises the same error at its next write."""
    usual = threading.excepthook

    def hook(died: threading.ExceptHookArgs) -> None:
        if not isinstance(died.exc_value, OSError):
            usual(died)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = usual


@contextmanager
def _ctrl_c() -> Iterator[None]:
    # Lightning turns a Ctrl-C that bypasses our callback into a silent exit with status 1.
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def show(metrics: Metrics, where: Path) -> Metrics:
    """Print the result as one table, and return it."""
    facts = []
    test, validated = metrics.get("test", {}), number_at(metrics, "val", "accuracy")
    if (accuracy := test.get("accuracy")) is not None:
        level = score_text("chance", metrics["chance"])
        facts.append(("test accuracy", f"{score_text('accuracy', accuracy)}   (chance {level})"))
    elif not test and validated is not None:
        facts.append(("validation accuracy", f"{score_text('accuracy', validated)}   (not tested)"))
    scores = [("", name, test.get(name)) for name in SHOWN]
    for segment, each in test.get("by_segment", {}).items():
        scores += [(f" at {segment}", name, each.get(name)) for name in ("accuracy", "relative_squared_error")]
    scores = [score for score in scores if score[-1] is not None]
    for length, each in test.get("at_length", {}).items():
        scores += [(f" at length {length}", name, value) for name, value in each.items()]
    facts += [(f"test {name.replace('_', ' ')}{at}", score_text(name, value)) for at, name, value in scores]
    state = metrics["state_bytes"]
    facts.append(("parameters", number(metrics["params"])))
    facts.append(("state", "unknown: the mixer does not stream" if state is None else f"{number(state)} bytes"))
    if (rate := metrics["tokens_per_second"]) is not None:
        facts.append(("training", f"{rate:,.0f} tokens/s"))
    facts.append(("time", duration(metrics["seconds"])))
    make_console().print(make_facts(facts))
    print(where)
    return metrics


def resume_command(argv: Sequence[str], begun: bool = True) -> str:
    """Return the command that resumes an interrupted run: the same one without --overwrite and --ckpt_path.

    Args:
        argv: command line of the run.
        begun: whether the run has a checkpoint of its own; otherwise the whole command is repeated.
    """
    if not begun:
        return shlex.join(["python", "train.py", *argv])
    rest, arguments = [], iter(argv)
    for argument in arguments:
        if argument == "--ckpt_path":
            next(arguments, None)
        elif argument != "--overwrite" and not argument.startswith("--ckpt_path="):
            rest.append(argument)
    return shlex.join(["python", "train.py", *rest])


def _fail(message: object, status: int) -> int:
    _say(f"error: {in_words(message)}" if status in (1, 2) else message)
    return status


def _stopped(how: object, argv: Sequence[str], command: Command | None, status: int) -> int:
    if not is_first_process():
        # Only the first process reports. Lightning takes a nonzero status of any other for a crash and ends them all.
        # That is right only before this process has joined the group, since the first would wait for it.
        return 0 if _has_joined() else status
    begun = command is not None and RunFolder.of(command).last.is_file()
    return _fail(f"{how}\nto resume: {resume_command(argv, begun)}", status)


def _has_joined() -> bool:
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized()


def _say(message: object) -> None:
    with suppress(OSError):  # standard error may be a log on the full disk
        print(f"{PROGRAM}: {message}", file=sys.stderr, flush=True)
