"""SequenceModule: learning rates, optimizers, scores against plain loops, losses, precision, errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy

from tasks.spec import TaskSpec
from tests import python, refused
from tests.tolerances import assert_close
from tests.training import small
from zoo.ops import dplr
from zoo.ops.precision import rounded_type
from zoo.training import SequenceModule
from zoo.training.metrics import R2, Bucketed, ClassificationScores, MacroAccuracy, Mean, Perplexity, Ratio, Sums
from zoo.training.module import warmup_cosine

WITH_EXPERTS = {"n_experts": 3, "expert_offset": 0, "expert_period": 1, "n_layers": 2}


class Rates(L.Callback):
    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])


def test_the_learning_rate_changes_each_optimizer_step_and_ends_at_final_lr(tmp_path: Path) -> None:
    rates = Rates()
    module = small.module(lr=1e-2, warmup_steps=3, final_lr=0.05)
    options = {"max_epochs": 2, "max_steps": -1, "accumulate_grad_batches": 2}  # steps of 2, 2 and 1 batches
    small.trainer(tmp_path, rates, **options).fit(module, datamodule=small.data(tmp_path))
    assert rates.rates[:3] == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2])
    assert (np.diff(rates.rates[2:]) < 0).all()
    assert rates.rates[-1] == pytest.approx(5e-4)
    assert len(rates.rates) == 6


@given(st.integers(0, 20), st.integers(1, 60), st.floats(0, 1))
def test_warmup_cosine_rises_to_one_then_falls_to_final(warmup: int, total: int, final: float) -> None:
    factors = np.array([warmup_cosine(step, warmup, total, final) for step in range(total)])
    assert (factors > 0).all() or final == 0
    assert (np.diff(factors[:warmup]) > 0).all()
    assert (np.diff(factors[warmup:]) <= 1e-12).all()
    if warmup < total:
        assert factors[-1] == pytest.approx(final, abs=1e-12)
    if 0 < warmup <= total:
        assert factors[warmup - 1] == 1.0
    assert warmup_cosine(total, warmup, total, final) <= 1.0  # the scheduler looks one step ahead


def test_a_schedule_without_an_end_is_refused(tmp_path: Path) -> None:
    trainer = small.trainer(tmp_path, max_steps=-1, max_epochs=-1)
    with pytest.raises(ValueError, match=r"give trainer\.max_steps or trainer\.max_epochs"):
        trainer.fit(small.module(), datamodule=small.data(tmp_path))


def test_the_optimizer_has_the_options_and_decays_matrices_only(tmp_path: Path) -> None:
    options = {"lr": 0.02, "beta1": 0.7, "beta2": 0.95, "warmup_steps": 0, "final_lr": 1.0, "weight_decay": 0.3}
    module = small.module(mixer={"name": "factorized"}, n_layers=2, **options)
    trainer = small.trainer(tmp_path, max_steps=1)
    trainer.fit(module, datamodule=small.data(tmp_path))
    (optimizer,) = trainer.optimizers
    assert isinstance(optimizer, torch.optim.AdamW)
    decayed, spared = optimizer.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.3, 0.0)
    for group in (decayed, spared):
        assert group["betas"] == (0.7, 0.95)
        assert group["lr"] == pytest.approx(0.02)
    names = {id(p): name for name, p in module.backbone.named_parameters()}
    assert len(decayed["params"]) + len(spared["params"]) == len(names)
    spared_names = {names[id(p)] for p in spared["params"]}
    assert spared_names == module.backbone.no_weight_decay()
    assert {"embedding.weight", "layers.layers.0.mixer.coefficients"} <= spared_names
    assert all(p.ndim >= 2 for p in decayed["params"])


def test_slow_parameters_have_their_own_learning_rate(tmp_path: Path) -> None:
    module = small.module(mixer={"name": "s5"}, n_layers=1, lr=0.02, slow_lr=0.25, warmup_steps=0, final_lr=1.0)
    trainer = small.trainer(tmp_path, max_steps=1)
    trainer.fit(module, datamodule=small.data(tmp_path))
    names = {id(p): name.rpartition(".")[2] for name, p in module.backbone.named_parameters()}
    groups = trainer.optimizers[0].param_groups
    rates = {names[id(p)]: (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    slow = {name for name, (rate, _) in rates.items() if rate == pytest.approx(0.005)}
    assert slow == {"log_rate", "frequency", "log_dt", "B"}
    assert rates["B"][1] == 0
    assert rates["C"] == (pytest.approx(0.02), 0.1)


@pytest.mark.parametrize(
    ("name", "expected"), [("SGD", {"momentum": 0.7}), ("torch.optim:RAdam", {"betas": (0.7, 0.95)})]
)
def test_any_optimizer_of_torch_trains(name: str, expected: dict[str, Any], tmp_path: Path) -> None:
    module = small.module(optimizer=name, beta1=0.7, beta2=0.95)
    before = module.backbone.embedding.weight.clone()
    trainer = small.trainer(tmp_path, max_steps=1)
    trainer.fit(module, datamodule=small.data(tmp_path))
    optimizer = trainer.optimizers[0]
    assert type(optimizer).__name__ == name.rpartition(":")[2]
    assert optimizer.param_groups[0].items() >= expected.items()
    assert not torch.equal(module.backbone.embedding.weight, before)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SDG", "unknown name in torch.optim 'SDG' .*SGD"),
        ("torch.nn:Linear", "must be a torch.optim.Optimizer, got torch.nn:Linear"),
        ("Muon", "2D"),
    ],
)
def test_an_unusable_optimizer_is_refused_when_the_module_is_built(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small.module(optimizer=name)


def test_initial_weights_depend_only_on_the_seed_and_leave_the_generator_unchanged() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    a, b, c = small.module(seed=1), small.module(seed=1), small.module(seed=2)
    assert torch.equal(torch.rand(3), expected)
    small.assert_identical(small.weights(a), small.weights(b))
    assert not torch.equal(a.backbone.head.weight, c.backbone.head.weight)


class Scattered(small.Echo):
    """Echo with two classes, so that half of the guesses are right, and with few labels, in some rows none."""

    name = "scattered"

    @property
    def spec(self) -> Any:
        return replace(super().spec, n_outputs=2, labelled=None, perplexity=True)

    def sample(self, rng: np.random.Generator, n: int) -> Any:
        arrays = super().sample(rng, n)
        labels = np.where(arrays["labels"] < 0, -100, arrays["labels"] % 2)
        labels[rng.random(labels.shape) < 0.6] = -100
        labels[:, -1] = arrays["inputs"][:, -1] % 2
        labels[::5] = -100  # sequences without labels
        return arrays | {"labels": labels}


def test_scores_of_classification_equal_a_plain_loop(tmp_path: Path) -> None:
    """29 sequences, so the last batch is short."""
    module, result, outputs, arrays = small.judged(tmp_path, Scattered(), 29, perplexity=True)
    right, whole, losses, answers = [], [], [], torch.from_numpy(arrays["labels"]).long()
    for row, labels in zip(outputs, answers, strict=True):
        at = [i for i, label in enumerate(labels) if label != -100]
        right += (correct := [int(row[i].argmax()) == int(labels[i]) for i in at])
        whole += [all(correct)] if at else []
        losses += [F.cross_entropy(row[i], labels[i]).item() for i in at]
    macro = float(MulticlassAccuracy(num_classes=2, average="macro", ignore_index=-100)(outputs.argmax(-1), answers))
    assert 0 < np.mean(whole) < 1
    assert macro != pytest.approx(np.mean(right), rel=1e-3)
    expected = {
        "accuracy": np.mean(right),
        "accuracy_macro": macro,
        "sequence_accuracy": np.mean(whole),
        "loss": np.mean(losses),
        "perplexity": np.exp(np.mean(losses)),
        "bits_per_token": np.mean(losses) / np.log(2),
    }
    (split,) = result.pop("by_distance")
    assert result == pytest.approx(expected, rel=1e-5)
    assert split == {"at_most": 4, "accuracy": pytest.approx(np.mean(right), rel=1e-6)}
    data = small.data(tmp_path, Scattered())
    (validated,) = small.trainer(tmp_path).validate(module, datamodule=data, verbose=False)
    assert validated == {f"val/{name}": pytest.approx(value) for name, value in module.results["val"].items()}
    assert module.results["val"].keys() == expected.keys()


def drawn_answers(n_classes: int, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Guesses, and labels with some -100. The last two classes are never guessed, the last four never labels."""
    generator = torch.Generator().manual_seed(seed)
    guesses = torch.randint(max(1, n_classes - 2), (n,), generator=generator)
    labels = torch.randint(max(1, n_classes - 4), (n,), generator=generator)
    labels = torch.where(torch.rand(n, generator=generator) < 0.5, guesses.clamp(max=max(0, n_classes - 5)), labels)
    labels[torch.rand(n, generator=generator) < 0.3] = -100
    return guesses, labels


@settings(max_examples=20)
@given(st.integers(2, 100), st.integers(3, 1000), st.integers(0, 1000))
def test_macro_accuracy_is_the_metric_of_torchmetrics(n_classes: int, n: int, seed: int) -> None:
    ours, theirs = MacroAccuracy(n_classes), MulticlassAccuracy(num_classes=n_classes, ignore_index=-100)
    for batch in range(3):
        guesses, labels = drawn_answers(n_classes, n, seed + batch)
        theirs.update(guesses, labels)
        ours.update(guesses[labels != -100], labels[labels != -100])
    assert_close(ours.compute().nan_to_num(), theirs.compute())


CLASSES = 9
METRICS: dict[str, tuple[Callable[[], Sums], Callable[[torch.Generator, int], tuple[Any, ...]]]] = {
    "mean": (Mean, lambda g, n: (torch.rand((), generator=g), n)),
    "perplexity": (Perplexity, lambda g, n: (torch.rand((), generator=g), n)),
    "ratio": (Ratio, lambda g, n: (*torch.rand(2, n, generator=g).sum(1),)),
    "macro accuracy": (lambda: MacroAccuracy(CLASSES), lambda g, n: (*torch.randint(CLASSES, (2, n), generator=g),)),
    "by a fact": (Bucketed, lambda g, n: (*torch.rand(2, n, generator=g), torch.randint(-1, 20, (n,), generator=g))),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_add_up_over_batches_and_processes(name: str, generator: torch.Generator) -> None:
    make, draw = METRICS[name]
    whole, together, *parts = (make() for _ in range(5))
    for part in parts:
        batch = draw(generator, 40)
        whole.update(*batch)
        part.update(*batch)
    parts[0].update(*draw(generator, 0))  # a process may get no row of the last batch
    together.update(*draw(generator, 0))
    for state, reduce in together._reductions.items():
        setattr(together, state, reduce(torch.stack([part.metric_state[state] for part in parts])))
    assert_close(together.compute().nan_to_num(), whole.compute().nan_to_num())
    assert whole.compute().nan_to_num().sum() > 0


class Sparse(small.Scale):
    """Scale plus 1, labelled at a share of the positions, with the position as a fact."""

    def __init__(self, share: float = 0.5) -> None:
        self.share, self.name = share, f"sparse{share}"

    @property
    def spec(self) -> TaskSpec:
        return replace(super().spec, facts=("age",))

    def sample(self, rng: np.random.Generator, n: int) -> Any:
        arrays = super().sample(rng, n)
        labels = arrays["labels"] + np.float32(1)
        labels[rng.random(labels.shape[:2]) > self.share] = np.nan
        age = np.tile(np.arange(small.SEQ_LEN, dtype=np.int32), (n, 1))
        return {"inputs": arrays["inputs"], "labels": labels, "age": np.where(np.isnan(labels[:, :, 0]), -1, age)}


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_scores_of_regression_equal_numpy_over_the_whole_split(share: float, tmp_path: Path) -> None:
    _, result, outputs, arrays = small.judged(tmp_path, Sparse(share))
    labels, age = arrays["labels"].astype(float), arrays["age"]
    error, at = np.square(outputs.double().numpy() - labels), age >= 0
    power, y = np.square(labels), labels[at]
    assert at.all() == (share == 1)
    bounds = {1: (0, 1), 2: (2,), 4: (3, 4), 8: (5, 6, 7)}
    split = {bound: error[np.isin(age, ages)].sum() / power[np.isin(age, ages)].sum() for bound, ages in bounds.items()}
    assert [(each["at_most"], each["relative_squared_error"]) for each in result.pop("by_age")] == [
        (bound, pytest.approx(value, rel=1e-5)) for bound, value in split.items()
    ]
    assert result == pytest.approx(
        {
            "loss": error[at].mean(),
            "relative_squared_error": error[at].sum() / power[at].sum(),
            "r2": 1 - error[at].sum() / np.square(y - y.mean(axis=0)).sum(),
        },
        rel=1e-5,
    )


@pytest.mark.parametrize("fact", ["type", "a.b"])
def test_a_fact_may_have_any_name(fact: str) -> None:
    scores = ClassificationScores(3, [fact], perplexity=False)
    labels = torch.tensor([0, 1])
    at = torch.arange(2)
    scores.update(torch.tensor(0.0), torch.eye(3)[labels], labels, at, {"labels": labels[None], fact: labels[None]})
    assert scores.results()[f"by_{fact}"] == [{"at_most": 1, "accuracy": 1.0}]


def test_r2_is_precise_for_labels_far_from_zero(generator: torch.Generator) -> None:
    labels = 1e4 + torch.randn(3, 200, 2, generator=generator)
    outputs = labels + torch.randn(labels.shape, generator=generator) / 2
    metric = R2()
    for guesses, batch in zip(outputs, labels, strict=True):
        metric.update(guesses, batch)
    y, error = labels.double().flatten(0, 1), (outputs.double() - labels.double()).square().sum()
    assert float(metric.compute()) == pytest.approx(float(1 - error / (y - y.mean(0)).square().sum()), rel=1e-5)


def test_the_training_error_is_relative_to_the_mean_square_of_the_labels() -> None:
    module = small.module(task=small.Scale())
    inputs = torch.zeros(2, 4, 3)
    labels = 5 + torch.arange(24.0).reshape(2, 4, 3) / 24
    logged = small.logged_by(module)
    module.training_step({"inputs": inputs, "labels": labels}, 0)
    with torch.no_grad():
        error = (module(inputs) - labels).square().mean()
    assert logged["train/relative_squared_error"] == pytest.approx(float(error / labels.square().mean()), rel=1e-5)


@pytest.mark.parametrize("task", [small.Echo(), Sparse()], ids=lambda task: task.name)
def test_testing_long_sequences_in_chunks_gives_the_same_scores(
    task: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, data = small.module(task=task, mixer={"name": "lstm"}, n_layers=2), small.data(tmp_path, task, n_test=11)
    whole = small.trainer(tmp_path).test(module, datamodule=data, verbose=False)[0]
    seen = []
    monkeypatch.setattr("zoo.training.module.STREAM_ABOVE", small.SEQ_LEN - 1)
    monkeypatch.setattr("zoo.training.module.STREAM_CHUNK", 3)
    stream = module.backbone.stream
    monkeypatch.setattr(module.backbone, "stream", lambda x, state: seen.append(x.shape[1]) or stream(x, state))
    chunks = small.trainer(tmp_path).test(module, datamodule=data, verbose=False)[0]
    assert seen == 2 * [3, 3, 2]
    assert chunks == pytest.approx(whole, rel=1e-5)


def test_a_module_learns_a_regression_from_sparse_labels(tmp_path: Path) -> None:
    module = small.module(task=Sparse(), lr=3e-2)
    trainer = small.trainer(tmp_path, max_steps=60, limit_val_batches=0)
    trainer.fit(module, datamodule=small.data(tmp_path, Sparse()))
    assert trainer.callback_metrics["train/relative_squared_error"] < 0.2
    error = trainer.test(module, datamodule=small.data(tmp_path, Sparse()), verbose=False)[0]
    assert error["test/relative_squared_error"] < 0.2
    assert "test/accuracy" not in error


def test_a_confident_error_has_a_finite_perplexity() -> None:
    metric = Perplexity()
    metric.update(F.cross_entropy(torch.tensor([[80.0, 0.0]]), torch.tensor([1])), 1)
    assert_close(metric.compute().log(), torch.tensor(80.0))


@pytest.mark.parametrize("task", [small.Echo(), small.Scale()])
def test_padding_does_not_change_the_loss(task: Any, rng: np.random.Generator) -> None:
    module = small.module(task=task)
    batch = {name: torch.from_numpy(a) for name, a in task.sample(rng, 3).items()}
    batch["lengths"] = torch.tensor([8, 5, 6])
    padding = torch.arange(small.SEQ_LEN) >= batch["lengths"].unsqueeze(1)
    if task.spec.loss == "cross_entropy":
        batch["labels"][padding] = -100
    outputs, labels, at = module.predict_labelled(batch)
    other = {name: t.clone() for name, t in batch.items()}
    other["inputs"][padding] = 0
    if task.spec.loss == "mse":
        other["labels"][padding] = 7.0
        assert len(labels) == 19
    again, other_labels, _ = module.predict_labelled(other)
    assert at is not None
    assert torch.equal(labels, other_labels)
    assert_close(again, outputs)


def test_buckets_are_bounded_by_powers_of_two() -> None:
    metric = Bucketed(torch.int64)
    right = torch.tensor([True, True, False, True, True, False, True, True, False, False, True])
    metric.update(right.long(), torch.ones(11).long(), torch.tensor([-1, 0, 1, 2, 3, 4, 5, 8, 9, 16, 17]))
    assert metric.by_bound() == {1: 0.5, 2: 1.0, 4: 0.5, 8: 1.0, 16: 0.0, 32: 1.0}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"lr": -1.0}, "lr must be a finite number >= 0, got -1.0"),
        ({"weight_decay": float("nan")}, "weight_decay must be a finite number >= 0, got nan"),
        ({"beta2": 1.0}, r"beta2 must lie in \[0, 1\), got 1.0"),
        ({"mixer": {"name": "atention"}}, "did you mean 'attention'"),
        ({"balance_weight": -0.1}, "balance_weight must be a finite number >= 0, got -0.1"),
        ({"vocab_size": None}, "exactly one of vocab_size"),
        ({"loss": "mae"}, "unknown loss 'mae'"),
    ],
)
def test_bad_options_are_one_line_errors(option: dict[str, Any], message: str, unchecked_shapes: None) -> None:
    with refused(message):
        small.module(**option)


def test_bf16_mixed_rounds_products_inside_chunks_and_scores_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[Any] = []
    monkeypatch.setattr(dplr, "rounded_type", lambda state: kinds.append(rounded_type(state)) or kinds[-1])
    module = small.module(mixer={"name": "gated_delta_net"})
    trainer = small.trainer(tmp_path, precision="bf16-mixed", max_steps=2, val_check_interval=2)
    trainer.fit(module, datamodule=small.data(tmp_path))
    assert trainer.callback_metrics["train/loss"].dtype == torch.float32
    assert torch.isfinite(trainer.callback_metrics["val/loss"])
    assert set(kinds) == {torch.bfloat16}


@pytest.mark.slow
def test_compiled_training_matches_eager(tmp_path: Path) -> None:
    # In a subprocess, because torch.compile cannot trace the shape checker of this one.
    program = f"""
from pathlib import Path
import torch
from tests.training import small
ends = []
for compiled in (False, True):
    folder = Path({str(tmp_path)!r}) / str(compiled)
    ends.append(small.module(compile=compiled))
    small.trainer(folder).fit(ends[-1], datamodule=small.data(folder.parent))
eager, compiled = (end.state_dict() for end in ends)
assert ends[1].backbone._compiled_call_impl is not None
assert eager.keys() == compiled.keys()
for name in eager:
    torch.testing.assert_close(compiled[name], eager[name], rtol=1e-4, atol=1e-5)
"""
    python("-c", program)


def test_a_module_loads_from_a_checkpoint_without_the_data(tmp_path: Path) -> None:
    module = small.module(seed=3, **WITH_EXPERTS)
    small.trainer(tmp_path).fit(module, datamodule=small.data(tmp_path))
    loaded = SequenceModule.load_from_checkpoint(tmp_path / "checkpoints/last.ckpt", weights_only=True)
    small.assert_identical(small.weights(module), small.weights(loaded))
    assert dict(loaded.hparams) == dict(module.hparams)


def test_a_mixers_own_loss_is_added_and_top_k_starts_after_the_warm_up() -> None:
    batch = {name: torch.from_numpy(a) for name, a in small.Echo().sample(np.random.default_rng([0]), 3).items()}
    for warmup_steps in (1, 0):
        module = small.module(mixer={"name": "dsa", "top_k": 2}, warmup_steps=warmup_steps)
        logged, layer = small.logged_by(module), module.backbone.layers.layers[0].mixer
        total = module.training_step(batch, 0)
        assert layer.warming_up == bool(warmup_steps)
        assert logged["train/own_loss"] == pytest.approx(layer.own_loss.item())
        assert total.item() == pytest.approx(logged["train/loss"] + logged["train/own_loss"])
        found = module.backbone(batch["inputs"])
        layer.warming_up = not layer.warming_up
        assert not torch.equal(module.backbone(batch["inputs"]), found)


@pytest.mark.parametrize("experts", [WITH_EXPERTS, {"n_layers": 2, "blocks": [{"d_channel": 6, "n_experts": 3}] * 2}])
def test_experts_are_balanced_by_a_weighted_part_of_the_loss_and_their_load_is_logged(experts: dict[str, Any]) -> None:
    batch = {name: torch.from_numpy(a) for name, a in small.Echo().sample(np.random.default_rng([0]), 3).items()}

    def trained(weight: float) -> tuple[float, dict[str, float], Any]:
        module = small.module(balance_weight=weight, **experts)
        logged = small.logged_by(module)
        return module.training_step(batch, 0).item(), logged, module.backbone.layers.layers

    total, logged, layers = trained(0.5)
    balance = np.mean([block.channel.balance_loss.item() for block in layers])
    assert len(layers) == 2
    assert logged["train/balance_loss"] == pytest.approx(balance)
    assert total == pytest.approx(logged["train/loss"] + 0.5 * balance)
    assert trained(0.0)[0] == pytest.approx(logged["train/loss"])
    for layer in (0, 1):
        loads = [logged[f"train/load/layer{layer}/expert{e}"] for e in range(3)]
        assert sum(loads) == pytest.approx(2)
        assert all(0 <= load <= 1 for load in loads)


@pytest.mark.parametrize(("loss", "mixer"), [("cross_entropy", "attention"), ("mse", "selective_ssm")])
def test_an_empty_batch_does_not_change_the_scores(loss: Any, mixer: str) -> None:
    module = SequenceModule(
        mixer={"name": mixer}, d_model=8, vocab_size=5, n_outputs=5, loss=loss, perplexity=loss == "cross_entropy"
    )

    def batch(n: int) -> dict[str, torch.Tensor]:
        labels = (
            torch.ones(n, 6, dtype=torch.int64) if loss == "cross_entropy" else torch.arange(n * 30.0).view(n, 6, 5)
        )
        return {"inputs": torch.zeros(n, 6, dtype=torch.int64), "labels": labels}

    outputs, labels, _ = module.predict_labelled(batch(0))
    assert [number.item() for number in module._judge(outputs, labels)] == [0.0, 0.0]
    module.log = lambda name, value, **_: None
    found = []
    with torch.no_grad():
        for n in (2, 0):
            module.test_step(batch(n), 0)
            found.append(module.scores["test"].results())
    assert found[0] == found[1]
