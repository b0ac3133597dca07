"""Claims about retrieval: the value of a key, and the nearest of several points."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

from zoo.contract import SequenceMixer
from zoo.evidence import Curve, Panel, at_least, at_most, equals, near, within
from zoo.mixers.attention import Attention
from zoo.mixers.delta_net import DeltaNet
from zoo.mixers.linear_attention import LinearAttention
from zoo.mixers.s4d import S4D
from zoo.mixers.selective_ssm import SelectiveSSM
from zoo.mixers.ssd import SSD
from zoo.theory.claims.claim import Findings, Settings, claim
from zoo.theory.claims.cores import Draw

_N_KEYS = 12
_LARGE = 1e6  # scale at which SiLU is the identity and the epsilon of a norm is negligible
_ONE_STEP = math.log(math.e - 1)  # softplus of it is one


def written_recall(mixer: type[SequenceMixer], queries: Tensor, keys: Tensor) -> SequenceMixer:
    """Return a layer with constructed weights that solve recall: it stores each value under the preceding key.

    The input is [token, previous token], each one-hot over n keys and n values; the output has the value in its first n
    channels. Key c is stored under row c of `keys` (n, width <= n) and queried by row c of `queries`.
    """
    n = len(keys)
    zero, one = keys.new_zeros(n, n), torch.eye(n).to(keys)
    q, k = (nn.functional.pad(t, (0, n - t.shape[1])).T for t in (queries, keys))
    parts = ((q, zero, zero, zero), (zero, zero, k, zero), (zero, one, zero, zero))
    read, write, value = (torch.cat(part, dim=1) for part in parts)
    out = torch.eye(4 * n, n).to(keys)
    if mixer is LinearAttention:
        layer = LinearAttention(4 * n, 1, n, "identity", normalize=False)
        weights = {"qkv_proj.weight": torch.cat((read, write, value))}
    elif mixer is DeltaNet:
        layer = DeltaNet(4 * n, 1, n, d_conv=1)
        # Write and erase only at values.
        where = torch.tensor([-1e3, 1e3, 0.0, 0.0]).repeat_interleave(n)[None].to(keys)
        weights = {
            "qkv_proj.weight": _LARGE * torch.cat((read, write, value)),
            "conv.weight": keys.new_ones(3 * n, 1),
            "beta_proj.weight": where,
            "norm.weight": keys.new_full((n,), n**-0.5),
        }
    elif mixer is SelectiveSSM:
        layer = SelectiveSSM(4 * n, d_state=n, d_conv=1, expand=1)
        channels = torch.cat((value, write, read, torch.zeros_like(read)))
        gate = torch.cat((torch.ones_like(channels[:, : 2 * n]), torch.zeros_like(channels[:, : 2 * n])), dim=1)
        chosen = torch.eye(4 * n).to(keys)
        weights = {
            "in_proj.weight": _LARGE * torch.cat((channels, gate)),
            "conv.weight": keys.new_ones(4 * n, 1),
            "conv.bias": keys.new_zeros(4 * n),
            "x_proj.weight": torch.cat((chosen.new_zeros(layer.dt_rank, 4 * n), chosen[n : 3 * n])),
            "dt_proj.weight": keys.new_zeros(4 * n, layer.dt_rank),
            "dt_proj.bias": keys.new_full((4 * n,), _ONE_STEP),
            "A_log": keys.new_full((4 * n, n), -1e3),  # nothing decays
            "D": keys.new_zeros(4 * n),
        }
        out = chosen * chosen[:, :n].sum(1) / _LARGE**4
    else:
        layer = SSD(4 * n, d_state=n, d_inner=n, d_conv=1, norm_groups=0)
        gate = torch.cat((torch.ones_like(read[:, : 2 * n]), torch.zeros_like(read[:, : 2 * n])), dim=1)
        weights = {
            "in_proj.weight": torch.cat((_LARGE * torch.cat((gate, value, write, read)), gate.new_zeros(1, 4 * n))),
            "conv.weight": keys.new_ones(3 * n, 1),
            "conv.bias": keys.new_zeros(3 * n),
            "dt_bias": keys.new_full((1,), _ONE_STEP),
            "A_log": keys.new_full((1,), -1e3),  # nothing decays
            "D": keys.new_zeros(1),
        }
        out = out / _LARGE**4
    layer.to(keys).load_state_dict({**weights, "out_proj.weight": out})
    return layer.eval()


class WrittenS4D(nn.Module):
    """Two S4D layers with constructed weights that solve recall; their gates do the input-dependent selection.

    They have a channel for each pair of a key and one of the first `width` values, and one for each queried key. The
    first layer routes a value to the channels of the preceding key; the second accumulates, and outputs the channels of
    the queried key. The input is that of `written_recall`, (batch, seq, 4n); the output is values (batch, seq, n).
    """

    def __init__(self, n: int, width: int) -> None:
        super().__init__()
        self.d_model, self.n, self.width = 4 * n, n, width
        pairs, keys = torch.arange(n * width), torch.arange(n)
        key, value, asked = pairs // width, pairs % width, n * width + keys
        self.d_inner = max(n * width + n, 4 * n)
        self.first, self.second = (S4D(self.d_inner, d_state=2).double() for _ in range(2))
        first, second = self.first.state_dict(), self.second.state_dict()
        for weights in (first, second):
            for tensor in weights.values():
                tensor.zero_()  # steps of one, no rotation
            weights["log_rate"].fill_(-60)  # nothing decays
        first["D"].fill_(_LARGE)
        second["C"][pairs, 0, 0] = _LARGE / 2  # half, since a pole and its conjugate add up
        second["D"][asked] = _LARGE
        for weights, values, gates in ((first, n + value, 2 * n + key), (second, pairs, asked[key])):
            given, gate = weights["out_proj.weight"].chunk(2)
            given[pairs, values] = 1 / _LARGE
            gate[pairs, gates] = 1
            weights["out_proj.bias"].chunk(2)[1][pairs] = -_LARGE / 2  # the gate is closed without the key
        first["out_proj.weight"][asked, keys] = 2 / _LARGE  # through a gate that is half open

    def forward(self, x: Tensor) -> Tensor:
        """Return the value stored under the key at each position."""
        h = self.second(self.first(nn.functional.pad(x, (0, self.d_inner - self.d_model))))
        values = h[..., : self.n * self.width].unflatten(2, (self.n, self.width)).sum(2)
        return nn.functional.pad(values, (0, self.n - self.width))


def recalled(layer: SequenceMixer | WrittenS4D, keys: Tensor, values: Tensor, asked: Tensor) -> Tensor:
    """Return the layer's outputs at the queries `asked` (batch, asked), after pairs of key and value (batch, pairs)."""
    n = layer.d_model // 4
    tokens = torch.cat((torch.stack((keys, n + values), dim=2).flatten(1), asked), dim=1)
    x = nn.functional.one_hot(tokens, 2 * n).to(next(layer.parameters()))
    before = nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
    with torch.no_grad():
        return layer(torch.cat((x, before), dim=2))[:, -asked.shape[1] :, :n]


@claim(
    "With constructed weights, linear attention, DeltaNet, Mamba-1 and Mamba-2 recall the values of 12 keys exactly if "
    "keys have width 12; two layers of S4D do so with 156 channels, one per pair of key and value and one per queried "
    "key. With width 11, and in S4D with channels for 11 of the values, our layers miss one value of 12; no linear "
    "readout of the state, as in linear attention, has a smaller squared error. For 12 random keys of width d = 6 and "
    "11, the best queries of linear attention have a squared error of 12 - d, and with two pairs per sequence the best "
    "table of width 11 misses some value by 1/12. Scoring the right value highest needs less, if no value is written "
    "twice: width 2 suffices for K = 12 and 48 keys, with a margin of 1 - cos(2 pi / K), and width 1 for two of 12 "
    "random keys.",
    "Question of Huang et al., arXiv 2506.11891; sizes from Q K^T = I, Eckart and Young, and convex position",
    "A constructed layer with an error of 1e-12, narrower keys with another error, a key on the circle that is not "
    "recalled, or a third key recalled with width 1.",
)
def recall_by_weights(settings: Settings) -> Findings:
    """Measure constructed layers whose key width is the number of keys, and layers with narrower keys."""
    n, draw = _N_KEYS, Draw(settings, 100)
    one = torch.eye(n, dtype=torch.float64, device=settings.device)
    every = torch.arange(n, device=settings.device)[None]
    mixers = {"linear attention": LinearAttention, "DeltaNet": DeltaNet, "Mamba-1": SelectiveSSM, "Mamba-2": SSD}
    made: dict[str, Callable[[int], SequenceMixer | WrittenS4D]] = {
        f"{name}, {n} keys": lambda width, mixer=mixer: written_recall(mixer, one[:, :width], one[:, :width])
        for name, mixer in mixers.items()
    }
    made[f"S4D, two layers, {n} values"] = lambda width: WrittenS4D(n, width).to(one.device)
    for case, make in made.items():
        whole, narrow = make(n), make(n - 1)
        miss = dict[int, float]()
        for seed in range(settings.n_seeds):
            generator = settings.generator(101, seed)
            keys, asked = (torch.randperm(n, generator=generator)[None].to(one.device) for _ in range(2))
            values = torch.randint(n, (1, n), generator=generator).to(one.device)
            wanted = one[torch.empty_like(keys).scatter(1, keys, values).gather(1, asked)]
            miss[seed] = (recalled(whole, keys, values, asked) - wanted).abs().max().item()
        yield at_most(f"{case} of width {n}: largest error of a value", miss, 1e-12)
        left = (recalled(narrow, every, every, every)[0] - one).square().sum().item()
        yield near(f"{case} of width {n - 1}: squared error", left, 1, 1e-9)
    for width in (n // 2, n - 1):
        left = dict[int, float]()
        for seed in range(settings.n_seeds):
            keys = draw(n, width)
            layer = written_recall(LinearAttention, torch.linalg.pinv(keys).T, keys)
            left[seed] = (recalled(layer, every, every, every)[0] - one).square().sum().item()
        yield near(f"{n} drawn keys of width {width}, best queries: squared error", left, n - width, 1e-9)
    # The best table of rank n - 1, both in the largest entry and in the sum of squares.
    table = torch.linalg.svd(one - 1 / n).U[:, : n - 1]
    first, second = (~one.bool()).nonzero().T
    pair = torch.stack((first, second), dim=1)
    found = recalled(written_recall(LinearAttention, table, table), pair, pair, pair)
    worst = (found - one[pair]).abs().max().item()
    yield near(f"all sequences of two pairs, width {n - 1}: largest error of a value", worst, 1 / n, 1e-9)
    for n_keys in (n, 4 * n):
        angles = 2 * math.pi * torch.arange(n_keys, device=one.device).double() / n_keys
        circle = torch.stack((angles.cos(), angles.sin()), dim=1)
        every = torch.arange(n_keys, device=one.device)[None]
        scores = recalled(written_recall(LinearAttention, circle, circle), every, every, every)[0]
        best, second_best = scores.topk(2, dim=1).values.T
        right = (scores.argmax(1) == every[0]).double().mean().item()
        margin = (best - second_best).min().item()
        yield equals(f"{n_keys} keys of width 2, on a circle: share whose own value scores highest", right, 1)
        yield near(f"{n_keys} keys of width 2: margin of the score", margin, 1 - math.cos(2 * math.pi / n_keys), 1e-9)
    every, reached = torch.arange(n, device=one.device)[None], dict[int, float]()
    for seed in range(settings.n_seeds):
        keys = draw(n, 1)
        layers = (written_recall(LinearAttention, sign * torch.ones_like(keys), keys) for sign in (1, -1))
        right = [recalled(layer, every, every, every)[0].argmax(1) == every[0] for layer in layers]
        reached[seed] = int((right[0] | right[1]).sum())
    yield within(f"{n} drawn keys of width 1: keys that some query recalls", reached, 2, 2)


@cache
def sign_shares(d: int, degrees: int = 399) -> dict[int, float]:
    """Return the energy of sign(y . z) in spherical harmonics of each odd degree, for y uniform on the sphere.

    In d dimensions it is N (E[sign(t) P(t)])^2, where the degree has N harmonics and P is the zonal one with P(1) = 1.
    By the differential equation of P, the mean is 2 P'(0) / (degree (degree + d - 2) Z), with Z the integral of
    (1 - t^2)^((d - 3) / 2).
    """
    total = math.sqrt(math.pi) * math.exp(math.lgamma((d - 1) / 2) - math.lgamma(d / 2))
    at, slope = [1.0, 0.0], [0.0, 1.0]
    for n in range(1, degrees):
        at.append(-n * at[n - 1] / (n + d - 2))
        slope.append(((2 * n + d - 2) * at[n] - n * slope[n - 1]) / (n + d - 2))
    return {n: harmonics(d, n) * (2 * slope[n] / (n * (n + d - 2) * total)) ** 2 for n in range(1, degrees + 1, 2)}


def harmonics(d: int, degree: int) -> int:
    """Count the independent spherical harmonics of a degree in d dimensions."""
    return math.comb(degree + d - 1, d - 1) - (math.comb(degree + d - 3, d - 1) if degree > 1 else 0)


def least_left(d: int, n_heads: int, rank: int) -> float:
    """Return a lower bound on the relative squared error of heads of rank `rank` on the nearest of two points.

    The nearer of x_1 and x_2, uniform on the sphere in d dimensions, is their mean plus sign(y . (x_1 - x_2)) times
    half of their difference. For given points, a head that sees the query point y only through `rank` linear forms
    spans at most binomial(degree + rank - 1, rank - 1) harmonics of a degree, for any function of them. A space of m of
    the N harmonics has on average m / N of the energy of a zonal harmonic with a uniform axis.
    """
    return sum(
        share * max(0.0, 1 - n_heads * math.comb(degree + rank - 1, rank - 1) / harmonics(d, degree))
        for degree, share in sign_shares(d).items()
    )


def heads_for(d: int, rank: int, left: float) -> int:
    """Return the smallest number of heads whose `least_left` is at most `left`."""
    most = 1
    while least_left(d, most, rank) > left:
        most *= 2
    return bisect_left(range(most), True, lo=most // 2, key=lambda n_heads: least_left(d, n_heads, rank) <= left)


def nearest_head(d: int, sharpness: float) -> Attention:
    """Return one head that outputs the point nearest to the last one; points are unit vectors with a mark appended.

    The mark is one for the last point y and zero elsewhere. Logits are sharpness y . x_j, and lower for y itself.
    """
    layer, one = Attention(d + 1, 1).double(), torch.eye(d + 1).double()
    scale, other, value = sharpness * layer.d_head**0.5 * one, one.clone(), one.clone()
    other[d, d], value[d, d] = -4, 0
    layer.load_state_dict({"qkv_proj.weight": torch.cat((scale, other, value)), "out_proj.weight": one})
    return layer.eval()


def points(draw: Draw, n_draws: int, n_points: int, d: int) -> tuple[Tensor, Tensor]:
    """Draw points (draws, points, d) and query points (draws, d), uniform on the sphere."""
    found = nn.functional.normalize(draw(n_draws, n_points + 1, d), dim=2)
    return found[:, :-1], found[:, -1]


def fitted_left(draw: Draw, d: int, rank: int, sharpness: float, n_draws: int = 2000) -> float:
    """Return the relative squared error of d / rank fitted heads on the nearest of two points, on held-out draws.

    Head h compares the h-th group of `rank` coordinates of query point and points.
    """
    x, y = points(draw, 2 * n_draws, 2, d)
    half = (x[:, 0] - x[:, 1]) / 2
    wanted = (half * y).sum(1, keepdim=True).sign() * half
    logits = sharpness * (half * y).unflatten(1, (-1, rank)).sum(2)
    heads = (logits.tanh()[:, :, None] * half[:, None]).flatten(1)
    to_value = torch.linalg.lstsq(heads[:n_draws], wanted[:n_draws]).solution
    return ((heads @ to_value - wanted)[n_draws:].square().sum() / wanted[n_draws:].square().sum()).item()


@claim(
    "One head of full rank finds the nearest of 2 and of 16 points on the sphere in 16 dimensions. Heads of rank r < d "
    "do not, for any function of the r numbers that they see of the query point: d/r of them, even two of rank d/2, "
    "have a squared error of at least 29 % of the part that the query decides between two points (a bound, d = 16 and "
    "64; heads fitted at d = 16 do not fall below it). By the same bound, the number of rank-one heads for a squared "
    "error of 0.3 grows faster than d^2.5 from d = 16 to 64, and for 0.2 faster than d^4.5.",
    "Amsel et al., arXiv 2407.16153; spherical harmonics of sign(y . z) that a head of rank r can represent",
    "A head of full rank with a squared error of 0.1 %, a bound below 29 %, fitted heads below the bound, or a bound "
    "that grows more slowly.",
)
def nearest_neighbour(settings: Settings) -> Findings:
    """Measure the error of one head of full rank, and bound and fitted error of heads of low rank."""
    for n_points in (2, 16):
        left = dict[int, float]()
        for seed in range(settings.n_seeds):
            x, y = points(Draw(settings, 102, n_points, seed), 256, n_points, 16)
            wanted = x[torch.arange(len(x)), (x @ y[:, :, None])[:, :, 0].argmax(1)]
            marked = nn.functional.pad(torch.cat((x, y[:, None]), dim=1), (0, 1))
            marked[:, -1, -1] = 1
            with torch.no_grad():
                given = nearest_head(16, 1e5).to(x.device)(marked)[:, -1, :-1]
            left[seed] = ((given - wanted).square().sum() / (wanted - x.mean(1)).square().sum()).item()
        yield at_most(f"d = 16, one head of full rank, nearest of {n_points} points: error", left, 1e-3)
    for d in (16, 64):
        for rank in (d // 2, d // 4, 1):
            case = f"d = {d}, {d // rank} heads of rank {rank}"
            yield at_least(f"{case}: error that must be left", least_left(d, d // rank, rank), 0.29)
            if d == 16:
                found = {
                    seed: min(fitted_left(Draw(settings, 103, rank, seed), d, rank, s) for s in (1.0, 5.0))
                    for seed in range(settings.n_seeds)
                }
                yield at_least(f"{case}, fitted: error", found, least_left(d, d // rank, rank))
    widths = (8, 16, 32, 64)
    counts = {left: [heads_for(d, 1, left) for d in widths] for left in (0.3, 0.2)}
    for left, least in ((0.3, 2.5), (0.2, 4.5)):
        growth = math.log(counts[left][-1] / counts[left][1]) / math.log(widths[-1] / widths[1])
        quantity = f"heads of rank one for an error of {left:g}, at least: exponent of d, from 16 to 64"
        yield at_least(quantity, growth, least)
    curves = [Curve(f"error of {left:g}", widths, found, "marked") for left, found in counts.items()]
    title = "Nearest of two points: heads of rank one that are needed"
    yield Panel(title, "dimension d", "heads, at least", curves, log_x=True)
