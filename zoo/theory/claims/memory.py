"""Claims about memory: effective state size, the weights of a delta rule, and groups multiplied by reflections."""

from __future__ import annotations

import math
from statistics import median

import torch
from torch import Tensor, nn

from zoo.coefficient import coefficient
from zoo.evidence import Curve, Panel, at_least, at_most, equals, near
from zoo.mixers.attention import Attention
from zoo.ops.delta_rule import delta_product
from zoo.ops.delta_rule import delta_rule as chunked_delta_rule
from zoo.theory.claims.claim import Findings, Settings, claim, redrawn
from zoo.theory.claims.cores import Core, Draw, drawn, drawn_delta_rule, gated_linear_attention, state_space_duality
from zoo.theory.operator import interaction
from zoo.theory.state_size import effective_state_size
from zoo.theory.weights import head_weights

_D_MODEL, _LENGTHS = 4, (8, 16, 32)
_INPUT_SCALE = 3.0  # scale of the inputs; nearly uniform softmax would have a low numerical rank


def state_at_middle(layer: nn.Module, draw: Draw, seq_len: int) -> int:
    """Return the rank of the operator from the first half of a random sequence to the second."""
    operator = interaction(layer, _INPUT_SCALE * draw(1, seq_len, _D_MODEL)).operator[0]
    return int(effective_state_size(operator, [seq_len // 2]).rank)


@claim(
    "The effective state of a recurrence is bounded by the size of its state; the effective state of softmax attention "
    "is bounded only by the past, and grows with it. Both bounds are attained at the middle of 8, 16 and 32 random "
    "positions.",
    "Parnichkun et al., arXiv 2504.19561; rank of W from the inputs before a position to the outputs after it. For a "
    "single channel it is the rank of a block of the semiseparable matrices of Hu et al., arXiv 2510.04944",
    "An effective state of a recurrence or of softmax attention that differs from its bound.",
)
@redrawn
def state_size(settings: Settings) -> Findings:
    """Measure the effective state of attention and of three recurrences at growing lengths."""
    draw = Draw(settings, 90)
    layers: dict[str, tuple[nn.Module, int | None]] = {
        "softmax attention": (drawn(settings, lambda: Attention(_D_MODEL, 1), 91), None),
        "gated linear attention, state 2 x 4": (gated_linear_attention(draw, _D_MODEL, 2), 2 * _D_MODEL),
        "delta rule, state 4 x 4": (drawn_delta_rule(draw, _D_MODEL), _D_MODEL**2),
        "Mamba-2, 2 heads, state 3 x 4": (state_space_duality(draw, _D_MODEL, 2, 3), 3 * _D_MODEL),
    }
    curves = []
    for name, (layer, state) in layers.items():
        sizes = {n: state_at_middle(layer, draw, n) for n in _LENGTHS}
        for n, size in sizes.items():
            # The past, n/2 inputs of d_model numbers, bounds every layer; the state also bounds a recurrence.
            most = n // 2 * _D_MODEL
            yield equals(f"{name}, n = {n}: effective state", size, min(most, most if state is None else state))
        curves.append(Curve(name, [*sizes], [*sizes.values()], "marked"))
    yield Panel("State that the operator needs at the middle", "positions n", "numbers", curves, log_y=False)


def effective_attention(q: Tensor, k: Tensor, beta: Tensor, log_decay: Tensor) -> Tensor:
    """Return q_i . k_j beta_j times the decays from j to i, (seq, seq): a delta rule's weights without its erasing."""
    reached = log_decay.cumsum(0)
    return ((q @ k.T) * beta * (reached[:, None] - reached).exp()).tril()


@claim(
    "The effective attention of a gated delta rule is not q_i . k_j times decays: unless all keys are orthogonal, each "
    "step also erases the value stored under its key, which changes the weights.",
    "Yang et al., arXiv 2412.06464, eq. 10, unrolled",
    "Exact weights that miss the outputs by 1e-12, or weights without erasing that miss them by less than 10 %.",
)
def key_removal(settings: Settings) -> Findings:
    """Compare a gated delta rule with the outputs of its exact weights, and of the weights without erasing."""
    n, d_key, d_value = 24, 4, 3
    truncated: dict[str, dict[int, float]] = {"drawn keys": {}, "orthogonal keys": {}}
    exact: dict[int, float] = {}
    for seed in range(settings.n_seeds):
        for keys, found in truncated.items():
            draw = Draw(settings, 92, seed)
            width = n if keys.startswith("orthogonal") else d_key
            q, v, beta = draw(n, width), draw(n, d_value), torch.sigmoid(draw(n))
            k = torch.eye(n).to(q) if keys.startswith("orthogonal") else nn.functional.normalize(draw(n, width), dim=1)
            log_decay = -0.1 * draw(n).abs()
            state, rows = q.new_zeros(width, d_value), []
            for t in range(n):
                state = log_decay[t].exp() * state
                state = state + beta[t] * torch.outer(k[t], v[t] - k[t] @ state)
                rows.append(q[t] @ state)
            y = torch.stack(rows)
            found[seed] = _miss(effective_attention(q, k, beta, log_decay) @ v, y)

            def rule(x: Tensor, given: tuple[Tensor, ...] = (q, k, beta, log_decay)) -> Tensor:
                marked = [coefficient(t[None, None].expand(len(x), 1, *t.shape)) for t in given]
                start = x.new_zeros(len(x), 1, given[0].shape[1], d_value)
                return chunked_delta_rule(marked[0], marked[1], x[:, None], marked[2], marked[3], start)[0][:, 0]

            weights = head_weights(Core(d_value, rule, like=v), v[None])[0, 0]
            exact[seed] = max(exact.get(seed, 0.0), _miss(weights @ v, y))
    yield at_most("zoo.theory.head_weights: relative error of the outputs", exact, 1e-12)
    yield at_least("without the removal, drawn keys: relative error", truncated["drawn keys"], 0.1)
    yield at_most("without the removal, orthogonal keys: relative error", truncated["orthogonal keys"], 1e-12)


_TURNS = torch.tensor([0, 1, -1, 0, 1, -1], dtype=torch.float64)
_SIGNS = torch.tensor([1, 1, 1, -1, -1, -1], dtype=torch.float64)
"""S3 as the maps r -> sign r + turn of the residues modulo 3: turns of a triangle, after a reflection if sign is -1."""
_SLOW = 1e-9
"""Beta of a step that adds a turn without a reflection; it shrinks the counter by this share."""
_N_WORDS, _N_ROTATED = 1024, 64
"""Words that are multiplied by one reflection per token, and the number of them multiplied by two."""


def multiplied_out(words: Tensor) -> Tensor:
    """Return residue and sign of the product of each prefix, in integer arithmetic: (words, positions, 2)."""
    turns, signs = _TURNS.long().to(words.device), _SIGNS.long().to(words.device)
    now, found = torch.tensor([0, 1], device=words.device).expand(len(words), 2), []
    for token in words.unbind(1):
        turned = signs[token] * now[:, 0] + turns[token]
        now = torch.stack((turned.remainder(3), signs[token] * now[:, 1]), dim=1)
        found.append(now)
    return torch.stack(found, dim=1)


def counted(words: Tensor) -> Tensor:
    """Return the state of a delta rule with keys of width 1 after each prefix: a counter and a sign, (..., 2)."""
    turns, signs = (t.to(words.device)[words] for t in (_TURNS, _SIGNS))
    beta = torch.where(signs < 0, 2.0, _SLOW)
    v = torch.stack((turns / beta, torch.zeros_like(turns)), dim=2)[:, None]
    one = torch.ones_like(v[..., :1])
    start = torch.tensor([[0.0, 1.0]], dtype=v.dtype, device=v.device).expand(len(words), 1, 1, 2)
    return chunked_delta_rule(one, one, v, beta[:, None], None, start)[0][:, 0]


def turned(words: Tensor) -> Tensor:
    """Return the states of a delta rule with two steps per token and keys of width 2: (words, positions, 2, 2)."""
    turns, signs = (t.to(words.device)[words] for t in (_TURNS, _SIGNS))
    # Two reflections turn by twice the angle between their axes; without the first one, the step is a reflection.
    angles = torch.stack((torch.zeros_like(turns), math.pi / 3 * turns), dim=2)
    k = torch.stack((angles.cos(), angles.sin()), dim=3)
    return products_of_steps(k, torch.stack((1 + signs, 2 * torch.ones_like(signs)), dim=2))


def products_of_steps(k: Tensor, beta: Tensor) -> Tensor:
    """Return the products of the steps I - beta k k^T at each position: (words, positions, d, d).

    They are the states of a delta rule that starts at the identity and writes only zeros, for keys (words, positions,
    steps, d) and beta (words, positions, steps).
    """
    n_words, n, _, d = k.shape
    # One head per row of the state, read by a one-hot query.
    one = torch.eye(d, dtype=k.dtype, device=k.device)
    q, start = one[:, None].expand(n_words, d, n, d), one.expand(n_words, d, d, d)
    k, beta = (t[:, None].expand(-1, d, *t.shape[1:]) for t in (k, beta))
    return delta_product(q, k, torch.zeros_like(k), beta, None, start)[0].transpose(1, 2)


@claim(
    "One reflection per token tracks S3 with a state of two numbers, if the readout reduces an integer modulo 3: S3 "
    "acts on the residues by r -> s r + a, and a delta rule with one step per token computes the integer s h + a. Over "
    "random words its mean square grows by two thirds per token. Two reflections per token hold the element itself, in "
    "a state that does not grow.",
    "An affine action lifted to the integers, against two reflections per token of Siems et al., arXiv 2502.10297",
    "A prefix whose element does not follow from the counter, a counter that grows faster or slower, or two "
    "reflections that miss an element by 1e-12.",
)
def reflection_counts(settings: Settings) -> Findings:
    """Multiply words of S3 by one reflection per token, which counts, and by two."""
    n, correct, error = settings.seq_len, 1.0, 0.0
    at = [2**i for i in range(n.bit_length()) if 2**i <= n]
    squares, turned_square = {length: dict[int, float]() for length in at}, torch.zeros(n, dtype=torch.float64)
    for seed in range(settings.n_seeds):
        words = torch.randint(6, (_N_WORDS, n), generator=settings.generator(94, seed)).to(settings.device)
        residue, sign = multiplied_out(words).unbind(2)
        counter, carried = counted(words).unbind(2)
        right = (counter.round().remainder(3) == residue) & (carried.sign() == sign)
        correct = min(correct, right.double().mean().item())
        for length in at:
            squares[length][seed] = counter[:, length - 1].square().mean().item()
        states = turned(words[:_N_ROTATED])
        turned_square += states.square().sum((2, 3)).mean(0).cpu() / settings.n_seeds
        angle = 2 * math.pi / 3 * residue[:_N_ROTATED].double()
        elements = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos()), dim=2).unflatten(2, (2, 2))
        elements[..., 0] *= sign[:_N_ROTATED, :, None]  # the reflection comes first
        error = max(error, (states - elements).abs().max().item())
    yield equals(f"one reflection, words of {n}: least share of prefixes that the counter tells", correct, 1)
    for length in at[-3:]:
        per_token = {seed: square / length for seed, square in squares[length].items()}
        yield near(f"one reflection: mean square of the counter at {length}, per token", per_token, 2 / 3, 0.15)
    yield at_most(f"two reflections, words of {n}: largest error of an element", error, 1e-12)
    one = Curve("one reflection: counter", at, [median(squares[length].values()) ** 0.5 for length in at], "marked")
    two = Curve("two reflections: state", at, [turned_square[length - 1].item() ** 0.5 for length in at], "marked")
    yield Panel("What is carried to multiply S3 out", "positions", "root mean square", (one, two), log_x=True)


def rotation_group(fold: int, axis: tuple[float, float, float]) -> Tensor:
    """Return the group generated by a turn of 1 / `fold` about an axis and a third turn about (1, 1, 1).

    The elements are matrices (elements, 3, 3) in float64, the identity first. A half turn about z generates A4, a
    quarter turn about z S4, and a fifth turn about (0, 1, golden ratio) A5: the rotations of tetrahedron, cube and
    icosahedron.
    """
    turns = [_rotation(2 * math.pi / fold, axis), _rotation(2 * math.pi / 3, (1.0, 1.0, 1.0))]
    found = [torch.eye(3, dtype=torch.float64)]
    for element in found:  # grows until it is closed under products
        for turn in turns:
            if min((turn @ element - other).norm().item() for other in found) > 0.1:
                found.append(turn @ element)
    return torch.stack(found)


def _rotation(angle: float, axis: tuple[float, float, float]) -> Tensor:
    x, y, z = nn.functional.normalize(torch.tensor(axis, dtype=torch.float64), dim=0).tolist()
    return torch.linalg.matrix_exp(angle * torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64))


def mirrors(rotations: Tensor) -> Tensor:
    """Return, for rotations (..., 3, 3), the unit normals of two mirrors whose product is the rotation: (..., 2, 3)."""
    plane = torch.linalg.eigh(rotations + rotations.mT).eigenvectors[..., :2]  # the third is the axis
    first, other = plane.unbind(-1)
    turned = (rotations @ first[..., None])[..., 0]
    half = torch.atan2((turned * other).sum(-1, True), (turned * first).sum(-1, True)) / 2
    return torch.stack((first, half.cos() * first + half.sin() * other), dim=-2)


def missed_by_one_step(rotations: Tensor) -> Tensor:
    """Return the squared distance of each rotation R to the nearest I - beta k k^T.

    With M = I - R it is |M|^2 - max (k^T M k)^2, where only the symmetric part of M matters.
    """
    rest = torch.eye(3).to(rotations) - rotations
    return rest.square().sum((-2, -1)) - torch.linalg.eigvalsh((rest + rest.mT) / 2)[..., -1].square()


@claim(
    "Two reflections per token represent every rotation: they multiply words in A4, S4 and A5, the rotations of "
    "tetrahedron, cube and icosahedron, in a state of nine numbers that does not grow. One step per token, I - beta k "
    "k^T, equals no rotation but the identity: its squared distance from any other element of these groups is at least "
    "15/4, 3 and 2.29. A step that preserves lengths is the identity or a reflection; its square is the identity, so "
    "it cannot represent an element of order three.",
    "Cartan and Dieudonné; two reflections per token of Siems et al., arXiv 2502.10297",
    "A prefix whose element the state misses by 1e-11, or a rotation that is closer to one step.",
)
def reflections_rotate(settings: Settings) -> Findings:
    """Multiply words of three rotation groups by two reflections per token, and bound the error of one step."""
    n, upright, golden = settings.seq_len, (0.0, 0.0, 1.0), (1 + 5**0.5) / 2
    for name, fold, axis in (("A4", 2, upright), ("S4", 4, upright), ("A5", 5, (0.0, 1.0, golden))):
        group, error = rotation_group(fold, axis).to(settings.device), 0.0
        k = mirrors(group)
        for seed in range(settings.n_seeds):
            words = torch.randint(len(group), (_N_ROTATED, n), generator=settings.generator(95, seed)).to(group.device)
            states = products_of_steps(k[words], torch.full((*words.shape, 2), 2.0).to(k))
            elements = [torch.eye(3).to(group)]
            for rotation in group[words].unbind(1):
                elements.append(rotation @ elements[-1])
            error = max(error, (states - torch.stack(elements[1:], dim=1)).abs().max().item())
        yield at_most(f"{name}, two reflections, words of {n}: largest error of an element", error, 1e-11)
        missed = missed_by_one_step(group[1:]).min().item()
        rest = 1 - math.cos(2 * math.pi / max(fold, 3))  # for the smallest rotation
        yield near(f"{name}, one step: least squared distance from a rotation", missed, rest * (4 - rest), 1e-9)


def _miss(made: Tensor, wanted: Tensor) -> float:
    return ((made - wanted).norm() / wanted.norm()).item()
