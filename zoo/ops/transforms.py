"""Support for compilers, torch.export and torch.func: custom ops, choice of kernels, hand-written backward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from importlib.util import find_spec
from inspect import signature
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef  # the type of torch.library.custom_op's result, not exported
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from zoo import coefficient as coefficients

_NUMBA = find_spec("numba") is not None
_TRITON = find_spec("triton") is not None

F = TypeVar("F", bound=Callable[..., Any])


def followed() -> bool:
    """Return whether a compiler or a transform of torch.func (grad, vmap, jvp) is active.

    They trace plain operations and the results of `transformable`, derive their own backward pass, and cannot read
    values.
    """
    return torch.compiler.is_compiling() or transformed()


def compiling() -> bool:
    """Return whether a compiler is active without a transform: a custom op is then one operation of its graph."""
    return torch.compiler.is_compiling() and not transformed()


def readable(t: Tensor) -> bool:
    """Return whether values of `t` can be read at no cost; otherwise the host waits for the device, or is tracing."""
    traced = torch._C._get_tracing_state()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    return t.device.type == "cpu" and not followed() and not traced


def transformed() -> bool:
    """Return whether a transform of torch.func (grad, vmap, jvp) is active."""
    return torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def _device_type(t: Tensor) -> str:
    """Return the device type that decides how `t` is computed; tests replace this function."""
    return t.device.type


def on_cpu(t: Tensor) -> bool:
    """Return whether `t` is computed as on a CPU, where a loop of small operations costs no launches."""
    return _device_type(t) == "cpu"


def kernels_suffice(t: Tensor) -> bool:
    """Return whether a Triton kernel may replace operations on `t`: float32 or complex64, on CUDA.

    A meta tensor is treated like CUDA, with or without Triton. Transforms of torch.func need plain operations.
    """
    kind = _device_type(t)
    if t.dtype not in (torch.float32, torch.complex64) or transformed():
        return False
    return kind == "meta" or (kind == "cuda" and _TRITON)


def in_a_mode() -> bool:
    """Return whether a torch dispatch mode is active, such as one that counts operations or fakes tensors."""
    return bool(torch._C._len_torch_dispatch_stack())  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def loops_suffice(t: Tensor) -> bool:
    """Return whether numba's loops may replace operations on `t`: float32 on the CPU, observed by nothing.

    Observers of operations are a recorder of coefficients, a compiler, a transform, a tracer, or a dispatch mode.
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
    """Make an op a single operation in programs of torch.export, so that they are valid for sequences of any length.

    If it were traced inside, a chunked op would fix the program to the number of chunks of the example.

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
    """Make a function a single operation on meta tensors and for compilers, which would unroll a loop over positions.

    The backward pass runs the function again.

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
    # Inside a custom op, torch records operations only on request.
    recorded = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)  # pyright: ignore[reportAttributeAccessIssue]
    with torch.enable_grad(), recorded:
        given = tree_map(lambda t: t.detach().requires_grad_() if _has_gradient(t) else t, given)
        outputs = tree_leaves(function(*given))
        found = torch.autograd.grad(outputs, _differentiable(given), grads, materialize_grads=True)
    # Results of an op must not share memory, but the gradients of cuDNN's weights do.
    owns_memory = [t.untyped_storage().nbytes() == t.nbytes for t in found]
    return [
        t.contiguous() if owns else t.clone(memory_format=torch.contiguous_format)
        for t, owns in zip(found, owns_memory, strict=True)
    ]


def _differentiable(given: Any) -> list[Tensor]:
    return [t for t in tree_leaves(given) if _has_gradient(t)]


def _has_gradient(t: Any) -> bool:
    return isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())


def differentiable_again(
    function: Callable[..., Any], given: Sequence[Any], needed: Sequence[bool], grads: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the needed gradients of `function(*given)`, computed by plain operations that autograd can record.

    The backward pass of a kernel calls this if its gradients are to be differentiated.
    """
    # Views, since an input that is computed from another input would count twice.
    given = [t.view_as(t) if isinstance(t, Tensor) else t for t in given]
    wanted = [t for t, asked in zip(given, needed, strict=True) if asked]
    found = iter(torch.autograd.grad(function(*given), wanted, grads, create_graph=True))
    return tuple(next(found) if asked else None for asked in needed)


def transformable(
    op: CustomOpDef,
    keep: Callable[..., None] | None = None,
    differentiate: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Give `op` its backward pass, and return a function that supports grad and vmap of torch.func.

    Args:
        op: a custom op. Under vmap it is called once per slice.
        keep: `setup_context(ctx, inputs, output)`.
        differentiate: `backward(ctx, *grads)`; default: the op has no derivative, and its backward pass raises.

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
    """Apply any op under vmap: call it for each slice and stack the results."""
    calls = [
        op(*(t if axis is None else t.select(axis, n) for t, axis in zip(given, axes, strict=True)))
        for n in range(info.batch_size)
    ]
    if isinstance(calls[0], Tensor):
        return torch.stack(calls), 0
    return tuple(torch.stack(parts) for parts in zip(*calls, strict=True)), (0,) * len(calls[0])
