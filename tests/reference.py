"""NumPy references of every mixer, as plain loops over time; the tests compare the zoo with them.

They are written from the papers and import nothing from the zoo. Each function takes the module's parameters under
their state_dict names (float64), one sequence x (seq, d_model) and the module's options, and returns y (seq, d_out).
Options that only set sizes are ignored: the sizes are read off the parameters.

The functions `*_operator` return W (seq, seq, d_out, d_in) with y_i = sum_j W_ij x_j + c_i, in closed form, with the
zoo's split into coefficients and values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from einops import rearrange
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parameters = dict[str, Array]


# Split channels into heads, and join them.


def heads_of(t: Array, n_heads: int) -> Array:
    return rearrange(t, "seq (head d) -> seq head d", head=n_heads)


def joined(t: Array) -> Array:
    return rearrange(t, "seq head d -> seq (head d)")


# Elementwise functions.


def sigmoid(u: Array) -> Array:
    return 1 / (1 + np.exp(-u))


def silu(u: Array) -> Array:
    return u * sigmoid(u)


def softplus(u: Array) -> Array:
    return np.logaddexp(0, u)


def heavy_tail(u: Array) -> Array:
    return np.where(u < 0, 1 / (1 + np.abs(u)), 1 + u)


def elu_plus_one(u: Array) -> Array:
    return np.where(u > 0, u + 1, np.exp(np.minimum(u, 0)))


# Norms, channel mixers, blocks and backbone.


def rms_norm(x: Array, weight: Array, eps: float = 1e-5) -> Array:
    """x / rms(x) * weight (Zhang and Sennrich 1910.07467)."""
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight


def swiglu(p: Parameters, x: Array) -> Array:
    """W_down (silu(W_gate x) * W_up x), gate and value stacked in that order (Shazeer 2002.05202)."""
    gate, value = np.split(x @ p["up_proj.weight"].T, 2, axis=-1)
    return (silu(gate) * value) @ p["down_proj.weight"].T


def squared_relu(p: Parameters, x: Array) -> Array:
    """W_down relu(W_up x)^2 (So et al. 2109.08668)."""
    return np.maximum(x @ p["up_proj.weight"].T, 0) ** 2 @ p["down_proj.weight"].T


def gelu_tanh(u: Array) -> Array:
    """The tanh approximation of GELU (Hendrycks and Gimpel 1606.08415, section 2)."""
    return 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3)))


def geglu(p: Parameters, x: Array) -> Array:
    """W_down (gelu(W_gate x + b) * (W_up x + c)) + d, with the tanh GELU (De et al. 2402.19427, section 2.2)."""
    gate, value = np.split(x @ p["up_proj.weight"].T + p["up_proj.bias"], 2, axis=-1)
    return (gelu_tanh(gate) * value) @ p["down_proj.weight"].T + p["down_proj.bias"]


def shifted_relu(p: Parameters, x: Array) -> Array:
    """sigmoid(W_r x^r) * W_down relu(W_up x^k)^2, x^r and x^k being token shifts (Peng et al. 2305.13048, eq. 18)."""
    before = np.concatenate((np.zeros_like(x[..., :1, :]), x[..., :-1, :]), axis=-2)
    x_r, x_k = (x * mu + before * (1 - mu) for mu in p["shift"])
    return sigmoid(x_r @ p["gate_proj.weight"].T) * squared_relu(p, x_k)


def layer_norm(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


def experts(p: Parameters, x: Array, top_k: int, *, normalize: bool = False) -> Array:
    """The SwiGLUs of each position's top_k likeliest experts, weighted by their probabilities.

    The softmax runs over all experts (Jamba 2403.19887; Fedus et al. 2101.03961); `normalize` renormalises it over
    the chosen ones. A shared expert, with or without a gate, is added at every position (Dai et al. 2401.06066).
    """
    y = np.zeros_like(x)
    for i in range(len(x)):
        exponentials = np.exp(p["router.weight"] @ x[i])
        probability = exponentials / exponentials.sum()
        chosen = np.argsort(-probability)[:top_k]
        for e in chosen:
            expert = {"up_proj.weight": p["up_proj"][e], "down_proj.weight": p["down_proj"][e]}
            y[i] += probability[e] * swiglu(expert, x[i]) / (probability[chosen].sum() if normalize else 1)
    if "shared.up_proj.weight" in p:
        gate = sigmoid(x @ p["shared_gate.weight"].T) if "shared_gate.weight" in p else 1.0
        y += gate * swiglu(members(p, "shared."), x)
    return y


def sigmoid_experts(
    p: Parameters,
    x: Array,
    top_k: int,
    *,
    n_groups: int = 1,
    top_groups: int = 1,
    normalize: bool = False,
    scale: float = 1.0,
    d_shared: int = 0,
) -> Array:
    """DeepSeek-V3's routing (2412.19437, eqs. 12 to 16): each position picks the best groups, then experts in them."""
    y = swiglu(members(p, "shared."), x) if d_shared else np.zeros_like(x)
    for i in range(len(x)):
        score = sigmoid(p["router.weight"] @ x[i])
        preferred, size = score + p["preference"], len(score) // n_groups
        worth = [np.sort(preferred[g * size : (g + 1) * size])[-2:].sum() for g in range(n_groups)]
        open_groups = np.argsort(worth)[::-1][:top_groups]
        chosen = [e for e in np.argsort(-preferred) if e // size in open_groups][:top_k]
        for e in chosen:
            expert = {"up_proj.weight": p["up_proj"][e], "down_proj.weight": p["down_proj"][e]}
            y[i] += scale * score[e] * swiglu(expert, x[i]) / (score[chosen].sum() if normalize else 1)
    return y


def balance(p: Parameters, x: Array, top_k: int) -> tuple[float, Array]:
    """Load-balancing loss n_experts sum_e load_e importance_e, and the loads (Fedus et al. 2101.03961, eqs. 4 to 6)."""
    exponentials = np.exp(x @ p["router.weight"].T)
    probability = exponentials / exponentials.sum(axis=1, keepdims=True)
    n_experts = probability.shape[1]
    load = np.zeros(n_experts)
    for row in probability:
        for e in np.argsort(-row)[:top_k]:
            load[e] += 1 / len(x)
    return float(n_experts * load @ probability.mean(axis=0)), load


def short_conv(x: Array, weight: Array, bias: Array | float = 0.0) -> Array:
    """Causal depthwise convolution y_i = sum_tau weight[:, d_conv - 1 - tau] x_{i - tau} + bias, zero-padded."""
    d_conv = weight.shape[1]
    y = np.zeros_like(x)
    for i in range(len(x)):
        for tau in range(min(d_conv, i + 1)):
            y[i] += weight[:, d_conv - 1 - tau] * x[i - tau]
    return y + bias


def members(p: Parameters, prefix: str) -> Parameters:
    """The parameters of a submodule, with the prefix removed from their names."""
    return {name.removeprefix(prefix): value for name, value in p.items() if name.startswith(prefix)}


def causal(seq: int, block: Callable[[int, int], Array]) -> Array:
    """W (seq, seq, d_out, d_in) assembled from its blocks W_ij for j <= i, zero elsewhere."""
    operator = np.zeros((seq, seq, *block(0, 0).shape))
    for i in range(seq):
        for j in range(i + 1):
            operator[i, j] = block(i, j)
    return operator


def output_normed_block(p: Parameters, x: Array, name: str, **options: object) -> Array:
    """x + norm(mixer(x)), then x + norm(channel(x)) (OLMo 2, 2501.00656, eqs. 1 and 2)."""
    x = x + rms_norm(REFERENCES[name](members(p, "mixer."), x, **options), p["mixer_norm.weight"])
    return x + rms_norm(swiglu(members(p, "channel."), x), p["channel_norm.weight"])


def residual_normed_block(p: Parameters, x: Array, name: str, **options: object) -> Array:
    """u = norm(x), v = norm(u + mixer(u)), then v + channel(v) (MiniMax-01, as in transformers)."""
    u = rms_norm(x, p["mixer_norm.weight"])
    v = rms_norm(u + REFERENCES[name](members(p, "mixer."), u, **options), p["channel_norm.weight"])
    return v + swiglu(members(p, "channel."), v)


def residual_block(p: Parameters, x: Array, name: str, **options: object) -> Array:
    """Pre-norm block: x + mixer(norm(x)), then x + channel(norm(x)) if the block has a channel mixer."""
    inner, mixer = rms_norm(x, p["mixer_norm.weight"]), members(p, "mixer.")
    if "layers.0.weight" in mixer:  # a Canon layer in front
        inner, mixer = canon(inner, mixer["layers.0.weight"]), members(mixer, "layers.1.")
    x = x + REFERENCES[name](mixer, inner, **options)
    if "channel_norm.weight" in p:
        y, weights = rms_norm(x, p["channel_norm.weight"]), members(p, "channel.")
        if "canon_before.weight" in p:
            y = canon(y, p["canon_before.weight"])
        y = y @ weights["up_proj.weight"].T
        if "canon_inside.weight" in p:
            y = canon(y, p["canon_inside.weight"])
        gate, value = np.split(y, 2, axis=-1)
        x = x + (silu(gate) * value) @ weights["down_proj.weight"].T
    return x


def canon(x: Array, weight: Array) -> Array:
    """x_t + sum_tau c_tau x_{t - tau}, the oldest tap first (Allen-Zhu 2512.17351)."""
    return x + short_conv(x, weight)


def backbone(p: Parameters, inputs: Array, name: str, n_layers: int, **options: object) -> Array:
    """Embedding or projection, residual blocks of one kind, norm, head: logits (seq, n_outputs)."""
    tokens = "embedding.weight" in p
    x = p["embedding.weight"][inputs] if tokens else inputs @ p["in_proj.weight"].T + p["in_proj.bias"]
    for layer in range(n_layers):
        x = residual_block(members(p, f"layers.layers.{layer}."), x, name, **options)
    return rms_norm(x, p["norm.weight"]) @ p["head.weight"].T


# Softmax attention.


def turn(t: Array, angles: Array) -> Array:
    """Rotate channel pair (m, m + n) by the m-th of n angles; channels from 2n on are unchanged."""
    n = len(angles)
    turned = t.copy()
    for m in range(n):
        turned[m] = t[m] * np.cos(angles[m]) - t[m + n] * np.sin(angles[m])
        turned[m + n] = t[m] * np.sin(angles[m]) + t[m + n] * np.cos(angles[m])
    return turned


def rotate(v: Array, position: int, base: float = 10_000) -> Array:
    """RoPE (Su et al. 2104.09864, eq. 34): rotate the m-th pair by the angle position * base^(-2m / d_head).

    The m-th pair is (m, m + d_head / 2), as in most code; the paper's (2m, 2m + 1) differs only in the order of
    channels.
    """
    return turn(v, position * base ** (-2 * np.arange(len(v) // 2) / len(v)))


def rope(heads: Array, d_rope: int, base: float = 10_000) -> Array:
    """Apply RoPE to the first d_rope channels of each head; heads (seq, n_heads, d_head)."""
    turned = heads.copy()
    for i, row in enumerate(turned):
        for head in row:
            head[:d_rope] = rotate(head[:d_rope], i, base)
    return turned


def stretched_rope(d_head: int, base: float, scaling: Mapping[str, Any], total: int) -> tuple[Array, float]:
    """RoPE frequency of each channel pair in a sequence of `total` positions, and the factor on queries and keys.

    Linear: Chen et al. 2306.15595. Dynamic and yarn: Peng et al. 2309.00071, where the ramp's ends are rounded outward
    to whole pairs unless `truncate` is false. llama3: the wavelength bands of Meta's llama-models.
    """
    kind, factor = scaling["rope_type"], scaling["factor"]
    trained = scaling.get("original_max_position_embeddings")
    if kind == "dynamic" and total > trained:
        base = base * (factor * total / trained - (factor - 1)) ** (d_head / (d_head - 2))
    result = np.empty(d_head // 2)
    for m in range(d_head // 2):
        wavelength = 2 * np.pi * base ** (2 * m / d_head)
        plain = 2 * np.pi / wavelength
        if kind == "linear":
            result[m] = plain / factor
        elif kind == "dynamic":
            result[m] = plain
        elif kind == "llama3":
            longest, shortest = (trained / scaling[f"{end}_freq_factor"] for end in ("low", "high"))
            if wavelength < shortest:
                result[m] = plain
            elif wavelength > longest:
                result[m] = plain / factor
            else:
                low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
                smooth = (trained / wavelength - low) / (high - low)
                result[m] = (1 - smooth) * plain / factor + smooth * plain
        else:  # yarn; pair m turns n times within the trained length if 2 pi base^(2m / d) n = trained
            ends = [
                d_head * np.log(trained / (2 * np.pi * scaling.get(name, default))) / (2 * np.log(base))
                for name, default in (("beta_fast", 32), ("beta_slow", 1))
            ]
            if scaling.get("truncate", True):
                ends = [np.floor(ends[0]), np.ceil(ends[1])]
            first, last = max(ends[0], 0), min(ends[1], d_head - 1)
            ramp = np.clip((m - first) / (last - first if last > first else 1e-3), 0, 1)
            result[m] = (1 - ramp) * plain + ramp * plain / factor
    size = 1.0
    if kind == "yarn":
        weights = scaling.get("mscale"), scaling.get("mscale_all_dim")
        above, below = weights if all(weights) else (1.0, 0.0)
        size = (0.1 * above * np.log(factor) + 1) / (0.1 * below * np.log(factor) + 1)
        size = scaling.get("attention_factor") or size
    return result, float(size)


def attention_heads(
    p: Parameters,
    x: Array,
    n_heads: int = 4,
    n_kv_heads: int | None = None,
    norm_eps: float = 1e-6,
    **_sizes: object,
) -> tuple[Array, Array, Array]:
    """Queries, keys and values, (seq, n_heads, d_head) each, with shared heads repeated."""
    n_kv_heads = n_kv_heads or n_heads
    d_head = p["out_proj.weight"].shape[1] // n_heads
    qkv = x @ p["qkv_proj.weight"].T
    if "conv.weight" in p:
        qkv = short_conv(qkv, p["conv.weight"])
    n_queries, n_keys = n_heads * d_head, n_kv_heads * d_head
    q, k, v = np.split(qkv, [n_queries, n_queries + n_keys], axis=-1)
    if "q_norm.weight" in p:  # over one head or over all of them, whichever the width of the weight is
        q, k = (
            np.concatenate([rms_norm(t, w, norm_eps) for t in np.split(part, part.shape[1] // len(w), axis=1)], axis=1)
            for part, w in ((q, p["q_norm.weight"]), (k, p["k_norm.weight"]))
        )
    q, k, v = heads_of(q, n_heads), heads_of(k, n_kv_heads), heads_of(v, n_kv_heads)
    group = [h // (n_heads // n_kv_heads) for h in range(n_heads)]
    return q, k[:, group], v[:, group]


def softmax_weights(
    q: Array,
    k: Array,
    bias: Callable[[int, int], Array | float] = lambda h, i: 0.0,
    sink: Callable[[int, int], float] = lambda h, i: -np.inf,
) -> Array:
    """Softmax over j <= i of q_i . k_j / sqrt(d_head) + bias, (n_heads, seq, seq), without the sink's weight."""
    seq, n_heads, d_head = q.shape
    weights = np.zeros((n_heads, seq, seq))
    for h in range(n_heads):
        for i in range(seq):
            logits = np.append(k[: i + 1, h] @ q[i, h] / np.sqrt(d_head) + bias(h, i), sink(h, i))
            exponentials = np.exp(logits - logits.max())
            weights[h, i, : i + 1] = exponentials[:-1] / exponentials.sum()
    return weights


def weighted(weights: Array, values: Array) -> Array:
    """sum_j a_h(i, j) v_j for each head, from a_h (n_heads, seq, seq) and values (seq, n_heads, d_value)."""
    return np.stack([weights[h] @ values[:, h] for h in range(len(weights))], axis=1)


def attention_weights(
    p: Parameters,
    x: Array,
    n_heads: int = 4,
    position: str = "none",
    sink: str = "none",
    window: int | None = None,
    **options: object,
) -> Array:
    """a_h(i, j) over j <= i; with a window over i - window < j <= i (Beltagy et al. 2004.05150)."""
    q, k, _ = attention_heads(p, x, n_heads, **options)
    base, d_rope, size = options.get("rope_base", 10_000), options.get("d_rope") or q.shape[2], 1.0
    if options.get("rope_scaling"):
        frequency, size = stretched_rope(d_rope, base, options["rope_scaling"], len(x))
        q, k = (np.array([[turn(head, i * frequency) for head in row] for i, row in enumerate(t)]) for t in (q, k))
    elif position == "rope":
        q, k = rope(q, d_rope, base), rope(k, d_rope, base)

    def bias(h: int, lag: NDArray[np.int64] | int) -> Array | float:
        if position == "alibi":
            return -p["slopes"][h] * lag
        return p["relative_bias"][h, lag] if position == "relative" else 0.0

    def seen(h: int, i: int) -> Array:
        lag = i - np.arange(i + 1)
        return np.where(lag < (window or len(x)), bias(h, lag), -np.inf)

    sinks = {
        "none": lambda h, i: -np.inf,
        "constant": lambda h, i: p["sink_logit"][h, 0],
        "position": lambda h, i: p["sink_logit"][h, i],
        "bos": lambda h, i: p["sink_logit"][h, 0] + bias(h, i + 1),  # the token is one position before the first
    }
    return softmax_weights(size * q, size * k, seen, sinks[sink])


def attention(p: Parameters, x: Array, n_heads: int = 4, **options: object) -> Array:
    """Causal softmax attention (Vaswani et al. 1706.03762) with position biases, windows and zero-value sinks."""
    values = attention_heads(p, x, n_heads, **options)[2]
    mixed = weighted(attention_weights(p, x, n_heads, **options), values)
    return joined(mixed) @ p["out_proj.weight"].T + p.get("out_proj.bias", 0.0)


def attention_operator(p: Parameters, x: Array, n_heads: int = 4, **options: object) -> Array:
    return heads_operator(p, attention_weights(p, x, n_heads, **options), options.get("n_kv_heads"))


def heads_operator(p: Parameters, weights: Array, n_kv_heads: int | None = None) -> Array:
    """W_ij = sum_h a_h(i, j) W_O^h W_V^h; with a value convolution, sum_h sum_tau a_h(i, j + tau) W_O^h K_tau W_V^h."""
    n_heads, seq, _ = weights.shape
    n_kv_heads = n_kv_heads or n_heads
    d_model, n_inner = p["out_proj.weight"].shape
    d_head = n_inner // n_heads
    first_value = n_inner + n_kv_heads * d_head
    kernel = p.get("conv.weight", np.ones((len(p["qkv_proj.weight"]), 1)))
    d_conv = kernel.shape[1]
    operator = np.zeros((seq, seq, d_model, d_model))
    for h in range(n_heads):
        start = first_value + h // (n_heads // n_kv_heads) * d_head
        rows = slice(start, start + d_head)
        w_out = p["out_proj.weight"][:, h * d_head : (h + 1) * d_head]
        for tau in range(d_conv):
            value_map = w_out @ (kernel[rows, d_conv - 1 - tau, None] * p["qkv_proj.weight"][rows])
            for i in range(seq):
                for j in range(i + 1 - tau):
                    operator[i, j] += weights[h, i, j + tau] * value_map
    return operator


def gated_attention(
    p: Parameters,
    x: Array,
    n_heads: int = 2,
    d_rope: int | None = None,
    rope_base: float = 10_000,
    norm_eps: float = 1e-6,
    **_sizes: object,
) -> Array:
    """Qwen3-Next's attention: gated attention (2505.06708) with query and key norms and partial RoPE."""
    d_head = p["out_proj.weight"].shape[1] // n_heads
    n_kv_heads = (len(p["qkv_proj.weight"]) // d_head - n_heads) // 2
    q, k, v = attention_heads(p, x, n_heads, n_kv_heads, norm_eps)
    turned = max(2, 2 * (d_head // 8)) if d_rope is None else d_rope
    o = weighted(softmax_weights(rope(q, turned, rope_base), rope(k, turned, rope_base)), v)
    return joined(heads_of(sigmoid(x @ p["gate_proj.weight"].T), n_heads) * o) @ p["out_proj.weight"].T


def differential_attention(
    p: Parameters,
    x: Array,
    n_heads: int = 2,
    depth: int = 0,
    d_rope: int | None = None,
    rope_base: float = 10_000,
    **_sizes: object,
) -> Array:
    """(softmax_1 - lambda softmax_2) V, each head normed (Ye et al. 2410.05258, eq. 1 to 3)."""
    q, k, v = np.split(x @ p["qkv_proj.weight"].T, 3, axis=1)
    q, k, v = heads_of(q, 2 * n_heads), heads_of(k, 2 * n_heads), heads_of(v, n_heads)
    turned = 2 * (q.shape[2] // 2) if d_rope is None else d_rope
    weights = softmax_weights(rope(q, turned, rope_base), rope(k, turned, rope_base))
    start = 0.8 - 0.6 * np.exp(-0.3 * depth)
    lam = np.exp(p["lambda_q"][0] @ p["lambda_k"][0]) - np.exp(p["lambda_q"][1] @ p["lambda_k"][1]) + start
    o = weighted(weights[::2] - lam * weights[1::2], v)
    return (1 - start) * joined(rms_norm(o, p["norm.weight"])) @ p["out_proj.weight"].T


def forgetting_attention(p: Parameters, x: Array, n_heads: int = 4, **options: object) -> Array:
    """FoX (Lin et al. 2503.02130, section 3): the weight of j at i is exp(q . k) times f_{j+1} ... f_i, normalised."""
    q, k, v = attention_heads(p, x, n_heads, **options)
    log_f = np.log(sigmoid(x @ p["forget_proj.weight"].T + p["forget_proj.bias"]))

    def kept(h: int, i: int) -> Array:  # for each j the sum of log f over j + 1 ... i
        return np.append(np.cumsum(log_f[i:0:-1, h])[::-1], 0.0)

    return joined(weighted(softmax_weights(q, k, kept), v)) @ p["out_proj.weight"].T


def path_attention(p: Parameters, x: Array, n_heads: int = 4, n_kv_heads: int | None = None, **_sizes: object) -> Array:
    """PaTH (Yang et al. 2505.16381): each position t multiplies the keys before it by I - beta_t w_t w_t^T."""
    seq, n_kv_heads = len(x), n_kv_heads or n_heads
    projections = {name: p[name] for name in ("qkv_proj.weight", "out_proj.weight")}
    q, k, v = attention_heads(projections, x, n_heads, n_kv_heads)
    w = silu(short_conv(x @ p["w_down.weight"].T @ p["w_up.weight"].T, p["conv.weight"]))
    w = unit(heads_of(w, n_kv_heads))
    beta = 2 * sigmoid(x @ p["beta_proj.weight"].T + p["beta_proj.bias"])
    f = np.ones((seq, n_heads))
    if "forget_proj.weight" in p:
        f = sigmoid(x @ p["forget_proj.weight"].T + p["forget_proj.bias"])
    o = np.zeros_like(q)
    for h in range(n_heads):
        group = h // (n_heads // n_kv_heads)
        keys = np.zeros((0, q.shape[2]))
        forgotten = np.zeros(0)
        for i in range(seq):
            keys = keys - beta[i, group] * np.outer(keys @ w[i, group], w[i, group])
            keys = np.vstack((keys, k[i, h]))
            forgotten = np.append(forgotten + np.log(f[i, h]), 0.0)
            weights = np.exp((keys @ q[i, h] + forgotten) / np.sqrt(q.shape[2]))
            o[i, h] = weights @ v[: i + 1, h] / weights.sum()
    return joined(o) @ p["out_proj.weight"].T


def deltaformer(
    p: Parameters, x: Array, n_heads: int = 4, d_rope: int | None = None, rope_base: float = 10_000, **_sizes: object
) -> Array:
    """DeltaFormer (Zhong et al. 2505.19488) with factors beta: u_t = v_t - beta_t (attention to u before t).

    Then softmax attention over u.
    """
    q, k, v = (heads_of(t, n_heads) for t in np.split(x @ p["qkv_proj.weight"].T, 3, axis=1))
    turned = 2 * (q.shape[2] // 2) if d_rope is None else d_rope
    q, k = rope(q, turned, rope_base), rope(k, turned, rope_base)
    beta = np.clip(x @ p["beta_proj.weight"].T + p["beta_proj.bias"], -1, 1)
    u, o = np.zeros_like(v), np.zeros_like(v)
    for h in range(n_heads):
        for t in range(len(x)):
            weights = np.exp(k[: t + 1, h] @ q[t, h] / np.sqrt(q.shape[2]))
            before = weights[:t] / weights[:t].sum()
            u[t, h] = v[t, h] - beta[t, h] * before @ u[:t, h]
            o[t, h] = weights @ u[: t + 1, h] / weights.sum()
    return joined(o) @ p["out_proj.weight"].T


# Attention without a softmax.


def mla(
    p: Parameters, x: Array, n_heads: int = 4, position: str = "rope", rope_base: float = 10_000, **_sizes: object
) -> Array:
    """Multi-head latent attention (DeepSeek-AI 2405.04434, section 2.1): keys and values are maps of a latent c_j."""
    weights, v = latent_heads(p, x, n_heads, position, rope_base)
    return joined(weighted(weights, v)) @ p["out_proj.weight"].T


def latent_heads(
    p: Parameters,
    x: Array,
    n_heads: int,
    position: str,
    rope_base: float,
    seen: Callable[[int, int], Array | float] = lambda h, i: 0.0,
) -> tuple[Array, Array]:
    """Attention weights of multi-head latent attention with additional logits `seen`, and its values."""
    hidden = latent_queries(p, x)
    d_head, d_latent = p["out_proj.weight"].shape[1] // n_heads, len(p["latent_norm.weight"])
    c, k_rope = np.split(x @ p["latent_proj.weight"].T, [d_latent], axis=1)
    kv = heads_of(rms_norm(c, p["latent_norm.weight"], 1e-6) @ p["kv_proj.weight"].T, n_heads)
    k, v = kv[..., :d_head], kv[..., d_head:]
    q = heads_of(hidden @ p["query_proj.weight"].T, n_heads)
    turned = k_rope.shape[1] if position == "rope" else 0
    q = np.concatenate((q[..., :d_head], rope(q[..., d_head:], turned, rope_base)), axis=2)
    shared = np.repeat(rope(k_rope[:, None], turned, rope_base), n_heads, axis=1)
    return softmax_weights(q, np.concatenate((k, shared), axis=2), seen), v


def latent_queries(p: Parameters, x: Array) -> Array:
    """Input of the query projection: x, or its normed down-projection."""
    if "query_down.weight" not in p:
        return x
    return rms_norm(x @ p["query_down.weight"].T, p["query_norm.weight"], 1e-6)


def index_scores(p: Parameters, x: Array, rope_base: float = 10_000) -> Array:
    """The lightning indexer (DeepSeek-AI 2512.02556, eq. 1): I_ij, (seq, seq), -inf where j > i."""
    n = len(p["index_weight_proj.weight"])
    turned = len(p["latent_proj.weight"]) - len(p["latent_norm.weight"])
    a = rope(heads_of(latent_queries(p, x) @ p["index_query_proj.weight"].T, n), turned, rope_base)
    b = x @ p["index_key_proj.weight"].T
    centred = b - b.mean(axis=1, keepdims=True)
    b = rms_norm(centred, p["index_norm.weight"], 1e-6) + p["index_norm.bias"]
    b = rope(b[:, None], turned, rope_base)[:, 0]
    w = x @ p["index_weight_proj.weight"].T / np.sqrt(n * b.shape[1])
    scores = np.full((len(x), len(x)), -np.inf)
    for i in range(len(x)):
        for j in range(i + 1):
            scores[i, j] = sum(w[i, h] * max(a[i, h] @ b[j], 0.0) for h in range(n))
    return scores


def chosen_by_index(scores: Array, top_k: int) -> NDArray[np.bool_]:
    """Mask of the top_k scores of each row; of equal scores the latest position wins."""
    chosen = np.zeros(scores.shape, dtype=bool)
    for i in range(len(scores)):
        chosen[i, sorted(range(i + 1), key=lambda j, i=i: (-scores[i, j], -j))[:top_k]] = True
    return chosen


def dsa(
    p: Parameters, x: Array, n_heads: int = 4, rope_base: float = 10_000, top_k: int = 64, **_sizes: object
) -> Array:
    """DeepSeek sparse attention (DeepSeek-AI 2512.02556, section 2.1): latent attention to the indexer's top_k."""
    chosen = chosen_by_index(index_scores(p, x, rope_base), top_k)
    seen = partial(_seen, chosen)
    weights, v = latent_heads(p, x, n_heads, "rope", rope_base, seen)
    return joined(weighted(weights, v)) @ p["out_proj.weight"].T


def _seen(chosen: NDArray[np.bool_], _: int, i: int) -> Array:
    return np.where(chosen[i, : i + 1], 0.0, -np.inf)


def index_loss(p: Parameters, x: Array, n_heads: int, top_k: int) -> Array:
    """KL(p_i || softmax(I_i)) over the chosen positions, for every i (DeepSeek-AI 2512.02556, eqs. 3 and 4)."""
    scores = index_scores(p, x)
    chosen = chosen_by_index(scores, top_k)
    weights = latent_heads(p, x, n_heads, "rope", 10_000, partial(_seen, chosen))[0].mean(axis=0)
    found = np.zeros(len(x))
    for i, row in enumerate(chosen):
        index = np.exp(scores[i, row]) / np.exp(scores[i, row]).sum()
        found[i] = np.sum(weights[i, row] * np.log(weights[i, row] / index))
    return found


def moba(
    p: Parameters,
    x: Array,
    n_heads: int = 4,
    block_size: int = 64,
    top_k: int = 3,
    d_rope: int | None = None,
    rope_base: float = 10_000,
    **options: object,
) -> Array:
    """MoBA (Lu et al. 2502.13189, section 2): attention to the current block and the top_k - 1 earlier ones.

    Earlier blocks are ranked by q . mean(k).
    """
    q, k, v = attention_heads(p, x, n_heads, **options)
    turned = 2 * (q.shape[2] // 2) if d_rope is None else d_rope
    q, k = rope(q, turned, rope_base), rope(k, turned, rope_base)

    def seen(h: int, i: int) -> Array:
        own = i // block_size
        scores = [k[b * block_size : (b + 1) * block_size, h].mean(axis=0) @ q[i, h] for b in range(own)]
        chosen = [own, *np.argsort(scores)[::-1][: top_k - 1]]
        return np.where(np.isin(np.arange(i + 1) // block_size, chosen), 0.0, -np.inf)

    return joined(weighted(softmax_weights(q, k, seen), v)) @ p["out_proj.weight"].T


def nsa(
    p: Parameters,
    x: Array,
    n_heads: int = 4,
    n_kv_heads: int | None = None,
    block_size: int = 32,
    top_k: int = 4,
    window: int = 64,
    d_rope: int | None = None,
    rope_base: float = 10_000,
    **_sizes: object,
) -> Array:
    """NSA (Yuan et al. 2502.11089, section 3): gated sum of compressed, selected and sliding-window attention.

    Blocks are compressed by their mean.
    """
    q, k, v = attention_heads(p, x, n_heads, n_kv_heads)
    turned = 2 * (q.shape[2] // 2) if d_rope is None else d_rope
    q, k = rope(q, turned, rope_base), rope(k, turned, rope_base)
    group = n_heads // (n_kv_heads or n_heads)
    gates = heads_of(sigmoid(x @ p["gate_proj.weight"].T), n_heads)
    weights = np.zeros((n_heads, len(x), len(x)))
    chosen = np.zeros((n_heads, len(x), len(x)), dtype=bool)
    for i in range(len(x)):
        whole, own = (i + 1) // block_size, i // block_size
        coarse = np.zeros((n_heads, whole))
        for h in range(n_heads):
            for b in range(whole):
                mean = k[b * block_size : (b + 1) * block_size, h].mean(axis=0)
                coarse[h, b] = np.exp(mean @ q[i, h] / np.sqrt(q.shape[2]))
            coarse[h] /= coarse[h].sum()
            weights[h, i, : whole * block_size] = gates[i, h, 0] * np.repeat(coarse[h], block_size) / block_size
        for h in range(n_heads):
            scores = coarse[h // group * group : (h // group + 1) * group].mean(axis=0)
            forced = {0, max(own - 1, 0), own}
            others = [b for b in np.argsort(scores)[::-1] if b not in forced]
            blocks = [*forced, *others[: top_k - len({0, own - 1, own})]]
            chosen[h, i] = np.isin(np.arange(len(x)) // block_size, blocks)

    def seen(h: int, i: int) -> Array:
        return np.where(chosen[h, i, : i + 1], 0.0, -np.inf)

    def near(h: int, i: int) -> Array:
        return np.where(i - np.arange(i + 1) < window, 0.0, -np.inf)

    by_head = gates.transpose(1, 0, 2)
    for branch, mask in ((1, seen), (2, near)):
        weights += by_head[:, :, branch, None] * softmax_weights(q, k, mask)
    return joined(weighted(weights, v)) @ p["out_proj.weight"].T


def linear_attention_weights(
    p: Parameters, x: Array, n_heads: int = 4, feature_map: str = "elu", normalize: bool = True, **_sizes: object
) -> Array:
    """phi(q_i) . phi(k_j) / z_i, (n_heads, seq, seq) (Katharopoulos et al. 2006.16236, eq. 9)."""
    seq = len(x)
    phi = elu_plus_one if feature_map == "elu" else lambda u: u
    q, k, _ = (heads_of(part, n_heads) for part in np.split(x @ p["qkv_proj.weight"].T, 3, axis=-1))
    weights = np.zeros((n_heads, seq, seq))
    for h in range(n_heads):
        for i in range(seq):
            weights[h, i, : i + 1] = phi(k[: i + 1, h]) @ phi(q[i, h])
            if normalize:
                weights[h, i] /= weights[h, i].sum() + 1e-6
    return weights


def linear_attention(p: Parameters, x: Array, n_heads: int = 4, **options: object) -> Array:
    weights = linear_attention_weights(p, x, n_heads, **options)
    values = heads_of(np.split(x @ p["qkv_proj.weight"].T, 3, axis=-1)[2], n_heads)
    return joined(weighted(weights, values)) @ p["out_proj.weight"].T


def linear_attention_operator(p: Parameters, x: Array, n_heads: int = 4, **options: object) -> Array:
    return heads_operator(p, linear_attention_weights(p, x, n_heads, **options))


def matrix_states(
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    erased: Array | None = None,
    where: Array | None = None,
    levels: Array | None = None,
    steps: int = 1,
) -> Array:
    """S_t = (diag(decay_t) - erased_t where_t^T) S_{t-1} + k_t v_t^T; returns S_t^T q_t, (seq, n_heads, d_value).

    With levels (positions, n_heads, n_levels), S_t is the sum of its Fenwick-tree levels l weighted by levels[t, h, l];
    a position has `steps` steps.
    """
    if levels is not None:
        return np.stack([tree_states(h, steps, levels, q, k, v, decay, erased, where) for h in range(k.shape[1])], 1)
    seq, n_heads, d_key = k.shape
    o = np.zeros_like(v)
    for h in range(n_heads):
        s = np.zeros((d_key, v.shape[2]))
        for t in range(seq):
            removed = 0.0 if erased is None else np.outer(erased[t, h], where[t, h] @ s)
            s = decay[t, h][:, None] * s - removed + np.outer(k[t, h], v[t, h])
            o[t, h] = q[t, h] @ s
    return o


def tree_states(
    h: int,
    steps: int,
    levels: Array,
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    erased: Array | None,
    where: Array | None,
) -> Array:
    """One head of log-linear attention (Guo et al. 2506.04761, section 3.1), with a state per Fenwick-tree level."""
    o, states = np.zeros(v[:, 0].shape), np.zeros((levels.shape[2], k.shape[2], v.shape[2]))
    for n in range(len(k)):
        t = n // steps
        if t and n % steps == 0:  # merge the levels up to the lowest set bit of t into the next one
            merged = (t & -t).bit_length()
            states[merged] = states[:merged].sum(axis=0)
            states[:merged] = 0.0
        removed = 0.0 if erased is None else erased[n, h][:, None] * (where[n, h] @ states)[:, None, :]
        states = decay[n, h][:, None] * states - removed
        states[0] += np.outer(k[n, h], v[n, h])
        o[n] = levels[t, h] @ (q[n, h] @ states)
    return o


def level_weights(p: Parameters, x: Array, n_levels: int) -> Array | None:
    """Level weights (seq, n_heads, n_levels), or None without levels."""
    if not n_levels:
        return None
    weights = softplus(p["levels.scale"] * (x @ p["levels.proj.weight"].T))
    return weights.reshape(len(x), -1, n_levels)


def gated_linear_attention_parts(p: Parameters, x: Array, n_heads: int) -> tuple[Array, Array, Array, Array]:
    """Queries with their scale, keys and decays (seq, n_heads, d_key), values (seq, n_heads, d_head)."""
    n_values, n_keys = p["out_proj.weight"].shape[1], len(p["decay_up.bias"])
    q, k, v = np.split(x @ p["qkv_proj.weight"].T, [n_keys, 2 * n_keys], axis=-1)
    assert v.shape[1] == n_values
    logits = x @ p["decay_down.weight"].T @ p["decay_up.weight"].T + p["decay_up.bias"]
    alpha = sigmoid(logits) ** (1 / 16)
    q, k, v, alpha = (heads_of(part, n_heads) for part in (q, k, v, alpha))
    return q / np.sqrt(q.shape[2]), k, v, alpha


def output_gate(p: Parameters, x: Array) -> Array | float:
    """silu(W_g x + b_g), or 1 without a gate."""
    return silu(x @ p["gate_proj.weight"].T + p.get("gate_proj.bias", 0.0)) if "gate_proj.weight" in p else 1.0


def gated_linear_attention(p: Parameters, x: Array, n_heads: int = 2, **_options: object) -> Array:
    """GLA (Yang et al. 2312.06635): S_t = diag(alpha_t) S_{t-1} + k_t v_t^T, RMSNorm per head, SiLU gate."""
    normed = joined(rms_norm(matrix_states(*gated_linear_attention_parts(p, x, n_heads)), p["norm.weight"]))
    return (normed * output_gate(p, x)) @ p["out_proj.weight"].T


def delta_parts(
    p: Parameters,
    x: Array,
    n_heads: int,
    beta_max: float = 1.0,
    n_key_heads: int | None = None,
    n_householder: int = 1,
    **_sizes: object,
) -> tuple[Array, Array, Array, Array, Array]:
    """Inputs of DeltaNet's recurrence, with n_householder steps per position.

    Returns:
        q of norm 1 / sqrt(d_key) and k of norm 1 (steps, n_heads, d_key), the convolved values before SiLU (steps,
        n_heads, d_value), beta and alpha (steps, n_heads). Alpha is 1 without decay, and after a position's first step.
    """
    n_values, n_key_heads = p["out_proj.weight"].shape[1], n_key_heads or n_heads
    qkv = short_conv(x @ p["qkv_proj.weight"].T, p["conv.weight"])
    n_keys = (qkv.shape[1] - n_householder * n_values) // (1 + n_householder)
    q, k, v = np.split(qkv, [n_keys, (1 + n_householder) * n_keys], axis=-1)
    beta = beta_max * sigmoid(x @ p["beta_proj.weight"].T)
    k, v, beta = (
        rearrange(t, "seq (step head d) -> (seq step) head d", step=n_householder, head=heads)
        for t, heads in ((k, n_key_heads), (v, n_heads), (beta, n_heads))
    )
    q, group = heads_of(np.repeat(q, n_householder, axis=0), n_key_heads), np.arange(n_heads) * n_key_heads // n_heads
    q, k = (unit(silu(t))[:, group] for t in (q, k))
    beta = beta[:, :, 0]
    alpha = np.ones_like(beta)
    if "A_log" in p:
        alpha[::n_householder] = np.exp(-np.exp(p["A_log"]) * softplus(x @ p["dt_proj.weight"].T + p["dt_bias"]))
    return q / np.sqrt(q.shape[2]), k, v, beta, alpha


def delta_heads(
    q: Array, k: Array, v: Array, beta: Array, alpha: Array, levels: Array | None = None, steps: int = 1
) -> Array:
    """S_t = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T; returns S_t^T q_t, (seq, n_heads, d_value)."""
    beta, alpha = beta[:, :, None], alpha[:, :, None]
    return matrix_states(q, k, beta * v, alpha, alpha * beta * k, k, levels, steps)


def delta_net(
    p: Parameters,
    x: Array,
    n_heads: int = 2,
    n_householder: int = 1,
    norm_eps: float = 1e-5,
    n_levels: int = 0,
    **options: object,
) -> Array:
    """DeltaNet (Yang et al. 2406.06484); Gated DeltaNet with alpha and output gate (2412.06464); DeltaProduct with
    n_householder > 1 (Siems et al. 2502.10297).
    """
    q, k, v, beta, alpha = delta_parts(p, x, n_heads, n_householder=n_householder, **options)
    levels = level_weights(p, x, n_levels)
    if levels is not None:
        levels = q.shape[2] * levels  # the authors' queries have norm sqrt(d_head)
    heads = delta_heads(q, k, silu(v), beta, alpha, levels, n_householder)
    heads = heads[n_householder - 1 :: n_householder]
    return (joined(rms_norm(heads, p["norm.weight"], norm_eps)) * output_gate(p, x)) @ p["out_proj.weight"].T


def titans(p: Parameters, x: Array, n_heads: int = 2, **_sizes: object) -> Array:
    """Titans (Behrouz et al. 2501.00663, eq. 9, 10 and 13) with a linear memory and one gradient step per position."""
    qkv = silu(short_conv(x @ p["qkv_proj.weight"].T, p["conv.weight"]))
    q, k, v = (heads_of(part, n_heads) for part in np.split(qkv, 3, axis=-1))
    q, k = unit(q) / np.sqrt(q.shape[2]), unit(k)
    theta, eta, alpha = np.split(sigmoid(x @ p["rate_proj.weight"].T + p["rate_proj.bias"]), 3, axis=-1)
    o = np.zeros_like(v)
    for h in range(n_heads):
        memory = momentum = np.zeros((k.shape[2], v.shape[2]))
        for t in range(len(x)):
            gradient = np.outer(k[t, h], memory.T @ k[t, h] - v[t, h])
            momentum = eta[t, h] * momentum - theta[t, h] * gradient
            memory = (1 - alpha[t, h]) * memory + momentum
            o[t, h] = memory.T @ q[t, h]
    gate = sigmoid(x @ p["gate_proj.weight"].T)
    return (joined(rms_norm(o, p["norm.weight"])) * gate) @ p["out_proj.weight"].T


def head_hybrid(
    p: Parameters, x: Array, n_heads: int = 4, n_softmax_heads: int = 1, beta_max: float = 1.0, **_sizes: object
) -> Array:
    """2606.20097: the first heads use softmax attention, the others the gated delta rule; RMSNorm per head."""
    q, k, v = attention_heads(p, x, n_heads)
    attending = weighted(softmax_weights(q[:, :n_softmax_heads], k[:, :n_softmax_heads]), v)
    q, k, v = (t[:, n_softmax_heads:] for t in (unit(q) / np.sqrt(q.shape[2]), unit(k), v))
    beta = beta_max * sigmoid(x @ p["beta_proj.weight"].T)
    alpha = np.exp(-np.exp(p["A_log"]) * softplus(x @ p["dt_proj.weight"].T + p["dt_bias"]))
    o = joined(np.concatenate((attending, delta_heads(q, k, v, beta, alpha)), axis=1))
    return grouped_norm(o, p["norm.weight"], n_heads) @ p["out_proj.weight"].T


def unit(t: Array) -> Array:
    return t / np.sqrt((t**2).sum(axis=-1, keepdims=True) + 1e-6)


def kda(p: Parameters, x: Array, n_heads: int = 2, beta_max: float = 1.0, **_sizes: object) -> Array:
    """Kimi Delta Attention (2510.26692); with strengths per channel Gated DeltaNet 2 (2605.22791)."""
    qkv = silu(short_conv(x @ p["qkv_proj.weight"].T, p["conv.weight"]))
    n_keys = (qkv.shape[1] - p["out_proj.weight"].shape[1]) // 2
    q, k, v = (heads_of(part, n_heads) for part in np.split(qkv, [n_keys, 2 * n_keys], axis=-1))
    q, k = unit(q) / np.sqrt(q.shape[2]), unit(k)
    strengths = sigmoid(x @ p["strength_proj.weight"].T)
    if strengths.shape[1] == n_heads:
        erase = write = beta_max * strengths[:, :, None]
    else:
        erase, write = beta_max * heads_of(strengths[:, :n_keys], n_heads), heads_of(strengths[:, n_keys:], n_heads)
    dt = softplus(x @ p["decay_down.weight"].T @ p["decay_up.weight"].T + p["dt_bias"])
    decay = np.exp(-np.exp(p["A_log"])[:, None] * heads_of(dt, n_heads))
    o = matrix_states(q, k, write * v, decay, k, decay * erase * k)
    gate = sigmoid(x @ p["gate_down.weight"].T @ p["gate_up.weight"].T + p["gate_up.bias"])
    return (joined(rms_norm(o, p["norm.weight"])) * gate) @ p["out_proj.weight"].T


def krylov_solution(a: Array, b: Array, steps: int) -> Array:
    """Result of conjugate gradients from zero: the best solution in span{b, A b, A^2 b, ...}; A^-1 b if it is full."""
    if steps >= len(b):
        return np.linalg.solve(a, b)
    basis = np.linalg.qr(np.stack([np.linalg.matrix_power(a, n) @ b for n in range(steps)], axis=1))[0]
    return basis @ np.linalg.solve(basis.T @ a @ basis, basis.T @ b)


def mesa_net(p: Parameters, x: Array, n_heads: int = 2, cg_steps: int = 30, **_sizes: object) -> Array:
    """MesaNet (von Oswald et al. 2506.05233, section 3)."""
    q, k = np.split(silu(short_conv(x @ p["qk_proj.weight"].T, p["conv.weight"])), 2, axis=-1)
    q, k, v = unit(heads_of(q, n_heads)), unit(heads_of(k, n_heads)), heads_of(x @ p["v_proj.weight"].T, n_heads)
    decay, beta = np.split(sigmoid(x @ p["gate_proj.weight"].T + p["gate_proj.bias"]), 2, axis=-1)
    o = np.zeros_like(v)
    for h in range(n_heads):
        ridge = np.diag(0.25 + softplus(p["ridge"][h]))
        keys, values = np.zeros_like(ridge), np.zeros_like(ridge)
        for t in range(len(x)):
            keys = decay[t, h] * keys + beta[t, h] * np.outer(k[t, h], k[t, h])
            values = decay[t, h] * values + beta[t, h] * np.outer(k[t, h], v[t, h])
            o[t, h] = krylov_solution(keys + ridge, q[t, h], cg_steps) @ values
    return joined(rms_norm(o, p["norm.weight"])) @ p["out_proj.weight"].T


def comba(p: Parameters, x: Array, n_heads: int = 2, **_sizes: object) -> Array:
    """Comba (Hu et al. 2506.02475, section 3)."""
    qkv = silu(short_conv(x @ p["qkv_proj.weight"].T, p["conv.weight"]))
    n_keys = (qkv.shape[1] - p["out_proj.weight"].shape[1]) // 2
    q, k, v = (heads_of(part, n_heads) for part in np.split(qkv, [n_keys, 2 * n_keys], axis=-1))
    share = sigmoid(p["feedback"])[:, None]
    q, k = unit(q - p["D"][:, None] * share * k) / np.sqrt(q.shape[2]), unit(k)
    beta = sigmoid(x @ p["beta_proj.weight"].T)[:, :, None]
    alpha = np.exp(-np.exp(p["A_log"]) * softplus(x @ p["dt_proj.weight"].T + p["dt_bias"]))[:, :, None]
    o = matrix_states(q, k, beta * v, np.broadcast_to(alpha, k.shape), share * beta * k, k)
    return (joined(rms_norm(o, p["norm.weight"])) * sigmoid(x @ p["gate_proj.weight"].T)) @ p["out_proj.weight"].T


def retnet(p: Parameters, x: Array, n_heads: int = 2, **_sizes: object) -> Array:
    """RetNet (Sun et al. 2307.08621, section 2) with RMSNorm per head."""
    seq, n_values = len(x), p["out_proj.weight"].shape[1]
    qkv = x @ p["qkv_proj.weight"].T
    n_keys = (qkv.shape[1] - n_values) // 2
    q, k, v = (heads_of(part, n_heads) for part in np.split(qkv, [n_keys, 2 * n_keys], axis=-1))
    q, k = rope(q, q.shape[2]), rope(k, k.shape[2])
    gamma = np.array([1 - 2.0 ** (-5 - h) for h in range(n_heads)])
    decay = np.ones((seq, n_heads, k.shape[2])) * gamma[:, None]
    normed = joined(rms_norm(matrix_states(q / np.sqrt(k.shape[2]), k, v, decay), p["norm.weight"]))
    return (normed * silu(x @ p["gate_proj.weight"].T)) @ p["out_proj.weight"].T


def lightning_attention(p: Parameters, x: Array, n_heads: int = 2, slope_scale: float = 1.0, **_sizes: object) -> Array:
    """Lightning attention of MiniMax-01 (2501.08313, section 2.2), for 1, 2, 4 or 8 heads."""
    assert n_heads in (1, 2, 4, 8)
    q, k, v = (heads_of(part, n_heads) for part in np.split(silu(x @ p["qkv_proj.weight"].T), 3, axis=-1))
    slopes = np.array([2 ** (-8 * (h + 1) / n_heads) for h in range(n_heads)])
    decay = np.ones_like(k) * np.exp(-slope_scale * slopes)[:, None]
    normed = rms_norm(joined(matrix_states(q, k, v, decay)), p["norm.weight"], eps=1e-6)
    return (normed * sigmoid(x @ p["gate_proj.weight"].T)) @ p["out_proj.weight"].T


def hgrn2(p: Parameters, x: Array, n_heads: int = 2, lower_bound: float = 0.0, **_sizes: object) -> Array:
    """HGRN2 (Qin et al. 2404.07904, section 3)."""
    q, logit, v = (heads_of(part, n_heads) for part in np.split(x @ p["in_proj.weight"].T, 3, axis=-1))
    decay = lower_bound + (1 - lower_bound) * sigmoid(logit)
    heads = matrix_states(silu(q) / np.sqrt(q.shape[2]), 1 - decay, v, decay)
    return rms_norm(joined(heads), p["norm.weight"]) @ p["out_proj.weight"].T


def gsa(p: Parameters, x: Array, n_heads: int = 2, **_sizes: object) -> Array:
    """Gated slot attention (Zhang et al. 2409.07146, section 3.2)."""
    q, k, v = (heads_of(part, n_heads) for part in np.split(silu(x @ p["qkv_proj.weight"].T), 3, axis=-1))
    decay = heads_of(sigmoid(x @ p["decay_proj.weight"].T) ** (1 / 8), n_heads)
    o = np.zeros_like(v)
    for h in range(n_heads):
        keys, values = (np.zeros((decay.shape[2], v.shape[2])) for _ in range(2))
        for t in range(len(x)):
            a = decay[t, h][:, None]
            keys, values = a * keys + (1 - a) * k[t, h], a * values + (1 - a) * v[t, h]
            chosen = np.exp(keys @ q[t, h])
            o[t, h] = chosen @ values / chosen.sum()
    return rms_norm(silu(joined(o)), p["norm.weight"]) @ p["out_proj.weight"].T


def group_norm(x: Array, n_groups: int, weight: Array, eps: float) -> Array:
    """Layer norm of each of n_groups groups of channels, without bias (Wu and He 1803.08494)."""
    groups = heads_of(x, n_groups)
    centred = groups - groups.mean(axis=-1, keepdims=True)
    return joined(centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)) * weight


def rwkv7(p: Parameters, x: Array, n_heads: int = 2, **_sizes: object) -> Array:
    """RWKV-7 (Peng et al. 2503.14456, section 4), as its first layer."""
    before = np.concatenate((np.zeros((1, x.shape[1])), x[:-1]))
    shifted = dict(zip("rwkvag", (x + mu * (before - x) for mu in p["shift"]), strict=True))
    r, k, v = (shifted[name] @ p[f"{name}_proj.weight"].T for name in "rkv")
    w = np.tanh(shifted["w"] @ p["decay_down.weight"].T) @ p["decay_up.weight"].T + p["decay_up.bias"]
    a = sigmoid(shifted["a"] @ p["rate_down.weight"].T @ p["rate_up.weight"].T + p["rate_up.bias"])
    g = sigmoid(shifted["g"] @ p["gate_down.weight"].T) @ p["gate_up.weight"].T
    kappa, k = heads_of(k * p["kappa_scale"], n_heads), heads_of(k * (1 + (a - 1) * p["key_rate"]), n_heads)
    kappa = kappa / np.sqrt((kappa**2).sum(axis=-1, keepdims=True))
    r, v, a, w = (heads_of(t, n_heads) for t in (r, v, a, np.exp(-sigmoid(w) / np.sqrt(np.e))))
    o, bonus = matrix_states(r, k, v, w, a * kappa, kappa), (r * p["bonus"] * k).sum(axis=2, keepdims=True) * v
    normed = group_norm(joined(o), n_heads, p["norm_weight"], 1e-5 * v.shape[2]) + p["norm_bias"]
    return ((normed + joined(bonus)) * g) @ p["out_proj.weight"].T


def rwkv4(p: Parameters, x: Array, **_sizes: object) -> Array:
    """RWKV-4 (Peng et al. 2305.13048, eqs. 11 to 17): the weighted mean from its definition, not by recurrence."""
    before = np.concatenate((np.zeros((1, x.shape[1])), x[:-1]))
    r, k, v = (
        (x * mu + before * (1 - mu)) @ p[f"{name}_proj.weight"].T for mu, name in zip(p["shift"], "rkv", strict=True)
    )
    y = np.zeros_like(v)
    for t in range(len(x)):
        lag = np.arange(t - 1, -1, -1)[:, None]
        logs = np.concatenate((k[:t] - lag * np.exp(p["decay"]), k[t : t + 1] + p["bonus"]))
        weights = np.exp(logs - logs.max(0))
        y[t] = (weights * v[: t + 1]).sum(0) / weights.sum(0)
    return (sigmoid(r) * y) @ p["out_proj.weight"].T


def rwkv6(p: Parameters, x: Array, n_heads: int = 2, **_sizes: object) -> Array:
    """RWKV-6 (Peng et al. 2404.05892, section 4)."""
    step = np.concatenate((np.zeros((1, x.shape[1])), x[:-1])) - x
    low = np.split(np.tanh((x + step * p["mu"]) @ p["mix_down.weight"].T), 5, axis=-1)
    up = np.split(p["mix_up.weight"], 5, axis=-1)
    xr, xw, xk, xv, xg = (x + step * (b + z @ u.T) for b, z, u in zip(p["mix_bias"], low, up, strict=True))
    w = np.tanh(xw @ p["decay_down.weight"].T) @ p["decay_up.weight"].T + p["decay_up.bias"]
    r, k, v, a = (
        heads_of(t, n_heads)
        for t in (xr @ p["r_proj.weight"].T, xk @ p["k_proj.weight"].T, xv @ p["v_proj.weight"].T, np.exp(-np.exp(w)))
    )
    o = np.zeros_like(v)
    for h in range(n_heads):
        s = np.zeros((k.shape[2], v.shape[2]))
        for t in range(len(x)):
            written = np.outer(k[t, h], v[t, h])
            o[t, h] = r[t, h] @ (s + p["bonus"][h][:, None] * written)
            s = a[t, h][:, None] * s + written
    normed = group_norm(joined(o), n_heads, p["norm_weight"], 1e-5) + p["norm_bias"]
    return (normed * silu(xg @ p["gate_proj.weight"].T)) @ p["out_proj.weight"].T


def matrix_memory(q: Array, k: Array, v: Array, gates: Array) -> Array:
    """The matrix memory of mLSTM, unstabilised, except for the stabiliser in the authors' epsilon of 1e-6."""
    n_heads, k, o = q.shape[1], k / np.sqrt(k.shape[2]), np.zeros_like(v)
    for h in range(n_heads):
        memory, normaliser, largest = np.zeros((k.shape[2], v.shape[2])), np.zeros(k.shape[2]), 0.0
        for t in range(len(q)):
            i, f = np.exp(gates[t, h]), sigmoid(gates[t, n_heads + h])
            memory = f * memory + i * np.outer(k[t, h], v[t, h])
            normaliser = f * normaliser + i * k[t, h]
            largest = max(np.log(f) + largest, np.log(i))
            o[t, h] = q[t, h] @ memory / (max(abs(normaliser @ q[t, h]), 1.0) + 1e-6 * np.exp(largest))
    return o


def mlstm(p: Parameters, x: Array, n_heads: int = 2, **_sizes: object) -> Array:
    """mLSTM (Beck et al. 2405.04517, section 2.3)."""

    def blockwise(t: Array, blocks: Array) -> Array:
        parts = heads_of(t, len(blocks))
        return joined(np.stack([parts[:, b] @ block.T for b, block in enumerate(blocks)], axis=1))

    u, z = np.split(x @ p["in_proj.weight"].T, 2, axis=-1)
    s = silu(short_conv(u, p["conv.weight"], p["conv.bias"]))
    flat = blockwise(s, p["q_blocks"]), blockwise(s, p["k_blocks"]), blockwise(u, p["v_blocks"])
    gates = np.concatenate(flat, axis=1) @ p["gate_proj.weight"].T + p["gate_proj.bias"]
    o = matrix_memory(*(heads_of(t, n_heads) for t in flat), gates)
    normed = group_norm(joined(o), n_heads, p["norm_weight"], 1e-5)
    return ((normed + p["skip"] * s) * silu(z)) @ p["out_proj.weight"].T


def capped_mlstm(
    p: Parameters, x: Array, n_heads: int = 2, gate_cap: float = 15.0, norm_eps: float = 1e-6, **_sizes: object
) -> Array:
    """mLSTM of xLSTM-7B, with capped gates (Beck et al. 2503.13427, section 2)."""
    wide = len(p["norm_weight"])
    narrow = len(p["in_proj.weight"]) // 2 - wide
    q, k, v, out = np.split(x @ p["in_proj.weight"].T, np.cumsum([narrow, narrow, wide]), axis=-1)
    gates = gate_cap * np.tanh((x @ p["gate_proj.weight"].T + p["gate_proj.bias"]) / gate_cap)
    o = matrix_memory(*(heads_of(t, n_heads) for t in (q, k, v)), gates)
    normed = group_norm(joined(o), n_heads, p["norm_weight"], norm_eps)
    return (sigmoid(out) * normed) @ p["out_proj.weight"].T


# The explicit factorized class.


def factorized_weights(p: Parameters, x: Array, kernel: str = "toeplitz", **_sizes: object) -> Array:
    """f_h(i, j), (n_heads, seq, seq): a_h(i - j), or q_h(x_i) . k_h(x_j)."""
    seq, n_heads = len(x), len(p["value_maps"])
    weights = np.zeros((n_heads, seq, seq))
    if kernel == "bilinear":
        q, k = (heads_of(part, n_heads) for part in np.split(x @ p["qk_proj.weight"].T, 2, axis=-1))
    for h in range(n_heads):
        for i in range(seq):
            lags = i - np.arange(i + 1)
            weights[h, i, : i + 1] = p["coefficients"][h, lags] if kernel == "toeplitz" else k[: i + 1, h] @ q[i, h]
    return weights


def factorized(p: Parameters, x: Array, **options: object) -> Array:
    """y_i = sum_h V_h sum_{j <= i} f_h(i, j) x_j (Ghodsi 2512.15115)."""
    weights = factorized_weights(p, x, **options)
    return sum(weights[h] @ x @ value_map.T for h, value_map in enumerate(p["value_maps"]))


def factorized_operator(p: Parameters, x: Array, **options: object) -> Array:
    """W_ij = sum_h f_h(i, j) V_h."""
    weights = factorized_weights(p, x, **options)
    return sum(weights[h][:, :, None, None] * value_map for h, value_map in enumerate(p["value_maps"]))


# State space models.


def diagonal_dynamics(p: Parameters, init: str) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """The poles lambda and the input gain of each pole.

    Zero-order hold (S4D, Gu et al. 2206.11893): lambda = exp(dt A), gain = (lambda - 1) / A. Ring (LRU, Orvieto et al.
    2303.06349): lambda = exp(-rate + i frequency), gain = sqrt(1 - |lambda|^2) or learned.
    """
    a = -np.exp(p["log_rate"]) + 1j * p.get("frequency", np.zeros_like(p["log_rate"]))
    if init == "lru":
        return np.exp(a), np.exp(p["log_gain"]).astype(complex)
    if init == "ring":
        poles = np.exp(a)
        return poles, np.sqrt(1 - np.abs(poles) ** 2).astype(complex)
    poles = np.exp(np.exp(p["log_dt"]) * a)
    return poles, (poles - 1) / a


def diagonal_matrices(p: Parameters, init: str) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """B (poles, d_model) and C (d_model, poles); a complex pole represents a conjugate pair, which doubles C."""
    if init == "real_log":
        return p["B"].astype(complex), p["C"].astype(complex)
    return p["B"] @ [1, 1j], 2 * (p["C"] @ [1, 1j])


def recurrence(decay: NDArray[Any], written: NDArray[Any]) -> NDArray[Any]:
    """All states of h_t = decay_t h_{t-1} + written_t, elementwise, from h_0 = 0."""
    h, states = np.zeros_like(written[0]), []
    for a, b in zip(np.broadcast_to(decay, written.shape), written, strict=True):
        h = a * h + b
        states.append(h)
    return np.stack(states)


def diagonal_ssm(p: Parameters, x: Array, init: str = "s4d_lin", **_sizes: object) -> Array:
    """h_t = lambda h_{t-1} + gain B x_t, y_t = Re(C h_t) + D x_t."""
    poles, gain = diagonal_dynamics(p, init)
    b, c = diagonal_matrices(p, init)
    return (recurrence(poles, gain * (x @ b.T)) @ c.T).real + p["D"] * x


def linoss(p: Parameters, x: Array, scheme: str = "implicit", **_sizes: object) -> Array:
    """LinOSS (Rusch and Rus 2410.03943, equations 3 and 5): z' = B x - A h, h' = z."""
    dt, a = sigmoid(p["dt_logit"]), np.maximum(p["stiffness"], 0)
    b, c = ([1, 1j] @ p[name].reshape(2, -1) for name in "BC")
    forced = x @ b.reshape(p["B"].shape[1:]).T
    z = h = np.zeros_like(forced[0])
    y = np.empty_like(x)
    for t, driven in enumerate(forced):
        if scheme == "implicit":  # solved for z_t, which also enters h_t = h_{t-1} + dt z_t
            z = (z + dt * (driven - a * h)) / (1 + dt**2 * a)
        else:
            z = z + dt * (driven - a * h)
        h = h + dt * z
        y[t] = (h @ c.reshape(p["C"].shape[1:]).T).real + p["D"] * x[t]
    return y


def s4d_kernels(p: Parameters) -> tuple[NDArray[np.complex128], NDArray[np.complex128], NDArray[np.complex128]]:
    """Poles, input gains and C, (d_model, poles) each; C has the factor 2 of conjugate pairs."""
    a = -np.exp(p["log_rate"]) + 1j * p["frequency"]
    poles = np.exp(np.exp(p["log_dt"])[:, None] * a)
    return poles, (poles - 1) / a, 2 * (p["C"] @ [1, 1j])


def s4d_channels(p: Parameters, x: Array) -> Array:
    """u_t = Re(C . h_t) + D x_t, with one SSM per channel."""
    poles, gain, c = s4d_kernels(p)
    return (c * recurrence(poles, gain * x[:, :, None])).sum(axis=2).real + p["D"] * x


def normal_distribution(u: Array) -> Array:
    return np.vectorize(lambda value: (1 + math.erf(value / math.sqrt(2))) / 2)(u)


def s4d(p: Parameters, x: Array, **_options: object) -> Array:
    """S4D (Gu et al. 2206.11893): the SSMs, then GELU and a gated linear map if there is an output projection."""
    u = s4d_channels(p, x)
    if "out_proj.weight" not in p:
        return u
    value, gate = np.split(u * normal_distribution(u) @ p["out_proj.weight"].T + p["out_proj.bias"], 2, axis=-1)
    return value * sigmoid(gate)


def selective_coefficients(
    p: Parameters, x: Array, norm_eps: float | None = None, **_sizes: object
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Inputs of Mamba's scan: convolved input before SiLU, z, dt (seq, d_inner), B, C (seq, d_state), A.

    With norm_eps, an RMSNorm each is applied to low-rank dt, B and C (Jamba, 2403.19887, section 3.2).
    """
    x_in, z = np.split(x @ p["in_proj.weight"].T, 2, axis=-1)
    convolved = short_conv(x_in, p["conv.weight"], p["conv.bias"])
    low_rank = p["dt_proj.weight"].shape[1]
    d_state = p["A_log"].shape[1]
    projected = silu(convolved) @ p["x_proj.weight"].T
    parts = np.split(projected, [low_rank, low_rank + d_state], axis=-1)
    if norm_eps is not None:
        parts = [rms_norm(part, p[f"dt_b_c_norm.{n}.weight"], norm_eps) for n, part in enumerate(parts)]
    dt, b, c = parts
    dt = softplus(dt @ p["dt_proj.weight"].T + p["dt_proj.bias"])
    return convolved, z, dt, b, c, -np.exp(p["A_log"])


def selective_scan(u: Array, dt: Array, a: Array, b: Array, c: Array, d: Array) -> Array:
    """h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t, y_t = h_t C_t + D u_t (Gu and Dao 2312.00752, eq. 2)."""
    h = recurrence(np.exp(dt[:, :, None] * a), (dt * u)[:, :, None] * b[:, None])
    return (h * c[:, None]).sum(axis=2) + d * u


def selective_ssm(p: Parameters, x: Array, out_norm_eps: float | None = None, **options: object) -> Array:
    """Mamba-1 block (2312.00752, section 3.4); with out_norm_eps, an RMSNorm before the output projection."""
    convolved, z, dt, b, c, a = selective_coefficients(p, x, **options)
    y = selective_scan(silu(convolved), dt, a, b, c, p["D"]) * silu(z)
    if out_norm_eps is not None:
        y = rms_norm(y, p["out_norm.weight"], out_norm_eps)
    return y @ p["out_proj.weight"].T


def ssd_coefficients(
    p: Parameters, x: Array, d_state: int = 128, n_groups: int = 1, dt_floor: float = 0.0, **_sizes: object
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Inputs of Mamba-2's recurrence: the convolved input before SiLU and z (seq, d_inner), dt (seq, n_heads),
    B and C (seq, n_heads, d_state), A (n_heads).
    """
    n_heads = len(p["A_log"])
    d_inner = p["out_proj.weight"].shape[1]
    wide = n_groups * d_state
    z, ubc, dt = np.split(x @ p["in_proj.weight"].T, [d_inner, 2 * d_inner + 2 * wide], axis=-1)
    convolved = short_conv(ubc, p["conv.weight"], p["conv.bias"])
    u, b, c = np.split(convolved, [d_inner, d_inner + wide], axis=-1)
    group = [h // (n_heads // n_groups) for h in range(n_heads)]
    b, c = (heads_of(silu(t), n_groups)[:, group] for t in (b, c))
    return u, z, np.maximum(softplus(dt + p["dt_bias"]), dt_floor), b, c, -np.exp(p["A_log"])


def grouped_norm(x: Array, weight: Array, n_groups: int, eps: float = 1e-5) -> Array:
    """RMSNorm over each of `n_groups` groups of channels."""
    parts = zip(np.split(x, n_groups, axis=-1), np.split(weight, n_groups), strict=True)
    return np.concatenate([rms_norm(part, w, eps) for part, w in parts], axis=-1)


def gated_norm(p: Parameters, x: Array, options: Mapping[str, Any]) -> Array:
    """The norm before the output projection of Mamba-2; norm_groups 0 disables it."""
    n_groups = options.get("n_groups", 1) if options.get("norm_groups") is None else options["norm_groups"]
    return grouped_norm(x, p["norm.weight"], n_groups, options.get("norm_eps", 1e-5)) if n_groups else x


def ssd(p: Parameters, x: Array, n_levels: int = 0, **options: object) -> Array:
    """Mamba-2 block (Dao and Gu 2405.21060): per head h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t^T."""
    u, z, dt, b, c, a = ssd_coefficients(p, x, **options)
    u, dt, levels = heads_of(silu(u), len(a)), dt[:, :, None], level_weights(p, x, n_levels)
    o = matrix_states(c, dt * b, u, np.exp(dt * a[:, None]), levels=levels) + p["D"][:, None] * u
    return gated_norm(p, joined(o) * silu(z), options) @ p["out_proj.weight"].T


# Convolution.


def conv_kernel(p: Parameters, lag: int, max_seq_len: int = 1024) -> Array:
    """K_lag per channel: a tap, or Hyena's implicit filter (Poli et al. 2302.10866), which adds D at lag zero."""
    if "conv.weight" in p:
        taps = p["conv.weight"]
        return taps[:, -1 - lag] if lag < taps.shape[1] else np.zeros(len(taps))
    u = lag / max_seq_len
    n_frequencies = (p["filter.layers.0.weight"].shape[1] - 1) // 2
    waves = [2 * np.pi * f * u for f in range(1, n_frequencies + 1)]
    hidden = np.array([u, *np.cos(waves), *np.sin(waves)])
    for layer in range(3):
        hidden = p[f"filter.layers.{layer}.weight"] @ hidden + p[f"filter.layers.{layer}.bias"]
        hidden = np.sin(10 * hidden) if layer < 2 else hidden
    rate = np.exp(p["filter.log_rate"])
    return np.sqrt(2 * rate / max_seq_len) * np.exp(-rate * u) * hidden + (p["D"] if lag == 0 else 0.0)


def conv(p: Parameters, x: Array, max_seq_len: int = 1024, **_sizes: object) -> Array:
    """y_i = W_out sum_tau K_tau * (W_in x)_{i - tau}."""
    kernel = np.array([conv_kernel(p, lag, max_seq_len) for lag in range(len(x))])
    return short_conv(x @ p["in_proj.weight"].T, kernel[::-1].T) @ p["out_proj.weight"].T


def mamba3_coefficients(
    p: Parameters,
    x: Array,
    d_state: int = 128,
    n_groups: int = 1,
    rotated: str = "half",
    rate_map: str = "heavy_tail",
    **_sizes: object,
) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    """z, u (seq, n_heads, d_head); rotated q, k (seq, n_heads, rank, d_state); dt, alpha, lambda (seq, n_heads)."""
    seq, (n_heads, rank, _) = len(x), p["B_bias"].shape
    d_inner = p["out_proj.weight"].shape[1]
    wide, n_angles = rank * n_groups * d_state, d_state // (4 if rotated == "half" else 2)
    widths = [d_inner, d_inner, wide, wide, n_heads, n_heads, n_heads, n_angles]
    z, u, b, c, dt, rate, trap, theta = np.split(x @ p["in_proj.weight"].T, np.cumsum(widths)[:-1], axis=-1)
    dt = softplus(dt + p["dt_bias"])
    positive = {"heavy_tail": heavy_tail, "softplus": softplus}[rate_map]
    alpha = np.exp(-np.maximum(positive(rate), 1e-4) * dt)
    b, c = (rearrange(t, "seq (rank group n) -> seq rank group n", rank=rank, group=n_groups) for t in (b, c))
    b, c = rms_norm(b, p["B_norm.weight"]), rms_norm(c, p["C_norm.weight"])
    q, k = (np.zeros((seq, n_heads, rank, d_state)) for _ in range(2))
    for h in range(n_heads):
        group, angles = h // (n_heads // n_groups), np.zeros(n_angles)
        for t in range(seq):
            angles = angles + np.pi * np.tanh(theta[t]) * dt[t, h]
            for r in range(rank):
                q[t, h, r] = turn(c[t, r, group] + p["C_bias"][h, r], angles)
                k[t, h, r] = turn(b[t, r, group] + p["B_bias"][h, r], angles)
    z, u = (heads_of(t, n_heads) for t in (z, u))
    return z, u, q, k, dt, alpha, sigmoid(trap)


def rank_vectors(p: Parameters) -> tuple[Array, Array, Array]:
    """Factors on u, z and the outputs per rank, (n_heads, rank, d_head) each; ones for rank 1."""
    n_heads, rank, _ = p["B_bias"].shape
    d_head = p["out_proj.weight"].shape[1] // n_heads
    return tuple(p.get("rank_mix", np.ones((3, n_heads, rank, d_head))))


def mamba3(p: Parameters, x: Array, **options: object) -> Array:
    """Mamba-3 (Lahoti et al. 2603.15569).

    h_t = alpha h_{t-1} + (1 - lambda) dt alpha k_{t-1} u_{t-1}^T + lambda dt k_t u_t^T.
    """
    z, u, q, k, dt, alpha, trap = mamba3_coefficients(p, x, **options)
    of_u, of_z, readout = rank_vectors(p)
    seq, n_heads, rank, d_state = k.shape
    y = np.zeros_like(u)
    for head in range(n_heads):
        h = np.zeros((d_state, u.shape[2]))
        before = np.zeros_like(h)  # the sum of k u^T over ranks at the previous position
        for t in range(seq):
            now = sum(np.outer(k[t, head, r], of_u[head, r] * u[t, head]) for r in range(rank))
            a, step, weight = alpha[t, head], dt[t, head], trap[t, head]
            h = a * h + (1 - weight) * step * a * before + weight * step * now
            before = now
            for r in range(rank):
                o = q[t, head, r] @ h + p["D"][head] * of_u[head, r] * u[t, head]
                y[t, head] += readout[head, r] * silu(of_z[head, r] * z[t, head]) * o
    return joined(y) @ p["out_proj.weight"].T


# Nonlinear recurrence.


def minimal_gates(p: Parameters, x: Array, cell: str) -> tuple[Array, Array, Array]:
    """u, and the factors of h and of g(u), (seq, d_inner) each."""
    d_inner = p["out_proj.weight"].shape[1]
    projected = x @ p["in_proj.weight"].T
    u, *gates = np.split(projected, projected.shape[1] // d_inner, axis=1)
    if cell == "gru":
        return u, 1 - sigmoid(gates[0]), sigmoid(gates[0])
    f, i = sigmoid(gates[0]), sigmoid(gates[1])
    return u, f / (f + i), i / (f + i)


def minimal_recurrence(p: Parameters, x: Array, cell: str = "gru", **_sizes: object) -> Array:
    """minGRU: h = (1 - z) h + z g(u); minLSTM: h = (f h + i g(u)) / (f + i) (Feng et al. 2410.01201, app. B)."""
    u, keeps, writes = minimal_gates(p, x, cell)
    return recurrence(keeps, writes * np.where(u >= 0, u + 0.5, sigmoid(u))) @ p["out_proj.weight"].T


def minimal_recurrence_operator(p: Parameters, x: Array, cell: str = "gru", **_sizes: object) -> Array:
    """W_ij = W_out diag(keep_i ... keep_{j+1} write_j (g(u_j) - 1/2) / u_j) W_h."""
    u, keeps, writes = minimal_gates(p, x, cell)
    slope = np.where(u >= 0, 1.0, (sigmoid(u) - 0.5) / u)

    def block(i: int, j: int) -> Array:
        diagonal = keeps[j + 1 : i + 1].prod(axis=0) * writes[j] * slope[j]
        return (p["out_proj.weight"] * diagonal) @ p["in_proj.weight"][: u.shape[1]]

    return causal(len(x), block)


def minimal_recurrence_offset(p: Parameters, x: Array, cell: str = "gru", **_sizes: object) -> Array:
    """c_i = W_out h_i, with h_i from the same gates and g = 1/2 at every position."""
    _, keeps, writes = minimal_gates(p, x, cell)
    return recurrence(keeps, writes / 2) @ p["out_proj.weight"].T


def rg_lru(p: Parameters, x: Array, n_heads: int = 2, **_sizes: object) -> Array:
    """Griffin's recurrent block (De et al. 2402.19427, eq. 1 to 4): convolution and RG-LRU, times a GELU branch."""
    gate, u = np.split(x @ p["in_proj.weight"].T + p["in_proj.bias"], 2, axis=-1)
    u = short_conv(u, p["conv.weight"], p["conv.bias"])
    i, r = (
        sigmoid(np.hstack([part @ w for part, w in zip(np.split(u, n_heads, axis=1), weight, strict=True)]) + bias)
        for weight, bias in zip(p["gate_weight"], p["gate_bias"], strict=True)
    )
    a = sigmoid(-p["rate"]) ** (8 * r)  # softplus(rate) = -log(sigmoid(-rate))
    scale = np.sqrt(1 - a**2)
    scale[0] = 1.0
    return (gelu_tanh(gate) * recurrence(a, scale * i * u)) @ p["out_proj.weight"].T + p["out_proj.bias"]


def gated_conv(p: Parameters, x: Array, **_sizes: object) -> Array:
    """LFM2's gated convolution C * conv(B * u); B, C and u are linear in x."""
    before, after, u = np.split(x @ p["in_proj.weight"].T, 3, axis=1)
    return (after * short_conv(before * u, p["conv.weight"])) @ p["out_proj.weight"].T


def gated_conv_operator(p: Parameters, x: Array, **_sizes: object) -> Array:
    """W_ij = W_out diag(C_i K_{i-j} B_j) W_u."""
    before, after, _ = np.split(x @ p["in_proj.weight"].T, 3, axis=1)
    w_u = np.split(p["in_proj.weight"], 3)[2]

    def block(i: int, j: int) -> Array:
        return (p["out_proj.weight"] * (after[i] * conv_kernel(p, i - j) * before[j])) @ w_u

    return causal(len(x), block)


def hyena(p: Parameters, x: Array, max_seq_len: int = 1024, n_frequencies: int = 1, **_sizes: object) -> Array:
    """Hyena of order two (Poli et al. 2302.10866, sections 3.1 to 3.3): q * ((h + D delta) conv (k * v))."""
    seq, d_model = x.shape
    projected = x @ p["in_proj.weight"].T + p["in_proj.bias"]
    k, q, v = np.split(short_conv(projected, p["conv.weight"], p["conv.bias"]), 3, axis=1)
    kernel = np.zeros((seq, d_model))
    for tau in range(seq):
        angle = 2 * np.pi * tau / max_seq_len * np.linspace(1e-4, n_frequencies - 1, n_frequencies)
        features = np.concatenate(([tau / (max_seq_len - 1)], np.cos(angle), -np.sin(angle)))
        for layer in range(3):
            weight, bias = p[f"filter.layers.{layer}.weight"], p[f"filter.layers.{layer}.bias"]
            features = np.sin(p["filter.frequency"] * (weight @ features + bias))
        rate = np.linspace(np.log(100) / 1.5, np.log(100) / 0.3, d_model)
        kernel[tau] = p["filter.out_proj.weight"] @ features * np.exp(-rate * tau / (max_seq_len - 1))
    o = p["D"] * k * v + short_conv(k * v, kernel[::-1].T)
    return (q * o) @ p["out_proj.weight"].T + p["out_proj.bias"]


def slstm(p: Parameters, x: Array, n_heads: int = 2, **_sizes: object) -> Array:
    """sLSTM (Beck et al. 2405.04517, eq. 8 to 17), rescaled by forget gates alone: input gates must be moderate."""
    d_head = x.shape[1] // n_heads
    convolved = silu(short_conv(x, p["conv.weight"], p["conv.bias"]))
    y = np.zeros_like(x)
    for head in range(n_heads):
        own = slice(head * d_head, (head + 1) * d_head)
        h, c, n = (np.zeros(d_head) for _ in range(3))
        scale = 0.0  # c and n are kept divided by exp(scale), which cancels in c / n
        for t in range(len(x)):
            sources = (convolved[t, own], convolved[t, own], x[t, own], x[t, own])
            log_i, f, z, o = (
                p["weight"][g, head] @ source + p["recurrent"][g, head] @ h + p["bias"][g, head]
                for g, source in enumerate(sources)
            )
            step = np.log(sigmoid(f)).max()
            c = np.exp(np.log(sigmoid(f)) - step) * c + np.exp(log_i - scale - step) * np.tanh(z)
            n = np.exp(np.log(sigmoid(f)) - step) * n + np.exp(log_i - scale - step)
            scale += step
            h = sigmoid(o) * c / n
            y[t, own] = (h - h.mean()) / np.sqrt(h.var() + 1e-5) * p["norm_weight"][head]
    return y


def lstm(p: Parameters, x: Array, **_sizes: object) -> Array:
    """LSTM (Hochreiter and Schmidhuber 1997) with forget gate (Gers et al. 2000); gates stacked as i, f, g, o."""
    d_inner = p["recurrent"].shape[1]
    h, c = np.zeros(d_inner), np.zeros(d_inner)
    outputs = np.zeros((len(x), d_inner))
    for t in range(len(x)):
        i, f, g, o = np.split(p["in_proj.weight"] @ x[t] + p["recurrent"] @ h + p["bias"], 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs[t] = h
    return outputs @ p["out_proj.weight"].T


def gru(p: Parameters, x: Array, **_sizes: object) -> Array:
    """GRU (Cho et al. 1406.1078), with the reset gate after the recurrent product; gates stacked as r, z, n."""
    d_inner = p["recurrent"].shape[1]
    h = np.zeros(d_inner)
    outputs = np.zeros((len(x), d_inner))
    for t in range(len(x)):
        from_x = np.split(p["in_proj.weight"] @ x[t] + p["bias"], 3)
        from_h = np.split(p["recurrent"] @ h, 3)
        r, z = sigmoid(from_x[0] + from_h[0]), sigmoid(from_x[1] + from_h[1])
        h = (1 - z) * np.tanh(from_x[2] + r * (from_h[2] + p["recurrent_bias"])) + z * h
        outputs[t] = h
    return outputs @ p["out_proj.weight"].T


def rnn(p: Parameters, x: Array, nonlinearity: str = "tanh", **_sizes: object) -> Array:
    """Elman's RNN (1990): h_t = f(W x_t + R h_{t-1} + b)."""
    h = np.zeros(len(p["recurrent"]))
    outputs = np.zeros((len(x), len(h)))
    for t in range(len(x)):
        h = p["in_proj.weight"] @ x[t] + p["recurrent"] @ h + p["bias"]
        h = np.tanh(h) if nonlinearity == "tanh" else h
        outputs[t] = h
    return outputs @ p["out_proj.weight"].T


# Layout over depth.


def hybrid(
    p: Parameters, x: Array, pattern: tuple[str | dict[str, object], ...] = ("selective_ssm", "attention")
) -> Array:
    """One pass through the pattern, as pre-norm residual blocks without channel mixers (Jamba 2403.19887)."""
    for layer, entry in enumerate(pattern):
        options = {"name": entry} if isinstance(entry, str) else entry
        x = residual_block(members(p, f"blocks.layers.{layer}."), x, **options)
    return x


def parallel_hybrid(
    p: Parameters,
    x: Array,
    pattern: tuple[str | dict[str, object], ...] = ("selective_ssm", "attention"),
    merge: str = "mean",
) -> Array:
    """The mean of the members' RMS-normed outputs (Hymba, Dong et al. 2411.13676), or the sum of the raw ones."""
    y = np.zeros_like(x)
    for number, entry in enumerate(pattern):
        options = {"name": entry} if isinstance(entry, str) else dict(entry)
        mixed = REFERENCES[options.pop("name")](members(p, f"members.{number}."), x, **options)
        y += mixed if merge == "sum" else rms_norm(mixed, p[f"norms.{number}.weight"]) / len(pattern)
    return y


# The control.


def identity(_: Parameters, x: Array) -> Array:
    return x


REFERENCES = {
    "attention": attention,
    "sliding_attention": partial(attention, window=64),
    "gated_attention": gated_attention,
    "differential_attention": differential_attention,
    "forgetting_attention": forgetting_attention,
    "path_attention": path_attention,
    "deltaformer": deltaformer,
    "mla": mla,
    "dsa": dsa,
    "moba": moba,
    "nsa": nsa,
    "factorized": factorized,
    "linear_attention": linear_attention,
    "gated_linear_attention": gated_linear_attention,
    "delta_net": delta_net,
    "gated_delta_net": delta_net,
    "kda": kda,
    "gdn2": kda,
    "log_linear_gated_delta_net": partial(delta_net, n_levels=15),
    "delta_product": partial(delta_net, n_householder=2, beta_max=2.0),
    "comba": comba,
    "mesa_net": mesa_net,
    "retnet": retnet,
    "lightning_attention": lightning_attention,
    "hgrn2": hgrn2,
    "gsa": gsa,
    "titans": titans,
    "mlstm": mlstm,
    "capped_mlstm": capped_mlstm,
    "rwkv4": rwkv4,
    "rwkv6": rwkv6,
    "rwkv7": rwkv7,
    "diagonal_ssm": diagonal_ssm,
    "lru": partial(diagonal_ssm, init="lru"),
    "s5": partial(diagonal_ssm, init="s5"),
    "linoss": linoss,
    "s4d": s4d,
    "selective_ssm": selective_ssm,
    "mamba3": mamba3,
    "ssd": ssd,
    "log_linear_ssd": partial(ssd, n_levels=15),
    "conv": conv,
    "min_gru": minimal_recurrence,
    "min_lstm": partial(minimal_recurrence, cell="lstm"),
    "rg_lru": rg_lru,
    "gated_conv": gated_conv,
    "hyena": hyena,
    "slstm": slstm,
    "lstm": lstm,
    "gru": gru,
    "rnn": rnn,
    "hybrid": hybrid,
    "parallel_hybrid": parallel_hybrid,
    "head_hybrid": head_hybrid,
    "identity": identity,
}
OPERATORS = {
    "sliding_attention": partial(attention_operator, window=64),
    "attention": attention_operator,
    "factorized": factorized_operator,
    "linear_attention": linear_attention_operator,
    "gated_conv": gated_conv_operator,
    "min_gru": minimal_recurrence_operator,
    "min_lstm": partial(minimal_recurrence_operator, cell="lstm"),
}
OFFSETS = {
    "min_gru": minimal_recurrence_offset,
    "min_lstm": partial(minimal_recurrence_offset, cell="lstm"),
}
"""Offsets c_i of the mixers whose constant terms are not biases."""
