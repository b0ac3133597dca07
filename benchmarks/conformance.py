"""Check other authors' released packages against the contract: docs/conformance.md, a table of packages × properties.

    pip install mambapy x-transformers minGRU-pytorch xlstm local-attention transformers
    git clone https://github.com/fla-org/flash-linear-attention  # here, or set the environment variable FLA to its path
    python benchmarks/conformance.py                # all; --only NAME prints some and writes nothing

Each failure on the page comes with a remark in conformance.toml, written by a person who has read the package's code.
If a failure has no remark, the page is not written. Each module is also a target for `zoo check`:

    zoo check benchmarks/conformance.py:min_gru --adapter benchmarks/conformance.py:MinGRU --only bfloat16
"""

from __future__ import annotations

import argparse
import inspect
import os
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.adapters.protocols import TransformersCache
from zoo.check import Adapter, Report, check, properties
from zoo.check.report import MARKS
from zoo.report.files import write_atomically
from zoo.report.machine import describe_machine
from zoo.report.markdown import table
from zoo.targets import load

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "conformance.md"
HERE = "benchmarks/conformance.py"
FLA = Path(os.environ.get("FLA", "flash-linear-attention"))


class MinGRU(Adapter):
    """Stream minGRU-pytorch, which accepts the hidden state and returns it on request."""

    name = "return_next_prev_hidden"
    streams = True

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return module(x, state, return_next_prev_hidden=True)


class MambaPy(Adapter):
    """Stream mambapy's block by `step`, whose state (h, inputs) starts as None and zeros."""

    name = "step(x_t, (h, inputs))"
    streams, longest = True, 1

    def chunk(self, module: Any, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        c = module.config
        y, state = module.step(x[:, 0], state or (None, x.new_zeros(len(x), c.d_inner, c.d_conv - 1)))
        return y.unsqueeze(1), state


class LocalCache(Adapter):
    """Stream local-attention: `return_cache` returns keys and values, `cache` accepts them for one more position."""

    name = "cache and return_cache"
    streams, longest = True, 1

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return module(x, cache=state, return_cache=True)


class RwkvState(TransformersCache):
    """Stream transformers' RWKV, whose `state` is a list of tensors that the next call overwrites."""

    def __init__(self) -> None:
        super().__init__("state", "inputs_embeds")


Role = tuple[Callable[[Tensor], Tensor], int]


def _value(width: int) -> Role:
    return nn.Identity(), width


def _direction(width: int) -> Role:
    return partial(F.normalize, dim=-1), width


def _decay(width: int) -> Role:
    return F.logsigmoid, width


def _rate(width: int) -> Role:
    return torch.sigmoid, width


class Naive(nn.Module):
    """A function of a naive.py of fla as a layer: its arguments are linear in x, with two heads of eight channels.

    Args:
        place: path of the file below fla/ops, and the function's name.
        layout: axes of the function's arguments.
        roles: argument -> its activation and its channels per head; 0 for one number without an axis of channels.
        fixed: the other arguments; with `num_householder`, each position has that many keys, values and rates.
    """

    def __init__(self, place: str, layout: str, roles: Mapping[str, Role], **fixed: Any) -> None:
        super().__init__()
        self.function = load(str(FLA / "fla" / "ops" / place))
        self.layout, self.roles, self.fixed = layout, roles, fixed
        self.times = {name: fixed.get("num_householder", 1) if name in ("k", "v", "beta") else 1 for name in roles}
        widths = {name: 2 * (width or 1) * self.times[name] for name, (_, width) in roles.items()}
        self.maps = nn.ModuleDict({name: nn.Linear(16, width) for name, width in widths.items()})
        known = inspect.signature(self.function).parameters
        self.bonus = nn.Parameter(torch.ones(2, 8)) if "u" in known else None
        self.reads_along = "alpha" in known
        self.states = [name for name in known if name.startswith("initial_")]

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        given = {} if self.bonus is None else {"u": self.bonus}
        for name, (act, width) in self.roles.items():
            steps = rearrange(self.maps[name](x), "b t (n d) -> b (t n) d", n=self.times[name])
            heads = act(rearrange(steps, f"b t (h d) -> {self.layout}", h=2))
            given[name] = heads if width else heads.squeeze(-1)
        if self.reads_along:  # erase along beta
            given["alpha"] = -given["beta"]
        before = dict(zip(self.states, state or (), strict=False))
        y, *state = self.function(**given, **self.fixed, **before, output_final_state=True)
        return rearrange(y, f"{self.layout} -> b t (h d)", h=2), tuple(state)


class Case(NamedTuple):
    """A module of a package.

    Attributes:
        title: package and class.
        make: function that makes the module, with d_model 16.
        adapter: class in this file that streams the module, if the checks do not know its protocol.
        looks_ahead: whether the module is an encoder.
    """

    title: str
    make: Callable[[], nn.Module]
    adapter: str | None = None
    looks_ahead: bool = False


def _xlstm(kind: str, **config: Any) -> nn.Module:
    place = f"xlstm.blocks.{kind.lower()}.layer:{kind}Layer"
    return load(place)(load(f"{place}Config")(embedding_dim=16, num_heads=2, **config))


def _local(**options: Any) -> nn.Module:
    made = load("local_attention:LocalMHA")
    return made(dim=16, window_size=8, causal=True, heads=2, dim_head=8, **options)


def _decoder(**options: Any) -> nn.Module:
    return load("x_transformers:Decoder")(dim=16, depth=1, heads=2, attn_dim_head=8, **options)


def _transformers(name: str, num_hidden_layers: int = 1, adapter: str | None = None, **config: Any) -> Case:
    def make() -> nn.Module:
        made = load(f"transformers:{name}Config")
        return load(f"transformers:{name}Model")(
            made(hidden_size=16, vocab_size=8, num_hidden_layers=num_hidden_layers, **config)
        )

    return Case(f"transformers {name}", make, adapter)


def _fla(place: str, layout: str = "b t h d", fixed: Mapping[str, Any] = MappingProxyType({}), **roles: Role) -> Case:
    queries_and_values = {"q": _value(8), "k": _direction(8), "v": _value(8)}
    roles = roles if "x" in roles else queries_and_values | roles
    return Case(f"fla {place.rpartition(':')[2]}", lambda: Naive(place, layout, roles, **fixed))


_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32}
_MAMBA_2 = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
_JAMBA = {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 4, "mamba_dt_rank": 2}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
_LAYERS = {"layer_types": ["linear_attention", "full_attention"]}
_DELTA = {"head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4} | dict.fromkeys(
    ("linear_key_head_dim", "linear_value_head_dim"), 4
)
_LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
_ROUTED = {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_shared_experts": 1}
_KIMI = {"linear_head_dim": 8, "linear_num_heads": 2, "first_k_dense_replace": 1, "pad_token_id": None} | dict.fromkeys(
    ("n_group", "topk_group"), 1
)
_NEMOTRON = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 8} | {
    "head_dim": 8,
    "layers_block_type": ["linear_attention", "mlp", "full_attention"],
}
_ZAMBA = {"mamba_d_state": 8, "n_mamba_heads": 4, "chunk_size": 8, "adapter_rank": 4}
_PRECONDITIONED = {"g_atk": _decay(0), "beta_atk": _rate(0), "beta": _rate(0)}
_GEMMA = {"num_key_value_heads": 1, "lru_width": 16, "head_dim": 8, "attention_window_size": 16}

CASES = {
    "lstm": Case("torch nn.LSTM", lambda: nn.LSTM(16, 16, batch_first=True)),
    "gru": Case("torch nn.GRU", lambda: nn.GRU(16, 16, batch_first=True)),
    "encoder": Case(
        "torch nn.TransformerEncoderLayer",
        lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
        looks_ahead=True,
    ),
    "mamba_block": Case(
        "mambapy MambaBlock",
        lambda: load("mambapy.mamba:MambaBlock")(load("mambapy.mamba:MambaConfig")(d_model=16, n_layers=1)),
        "MambaPy",
    ),
    "min_gru": Case("minGRU-pytorch minGRU", lambda: load("minGRU_pytorch:minGRU")(16), "MinGRU"),
    "mlstm": Case("xlstm mLSTMLayer", lambda: _xlstm("mLSTM", context_length=1024)),
    "slstm": Case("xlstm sLSTMLayer", lambda: _xlstm("sLSTM", backend="vanilla")),
    "local": Case("local-attention LocalMHA", _local, "LocalCache"),
    "local_normed": Case("local-attention LocalMHA, qk_rmsnorm", lambda: _local(qk_rmsnorm=True), "LocalCache"),
    "rotary": Case("x-transformers Decoder, rotary", lambda: _decoder(rotary_pos_emb=True)),
    "alibi": Case("x-transformers Decoder, ALiBi", lambda: _decoder(alibi_pos_bias=True)),
    "llama": _transformers("Llama", **_HEADS),
    "mamba": _transformers("Mamba", state_size=4),
    "falcon_mamba": _transformers("FalconMamba", state_size=4),
    "mamba2": _transformers("Mamba2", state_size=8, head_dim=8, num_heads=4, n_groups=1, chunk_size=8),
    "jamba": _transformers("Jamba", 2, **_JAMBA, **_HEADS),
    "bamba": _transformers("Bamba", 2, attn_layer_indices=[1], **_HEADS, **_MAMBA_2),
    "lfm2": _transformers("Lfm2", 2, full_attn_idxs=[1], **_HEADS),
    "recurrent_gemma": _transformers("RecurrentGemma", 3, **_HEADS | _GEMMA),
    "qwen3_next": _transformers("Qwen3Next", 2, **_HEADS, **_LAYERS, **_DELTA, **_MOE),
    "qwen3_5": _transformers("Qwen3_5Text", 2, **_HEADS, **_LAYERS, **_DELTA),
    "kimi_linear": _transformers("KimiLinear", 2, **_HEADS, **_LAYERS, **_LATENT, **_ROUTED, **_KIMI),
    "minimax": _transformers("MiniMax", 2, **_HEADS, **_LAYERS, head_dim=8, num_local_experts=4, block_size=8),
    "nemotron_h": _transformers("NemotronH", 3, **_HEADS, **_NEMOTRON),
    "granite_hybrid": _transformers(
        "GraniteMoeHybrid", 2, **_HEADS, **_LAYERS, **_MAMBA_2, num_local_experts=0, shared_intermediate_size=16
    ),
    "falcon_h1": _transformers("FalconH1", **_HEADS, **_MAMBA_2, head_dim=8, mamba_d_ssm=32),
    "rwkv": _transformers("Rwkv", 2, "RwkvState"),
    "zamba2": _transformers("Zamba2", 2, **_HEADS, **_ZAMBA, layers_block_type=["linear_attention", "hybrid"]),
    "fla_linear": _fla("linear_attn/naive.py:naive_recurrent_linear_attn"),
    "fla_simple_gla": _fla("simple_gla/naive.py:naive_recurrent_simple_gla", g=_decay(0)),
    "fla_gla": _fla("gla/naive.py:naive_recurrent_gla", gk=_decay(8)),
    "fla_abc": _fla("abc/naive.py:naive_recurrent_abc", "b h t d", s=_value(4), g=_decay(4)),
    "fla_gsa": _fla("gsa/naive.py:naive_recurrent_gsa", s=_value(4), g=_decay(4)),
    "fla_hgrn": _fla("hgrn/naive.py:naive_recurrent_hgrn", "b t (h d)", x=_value(8), g=_decay(8)),
    "fla_rwkv6": _fla("rwkv6/recurrent_naive.py:naive_recurrent_rwkv6", "b h t d", w=_decay(8)),
    "fla_iplr": _fla("generalized_delta_rule/iplr/naive.py:iplr_recurrence", "b h t d", beta=_direction(8)),
    "fla_dplr": _fla(
        "generalized_delta_rule/dplr/naive.py:dplr_recurrence", "b h t d", beta=_direction(8), gk=_decay(8)
    ),
    "fla_delta_rule": _fla("delta_rule/naive.py:delta_rule_recurrence", "b h t d", beta=_rate(0)),
    "fla_gated_delta_rule": _fla(
        "gated_delta_rule/naive.py:naive_recurrent_gated_delta_rule", g=_decay(0), beta=_rate(0)
    ),
    "fla_gated_delta_product": _fla(
        "gated_delta_product/naive.py:naive_recurrent_gated_delta_product",
        fixed={"num_householder": 2, "scale": None, "cu_seqlens": None},
        g=_decay(0),
        beta=_rate(0),
    ),
    "fla_precond_gated_delta_rule": _fla(
        "precond_gated_delta_rule/naive.py:naive_recurrent_precond_gated_delta_rule", g=_decay(0), **_PRECONDITIONED
    ),
    "fla_kda": _fla("kda/naive.py:naive_recurrent_kda", g=_decay(8), beta=_rate(0)),
    "fla_precond_kda": _fla("precond_kda/naive.py:naive_recurrent_precond_kda", g=_decay(8), **_PRECONDITIONED),
    "fla_gdn2": _fla("gdn2/naive.py:naive_recurrent_gdn2", g=_decay(8), b=_rate(8), w=_rate(8)),
    "fla_comba": _fla("comba/naive.py:naive_recurrent_comba", p=_direction(8), g=_decay(0), beta=_rate(0)),
}

globals().update({name: case.make for name, case in CASES.items()})  # so that `zoo check` finds them in this file


class Remark(NamedTuple):
    """An explanation of failures, and Python lines that show them without this project; empty for none."""

    text: str
    lines: str = ""


REMARKS: Mapping[tuple[str, str], Remark] = {
    (case, name): Remark(" ".join(remark["text"].split()), remark.get("lines", "").strip())
    for remark in tomllib.loads(Path(__file__).with_name("conformance.toml").read_text())["remark"]
    for case in remark["cases"]
    for name in remark["properties"]
}
"""(case, property) -> explanation of the failure."""

INTRODUCTION = """\
# The contract on released packages

`python benchmarks/conformance.py` writes this page. It checks modules of other authors' packages as released:
{packages}, on {machine}.
All have d_model 16, one to three layers, fresh parameters and float32, on a CPU; the packages' CUDA kernels are not
tested. The marks refer to this contract, which a package may never have promised to meet; each ✗ is explained below.
Later versions may differ. `zoo check` does the same for any module; this project's mixers pass the same suite.

For fla, the table covers the recurrent forms in its files `naive.py`, not its chunked and parallel forms, kernels and
layers.

✓ holds, ✗ does not, – does not apply (the module lacks the feature, or its coefficients are not marked).
"""


def run(name: str) -> Report:
    """Check all properties of one module."""
    case = CASES[name]
    adapter = case.adapter and f"{HERE}:{case.adapter}"
    return check(f"{HERE}:{name}", d_model=16, adapter=adapter, looks_ahead=case.looks_ahead)


def _version(package: str) -> str:
    if package != "fla":
        return version(package)
    return subprocess.check_output(["git", "-C", FLA, "rev-parse", "--short", "HEAD"], text=True).strip()


def printed(lines: str) -> str:
    """Run lines of Python in fla's clone; return their output, or the last line of their traceback.

    Raises:
        ValueError: the lines print nothing.
    """
    command = [sys.executable, "-W", "ignore", "-c", lines]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(command, cwd=FLA, env=environment, capture_output=True, text=True, check=False, timeout=300)
    found = ended.stdout.strip() if ended.returncode == 0 else ended.stderr.strip().splitlines()[-1]
    if not found:
        raise ValueError(f"lines that should show a failure printed nothing:\n{lines}")
    return found


def page(found: Mapping[str, Report]) -> Iterator[str]:
    """Yield the lines of docs/conformance.md."""
    packages = dict.fromkeys(title.split()[0] for title in found)
    yield INTRODUCTION.format(
        packages=", ".join(f"{name} {_version(name)}" for name in packages), machine=describe_machine()
    )
    judged = [each for each in properties() if not each.measures]
    for topic in dict.fromkeys(each.topic for each in judged):
        names = [each.name for each in judged if each.topic == topic]
        marks = {
            case: {each.property: MARKS[each.verdict] for each in report.findings} for case, report in found.items()
        }
        rows = [[case, *(marks[case][name] for name in names)] for case in found]
        yield from table([topic, *(f"`{name}`" for name in names)], rows, "l" + "c" * len(names))
        yield ""
    yield "## Each ✗ explained\n"
    yield "The remarks are based on the packages' code. Lines of Python, with their output, show a failure without this"
    yield "project. Each command repeats one check if the package is installed.\n"
    failed = [(title, finding) for title, report in found.items() for finding in report.failed]
    for remark in dict.fromkeys(REMARKS[title, finding.property] for title, finding in failed):
        of_it = [(title, finding) for title, finding in failed if REMARKS[title, finding.property] == remark]
        titles = ", ".join(dict.fromkeys(title for title, _ in of_it))
        yield f"### {titles}: {', '.join(dict.fromkeys(f'`{finding.property}`' for _, finding in of_it))}\n"
        yield f"{remark.text}\n"
        if remark.lines:
            yield f"```py\n{remark.lines}\n```\n\n```text\n{printed(remark.lines)}\n```\n"
        for _, finding in of_it:
            yield f"- {finding.detail.replace(f'{FLA}/', '')}.\n\n      {finding.reproduce}"
        yield ""
    yield "## Further measurements\n"
    rows = []
    for title, report in found.items():
        # Cut the description before the colon, and the time in costs, which other work on the machine disturbs.
        details = {each.property: each.detail.partition(": ")[2] or each.detail for each in report.findings}
        rows.append([title, details["gradient_decay"], details["costs"].partition(", ")[2], details["state_size"]])
    yield from table(("module", "gradient against distance", "memory", "state"), rows)


def main() -> int:
    """Check, print, and write the page if every failure has a remark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], choices=CASES, metavar="NAME", help="names of cases")
    only = parser.parse_args().only
    os.chdir(ROOT)  # commands on the page are relative to it
    warnings.simplefilter("ignore")
    found = {}
    for name in only or CASES:
        found[CASES[name].title] = report = run(name)
        print(f"{CASES[name].title}: {report.setting['protocol']}", flush=True)
        for finding in report.failed:
            print(f"  {finding.property}: {finding.detail}\n    {finding.reproduce}", flush=True)
    if only:
        return 0
    failed = [(title, finding.property) for title, report in found.items() for finding in report.failed]
    if silent := [key for key in failed if key not in REMARKS]:
        print(f"nothing is written: no remark for {silent}", file=sys.stderr)
        return 1
    write_atomically(PAGE, "\n".join(page(found)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
