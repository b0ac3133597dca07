"""Claims about softmax heads: the error floor of rows that sum to one, and exact heads with a sink."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from zoo.evidence import Curve, Panel, at_least, at_most, equals, near
from zoo.mixers.attention import Attention
from zoo.mixers.differential_attention import DifferentialAttention
from zoo.theory.claims.claim import Findings, Settings, claim, redrawn
from zoo.theory.claims.cores import Draw, conjugated, drawn, toeplitz
from zoo.theory.claims.heads import minimised, toeplitz_matrix
from zoo.theory.lags import head_count, lag_operators, weighted_rows
from zoo.theory.operator import interaction
from zoo.theory.rank import interaction_rank
from zoo.theory.softmax import ema_as_alibi, to_softmax_heads
from zoo.theory.softmax import softmax_floor as least_floor

_SOURCE = "Rows of softmax sum to one; question of head counts: Ghodsi, arXiv 2512.15115"
_SEQ_LEN, _D_MODEL = 10, 5


def system(draw: Draw, seq_len: int, *poles: complex | float) -> Float[Tensor, "seq d_model d_model"]:
    """Return lag operators with these poles and random residues; complex poles get their conjugates."""
    given = torch.tensor(poles, dtype=torch.complex128, device=draw.device)
    b = torch.complex(draw(len(poles), _D_MODEL), draw(len(poles), _D_MODEL))
    c = torch.complex(draw(_D_MODEL, len(poles)), draw(_D_MODEL, len(poles)))
    # A real pole and its conjugate are one pole, with twice the real part of the residue.
    return conjugated(given, b, c, seq_len)


def pair(radius: float, angle: float) -> complex:
    """Return one pole of a conjugate pair."""
    return complex(radius * math.cos(angle), radius * math.sin(angle))


def _unexplained(weights: Float[Tensor, "rows n_heads"], target: Float[Tensor, "rows columns"]) -> Tensor:
    """Return min_V |weights V - target|^2 / |target|^2, the error with the best value maps."""
    basis = torch.linalg.qr(weights).Q
    return (target - basis @ (basis.T @ target)).square().sum() / target.square().sum()


def _coordinates(stack: Float[Tensor, "rows columns"], k: int) -> Float[Tensor, "rows k"]:
    """Return the rows in an orthonormal basis of their span, of dimension k."""
    return stack @ torch.linalg.svd(stack, full_matrices=False).Vh[:k].T


def _best(loss: Callable[[Tensor], Tensor], draw: Draw, starts: int, *shape: int) -> float:
    """Return the smallest `loss` that L-BFGS reaches from several random starts."""
    options = {"max_iter": 300, "history_size": 20, "tolerance_grad": 1e-11, "tolerance_change": 1e-14}
    points = (draw(*shape).requires_grad_() for _ in range(starts))
    return min(minimised([point], lambda at=point: loss(at), **options) for point in points)


def _by_pair(lags: Tensor) -> Float[Tensor, "pairs k"]:
    """Return the coordinates of the operator for each pair of positions i >= j, row by row."""
    i, j = torch.tril_indices(len(lags), len(lags), device=lags.device)
    return _coordinates(lags.flatten(1), head_count(lags))[i - j]


def _softmax_by_pair(logits: Float[Tensor, "n_heads pairs"], n: int) -> Float[Tensor, "pairs n_heads"]:
    """Return the sink-free softmax weights of heads with a free logit for each pair of positions i >= j."""
    i, j = torch.tril_indices(n, n, device=logits.device)
    square = logits.new_full((len(logits), n, n), -torch.inf)
    square[:, i, j] = logits
    return torch.softmax(square, dim=-1)[:, i, j].T


def best_without_sink(lags: Tensor, n_heads: int, draw: Draw, starts: int) -> float:
    """Search the smallest relative squared error of sink-free softmax heads with a free logit for every i, j."""
    target = _by_pair(lags)

    def loss(logits: Tensor) -> Tensor:
        return _unexplained(_softmax_by_pair(logits, len(lags)), target)

    return _best(loss, draw, starts, n_heads, len(target))


def best_with_sink(lags: Tensor, n_heads: int, draw: Draw, starts: int) -> float:
    """Search the smallest relative squared error of softmax heads with a sink and input-independent logits.

    With a sink, a row may have any sum, so the weights are any nonnegative f_h(i, j). The map depends on the lag alone,
    so averaging weights over the pairs of one lag does not raise the error: it suffices to search functions of the lag.
    """
    target = weighted_rows(_coordinates(lags.flatten(1), head_count(lags)))

    def loss(logits: Tensor) -> Tensor:
        return _unexplained(weighted_rows(torch.softmax(logits, dim=-1).T), target)

    return _best(loss, draw, starts, n_heads, len(lags))


def nearest_with_equal_sums(lags: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the operators nearest to the map among those with equal row sums, in the form sum_h w_h(i, j) V_h.

    Returns:
        Signed weights w_h (k, seq, seq), value maps V_h (k, d_out * d_in), the row sum of each w_h (k,), and uniform
        weights over the past (seq, seq).
    """
    directions = torch.linalg.svd(lags.flatten(1), full_matrices=False).Vh[: head_count(lags)]
    sequences = (lags.flatten(1) @ directions.T).T
    past = toeplitz(lags.new_ones(len(lags)))
    even = past / past.sum(1, keepdim=True)
    reached, share = sequences.cumsum(1), even[:, 0]
    shared = (reached * share).sum(1, keepdim=True) / share.sum()
    signed = toeplitz(sequences) + (shared - reached)[:, :, None] * even
    return signed, directions, shared.squeeze(1), even


def _lift(signed: Tensor, even: Tensor) -> Tensor:
    """Return per head the multiple of uniform weights that makes signed weights positive, with a margin."""
    return 1 + (-signed / even.masked_fill(even == 0, torch.inf)).amax((1, 2))


def heads_at_the_floor(lags: Tensor) -> tuple[Tensor, Tensor]:
    """Build k + 1 sink-free softmax heads with free position logits whose error is exactly the floor.

    The nearest operators with equal row sums are sum_h w_h(i, j) V_h, where the rows of w_h sum to s_h. Adding a
    multiple m_h of uniform weights 1 / (i + 1) makes w_h positive with row sums s_h + m_h; one uniform head subtracts
    the multiples.

    Returns:
        Weights (k + 1, seq, seq), each row a softmax, and value maps (k + 1, d_out, d_in).
    """
    signed, directions, sums, even = nearest_with_equal_sums(lags)
    lift = _lift(signed, even) + sums.abs()
    logits = ((signed + lift[:, None, None] * even) / (sums + lift)[:, None, None]).log()
    weights = torch.softmax(torch.cat((logits, even.log()[None])), dim=-1)
    values = torch.cat(((sums + lift)[:, None] * directions, -(lift @ directions)[None]))
    return weights, values.view(-1, *lags.shape[1:])


def differential_heads_at_the_floor(lags: Tensor) -> tuple[Tensor, Tensor]:
    """Build k differential heads with free position logits and a shared lambda whose error is exactly the floor.

    A reflection of the directions gives all heads the same row sum s. Adding m times uniform weights makes w_h positive
    with row sums s + m, so w_h = (s + m) (softmax_1 - lambda softmax_2), with a uniform softmax_2 and lambda =
    m / (s + m) in every head.

    Returns:
        Weights (k, seq, seq), each a difference of two softmaxes, and value maps (k, d_out, d_in).
    """
    signed, directions, sums, even = nearest_with_equal_sums(lags)
    level = sums.norm() / len(sums) ** 0.5
    mirror = sums - level
    if mirror.norm() > 1e-12 * sums.norm():
        turn = torch.eye(len(sums)).to(sums) - 2 * torch.outer(mirror, mirror) / mirror.square().sum()
        signed, directions = torch.einsum("hg,gij->hij", turn, signed), turn @ directions
    lift = _lift(signed, even).max()
    total = level + lift
    first = torch.softmax(((signed + lift * even) / total).log(), dim=-1)
    return first - lift / total * even, total * directions.view(-1, *lags.shape[1:])


def best_differential(lags: Tensor, n_heads: int, draw: Draw, starts: int) -> float:
    """Search the smallest relative squared error of differential heads with free logits and a lambda per head."""
    target = _by_pair(lags)

    def loss(point: Tensor) -> Tensor:
        first, second = (_softmax_by_pair(logits, len(lags)) for logits in point[:, :-1].chunk(2, dim=1))
        return _unexplained(first - point[:, -1] * second, target)

    return _best(loss, draw, starts, n_heads, 2 * len(target) + 1)


def error_of(weights: Float[Tensor, "n_heads n n"], values: Tensor, lags: Tensor) -> float:
    """Return the relative squared error of heads with these weights and value maps."""
    wanted = toeplitz_matrix(lags)
    made = torch.einsum("hij,hpd->ipjd", weights, values).reshape_as(wanted)
    return ((made - wanted).square().sum() / wanted.square().sum()).item()


def output_error(layer: Attention, lags: Tensor, draw: Draw) -> float:
    """Return the relative error, in norm, of the layer's output on random sequences."""
    x = draw(4, len(lags), lags.shape[2])
    wanted = (x.flatten(1) @ toeplitz_matrix(lags).T).view(4, len(lags), -1)
    with torch.no_grad():
        return ((layer(x) - wanted).norm() / wanted.norm()).item()


@claim(
    "Sink-free softmax maps a constant sequence to a constant sequence, so no number of heads equals an SSM with "
    "memory: with input-independent logits the error has a known floor, which k + 1 heads attain. Measured for one "
    "draw of the residues.",
    _SOURCE,
    "Heads below the floor, a construction that misses it, or row sums of sink-free attention that vary.",
)
def softmax_floor(settings: Settings) -> Findings:
    """Compare sink-free heads with the floor, and measure the row sums from which the floor follows."""
    draw = Draw(settings, 80)
    curves = []
    cases = {
        "pole 0.9": system(draw, _SEQ_LEN, 0.9),
        "poles 0.9 and 0.5": system(draw, _SEQ_LEN, 0.9, 0.5),
        "a complex pair": system(draw, _SEQ_LEN, pair(0.9, 0.7)),
    }
    for name, lags in cases.items():
        floor, (weights, values) = least_floor(lags), heads_at_the_floor(lags)
        attained = error_of(weights, values, lags)
        heads = [*range(1, len(weights) + 2), *([8] if name == "pole 0.9" else [])]
        errors = [best_without_sink(lags, h, draw, settings.starts) for h in heads]
        yield at_least(f"{name}: floor", floor, 1e-3)
        yield near(f"{name}: {len(weights)} sink-free heads, constructed / floor", attained / floor, 1, 1e-9)
        yield at_least(f"{name}: best trained of up to {heads[-1]} / floor", min(errors) / floor, 1 - 1e-9)
        curves += [Curve(f"{name}: trained", heads, errors, "points")]
        curves += [Curve(f"{name}: constructed", [len(weights)], [attained], "stars")]
        curves += [Curve(f"{name}: floor", heads, [floor] * len(heads), "dashed")]
    attention = drawn(settings, lambda: Attention(_D_MODEL, 4, d_head=_D_MODEL, position="alibi"), 81)
    sums = interaction(attention, draw(1, _SEQ_LEN, _D_MODEL)).operator[0].sum(1)
    steps = cases["pole 0.9"].cumsum(0)
    spread_of_attention, spread_of_ssm = (
        ((s - s[-1]).norm(dim=(1, 2)).max() / s[-1].norm()).item() for s in (sums, steps)
    )
    yield at_most("row sums of sink-free attention: spread over positions", spread_of_attention, 1e-12)
    yield at_least("row sums of the SSM with pole 0.9: spread over positions", spread_of_ssm, 0.1)
    yield Panel("Softmax without a sink", "heads", "relative squared error", curves, whole_x=True)


@claim(
    "Differential attention has two softmax maps per head, but one operator: its rank is H, not 2H. Its rows all sum "
    "to 1 - lambda, so it has the error floor of sink-free softmax, which k differential heads attain. Measured for "
    "one draw of layer and residues.",
    "Rows of softmax sum to one; differential attention: Ye et al., arXiv 2410.05258",
    "A rank other than H, a constant sequence with a varying output, or heads below the floor.",
)
def differential_floor(settings: Settings) -> Findings:
    """Measure differential heads: their rank, their output on a constant sequence, and their error floor."""
    draw, n_heads = Draw(settings, 85), 2
    layer = drawn(settings, lambda: DifferentialAttention(8, n_heads, d_rope=0), 86)
    x = draw(1, _SEQ_LEN, 8)
    operators = int(interaction_rank(interaction(layer, x).operator[0]))
    with torch.no_grad():
        q, k, _ = (t.unflatten(1, (2 * n_heads, -1)).transpose(0, 1) for t in layer.qkv_proj(x[0]).chunk(3, dim=1))
        logits = (q @ k.mT / layer.d_head**0.5).masked_fill(~torch.ones_like(q @ k.mT).tril().bool(), -torch.inf)
        maps = int(torch.linalg.matrix_rank(torch.softmax(logits, dim=-1).flatten(1)))
        constant = layer(x[:, :1].expand(-1, _SEQ_LEN, -1))[0]
        spread = ((constant - constant[0]).norm(dim=1).max() / constant[0].norm()).item()
    yield equals(f"{n_heads} heads: softmax maps that are independent", maps, 2 * n_heads)
    yield equals(f"{n_heads} heads: interaction rank", operators, n_heads)
    yield at_most("a constant sequence: spread of the output over positions", spread, 1e-12)
    cases = {
        "pole 0.9": system(draw, _SEQ_LEN, 0.9),
        "a complex pair": system(draw, _SEQ_LEN, pair(0.9, 0.7)),
    }
    for name, lags in cases.items():
        floor, k = least_floor(lags), head_count(lags)
        weights, values = differential_heads_at_the_floor(lags)
        attained = error_of(weights, values, lags)
        best = min(best_differential(lags, h, draw, settings.starts) for h in (k, k + 1))
        yield at_least(f"{name}: floor", floor, 1e-3)
        yield near(f"{name}: error of {len(weights)} constructed heads / floor", attained / floor, 1, 1e-9)
        yield at_least(f"{name}: best trained of {k} and {k + 1} / floor", best / floor, 1 - 1e-9)


@claim(
    "With a zero-value sink, k softmax heads equal an SSM of rank k if the span of its coefficient sequences contains "
    "a positive one. Otherwise k + 1 heads do, and in both cases that we searched, k heads do not. Measured for one "
    "draw of the residues.",
    _SOURCE,
    "A construction with an error of 1e-12, two heads within 0.1 of a complex pair, or three trained heads above 1e-8.",
)
def softmax_heads(settings: Settings) -> Findings:
    """Measure constructed and trained softmax heads with a sink."""
    draw, n = Draw(settings, 82), 48
    cases = {
        "poles 0.9 and 0.5": ((0.9, 0.5), 0),
        "pole 0.9, pair of radius 0.8": ((0.9, pair(0.8, 1.0)), 0),
        "pole -0.8": ((-0.8,), 1),
        "a complex pair": ((pair(0.9, 1.0),), 1),
        "2 complex pairs": ((pair(0.9, 0.7), pair(0.85, 1.9)), 1),
        "4 complex pairs": ((pair(0.9, 0.5), pair(0.85, 1.1), pair(0.95, 1.8), pair(0.8, 2.5)), 1),
    }
    for name, (poles, more) in cases.items():
        lags = system(draw, n, *poles)
        k, layer = head_count(lags), to_softmax_heads(lags)
        yield equals(f"{name}, k = {k}: softmax heads", layer.n_heads, k + more)
        yield at_most(f"{name}, k = {k}: relative error of the output", output_error(layer, lags, draw), 1e-12)
    starts = settings.starts * settings.n_seeds
    negative, turning = system(draw, _SEQ_LEN, -0.8), system(draw, _SEQ_LEN, pair(0.9, 1.0))
    yield at_least("pole -0.8: best error of one head", best_with_sink(negative, 1, draw, starts), 0.1)
    yield at_most("pole -0.8: best error of two heads", best_with_sink(negative, 2, draw, starts), 1e-8)
    errors = {h: best_with_sink(turning, h, draw, starts) for h in (1, 2, 3)}
    yield at_least("a complex pair: best error of two heads", errors[2], 0.1)
    yield at_most("a complex pair: best error of three heads", errors[3], 1e-8)
    curve = Curve("a complex pair (k = 2), best of all starts", list(errors), list(errors.values()), "points")
    yield Panel("Softmax with a sink", "heads", "relative squared error", (curve,), whole_x=True)


@claim(
    "With a bias linear in the lag and a zero-value first token, a softmax head is an exact exponential moving "
    "average; N such heads of width one equal a diagonal SSM with N poles in (0, 1).",
    "Z_i = sum_{t <= i} lambda^t + lambda^(i+1) / (1 - lambda) = 1 / (1 - lambda)",
    "An output error above 1e-13.",
)
@redrawn
def alibi_ema(settings: Settings) -> Findings:
    """Compare ALiBi heads with moving averages, at the length of the settings."""
    draw, n = Draw(settings, 83), settings.seq_len
    poles = torch.tensor([0.05, 0.5, 0.8, 0.9, 0.99, 0.999], dtype=torch.float64, device=draw.device)
    b, c = draw(len(poles), _D_MODEL), draw(_D_MODEL, len(poles))
    alone = lag_operators(poles, torch.diag(1 - poles), torch.eye(len(poles)).to(poles), n)
    mixed = lag_operators(poles, b, c, n)
    layer = ema_as_alibi(poles, b, c)
    made = f"by {layer.n_heads} heads of width {layer.d_head}, n = {n}: relative error"
    yield at_most(f"6 averages {made}", output_error(ema_as_alibi(poles), alone, draw), 1e-13)
    yield at_most(f"SSM with these poles {made}", output_error(layer, mixed, draw), 1e-13)
