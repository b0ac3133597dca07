"""Support of compilers and torch.func by custom ops, kernels and hand-written backward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from importlib.util import find_spec
from inspect import signature
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef  # the type that torch.library.custom_op returns, exported nowhere
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from zoo import coefficient as coefficients

_NUMBA = find_spec("numba") is not None
_TRITON = find_spec("triton") is not None

F = TypeVar("F", bound=Callable[..., Any])


def followed() -> bool:
    """Return whether a compiler or a transform of torch.func (grad, vmap, jvp) is at work.

    They follow plain operations and what `transformable` returns, derive their own backward pass, and cannot be asked
    for values.
    """
    return torch.compiler.is_compiling() or transformed()


def compiling() -> bool:
    """Return whether a compiler is at work alone: a custom op is one operation of its graph, whatever is inside."""
    return torch.compiler.is_compiling() and not transformed()


def readable(t: Tensor) -> bool:
    """Return whether values of `t` can be read at no cost: elsewhere the host waits for the device, or cannot know."""
    traced = torch._C._get_tracing_state()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    return t.device.type == "cpu" and not followed() and not traced


def transformed() -> bool:
    """Return whether a transform of torch.func (grad, vmap, jvp) is at work."""
    return torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def _device_type(t: Tensor) -> str:
    """Return the type of the device whose road `t` takes: tests put another in its place."""
    return t.device.type


def on_cpu(t: Tensor) -> bool:
    """Return whether `t` takes the road of the CPU, where a loop of small operations costs no launches."""
    return _device_type(t) == "cpu"


def kernels_suffice(t: Tensor) -> bool:
    """Return whether a Triton kernel may replace operations on `t`: float32 or pairs of it, on CUDA.

    A meta tensor takes the road of CUDA, with or without Triton. A transform of torch.func follows plain operations.
    """
    kind = _device_type(t)
    if t.dtype not in (torch.float32, torch.complex64) or transformed():
        return False
    return kind == "meta" or (kind == "cuda" and _TRITON)


def in_a_mode() -> bool:
    """Return whether a mode of torch sees each operation: one that counts them, or that fakes their tensors."""
    return bool(torch._C._len_torch_dispatch_stack())  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def loops_suffice(t: Tensor) -> bool:
    """Return whether numba's loops may stand for operations on `t`: float32 on the CPU, and nothing looks at these.

    What looks at operations is a recorder of coefficients, a compiler, a transform, a tracer or a mode of torch that
    counts or fakes them.
    """
    return (
        _NUMBA
        and t.dtype == torch.float32
        and on_cpu(t)
        and not coefficients.active()
        and not followed()
        and not torch._C._get_tracing_state()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        and not in_a_mode()
    )


def whole_in_export(schema: str, like: Callable[..., Any]) -> Callable[[F], F]:
    """Make of an op one operation in the programs of torch.export, so that they hold for sequences of any length.

    Followed inside, a chunked op would tie the program to as many chunks as the example has.

    Args:
        schema: schema of the op's arguments and results, as `torch.library` writes it.
        like: maps the arguments to empty results of the right shapes.
    """

    def decorate(op: F) -> F:
        custom = torch.library.custom_op(f"zoo::whole_{op.__name__}", op, mutates_args=(), schema=schema)
        custom.register_fake(like)

        @wraps(op)
        def call(*given: Any, **named: Any) -> Any:
            if not torch.compiler.is_exporting():
                return op(*given, **named)
            bound = signature(op).bind(*given, **named)
            bound.apply_defaults()
            return custom(*bound.args)

        return cast(F, call)

    return decorate


def one_operation(schema: str, like: Callable[..., Any]) -> Callable[[Callable[..., Any]], CustomOpDef]:
    """Make of a function one operation to a compiler, which would unroll a loop over positions, and on meta tensors.

    The backward pass runs the function once more.

    Args:
        schema: schema of its arguments and results, as `torch.library` writes it. Results share no memory.
        like: maps the arguments to empty results of the right shapes.
    """

    def decorate(function: Callable[..., Any]) -> CustomOpDef:
        name = f"zoo::{function.__name__.lstrip('_')}"
        op = torch.library.custom_op(name, partial(_results, function), mutates_args=(), schema=schema)
        op.register_fake(like)
        arguments = schema[1:].partition(" -> ")[0]
        backward = torch.library.custom_op(
            f"{name}_backward",
            partial(_gradients, function),
            mutates_args=(),
            schema=f"(Tensor[] grads, {arguments} -> Tensor[]",
        )
        backward.register_fake(lambda grads, *given: [t.new_empty(t.shape) for t in _differentiable(given)])

        def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            tensors, ctx.layout = tree_flatten(inputs)
            ctx.others = [None if isinstance(t, Tensor) else t for t in tensors]
            ctx.save_for_backward(*(t if isinstance(t, Tensor) else None for t in tensors))

        def differentiate(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            leaves = [other if t is None else t for t, other in zip(ctx.saved_tensors, ctx.others, strict=True)]
            given = tree_unflatten(leaves, ctx.layout)
            found = iter(backward([*tree_leaves(grads)], *given))
            of_each = [next(found) if _has_gradient(t) else None for t in leaves]
            return tuple(tree_unflatten(of_each, ctx.layout))

        op.register_autograd(differentiate, setup_context=keep)
        return op

    return decorate


def _results(function: Callable[..., Any], *given: Any) -> Any:
    with torch.no_grad():
        return tree_map(Tensor.contiguous, function(*given))  # as a compiler expects them


def _gradients(function: Callable[..., Any], grads: list[Tensor], *given: Any) -> list[Tensor]:
    # Inside a custom op torch does not record operations unless it is told to.
    recorded = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)  # pyright: ignore[reportAttributeAccessIssue]
    with torch.enable_grad(), recorded:
        given = tree_map(lambda t: t.detach().requires_grad_() if _has_gradient(t) else t, given)
        outputs = tree_leaves(function(*given))
        found = torch.autograd.grad(outputs, _differentiable(given), grads, materialize_grads=True)
    # The results of an op share no memory; the gradients of cuDNN's weights do.
    alone = [t.untyped_storage().nbytes() == t.nbytes for t in found]
    return [
        t.contiguous() if own else t.clone(memory_format=torch.contiguous_format)
        for t, own in zip(found, alone, strict=True)
    ]


def _differentiable(given: Any) -> list[Tensor]:
    return [t for t in tree_leaves(given) if _has_gradient(t)]


def _has_gradient(t: Any) -> bool:
    return isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())


def differentiable_again(
    function: Callable[..., Any], given: Sequence[Any], needed: Sequence[bool], grads: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `function(*given)` that are needed, as plain operations that autograd can follow.

    A kernel's backward pass computes numbers; it calls this one if its gradients are to be differentiated.
    """
    given = [
        t.view_as(t) if isinstance(t, Tensor) else t for t in given
    ]  # an input computed from another would count twice
    wanted = [t for t, asked in zip(given, needed, strict=True) if asked]
    found = iter(torch.autograd.grad(function(*given), wanted, grads, create_graph=True))
    return tuple(next(found) if asked else None for asked in needed)


def transformable(
    op: CustomOpDef,
    keep: Callable[..., None] | None = None,
    differentiate: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Give `op` its backward pass, and make of it a function that grad and vmap of torch.func can take apart.

    Args:
        op: a custom op. Under vmap it is called once for each slice.
        keep: `setup_context(ctx, inputs, output)`.
        differentiate: `backward(ctx, *grads)`; absent in an op that cannot be differentiated, and raises when asked.

    Returns:
        The function to call in place of `op`.
    """

    def refuse(ctx: Any, *_: Tensor) -> None:
        raise NotImplementedError(f"{op._qualname} has no derivative: the op is differentiable once")

    keep, differentiate = keep or (lambda ctx, inputs, output: None), differentiate or refuse
    op.register_autograd(differentiate, setup_context=keep)
    op.register_vmap(partial(_slice_by_slice, op))
    rules = {"forward": op, "setup_context": keep, "backward": differentiate}
    members = {name: staticmethod(rule) for name, rule in rules.items()}
    function = type(f"Transformable_{op._name}", (torch.autograd.Function,), {"generate_vmap_rule": True, **members})

    def call(*given: Any) -> Any:
        plain = torch.compiler.is_compiling() or not transformed()
        return op(*given) if plain else function.apply(*given)

    return call


def _slice_by_slice(op: CustomOpDef, info: Any, axes: tuple[int | None, ...], *given: Any) -> tuple[Any, Any]:
    """Return the vmap rule of any op: its results for each slice, stacked."""
    calls = [
        op(*(t if axis is None else t.select(axis, n) for t, axis in zip(given, axes, strict=True)))
        for n in range(info.batch_size)
    ]
    if isinstance(calls[0], Tensor):
        return torch.stack(calls), 0
    return tuple(torch.stack(parts) for parts in zip(*calls, strict=True)), (0,) * len(calls[0])
