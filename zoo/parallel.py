"""Parallel models: split the positions of a sequence (`sequence`) or the parameters (`shard`) over ranks.

    model = zoo.parallel.sequence(backbone, 4)           # groups of 4 ranks, started by torchrun
    tokens, labels = model.part(tokens), model.part(labels)
    loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), reduction="sum") / n_labels
    loss.backward()
    model.sum_gradients()

Each rank receives the state of the previous rank, streams its own positions, and sends its state to the next rank. In
the backward pass the gradients of the states return the same way. So every mixer with `stream` can be split, without
approximation. If all layers are linear recurrences, no rank waits for another: each rank computes how its positions map
the state, all ranks exchange these maps, and each derives from them the state that enters its positions.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from zoo.adapters.states import Carried
from zoo.backbone import Backbone
from zoo.blocks import Experts, Stack
from zoo.contract import SequenceMixer
from zoo.ops.experts import Load
from zoo.ops.ranks import Act, spread_by
from zoo.ops.time import Lengths, as_lengths, require_within
from zoo.state import map_state, state_nbytes, state_tensors
from zoo.validate import require_positive

# The header of a message encodes a dtype as its index in this tuple.
DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)


def shard(model: Backbone, mesh: DeviceMesh | None = None) -> Backbone:
    """Shard the parameters of a model over ranks, block by block (FSDP2, `torch.distributed.fsdp.fully_shard`).

    Each rank computes on its own examples; gradients are averaged over the ranks. The last block, the embedding and the
    head form one unit. Call it before you build the optimizer.

    Args:
        model: changed in place.
        mesh: one-dimensional mesh of the ranks; default: all ranks.
    """
    *blocks, _ = model.layers.chain()
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh)
        register_fsdp_forward_method(module, "stream")
    return model


def sequence(
    model: nn.Module, group: dist.ProcessGroup | int | None = None, micro_batches: int = 1
) -> SequenceParallel:
    """Split the positions of a model's input over the ranks of a group.

    Args:
        model: a `zoo.Backbone`, a mixer, or another causal module with `stream` and `empty_state`, with the same
            weights on each rank.
        group: process group; its ranks hold the parts of the sequence in order. An integer n makes groups of n
            consecutive ranks. Default: all ranks.
        micro_batches: number of parts of the batch. While a rank streams one part, the next rank streams the part
            before it.

    Raises:
        ValueError: a model that does not stream, no process group, a group without this rank, an n that does not divide
            the number of ranks, micro_batches below 1.
    """
    return SequenceParallel(model, group, micro_batches)


class SequenceParallel(nn.Module):
    """A model that computes this rank's positions; see `sequence`.

    Layers are pipelined: a rank sends the state of a layer as soon as it is computed, and the next rank starts this
    layer. With L layers, M micro-batches and R ranks a pass takes about (L M + R - 1) / (L M R) of the time on one
    rank.

    If every layer is a linear recurrence, the ranks compute a layer simultaneously and exchange the maps of its state.
    The state of such a layer is a named tuple. Its attribute `carried` lists the fields that recurrences of `zoo.ops`
    carry; the other fields hold the last inputs, for example of a convolution. Parts shorter than these are pipelined.

    Each rank must call `backward` on a loss of its outputs, even if none of its positions has a label (use an empty
    sum).

    Attributes:
        model: the model; its parameters and state_dict are unchanged.
        group: the process group.
        state_bytes_sent: bytes of states, or of their maps, that this rank sent in the last forward pass. A tensor sent
            to all other ranks counts once per receiver.
        gradient_bytes_sent: bytes of gradients that this rank has sent since then.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup | int | None, micro_batches: int) -> None:
        super().__init__()
        require_positive(micro_batches=micro_batches)
        streams = callable(getattr(model, "stream", None)) and not any(
            getattr(part, "whole_only", False) for part in model.modules()
        )
        if not streams or not (isinstance(model, Backbone) or callable(getattr(model, "empty_state", None))):
            raise ValueError(
                f"{type(model).__name__} cannot be split over ranks: it needs stream(x, state, lengths) and "
                "empty_state(batch_size, dtype, device), as every causal zoo.SequenceMixer has"
            )
        self.model, self.group, self.micro_batches = model, _group(group), micro_batches
        self.rank, self.n_ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.state_bytes_sent = self.gradient_bytes_sent = 0
        self._sending: list[tuple[list[dist.Work], list[Tensor]]] = []
        self._has_received = False
        self._seen = 0  # number of positions on previous ranks

    def part(self, t: Shaped[Tensor, "batch seq *rest"]) -> Shaped[Tensor, "batch part *rest"]:
        """Return this rank's positions of a whole sequence; the parts differ by at most one position.

        `forward` accepts any other contiguous parts in rank order too.

        Raises:
            ValueError: more ranks than positions.
        """
        if t.shape[1] < self.n_ranks:
            raise ValueError(f"{self.n_ranks} ranks cannot share {t.shape[1]} positions: each needs at least one")
        return t.tensor_split(self.n_ranks, dim=1)[self.rank]

    def forward(
        self, inputs: Shaped[Tensor, "batch part *d_input"], lengths: Lengths | None = None
    ) -> Float[Tensor, "batch part d_out"]:
        """Return the model's outputs at this rank's positions.

        Args:
            inputs: this rank's positions.
            lengths: number of valid positions of each row of the whole sequence; the same on each rank.

        Raises:
            ValueError: batch sizes that differ between ranks or a rank without positions (raised on all ranks), lengths
                outside the whole sequence, fewer rows than micro_batches; the errors of the model.
        """
        parts, lengths, total = self._own_lengths(inputs, lengths)
        self.state_bytes_sent = self.gradient_bytes_sent = 0
        self._has_received = False
        model = self.model
        stack = model.layers if isinstance(model, Backbone) else model
        layers: Sequence[Any] = stack.chain() if isinstance(stack, Stack) else [stack]
        experts = [each for each in model.modules() if isinstance(each, Experts) and each.training]
        alone = [each for each in model.modules() if isinstance(each, SequenceMixer) and each.apart and each.training]
        memories = [_memory(layer) for layer in layers]
        at_once = self.n_ranks > 1 and None not in memories and min(parts) >= max(2, *(n or 0 for n in memories))
        outputs, loads, own_losses = [], [], []
        rows = [None] * self.micro_batches if lengths is None else lengths.tensor_split(self.micro_batches)
        for x, valid in zip(inputs.tensor_split(self.micro_batches), rows, strict=True):
            y = model.embed(x) if isinstance(model, Backbone) else x
            for layer, memory in zip(layers, memories, strict=True):
                y = self._stream_at_once(layer, y, valid, memory or 0) if at_once else self._stream(layer, y, valid)
            outputs.append(model.read_out(y) if isinstance(model, Backbone) else y)
            loads.append([cast(Load, each.counted) for each in experts])
            share = (x.shape[0] * x.shape[1] if valid is None else valid.sum()) / total
            own_losses.append([each.own_loss if each.own_loss is None else share * each.own_loss for each in alone])
        self._wait()
        for each, counted in zip(experts, zip(*loads, strict=True), strict=True):
            each.counted = self._whole_load(counted)
        for each, losses in zip(alone, zip(*own_losses, strict=True), strict=True):
            each.own_loss = None if losses[0] is None else torch.stack(losses).sum()
        return torch.cat(outputs)

    def sum_gradients(self) -> None:
        """Sum the gradients of the parameters over the ranks, after `backward`.

        A parameter that no rank used keeps no gradient.
        """
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not parameters:
            return
        used = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8, device=parameters[0].device)
        dist.all_reduce(used, dist.ReduceOp.MAX, self.group)
        for p in (p for p, by_any in zip(parameters, used.tolist(), strict=True) if by_any):
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad, group=self.group)

    def _own_lengths(self, inputs: Tensor, lengths: Lengths | None) -> tuple[list[int], Tensor | None, int]:
        """Return each rank's number of positions, this rank's lengths, and the number of valid positions on all ranks.

        The ranks exchange their shapes, so that all of them raise the same errors.
        """
        shapes = [torch.empty(2, dtype=torch.int64, device=inputs.device) for _ in range(self.n_ranks)]
        dist.all_gather(shapes, torch.tensor(inputs.shape[:2], device=inputs.device), self.group)
        batches, parts = torch.stack(shapes).T.tolist()
        if len({*batches}) > 1:
            raise ValueError(f"each rank needs the same batch size, got {', '.join(map(str, batches))}")
        if 0 in parts:
            raise ValueError(f"each rank needs at least one position, got {', '.join(map(str, parts))}")
        if batches[0] < self.micro_batches:
            raise ValueError(f"a batch of {batches[0]} has fewer rows than micro_batches={self.micro_batches}")
        lengths = as_lengths(lengths, inputs.new_empty(1).expand(batches[0], sum(parts)))
        self._seen = sum(parts[: self.rank])
        if lengths is None:
            return parts, None, batches[0] * sum(parts)
        require_within(int(lengths.min()), int(lengths.max()), sum(parts))
        return parts, (lengths - self._seen).clamp(0, parts[self.rank]), max(1, int(lengths.sum()))

    def _stream_at_once(self, layer: Any, x: Tensor, lengths: Tensor | None, memory: int) -> Tensor:
        """Stream a linear recurrent layer on all ranks at once.

        The previous rank sends its last inputs; the states that enter the recurrences come from `_Entering`.
        """
        state, received = layer.empty_state(len(x), x.dtype, x.device), []
        if not [*state_tensors(state)]:
            return layer.stream(x, state, lengths)[0]

        def entering(act: Act, over: Tensor, added: Tensor) -> Tensor:
            received.append(_Entering.apply(self, act, over, added))
            return received[-1]

        rest = x.shape[1] - memory
        valid = None if lengths is None else (lengths - rest).clamp(min=0)
        own = layer.stream(x[:, rest:], None, valid)[1] if memory else state
        before = {name: self._before(t) for name, t in own._asdict().items() if name not in own.carried}
        with spread_by(entering):
            y, _ = layer.stream(x, state._replace(**before), lengths)
        if state.carried and not received:
            raise ValueError(
                f"{type(layer).__name__}: its state lists {', '.join(state.carried)} as carried, but it called no "
                "recurrence of zoo.ops: remove `carried` from its state"
            )
        return _Needing.apply(y, *before.values(), *received)

    def _before(self, t: Tensor) -> Tensor:
        """Return the previous rank's value of `t`; for an integer tensor, the number of positions before this rank."""
        return _Before.apply(self, t) if _has_gradient(t) else torch.full_like(t, self._seen)

    def _gather(self, t: Tensor) -> list[Tensor]:
        """Return the tensor `t` of each rank."""
        numbers = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
        found = [numbers.new_empty(numbers.shape) for _ in range(self.n_ranks)]
        dist.all_gather(found, numbers.contiguous(), self.group)
        return [torch.view_as_complex(each) for each in found] if t.is_complex() else found

    def _stream(self, layer: Any, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Stream a layer from the state of the previous rank, and send the new state to the next rank."""
        empty = layer.empty_state(len(x), x.dtype, "meta")
        if not [*state_tensors(empty)]:
            return layer.stream(x, empty, lengths)[0]
        link, state = torch.empty(0, device=x.device), None
        if self.rank:
            link, state = self._receive_state(empty, link)
        y, state = layer.stream(x, state, lengths)
        tensors = [*state_tensors(state)]
        y = _ToNext.apply(self, link, y, *tensors)
        if self.rank + 1 < self.n_ranks:
            outline = _outline(state).to(x.device)
            shapes = [n for t in tensors for n in (DTYPES.index(t.dtype), *t.shape)]
            header = torch.tensor([y.requires_grad, len(outline), *shapes], device=x.device)
            self._send([header, *([outline] if len(outline) else []), *tensors], self.rank + 1)
            self.state_bytes_sent += state_nbytes(state)
        return y

    def _receive_state(self, empty: Any, link: Tensor) -> tuple[Tensor, Any]:
        """Receive a state with the structure of `empty`; the backward pass sends its gradients to the sender.

        It does so even if the outputs depend on `link` only.
        """
        like = [*state_tensors(empty)]
        header = torch.empty(2 + sum(1 + t.ndim for t in like), dtype=torch.int64, device=link.device)
        self._receive([header], self.rank - 1)
        differentiable, size, *numbers = header.tolist()
        if size:
            self._receive([outline := torch.empty(size, dtype=torch.uint8, device=link.device)], self.rank - 1)
            empty = pickle.loads(outline.cpu().numpy().tobytes())  # from a process of this program
        tensors = []
        for t in like:
            kind, *shape = numbers[: 1 + t.ndim]
            numbers = numbers[1 + t.ndim :]
            tensors.append(torch.empty(shape, dtype=DTYPES[kind], device=link.device))
        self._receive(tensors, self.rank - 1)
        if differentiable:
            link, *tensors = _FromPrevious.apply(self, not self._has_received, link.requires_grad_(), *tensors)
            self._has_received = True
        received = iter(tensors)
        return link, map_state(lambda _: next(received), empty)

    def _send(self, tensors: Sequence[Tensor], rank: int) -> None:
        """Start sending; the tensors are kept alive until `_wait`."""
        tensors = [t.detach().contiguous() for t in tensors]
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, t, group=self.group, group_peer=rank) for t in tensors])
        self._sending.append((works, tensors))

    def _receive(self, tensors: Sequence[Tensor], rank: int) -> None:
        operations = [dist.P2POp(dist.irecv, t, group=self.group, group_peer=rank) for t in tensors]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def _wait(self) -> None:
        """Wait until everything is sent."""
        while self._sending:
            for work in self._sending.pop(0)[0]:
                work.wait()

    def _whole_load(self, parts: Sequence[Load]) -> Load:
        """Return the experts' load over all micro-batches and ranks, but with the probabilities of this rank only.

        Then the sum of `balance` over the ranks is the balance of the whole batch, and its gradients sum likewise.
        """
        served, likely, positions = (torch.stack(each).sum(0) for each in zip(*parts, strict=True))
        for each in (served, positions):
            dist.all_reduce(each, group=self.group)
        return Load(served, likely, positions)


class _FromPrevious(torch.autograd.Function):
    """Insert received tensors into the autograd graph; the backward pass sends their gradients back."""

    @staticmethod
    def forward(ctx: Any, ranks: SequenceParallel, is_first: bool, link: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks, ctx.is_first = ranks, is_first
        ctx.mark_non_differentiable(*(t for t in state if not _has_gradient(t)))
        return link.view_as(link), *state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ranks: SequenceParallel = ctx.ranks
        sent = [t for t in gradients[1:] if _has_gradient(t)]
        ranks._send(sent, ranks.rank - 1)
        ranks.gradient_bytes_sent += state_nbytes(tuple(sent))
        if ctx.is_first:  # the backward pass runs in reverse, so this is its last message
            ranks._wait()
        return (None,) * (2 + len(gradients))


class _ToNext(torch.autograd.Function):
    """Return y unchanged; the backward pass receives the gradients of the state that was sent to the next rank."""

    @staticmethod
    def forward(ctx: Any, ranks: SequenceParallel, link: Tensor, y: Tensor, *state: Tensor) -> Tensor:
        ctx.ranks, ctx.device = ranks, y.device
        ctx.sent = [(t.shape, t.dtype) if _has_gradient(t) else None for t in state]
        return y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ranks = cast(SequenceParallel, ctx.ranks)
        sent = [None if t is None else torch.zeros(t[0], dtype=t[1], device=ctx.device) for t in ctx.sent]
        if ranks.rank + 1 < ranks.n_ranks:
            ranks._receive([t for t in sent if t is not None], ranks.rank + 1)
        return None, torch.empty(0, device=ctx.device), *gradients, *sent


class _Needing(torch.autograd.Function):
    """Return y unchanged, but make it depend on all tensors received from other ranks.

    The backward pass then reaches the nodes that exchange gradients on every rank, in the same order (last created
    first). Without it a rank would skip nodes that its outputs do not use, for example if it has no valid position, and
    the other ranks would wait forever.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, *received: Tensor) -> Tensor:
        ctx.n_received = len(received)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], *(None,) * ctx.n_received


class _Before(torch.autograd.Function):
    """Return the previous rank's tensor; zeros on the first rank."""

    @staticmethod
    def forward(ctx: Any, ranks: SequenceParallel, t: Tensor) -> Tensor:
        ctx.ranks = ranks
        ranks.state_bytes_sent += (ranks.n_ranks - 1) * state_nbytes(t)
        found = ranks._gather(t)
        return found[ranks.rank - 1] if ranks.rank else torch.zeros_like(t)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ranks: SequenceParallel = ctx.ranks
        ranks.gradient_bytes_sent += (ranks.n_ranks - 1) * state_nbytes(grads[0])
        found = ranks._gather(grads[0])
        return None, found[ranks.rank + 1] if ranks.rank + 1 < ranks.n_ranks else torch.zeros_like(grads[0])


class _Entering(torch.autograd.Function):
    """Compute the state that enters each rank's positions, S_{r+1} = act(over_r, S_r) + added_r with S_0 = 0.

    The backward pass is the same recurrence from the last rank to the first.
    """

    @staticmethod
    def forward(ctx: Any, ranks: SequenceParallel, act: Act, over: Tensor, added: Tensor) -> Tensor:
        ctx.ranks, ctx.act = ranks, act
        ranks.state_bytes_sent += (ranks.n_ranks - 1) * state_nbytes((over, added))
        overs, adds = ranks._gather(over), ranks._gather(added)
        state = torch.zeros_like(added)
        for rank in range(ranks.rank):
            state = act(overs[rank], state) + adds[rank]
        ctx.save_for_backward(state, *overs)
        return state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ranks: SequenceParallel = ctx.ranks
        state, *overs = ctx.saved_tensors
        ranks.gradient_bytes_sent += (ranks.n_ranks - 1) * state_nbytes(grads[0])
        arriving = ranks._gather(grads[0])
        grad = torch.zeros_like(state)  # gradient of the state after this rank's positions
        by_matrix = ctx.act is torch.matmul
        for rank in reversed(range(ranks.rank + 1, ranks.n_ranks)):
            grad = ctx.act(overs[rank].mH if by_matrix else overs[rank].conj(), grad) + arriving[rank]
        grad_over = grad @ state.mH if by_matrix else (grad * state.conj()).sum_to_size(overs[0].shape)
        return None, None, grad_over, grad


def _memory(layer: Any) -> int | None:
    """Return how many last inputs the state holds besides the carried fields; None if the layer must be pipelined."""
    state = layer.empty_state(1, None, "meta")
    if not [*state_tensors(state)]:
        return 0
    if not hasattr(state, "carried"):
        return None
    others = [t for name, t in state._asdict().items() if name not in state.carried and _has_gradient(t)]
    return max((t.shape[1] for t in others), default=0)


def _outline(state: Any) -> Tensor:
    """Return the pickled structure of a state of adapted modules, as bytes; empty for states of the zoo's mixers."""

    def is_foreign(part: Any) -> bool:
        return isinstance(part, Carried) or (isinstance(part, tuple) and any(map(is_foreign, part)))

    content = pickle.dumps(map_state(lambda t: t.new_empty(0), state)) if is_foreign(state) else b""
    return torch.tensor(list(content), dtype=torch.uint8)


def _has_gradient(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def _group(group: dist.ProcessGroup | int | None) -> dist.ProcessGroup:
    """Return the process group, or a new group of consecutive ranks with this rank.

    Raises:
        ValueError: see `sequence`.
    """
    if not dist.is_initialized():
        raise ValueError("no process group: start the program with torchrun and call init_process_group")
    if isinstance(group, int):
        n_ranks = dist.get_world_size()
        if group < 1 or n_ranks % group:
            valid = ", ".join(str(n) for n in range(1, n_ranks + 1) if n_ranks % n == 0)
            raise ValueError(f"{n_ranks} ranks cannot be divided into groups of {group}; choose from: {valid}")
        group = cast(dist.ProcessGroup, dist.new_subgroups(group)[0])
    if dist.get_rank(group) < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in the group")
    return cast(dist.ProcessGroup, group or dist.group.WORLD)
