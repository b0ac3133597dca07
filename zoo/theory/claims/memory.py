"""Claims about memory: how much of the past a layer carries, and what the weights of its heads must contain."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.coefficient import coefficient
from zoo.mixers.attention import Attention
from zoo.ops.delta_rule import delta_rule as chunked_delta_rule
from zoo.theory.claims.claim import Curve, Findings, Panel, Settings, at_least, at_most, claim, equals
from zoo.theory.claims.cores import Core, Draw, drawn, drawn_delta_rule, gated_linear_attention, state_space_duality
from zoo.theory.operator import interaction
from zoo.theory.state_size import effective_state_size
from zoo.theory.weights import head_weights

_D_MODEL, _LENGTHS = 4, (8, 16, 32)
_LOUD = 3.0  # times a standard normal: softmax that is nearly even has a low numerical rank


def state_at_middle(layer: nn.Module, draw: Draw, seq_len: int) -> int:
    """Return the rank of the operator from the first half of a drawn sequence to the second."""
    operator = interaction(layer, _LOUD * draw(1, seq_len, _D_MODEL)).operator[0]
    return int(effective_state_size(operator, [seq_len // 2]).rank)


@claim(
    "What a recurrence carries past a position is bounded by its state at any length; what softmax attention carries "
    "is bounded by the past itself, and grows with it.",
    "Parnichkun et al., arXiv 2504.19561; rank of W from the inputs before a position to the outputs after it",
    "A recurrence that needs more than its state, or softmax that needs less than the past holds.",
)
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
            # What the past holds, n/2 inputs of d_model numbers, bounds every layer; its state bounds a recurrence.
            most = n // 2 * _D_MODEL
            yield equals(f"{name}, n = {n}: effective state", size, min(most, most if state is None else state))
        curves.append(Curve(name, [*sizes], [*sizes.values()], "marked"))
    yield Panel("State that the operator needs at the middle", "positions n", "numbers", curves, log_y=False)


def effective_attention(q: Tensor, k: Tensor, beta: Tensor, log_decay: Tensor) -> Tensor:
    """Return q_i . k_j beta_j times the decays between, (seq, seq): a delta rule's weights without what it removes."""
    reached = log_decay.cumsum(0)
    return ((q @ k.T) * beta * (reached[:, None] - reached).exp()).tril()


@claim(
    "The effective attention of a gated delta rule is not q_i . k_j between the decays: what each step removes under "
    "its key belongs to the weights, except where all keys are orthogonal.",
    "Yang et al., arXiv 2412.06464, eq. 10, unrolled",
    "Exact weights that miss the outputs by 1e-12, or weights without the removal that miss them by less than 10 %.",
)
def key_removal(settings: Settings) -> Findings:
    """Compare the outputs of a gated delta rule with those of its weights, whole and without the removal of keys."""
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


def _miss(made: Tensor, wanted: Tensor) -> float:
    return ((made - wanted).norm() / wanted.norm()).item()
