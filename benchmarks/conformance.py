"""Check released packages of others against the contract: docs/conformance.md, a table of packages × properties.

    pip install mambapy x-transformers minGRU-pytorch xlstm local-attention transformers
    python benchmarks/conformance.py                # all; --only NAME prints some and writes nothing

Every failure is run again in a process of its own from the lines of the finding. It is printed only together with a
remark in conformance.toml, which a person wrote after reading the code; a failure without a remark stops the script.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import textwrap
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.check import Adapter, Report, check, properties
from zoo.report.files import write_atomically
from zoo.report.machine import describe_machine
from zoo.report.markdown import table

PAGE = Path(__file__).parent.parent / "docs" / "conformance.md"
D_MODEL = 16


class MinGRU(Adapter):
    """Stream minGRU-pytorch: it takes the hidden state and returns it on request."""

    name = "return_next_prev_hidden"
    streams = True
    whole_line = "module(x)"
    chunk_lines = ("y, state = module(x, state, return_next_prev_hidden=True)",)

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return module(x, state, return_next_prev_hidden=True)


class MambaPy(Adapter):
    """Stream mambapy's block: `step` takes (h, inputs), which begin as None and zeros."""

    name = "step(x_t, (h, inputs))"
    streams, longest = True, 1
    whole_line = "module(x)"
    chunk_lines = (
        "c = module.config",
        "state = (None, x.new_zeros(len(x), c.d_inner, c.d_conv - 1)) if state is None else state",
        "y, state = module.step(x[:, 0], state)",
        "y = y.unsqueeze(1)",
    )

    def chunk(self, module: Any, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        c = module.config
        y, state = module.step(x[:, 0], state or (None, x.new_zeros(len(x), c.d_inner, c.d_conv - 1)))
        return y.unsqueeze(1), state


class LocalCache(Adapter):
    """Stream local-attention: `return_cache` gives keys and values, `cache` takes them back for one position."""

    name = "cache and return_cache"
    streams, longest = True, 1
    whole_line = "module(x)"
    chunk_lines = ("y, state = module(x, cache=state, return_cache=True)",)

    def chunk(self, module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return module(x, cache=state, return_cache=True)


@dataclass(frozen=True)
class Case:
    """A module of a package.

    Attributes:
        package: its name on the package index.
        name: its name in the table.
        lines: Python that makes `module`.
        adapter: how to stream it, where the checks cannot find that out.
        looks_ahead: whether it is an encoder.
    """

    package: str
    name: str
    lines: str
    adapter: Adapter | None = None
    looks_ahead: bool = False

    def make(self) -> nn.Module:
        space: dict[str, Any] = {}
        exec(self.lines, space)
        return space["module"]


def _model(name: str, **config: Any) -> str:
    arguments = "".join(f", {key}={value!r}" for key, value in config.items())
    return (
        f"from transformers import {name}Config, {name}Model\n"
        f"module = {name}Model({name}Config(hidden_size=16, vocab_size=8{arguments}))"
    )


_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32}
_MAMBA_2 = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}

CASES = (
    Case("torch", "nn.LSTM", "from torch import nn\nmodule = nn.LSTM(16, 16, batch_first=True)"),
    Case("torch", "nn.GRU", "from torch import nn\nmodule = nn.GRU(16, 16, batch_first=True)"),
    Case(
        "torch",
        "nn.TransformerEncoderLayer",
        "from torch import nn\nmodule = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)",
        looks_ahead=True,
    ),
    Case(
        "mambapy",
        "MambaBlock",
        "from mambapy.mamba import MambaBlock, MambaConfig\nmodule = MambaBlock(MambaConfig(d_model=16, n_layers=1))",
        MambaPy(),
    ),
    Case("minGRU-pytorch", "minGRU", "from minGRU_pytorch import minGRU\nmodule = minGRU(16)", MinGRU()),
    Case(
        "xlstm",
        "mLSTMLayer",
        "from xlstm.blocks.mlstm.layer import mLSTMLayer, mLSTMLayerConfig\n"
        "module = mLSTMLayer(mLSTMLayerConfig(embedding_dim=16, context_length=1024, num_heads=2))",
    ),
    Case(
        "xlstm",
        "sLSTMLayer",
        "from xlstm.blocks.slstm.layer import sLSTMLayer, sLSTMLayerConfig\n"
        'module = sLSTMLayer(sLSTMLayerConfig(embedding_dim=16, num_heads=2, backend="vanilla"))',
    ),
    Case(
        "local-attention",
        "LocalMHA",
        "from local_attention import LocalMHA\n"
        "module = LocalMHA(dim=16, window_size=8, causal=True, heads=2, dim_head=8)",
        LocalCache(),
    ),
    Case(
        "local-attention",
        "LocalMHA, qk_rmsnorm",
        "from local_attention import LocalMHA\n"
        "module = LocalMHA(dim=16, window_size=8, causal=True, heads=2, dim_head=8, qk_rmsnorm=True)",
        LocalCache(),
    ),
    Case(
        "x-transformers",
        "Decoder, rotary",
        "from x_transformers import Decoder\n"
        "module = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, rotary_pos_emb=True)",
    ),
    Case(
        "x-transformers",
        "Decoder, ALiBi",
        "from x_transformers import Decoder\n"
        "module = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, alibi_pos_bias=True)",
    ),
    Case("transformers", "Llama", _model("Llama", num_hidden_layers=1, **_HEADS)),
    Case("transformers", "Mamba", _model("Mamba", num_hidden_layers=1, state_size=4)),
    Case("transformers", "FalconMamba", _model("FalconMamba", num_hidden_layers=1, state_size=4)),
    Case(
        "transformers",
        "Mamba2",
        _model("Mamba2", num_hidden_layers=1, state_size=8, head_dim=8, num_heads=4, n_groups=1, chunk_size=8),
    ),
    Case(
        "transformers",
        "Jamba",
        _model(
            "Jamba",
            num_hidden_layers=2,
            attn_layer_period=2,
            attn_layer_offset=1,
            num_experts=2,
            mamba_d_state=4,
            mamba_dt_rank=2,
            **_HEADS,
        ),
    ),
    Case(
        "transformers",
        "Bamba",
        _model("Bamba", num_hidden_layers=2, attn_layer_indices=[1], **_HEADS, **_MAMBA_2),
    ),
    Case("transformers", "Lfm2", _model("Lfm2", num_hidden_layers=2, full_attn_idxs=[1], **_HEADS)),
    Case(
        "transformers",
        "RecurrentGemma",
        _model(
            "RecurrentGemma",
            num_hidden_layers=3,
            intermediate_size=32,
            num_attention_heads=2,
            num_key_value_heads=1,
            lru_width=16,
            head_dim=8,
            attention_window_size=16,
        ),
    ),
)

REMARKS: Mapping[tuple[str, str], str] = {
    (case, name): " ".join(remark["text"].split())
    for remark in tomllib.loads(Path(__file__).with_name("conformance.toml").read_text())["remark"]
    for case in remark["cases"]
    for name in remark["properties"]
}
"""(case, property) -> what it is, by somebody who ran the lines and read the code."""

INTRODUCTION = """\
Written by `python benchmarks/conformance.py`, which checks modules of other authors' packages, as they are released:
{packages}, on {machine}.
All have d_model 16, one to three layers, fresh parameters and float32, on a CPU without the packages' CUDA kernels: the
marks say nothing about those. A mark is about this contract, and a package may never have promised what the contract
asks for; each ✗ is explained below. Findings are about the versions above; later ones may differ.
`zoo check` does the same for any module; this project's own mixers pass the same suite.

✓ holds, ✗ does not, – does not apply (the module has no such thing, or nobody marked its coefficients).
"""

MARKS = {"passed": "✓", "failed": "✗", "not_applicable": "–"}


def run(case: Case) -> Report:
    """Check all properties of one module."""
    source = ["torch.manual_seed(0)", *case.lines.splitlines()]
    return check(
        case.make,
        d_model=D_MODEL,
        adapter=case.adapter,
        source=source,
        looks_ahead=case.looks_ahead,
        name=f"{case.package}: {case.name}",
    )


def reproduce(script: str) -> str:
    """Run the lines of a finding in a process of their own; return what they print, or the last line of their error."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        said = done.stdout.strip().splitlines()
        return said[-1][:300] if said else ""
    raised = [line for line in done.stderr.splitlines() if line.partition(":")[0].rpartition(".")[2].endswith("Error")]
    return (raised or done.stderr.strip().splitlines() or [""])[-1][:300]


def page(found: Mapping[Case, Report], printed: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Yield the lines of docs/conformance.md."""
    packages = dict.fromkeys(case.package for case in found)
    yield "# The contract on released packages\n"
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    yield INTRODUCTION.format(packages=versions, machine=describe_machine())
    subjects = dict.fromkeys(p.subject for p in properties() if not p.measures)
    for subject in subjects:
        names = [p.name for p in properties() if p.subject == subject and not p.measures]
        rows = []
        for case, report in found.items():
            verdicts = {f.property: MARKS[f.verdict] for f in report.findings}
            rows.append([f"{case.package} {case.name}", *(verdicts[name] for name in names)])
        yield from table([subject, *(f"`{name}`" for name in names)], rows, "l" + "c" * len(names))
        yield ""
    yield "## Each ✗ explained\n"
    yield (
        "The lines of each finding were run again in a process of their own, whose output is quoted; "
        "then the code was read.\n"
    )
    for case, report in found.items():
        for finding in report.failed:
            key = case.name, finding.property
            yield f"### {case.package} {case.name}: `{finding.property}`\n\n{REMARKS[key]}\n"
            yield f"Found: {finding.detail}.\nThe lines print: `{printed[key]}`\n"
            yield textwrap.indent(finding.reproduce.rstrip(), "    ") + "\n"
    yield "## Further measurements\n"
    rows = []
    for case, report in found.items():
        # A detail begins with what was done.
        details = {f.property: f.detail.partition(": ")[2] or f.detail for f in report.findings}
        details["costs"] = details["costs"].partition(", ")[2]  # time is not measured on a machine that others use
        cells = (details[name] for name in ("gradient_decay", "costs", "state_size"))
        rows.append([f"{case.package} {case.name}", *cells])
    yield from table(("module", "gradient against distance", "memory", "state"), rows)


def main() -> int:
    """Check, print, and write the page if every failure has a remark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=[], choices=[case.name for case in CASES], metavar="NAME", help="names of cases"
    )
    chosen = [case for case in CASES if case.name in (only := parser.parse_args().only) or not only]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found, printed, silent = {}, {}, []
    for case in chosen:
        found[case] = run(case)
        print(f"{case.package} {case.name}: {found[case].setting['protocol']}", flush=True)
        for finding in found[case].failed:
            key = (case.name, finding.property)
            printed[key] = reproduce(finding.reproduce)
            print(f"  {finding.property}: {finding.detail}\n    again: {printed[key]}", flush=True)
            if key not in REMARKS:
                silent.append(key)
    if only:
        return 0
    if silent:
        print(f"nothing is written: no remark for {silent}", file=sys.stderr)
        return 1
    write_atomically(PAGE, "\n".join(page(found, printed)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
