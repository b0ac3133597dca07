"""Layers around a mixer: norms, channel mixers and experts, short convolutions, and blocks that contain mixers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.modules import no_weight_decay, reset_submodules
from zoo.ops.activation import gelu, gelu_gate, layer_norm, rms_norm, sigmoid_gate, silu_gate
from zoo.ops.conv import causal_conv, token_shift
from zoo.ops.experts import Load, count_load, grouped_linear, route, route_by_sigmoid
from zoo.ops.precision import Device, DType
from zoo.ops.time import Lengths, as_lengths, reverse, valid_positions
from zoo.ops.transforms import readable
from zoo.validate import require_choice, require_positive, require_positive_number

CANON_WIDTH = 4

Channel = Literal["swiglu", "relu2", "geglu", "rwkv"]
Normed = Literal["input", "output", "residual"]
NormType = Literal["rms", "layer"]
Router = Literal["softmax", "sigmoid"]


class RMSNorm(nn.Module):
    """Root-mean-square norm (Zhang and Sennrich 1910.07467); coefficient: 1/rms.

    Args:
        d_model: width.
        eps: added to the mean square.
        n_groups: number of channel groups, each normed separately.
    """

    undecayed = ("weight",)

    def __init__(self, d_model: int, eps: float = 1e-5, n_groups: int = 1) -> None:
        super().__init__()
        require_positive_number(norm_eps=eps)
        self.eps, self.n_groups = eps, n_groups
        self.weight = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        if self.n_groups == 1:
            return rms_norm(x, self.weight, self.eps)
        groups, weights = (t.unflatten(-1, (self.n_groups, -1)) for t in (x, self.weight))
        return rms_norm(groups, weights, self.eps).flatten(-2)


class LayerNorm(nn.Module):
    """Layer norm with a bias (Ba et al. 1607.06450); coefficient: 1/std.

    Args:
        d_model: width.
        eps: added to the variance.
    """

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        require_positive_number(norm_eps=eps)
        self.eps = eps
        self.weight, self.bias = (nn.Parameter(torch.empty(d_model)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return layer_norm(x, self.weight, self.bias, self.eps)


NORMS: dict[NormType, type[RMSNorm | LayerNorm]] = {"rms": RMSNorm, "layer": LayerNorm}


class SwiGLU(nn.Module):
    """SwiGLU channel mixer, W_down (silu(W_gate x) * W_up x) (Shazeer 2002.05202); coefficient: silu(W_gate x)."""

    bias = False
    gate = staticmethod(silu_gate)

    def __init__(self, d_model: int, d_channel: int) -> None:
        super().__init__()
        require_positive(d_channel=d_channel)
        self.up_proj = nn.Linear(d_model, 2 * d_channel, bias=self.bias)
        self.down_proj = nn.Linear(d_channel, d_model, bias=self.bias)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return self.gated(self.up_proj(x))

    def gated(self, inner: Float[Tensor, "*batch two_d_channel"]) -> Float[Tensor, "*batch d_model"]:
        """Apply gate and down_proj to the output of up_proj, which holds gates, then values."""
        gate, value = inner.chunk(2, dim=-1)
        return self.down_proj(self.gate(gate, value))


class GeGLU(SwiGLU):
    """GeGLU channel mixer, W_down (gelu(W_gate x + b) * (W_up x + c)) + d (Griffin, De et al. 2402.19427).

    GELU is its tanh approximation. Coefficient: the output of the GELU.
    """

    bias = True
    gate = staticmethod(gelu_gate)


class SquaredReLU(nn.Module):
    """Squared-ReLU channel mixer, W_down relu(W_up x)^2 (So et al. 2109.08668); coefficient: relu(W_up x)."""

    def __init__(self, d_model: int, d_channel: int) -> None:
        super().__init__()
        require_positive(d_channel=d_channel)
        self.up_proj = nn.Linear(d_model, d_channel, bias=False)
        self.down_proj = nn.Linear(d_channel, d_model, bias=False)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        inner = self.up_proj(x)
        return self.down_proj(coefficient(F.relu(inner)) * inner)


class Experts(nn.Module):
    """Mixture of experts: sum over the top_k experts e of p_e(x) SwiGLU_e(x), p = softmax(W_router x).

    Shazeer et al. 1701.06538, with weights p_e as in Jamba (Lieber et al. 2403.19887).
    Experts have no capacity limit. Dropping tokens beyond a capacity would make a position's output depend on other
    positions, and `stream` would differ from `forward`. Coefficients: p_e, the choice of e, and the gates of the
    SwiGLUs.

    A shared expert is one more SwiGLU, applied at every position (DeepSeekMoE, Dai et al. 2401.06066).

    Args:
        d_model: width of input and output.
        d_channel: inner width of each expert.
        n_experts: number of experts, without the shared one.
        top_k: number of experts per position.
        normalize: divide the weights of a position's experts by their sum.
        d_shared: inner width of a shared expert; 0 for none.
        gate_shared: multiply the shared expert by sigmoid(w . x), a coefficient (Qwen2-MoE 2407.10671).

    Attributes:
        counted: load in the last forward pass in training mode; None before.
        balance_loss: its `Load.balance`, a differentiable load-balancing loss to add to the training loss.
        load: its `Load.share`, the fraction of positions that chose each expert, (n_experts,); sums to top_k.

    Raises:
        ValueError: sizes that are not positive, fewer experts than top_k, gate_shared without a shared expert.
    """

    counted: Load | None

    def __init__(
        self,
        d_model: int,
        d_channel: int,
        n_experts: int = 16,
        top_k: int = 2,
        normalize: bool = False,
        d_shared: int = 0,
        gate_shared: bool = False,
    ) -> None:
        super().__init__()
        require_positive(d_channel=d_channel, n_experts=n_experts, top_k=top_k, d_shared=d_shared or None)
        if gate_shared and not d_shared:
            raise ValueError("gate_shared needs a shared expert: d_shared must not be 0")
        if top_k > n_experts:
            raise ValueError(f"top_k={top_k} needs n_experts >= {top_k}, got n_experts={n_experts}")
        self.n_experts, self.top_k, self.normalize = n_experts, top_k, normalize
        self.router = nn.Linear(d_model, n_experts, bias=False)
        self.up_proj = nn.Parameter(torch.empty(n_experts, 2 * d_channel, d_model))
        self.down_proj = nn.Parameter(torch.empty(n_experts, d_model, d_channel))
        self.shared = SwiGLU(d_model, d_shared) if d_shared else None
        self.shared_gate = nn.Linear(d_model, 1, bias=False) if gate_shared else None
        self.counted = None
        self.reset_parameters()

    @property
    def balance_loss(self) -> Tensor | None:
        return None if self.counted is None else self.counted.balance

    @property
    def load(self) -> Tensor | None:
        return None if self.counted is None else self.counted.share

    def reset_parameters(self) -> None:
        reset_submodules(self)
        for weight in (self.up_proj, self.down_proj):  # as nn.Linear initialises its weight
            bound = weight.shape[2] ** -0.5
            nn.init.uniform_(weight, -bound, bound)

    def __getstate__(self) -> dict[str, Any]:
        # Drop the load: its tensors are part of an autograd graph, so deepcopy would fail.
        return super().__getstate__() | {"counted": None}

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the probabilities of all experts, and the weights and choices of the top_k."""
        return route(self.router(x), self.top_k, self.normalize)

    def forward(
        self, x: Float[Tensor, "*batch d_model"], valid: Bool[Tensor, "*batch"] | None = None
    ) -> Float[Tensor, "*batch d_model"]:
        """Apply each position's experts; only positions in `valid` count in `balance_loss` and `load`."""
        probability, weight, choice = self.route(x)
        if self.training:
            self.counted = count_load(probability, choice, valid)
        chosen = choice.flatten()
        order = chosen.argsort(stable=True)  # groups the rows of one expert
        counts = (chosen.unsqueeze(1) == torch.arange(self.n_experts, device=x.device)).sum(0)
        rows = x.reshape(-1, x.shape[-1])[order // self.top_k]
        gate, value = grouped_linear(rows, self.up_proj, counts).chunk(2, dim=-1)
        served = grouped_linear(silu_gate(gate, value), self.down_proj, counts)
        served = served[order.argsort()].view(*choice.shape, x.shape[-1])
        y = (served * weight.to(served.dtype).unsqueeze(-1)).sum(-2)
        if self.shared is None:
            return y
        shared = self.shared(x)
        return y + (shared if self.shared_gate is None else coefficient(torch.sigmoid(self.shared_gate(x))) * shared)


class SigmoidExperts(Experts):
    """Experts with the weights p = scale sigmoid(W_router x) (DeepSeek-V3 2412.19437, section 2.1.2).

    `preference` is added to the scores when experts are chosen. It has no gradient. DeepSeek-V3 adjusts it in training
    to balance the load; we do not.

    Args:
        d_model, d_channel, n_experts, top_k: see `Experts`.
        n_groups: number of groups of neighbouring experts.
        top_groups: number of groups among which a position chooses its experts.
        scale: factor of the weights.
        **options: further options of `Experts`.

    Raises:
        ValueError: groups of unequal size, several groups of one expert, more top_groups than groups, fewer than top_k
            experts in top_groups groups, a scale that is not positive; the errors of `Experts`.
    """

    def __init__(
        self,
        d_model: int,
        d_channel: int,
        n_experts: int = 16,
        top_k: int = 2,
        n_groups: int = 1,
        top_groups: int = 1,
        scale: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(d_model, d_channel, n_experts, top_k, **options)
        require_positive(n_groups=n_groups, top_groups=top_groups)
        size, rest = divmod(n_experts, n_groups)
        if rest or size < min(2, n_groups) or top_groups > n_groups or top_groups * size < top_k:
            raise ValueError(
                f"n_groups={n_groups} must divide n_experts={n_experts} into groups of at least two, of which "
                f"top_groups={top_groups} hold top_k={top_k} experts"
            )
        if not 0 < scale < math.inf:
            raise ValueError(f"scale must be positive and finite, got {scale}")
        self.n_groups, self.top_groups, self.scale = n_groups, top_groups, scale
        self.preference = nn.Parameter(torch.zeros(n_experts), requires_grad=False)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "preference"):  # the base class calls this before it exists
            nn.init.zeros_(self.preference)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        groups = self.n_groups, self.top_groups
        return route_by_sigmoid(self.router(x), self.preference, self.top_k, self.normalize, *groups, self.scale)


class LevelWeights(nn.Module):
    """Weights of the states of a Fenwick tree, softplus(scale * W x) per head and level (Guo et al. 2506.04761).

    Coefficient: the weights.
    """

    undecayed = ("scale",)

    def __init__(self, d_model: int, n_heads: int, n_levels: int) -> None:
        super().__init__()
        self.n_levels = n_levels
        self.proj = nn.Linear(d_model, n_heads * n_levels, bias=False)
        self.scale = nn.Parameter(torch.empty(n_heads * n_levels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        reset_submodules(self)
        nn.init.ones_(self.scale)

    def forward(self, x: Float[Tensor, "batch seq d_model"]) -> Float[Tensor, "batch head level seq"]:
        levels = (self.scale * self.proj(x)).mT.contiguous()  # softplus's compiled backward needs it
        return coefficient(F.softplus(levels).unflatten(1, (-1, self.n_levels)))

    def after(self, seen: Int[Tensor, " batch"], lengths: Tensor | None, seq_len: int) -> Int[Tensor, " batch"]:
        """Return the number of positions of each row after a chunk.

        Raises:
            ValueError: more positions than the tree can hold.
        """
        seen = seen + (seq_len if lengths is None else lengths)
        if readable(seen) and seen.numel():
            self.require_room(int(seen.max()))
        return seen

    def require_room(self, seq_len: int) -> None:
        """Raise ValueError if the tree cannot hold `seq_len` positions."""
        if seq_len > (most := 2 ** (self.n_levels - 1)):
            raise ValueError(f"sequence of {seq_len} exceeds the {most} positions of n_levels={self.n_levels}")


class ShortConv(SequenceMixer):
    """Causal depthwise convolution of width d_conv; linear, so it has no coefficients.

    Raises:
        ValueError: d_conv below 1.
    """

    undecayed = ("bias",)

    def __init__(self, d_model: int, d_conv: int, bias: bool = False) -> None:
        super().__init__(d_model)
        require_positive(d_conv=d_conv)
        self.weight = nn.Parameter(torch.empty(d_model, d_conv))
        self.bias = nn.Parameter(torch.empty(d_model)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def rank_law(self, seq_len: int) -> int:
        return min(*self.weight.shape, seq_len)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> Tensor:
        return torch.zeros(batch_size, self.weight.shape[1] - 1, self.d_model, dtype=dtype, device=device)

    def mix(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        return causal_conv(x, self.weight, self.bias, state, lengths)


class Canon(ShortConv):
    """Canon layer, x_t + sum over tau < 4 of c_tau x_{t - tau} per channel: a `ShortConv` with a residual.

    Allen-Zhu 2512.17351; facebookresearch/PhysicsLM4, commit 7580696, huggingface/canon_helper.py, with its defaults:
    no bias, no activation.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, CANON_WIDTH)

    def mix(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        y, state = super().mix(x, state, lengths)
        return x + y, state


class Stack(SequenceMixer):
    """Sequence mixers applied one after the other.

    Raises:
        ValueError: no layers, or a layer whose d_model differs from the d_out of the layer before it.
    """

    def __init__(self, layers: Iterable[SequenceMixer]) -> None:
        layers = list(layers)
        if not layers:
            raise ValueError("a stack needs at least one layer")
        for before, after in itertools.pairwise(layers):
            if before.d_out != after.d_model:
                raise ValueError(
                    f"a layer with d_out={before.d_out} cannot be followed by a layer with d_model={after.d_model}"
                )
        super().__init__(layers[0].d_model, layers[-1].d_out)
        self.layers = nn.ModuleList(layers)

    def chain(self) -> list[SequenceMixer]:
        """Return the layers in order."""
        return cast(list[SequenceMixer], list(self.layers))

    def rank_law(self, seq_len: int) -> int | None:
        # Composition: W = W_2 W_1 spans the products of the two spans.
        product = 1
        for layer in self.chain():
            rank = layer.predicted_rank(seq_len)
            if rank is None:
                return None
            product = min(product * rank, layer.d_out * self.d_model)
        return product

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> tuple[Any, ...]:
        return tuple(layer.empty_state(batch_size, dtype, device) for layer in self.chain())

    def mix(self, x: Tensor, state: tuple[Any, ...], lengths: Tensor | None) -> tuple[Tensor, tuple[Any, ...]]:
        after = []
        for layer, before in zip(self.chain(), state, strict=True):
            x, now = layer.stream(x, before, lengths)
            after.append(now)
        return x, tuple(after)


class ShiftedReLU(SequenceMixer):
    """RWKV-4's channel mixer: sigmoid(W_r x^r) * W_down relu(W_up x^k)^2, x^s_t = mu_s * x_t + (1 - mu_s) * x_{t-1}.

    Peng et al. 2305.13048, eq. 18. Coefficients: the sigmoid, and relu(W_up x^k). The state is the last input,
    (batch, 1, d_model). We initialise mu as in the first layer of BlinkDL/RWKV-LM, commit 083f950,
    RWKV-v4/src/model.py, but W_r and W_down, which are zero there, as nn.Linear does.

    Args:
        d_model: width of input and output.
        d_channel: inner width.

    Raises:
        ValueError: d_channel below 1.
    """

    undecayed = ("shift",)

    def __init__(self, d_model: int, d_channel: int) -> None:
        super().__init__(d_model)
        require_positive(d_channel=d_channel)
        self.shift = nn.Parameter(torch.empty(2, d_model))
        self.gate_proj = nn.Linear(d_model, d_model, bias=False)
        self.up_proj = nn.Linear(d_model, d_channel, bias=False)
        self.down_proj = nn.Linear(d_channel, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for projection in (self.gate_proj, self.down_proj):
            projection.reset_parameters()
        nn.init.orthogonal_(self.up_proj.weight, max(1.0, self.up_proj.out_features / self.d_model) ** 0.5)
        with torch.no_grad():
            self.shift.copy_((torch.arange(self.d_model) / self.d_model).expand(2, -1))

    def rank_law(self, seq_len: int) -> int:
        return self.width_of_span(min(2, seq_len))

    def width_of_span(self, taps: int) -> int:
        """Count the spanned operators: each output channel has its own gate and spans the rows of W_up for each tap."""
        return self.d_model * min(taps * self.up_proj.out_features, self.d_model)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> Tensor:
        return torch.zeros(batch_size, 1, self.d_model, dtype=dtype, device=device)

    def mix(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        (x_r, x_k), state = token_shift(x, self.shift, state, lengths)
        inner = self.up_proj(x_k)
        return sigmoid_gate(self.gate_proj(x_r), self.down_proj(coefficient(F.relu(inner)) * inner)), state


CHANNELS: dict[Channel, type[SwiGLU | SquaredReLU | ShiftedReLU]] = {
    "swiglu": SwiGLU,
    "relu2": SquaredReLU,
    "geglu": GeGLU,
    "rwkv": ShiftedReLU,
}
ROUTERS: dict[Router, type[Experts]] = {"softmax": Experts, "sigmoid": SigmoidExperts}


class BlockState(NamedTuple):
    mixer: Any
    before: Any  # state of the Canon layer before the channel mixer, or ()
    inside: Any  # state of the Canon layer inside the channel mixer, or of a ShiftedReLU, or ()


class ResidualBlock(SequenceMixer):
    """Residual block, x + mixer(norm(x)), then x + channel(norm(x)) (pre-norm, Xiong et al. 2002.04745).

    norm="output": x + norm(mixer(x)), then x + norm(channel(x)) (OLMo 2, 2501.00656). norm="residual": u + mixer(u)
    with u = norm(x), then v + channel(v) with v the norm of that (MiniMax-01, 2501.08313).

    The state is the mixer's state. If the second half has Canon layers or a shift, it is a `BlockState`.

    Args:
        mixer: the sequence mixer; d_out must be d_model.
        d_channel: inner width of the channel mixer; 0 for none.
        n_experts: experts in the channel mixer; 0 for a single channel mixer.
        top_k: number of experts per position.
        norm_eps: epsilon of the norms.
        canon: where to put Canon layers in the second half: C, between norm and channel mixer; D, inside the SwiGLU, on
            gates and values before they are multiplied.
        channel: swiglu, relu2 for a `SquaredReLU`, geglu for a `GeGLU`, which has biases, or rwkv for a `ShiftedReLU`.
        norm: where to norm: the input or the output of mixer and channel mixer, or the residual stream.
        router: softmax for `Experts`, sigmoid for `SigmoidExperts`.
        norm_type: rms for an `RMSNorm`, layer for a `LayerNorm`.
        **experts: further options of the experts.

    Raises:
        ValueError: a mixer whose d_out is not d_model; options of experts without experts; Canon layers without a
            channel mixer, or inside one that is not a SwiGLU; the errors of `Experts`.
    """

    def __init__(
        self,
        mixer: SequenceMixer,
        d_channel: int = 0,
        n_experts: int = 0,
        top_k: int = 2,
        norm_eps: float = 1e-5,
        canon: str = "",
        channel: Channel = "swiglu",
        norm: Normed = "input",
        router: Router = "softmax",
        norm_type: NormType = "rms",
        **experts: Any,
    ) -> None:
        super().__init__(mixer.d_model)
        require_choice("norm_type", norm_type, NormType)
        require_choice("channel", channel, Channel)
        require_choice("norm", norm, Normed)
        require_choice("router", router, Router)
        if channel != "swiglu" and (n_experts or "D" in canon):
            raise ValueError(f"channel {channel} cannot be combined with experts or canon D, which need a SwiGLU")
        need_experts = [*experts] if router == "softmax" else [*experts, "router"]
        if need_experts and not n_experts:
            raise ValueError(f"options of experts, which need n_experts above 0: {', '.join(need_experts)}")
        if canon and not d_channel:
            raise ValueError(f"canon {canon} needs a channel mixer: d_channel must not be 0")
        if "D" in canon and n_experts:
            raise ValueError("canon D needs a SwiGLU that runs at every position: it cannot be combined with experts")
        if mixer.d_out != mixer.d_model:
            raise ValueError(f"a residual block needs d_out = d_model, got {mixer.d_out} and {mixer.d_model}")
        self.norm = norm
        self.mixer_norm = NORMS[norm_type](self.d_model, norm_eps)
        self.mixer = mixer
        self.channel_norm = NORMS[norm_type](self.d_model, norm_eps) if d_channel else None
        self.channel: SwiGLU | SquaredReLU | ShiftedReLU | Experts | None = None
        if n_experts:
            self.channel = ROUTERS[router](self.d_model, d_channel, n_experts, top_k, **experts)
        elif d_channel:
            self.channel = CHANNELS[channel](self.d_model, d_channel)
        self.canon_before = Canon(self.d_model) if "C" in canon else None
        self.canon_inside = Canon(2 * d_channel) if "D" in canon else None

    @property
    def by_position(self) -> bool:
        """Whether the second half maps each position independently."""
        return self.canon_before is None and self.canon_inside is None and not isinstance(self.channel, ShiftedReLU)

    def rank_law(self, seq_len: int) -> int | None:
        rank = self.mixer.predicted_rank(seq_len)
        if rank is None or isinstance(self.channel, Experts):
            return None
        # In each half, the residual adds the identity as one operator; a norm's 1/rms is a scalar and adds none.
        # Each hidden unit of the channel mixer has an input-dependent coefficient. It adds an operator for each pair of
        # a row that it reads and an operator of the first half, but at most d_model. A unit reads one row, or one per
        # tap of a Canon layer before the channel mixer; a shift adds a tap. A Canon layer inside only scales the unit's
        # map. With an output gate (ShiftedReLU) each output channel is a unit and reads the rows of all hidden units.
        d_model, n_units = self.d_model, 0 if self.channel is None else self.channel.down_proj.in_features
        n_rows = 1 if self.canon_before is None else min(CANON_WIDTH, seq_len)
        if isinstance(self.channel, ShiftedReLU):
            n_units, n_rows = d_model, min(n_rows + 1, seq_len) * n_units
        first, most, read = rank + 1, d_model**2, d_model
        if isinstance(self.mixer_norm, LayerNorm):  # centring removes one direction of the maps' inputs or outputs
            centred = d_model * (d_model - 1)
            first = min(first, centred + (self.norm != "residual"))
            most = centred + {"input": 1, "residual": 0, "output": min(first, d_model)}[self.norm]
            read -= self.norm != "output"
        return min(first + n_units * min(n_rows * first, read), most)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> Any:
        mixer = self.mixer.empty_state(batch_size, dtype, device)
        if self.by_position:
            return mixer
        inside = self.channel if isinstance(self.channel, ShiftedReLU) else self.canon_inside
        rest = (self.canon_before, inside)
        return BlockState(mixer, *(() if c is None else c.empty_state(batch_size, dtype, device) for c in rest))

    def mix(self, x: Tensor, state: Any, lengths: Tensor | None, added: Tensor | None = None) -> tuple[Tensor, Any]:
        mixer, before, inside = (state, (), ()) if self.by_position else state
        x, mixer = self.mix_positions(x, mixer, lengths, added)
        valid = None if lengths is None else valid_positions(lengths, x.shape[1])
        x, before, inside = self._mix_channels(x, before, inside, lengths, valid)
        return x, mixer if self.by_position else BlockState(mixer, before, inside)

    def mix_positions(
        self, x: Tensor, state: Any, lengths: Tensor | None, added: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Apply the first half of the block; the mixer reads x + added, while the residual stream continues from x."""
        y, state = self.mixer.stream(self.mixer_input(x if added is None else x + added), state, lengths)
        return self.add_mixed(x, y), state

    def mixer_input(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Compute the mixer's input from the residual stream."""
        return x if self.norm == "output" else self.mixer_norm(x)

    def add_mixed(
        self, x: Float[Tensor, "*batch d_model"], y: Float[Tensor, "*batch d_model"]
    ) -> Float[Tensor, "*batch d_model"]:
        """Add the mixer's output to the residual stream."""
        x = self.mixer_norm(x) if self.norm == "residual" else x
        return x + (self.mixer_norm(y) if self.norm == "output" else y)

    def mix_channels(
        self, x: Float[Tensor, "*batch d_model"], valid: Bool[Tensor, "*batch"] | None = None
    ) -> Float[Tensor, "*batch d_model"]:
        """Apply the second half: to any selection of positions if `by_position`, otherwise to whole sequences.

        Only positions in `valid` count in the load of experts.
        """
        before, inside = ((), ()) if self.by_position else self.empty_state(x.shape[0], x.dtype, x.device)[1:]
        return self._mix_channels(x, before, inside, None, valid)[0]

    def _mix_channels(
        self, x: Tensor, before: Any, inside: Any, lengths: Tensor | None, valid: Tensor | None
    ) -> tuple[Tensor, Any, Any]:
        if self.channel is None or self.channel_norm is None:
            return x, before, inside
        y = x if self.norm == "output" else self.channel_norm(x)
        x = y if self.norm == "residual" else x
        if self.canon_before is not None:
            y, before = self.canon_before.mix(y, before, lengths)
        if isinstance(self.channel, Experts):
            y = self.channel(y, valid)
        elif isinstance(self.channel, ShiftedReLU):
            y, inside = self.channel.mix(y, inside, lengths)
        elif self.canon_inside is None or isinstance(self.channel, SquaredReLU):
            y = self.channel(y)
        else:
            inner, inside = self.canon_inside.mix(self.channel.up_proj(y), inside, lengths)
            y = self.channel.gated(inner)
        return x + (self.channel_norm(y) if self.norm == "output" else y), before, inside


class Bidirectional(nn.Module):
    """A bidirectional layer, y = mixer_a(x) + reverse(mixer_b(reverse(x))).

    It is not a `SequenceMixer`, because its outputs depend on later positions, so it cannot stream. Its operator
    (`zoo.theory.interaction`) is the sum of mixer_a's operator, on and below the diagonal, and of mixer_b's operator
    with rows and columns reversed, on and above it. Its interaction rank is at most the sum of theirs.

    Args:
        mixer_a: reads from the first position to the last.
        mixer_b: reads from the last position to the first; another module of the same widths.

    Raises:
        ValueError: mixers of different widths, or the same module twice.
    """

    def __init__(self, mixer_a: SequenceMixer, mixer_b: SequenceMixer) -> None:
        super().__init__()
        if mixer_a is mixer_b:
            raise ValueError("mixer_a and mixer_b must be two different modules")
        widths = [(mixer.d_model, mixer.d_out) for mixer in (mixer_a, mixer_b)]
        if widths[0] != widths[1]:
            raise ValueError(f"both mixers need the same (d_model, d_out), got {widths[0]} and {widths[1]}")
        self.d_model, self.d_out = widths[0]
        self.mixer_a, self.mixer_b = mixer_a, mixer_b

    def reset_parameters(self) -> None:
        self.mixer_a.reset_parameters()
        self.mixer_b.reset_parameters()

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay."""
        return no_weight_decay(self)

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], lengths: Lengths | None = None
    ) -> Float[Tensor, "batch seq d_out"]:
        """Mix whole sequences.

        Args:
            x: input.
            lengths: number of valid positions of each row, from the left; mixer_b starts at the last of them. Later
                positions have no influence on outputs or gradients; the output there is zero.

        Raises:
            ValueError: the errors of the mixers.
        """
        lengths = as_lengths(lengths, x)
        forwards = self.mixer_a(x, lengths)
        if lengths is not None:
            lengths = lengths.long()
        return forwards + reverse(self.mixer_b(reverse(x, lengths), lengths), lengths)


class Autoencoder(SequenceMixer):
    """A mixer whose output at one position is decoded at all later ones (the decoder of MAD, Poli et al. 2403.17844).

        y_i = mixer(x)_i              i < decode_from
        y_i = D(mixer(x)_e + x_i)     i >= decode_from,  e = decode_from - 1
        D(u) = gelu(V norm(gelu(U norm(u) + b)) + c)

    From decode_from on, a position depends only on the code mixer(x)_e and on its own input. MAD uses a fixed
    sinusoidal code of the position in place of x_i.

    Coefficients. Those of the mixer, the norms' 1/rms, and Phi of the GELUs.

    State. The state of the mixer, the code (batch, d_model), and the number of positions read in each row (batch,).

    Args:
        mixer: the encoder; d_out must be d_model.
        decode_from: first decoded position.
        norm_eps: epsilon of the norms.

    Raises:
        ValueError: a mixer whose output has another width, decode_from below 1.
    """

    def __init__(self, mixer: SequenceMixer, decode_from: int, norm_eps: float = 1e-5) -> None:
        super().__init__(mixer.d_model)
        require_positive(decode_from=decode_from)
        if mixer.d_out != mixer.d_model:
            raise ValueError(f"an autoencoder needs d_out = d_model, got {mixer.d_out} and {mixer.d_model}")
        self.mixer, self.decode_from = mixer, decode_from
        self.norms = nn.ModuleList(RMSNorm(self.d_model, norm_eps) for _ in range(2))
        self.projections = nn.ModuleList(nn.Linear(self.d_model, self.d_model) for _ in range(2))

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> tuple[Any, Tensor, Tensor]:
        code = torch.zeros(batch_size, self.d_model, dtype=dtype, device=device)
        count = torch.zeros(batch_size, dtype=torch.int64, device=device)
        return self.mixer.empty_state(batch_size, dtype, device), code, count

    def mix(
        self, x: Tensor, state: tuple[Any, Tensor, Tensor], lengths: Tensor | None
    ) -> tuple[Tensor, tuple[Any, Tensor, Tensor]]:
        inner, code, count = state
        valid = torch.full_like(count, x.shape[1]) if lengths is None else lengths
        read = torch.minimum((self.decode_from - count).clamp(min=0), valid)
        y, inner = self.mixer.stream(x, inner, read)
        last = y[torch.arange(y.shape[0], device=y.device), (read - 1).clamp(min=0)]
        code = torch.where((read > 0).unsqueeze(1), last, code)
        decoded = self.decode(code.unsqueeze(1) + x)
        return torch.where(valid_positions(read, x.shape[1]).unsqueeze(2), y, decoded), (inner, code, count + valid)

    def decode(self, u: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Apply the decoder D."""
        for norm, projection in zip(self.norms, self.projections, strict=True):
            u = gelu(projection(norm(u)))
        return u
