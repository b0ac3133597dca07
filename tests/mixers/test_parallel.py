"""Sequence-parallel and sharded training on several ranks equals training in one process."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

import zoo
from tests import refused
from tests.cases import D_MODEL, DEFAULTS, draw, drawn, randomise
from zoo import Backbone, Bidirectional, create_mixer, list_mixers, parallel, register
from zoo.blocks import Experts
from zoo.contract import SequenceMixer
from zoo.mixers.delta_net import DeltaNet
from zoo.ops.time import valid_positions
from zoo.state import state_nbytes, state_tensors
from zoo.training.metrics import ClassificationScores

BATCH, SEQ_LEN, VOCAB = 3, 13, 7
LENGTHS = torch.tensor([SEQ_LEN, 9, 2])  # some rows end before later ranks' parts begin
LONG, LEAST = 100, 4  # parts span several chunks or less than one, but at least the width of a convolution
ALLOWED = 1e-12
PAIR = {"pattern": ["averages", "lstm"]}


def assert_equal(found: list[Tensor | None], expected: list[Tensor | None], what: str) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a is not None
        assert b is not None
        error, size = (a - b).detach().abs().max(), b.detach().abs().max()
        assert error <= ALLOWED * size.clamp(min=1), (what, error)


def gradients(*modules: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for module in modules for p in module.parameters() if p.grad is not None]


def own_positions(rank: int, n_ranks: int, seq_len: int, least: int, generator: torch.Generator) -> slice:
    """This rank's part of the positions, when the sequence is cut at random into parts of at least `least`."""
    spare = seq_len - n_ranks * least
    cuts = torch.randint(spare + 1, (n_ranks - 1,), generator=generator).sort().values.tolist()
    starts = [0, *(cut + least * (n + 1) for n, cut in enumerate(cuts)), seq_len]
    return slice(starts[rank], starts[rank + 1])


def check_mixers(rank: int, n_ranks: int) -> None:
    for case in DEFAULTS:
        generator = torch.Generator().manual_seed(0)
        mixer = case.create(generator)
        own = own_positions(rank, n_ranks, SEQ_LEN, 1, generator)
        split = check_mixer(case.name, mixer, LENGTHS, own, generator)
        if hasattr(mixer.empty_state(1), "carried"):
            continue  # the number of bytes sent depends on the lengths of the parts
        x = draw(BATCH, SEQ_LEN, D_MODEL, generator=generator)
        state = mixer.stream(x[:, : own.stop])[1]  # ranks send only this state, and receive only its gradient
        assert split.state_bytes_sent == (state_nbytes(state) if rank + 1 < n_ranks else 0), case.name
        received = mixer.stream(x[:, : own.start])[1] if rank else ()
        differentiable = tuple(t for t in state_tensors(received) if t.is_floating_point() or t.is_complex())
        assert split.gradient_bytes_sent == state_nbytes(differentiable), case.name


def check_linear_recurrences(rank: int, n_ranks: int) -> None:
    """Linear recurrences gather all carried states at once: no rank waits for its predecessor."""
    gathered = []

    def all_gather(found: list[Tensor], t: Tensor, group: dist.ProcessGroup) -> None:
        gathered.append(t.nbytes if t.is_floating_point() else 0)
        dist.distributed_c10d.all_gather(found, t, group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_gather", all_gather)
        patch.setattr(dist, "batch_isend_irecv", None)
        for case in drawn("several ranks"):
            generator = torch.Generator().manual_seed(0)
            mixer = case.create(generator)
            if not hasattr(mixer.empty_state(1), "carried"):
                continue
            gathered.clear()
            own = own_positions(rank, n_ranks, LONG, LEAST, generator)
            lengths = None if case.options else torch.tensor([LONG, 41, 2])
            split = check_mixer(str(case), mixer, lengths, own, generator)
            assert split.state_bytes_sent + split.gradient_bytes_sent == (n_ranks - 1) * sum(gathered), case


def check_mixer(
    name: str, mixer: SequenceMixer, lengths: Tensor | None, own: slice, generator: torch.Generator
) -> parallel.SequenceParallel:
    seq_len = LONG if lengths is None else int(lengths[0])
    x, weight = (draw(BATCH, seq_len, d, generator=generator) for d in (D_MODEL, mixer.d_out))
    whole = x.clone().requires_grad_()
    mixer.zero_grad()
    y = mixer(whole, lengths)
    (y * weight).sum().backward()
    expected = [y[:, own], whole.grad[:, own], *gradients(mixer)]
    mixer.zero_grad()

    if lengths is not None:
        x = x.masked_fill(~valid_positions(lengths, seq_len).unsqueeze(2), float("nan"))  # padding must not matter
    split, part = parallel.sequence(mixer, micro_batches=2), x[:, own].clone().requires_grad_()
    y = split(part, lengths)
    (y * weight[:, own]).sum().backward()
    split.sum_gradients()
    assert_equal([y, part.grad, *gradients(mixer)], expected, name)
    return split


class Averages(nn.Module):
    """A decaying average, computed in steps; its state is a mapping with a Python int, the number of positions."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.stream(x)[0]

    def stream(self, x: Tensor, state: dict[str, Any] | None = None) -> tuple[Tensor, dict[str, Any]]:
        total, seen = (x.new_zeros(len(x), x.shape[2]), 0) if state is None else (state["total"], state["seen"])
        found = []
        for u in self.proj(x).unbind(1):
            total, seen = 0.9 * total + u, seen + 1
            found.append(total / seen)
        return torch.stack(found, 1), {"total": total, "seen": seen}


def check_foreign(rank: int, n_ranks: int) -> None:
    register("averages", Averages)
    for name, options in (("averages", {}), ("torch.nn:GRU", {"batch_first": True}), ("parallel_hybrid", PAIR)):
        generator = torch.Generator().manual_seed(0)
        mixer = randomise(create_mixer(name, D_MODEL, **options), generator).double()
        check_mixer(name, mixer, None, own_positions(rank, n_ranks, LONG, LEAST, generator), generator)


def models() -> Iterator[Backbone]:
    sizes = {"d_model": D_MODEL, "n_layers": 3, "n_outputs": VOCAB, "vocab_size": VOCAB}
    yield Backbone({"name": "hybrid", "pattern": ["attention", "ssd", "lstm"]}, **sizes, n_experts=3, canon="AC")
    yield Backbone({"name": "mamba3"}, **sizes, decode_from=5, logit_cap=3.0)
    yield Backbone({"name": "rwkv7"}, **sizes, canon="ACD")
    yield Backbone({"name": "rwkv7"}, **sizes, n_experts=3)
    yield Backbone({"name": "dsa", "top_k": 4}, **sizes)


def check_sharded(rank: int, n_ranks: int) -> None:
    """Two optimiser steps with sharded parameters, gradients and momenta, each rank with different rows."""
    for name in list_mixers():
        generator, steps = torch.Generator().manual_seed(0), []
        torch.manual_seed(0)
        model = Backbone({"name": name}, d_model=D_MODEL, n_layers=2, n_outputs=VOCAB, vocab_size=VOCAB).double()
        tokens, labels = torch.randint(VOCAB, (2, 2 * n_ranks, 6), generator=generator)
        for trained, rows in ((copy.deepcopy(model), slice(None)), (parallel.shard(model), slice(rank, None, n_ranks))):
            optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
            at = torch.arange(labels[rows].numel())
            for _ in range(2):
                optimizer.zero_grad()
                F.cross_entropy(trained(tokens[rows], None, at), labels[rows].flatten()).backward()
                optimizer.step()
            steps.append(get_model_state_dict(trained, options=StateDictOptions(full_state_dict=True)))
        assert_equal(list(steps[1].values()), list(steps[0].values()), name)


def loss_of(model: Backbone, logits: Tensor, labels: Tensor, n_labels: int) -> Tensor:
    balance = [each.balance_loss for each in model.modules() if isinstance(each, Experts)]
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / n_labels
    own = [each.own_loss for each in model.modules() if isinstance(each, SequenceMixer)]
    return loss + sum((each for each in (*balance, *own) if each is not None), torch.zeros(()))


def check_models(rank: int, n_ranks: int) -> None:
    for model in models():
        generator = torch.Generator().manual_seed(0)
        randomise(model, generator).double()
        tokens, labels = torch.randint(VOCAB, (2, BATCH, SEQ_LEN), generator=generator)
        labels[:, :5] = -100  # the first rank may have no labels
        n_labels = int((labels != -100).sum())
        logits = model(tokens)
        loss = loss_of(model, logits, labels, n_labels)
        loss.backward()
        expected = gradients(model)
        model.zero_grad()

        split = parallel.sequence(model, n_ranks, micro_batches=2)
        own = split.part(labels)
        y = split(split.part(tokens))
        part = loss_of(model, y, own, n_labels)
        part.backward()
        split.sum_gradients()
        dist.all_reduce(part.detach())
        assert_equal([y, part, *gradients(model)], [split.part(logits), loss, *expected], repr(model.layers))

        with torch.no_grad():
            assert torch.equal(split(split.part(tokens)), y)
        scores = [ClassificationScores(VOCAB, [], perplexity=True) for _ in range(2)]
        for each, outputs, asked in ((scores[0], logits, labels), (scores[1], y, own)):
            at = (asked != -100).flatten().nonzero().squeeze(1)
            guesses, right = outputs.detach().flatten(0, 1)[at], asked.flatten()[at]
            mean = F.cross_entropy(guesses, right) if len(at) else guesses.sum()
            each.update(mean, guesses, right, at, {"labels": asked})
        found, of_whole = scores[1].results(), scores[0].results()  # each sums over the ranks
        for name in ("loss", "accuracy", "accuracy_macro", "perplexity"):
            assert found[name] == pytest.approx(of_whole[name])


class Own(DeltaNet):
    """Overrides `mix` without a recurrence of zoo.ops, but keeps the state of its base class."""

    def mix(self, x: Tensor, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        return x, state._replace(S=state.S + 1)


def check_refusals(n_ranks: int) -> None:
    split = parallel.sequence(create_mixer("lstm", D_MODEL))
    with refused(f"{n_ranks} ranks cannot share {n_ranks - 1} positions"):
        split.part(torch.zeros(1, n_ranks - 1, D_MODEL))
    with refused("at least one position"):
        split(torch.zeros(1, split.rank, D_MODEL))
    with refused("the same batch size"):
        split(torch.zeros(1 + split.rank, 1, D_MODEL))
    with refused("Own: its state lists S as carried, but it called no recurrence of zoo.ops"):
        parallel.sequence(Own(D_MODEL))(torch.zeros(1, 3, D_MODEL))
    with refused("groups of 5"):
        parallel.sequence(split.model, 5)


def run_rank(rank: int, n_ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=n_ranks)
    check_mixers(rank, n_ranks)
    check_foreign(rank, n_ranks)
    check_linear_recurrences(rank, n_ranks)
    check_models(rank, n_ranks)
    if n_ranks == 2:
        check_sharded(rank, n_ranks)
    check_refusals(n_ranks)
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_every_mixer_and_model_is_the_same_on_several_ranks(n_ranks: int, tmp_path: Path) -> None:
    mp.spawn(run_rank, (n_ranks, str(tmp_path)), nprocs=n_ranks)


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_one_rank_runs_the_model_and_refuses_wrong_splits(generator: torch.Generator) -> None:
    mixer = DEFAULTS[0].create(generator)
    x = draw(BATCH, SEQ_LEN, D_MODEL, generator=generator)
    split = parallel.sequence(mixer, 1, micro_batches=2)
    assert_equal([split(split.part(x), LENGTHS)], [mixer(x, LENGTHS)], "outputs")
    assert split.state_bytes_sent == 0
    with refused("a batch of 1 has fewer rows than micro_batches=2"):
        split(x[:1])
    for lengths in ([14, 1, 1], torch.tensor([14, 1, 1])):
        with refused(r"lengths must lie in 0\.\.13"):
            split(x, lengths)
    with refused("groups of 2; choose from: 1"):
        parallel.sequence(mixer, 2)
    with refused("Linear cannot be split over ranks"):
        parallel.sequence(nn.Linear(2, 2))
    with refused("Bidirectional cannot be split over ranks"):
        parallel.sequence(Bidirectional(mixer, DEFAULTS[0].create(generator)))


@pytest.mark.usefixtures("one_rank")
def test_a_sharded_model_must_be_gathered_before_saving(tmp_path: Path) -> None:
    model = parallel.shard(Backbone({"name": "gru"}, d_model=D_MODEL, n_outputs=VOCAB, vocab_size=VOCAB))
    for name in ("model.ckpt", "model.safetensors"):
        with refused("get_model_state_dict"):
            zoo.save(model, tmp_path / name)
    assert not list(tmp_path.iterdir())
    whole = Backbone(**model.options)
    whole.load_state_dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)))
    zoo.save(whole, tmp_path / "model.ckpt")
    tokens = torch.arange(VOCAB).unsqueeze(0)
    with torch.no_grad():
        assert_equal([zoo.load(tmp_path / "model.ckpt")(tokens)], [model(tokens)], "outputs")


def test_ranks_need_a_process_group() -> None:
    with refused("torchrun"):
        parallel.sequence(create_mixer("lstm", D_MODEL))
