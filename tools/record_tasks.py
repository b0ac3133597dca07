"""Draw from the published generators of the tasks and record histograms of the examples for tests/upstream/tasks.

    python tools/record_tasks.py CHECKOUTS [NAME ...]

CHECKOUTS holds a clone of each repository in `SOURCES`, under its key and at its commit. Install pydantic and pandas
(imported by zoology), pythomata (seq_icl), jax and chex (neural_networks_chomsky_hierarchy). The clones are imported;
empty modules replace packages that they import and do not need here.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.task_summaries import IGNORED, ROWS, SUMMARIES, USUAL_ROWS, counts, is_answerable  # noqa: E402

RECORDS = ROOT / "tests" / "upstream" / "tasks" / "records"
SOURCES = {
    "zoology": ("HazyResearch/zoology", "d88d6f5474f36998d82d5c3bd58a190248d0a669"),
    "mad-lab": ("athms/mad-lab", "0f49a452b84ca0d13f8eb9c1ffa649032376fb1b"),
    "s4": ("state-spaces/s4", "e757cef57d89e448c413de7325ed5601aceaac13"),
    "seq_icl": ("berlino/seq_icl", "9b9223d15348b5a415fb453ed988ed5f7ab9fbdc"),
    "in-context-learning": ("dtsip/in-context-learning", "338337192195827c58356f9b627e5f999ea703d2"),
    "neural_networks_chomsky_hierarchy": (
        "google-deepmind/neural_networks_chomsky_hierarchy",
        "2b8eb4bee872acf5b637fcc672f01c06939dc4ef",
    ),
}
SEED = 2026

Examples = tuple[np.ndarray, np.ndarray]
Draw = Callable[[types.ModuleType, int], Examples]
"""The upstream module and a number of rows to inputs and labels."""


def stand_in(name: str, **attributes: Any) -> None:
    """Put an empty module under this name, unless there is one."""
    module = sys.modules.setdefault(name, types.ModuleType(name))
    for attribute, value in attributes.items():
        setattr(module, attribute, value)


def load(file: Path, name: str) -> types.ModuleType:
    """Import a file as a module, without the packages around it."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def upstream_module(checkouts: Path, repository: str, file: str) -> types.ModuleType:
    """Import a file of a clone."""
    folder = checkouts / repository
    if repository == "zoology":
        stand_in("wandb")
        sys.path.insert(0, str(folder))
        return importlib.import_module(file.removesuffix(".py").replace("/", "."))
    if repository == "s4":
        for package in ("src", "src.dataloaders", "src.dataloaders.utils"):
            stand_in(package)
        stand_in("src.utils", distributed=None)
        load(folder / "src/dataloaders/utils/signal.py", "src.dataloaders.utils.signal")
    if repository == "seq_icl":
        for package in ("src", "src.dataloaders"):
            stand_in(package)
        stand_in("src.dataloaders.base", SequenceDataset=object)
    if repository == "neural_networks_chomsky_hierarchy":
        sys.path.insert(0, str(checkouts))
        return importlib.import_module(f"{repository}.{file.removesuffix('.py').replace('/', '.')}")
    if repository == "in-context-learning":
        sys.path.insert(0, str(folder / "src"))
    return load(folder / file, f"upstream_{Path(file).stem}")


def by_zoology(function: str, **options: Any) -> Draw:
    """Return the draw of a function that makes a whole segment."""

    def draw(module: types.ModuleType, rows: int) -> Examples:
        torch.manual_seed(SEED)
        segment = getattr(module, function)(num_examples=rows, seed=SEED, **options)
        return segment.inputs.numpy(), segment.labels.numpy()

    return draw


def by_mad(function: str, is_training: bool = False, **options: Any) -> Draw:
    """Return the draw of a function that makes one example."""

    def draw(module: types.ModuleType, rows: int) -> Examples:
        np.random.seed(SEED)  # noqa: NPY002 (selective copying draws its gaps from the global generator)
        rng = np.random.default_rng(SEED)
        generate = getattr(module, function)
        made = [generate(rng=rng, is_training=is_training, **options) for _ in range(rows)]
        return np.stack([inputs for inputs, _ in made]), np.stack([labels for _, labels in made])

    return draw


def by_s4(function: Callable[[types.ModuleType, int], tuple[torch.Tensor, torch.Tensor]]) -> Draw:
    """Return the draw of a function of module and rows that uses the global generators."""

    def draw(module: types.ModuleType, rows: int) -> Examples:
        torch.manual_seed(SEED)
        np.random.seed(SEED)  # noqa: NPY002 (its signals come from the global generator)
        inputs, labels = function(module, rows)
        return inputs.numpy(), labels.numpy()

    return draw


def _copying(module: types.ModuleType, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """10 tokens of an alphabet of 10, 100 blanks; its labels are those of the last 10 positions."""
    inputs, answers = module.torch_copying_data(100, 10, 10, batch_shape=(rows,))
    labels = torch.full_like(inputs, IGNORED)
    labels[:, -10:] = answers
    return inputs, labels


def _adding(module: types.ModuleType, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, sums = module.torch_adding_data(1000, batch_shape=(rows,))
    return inputs, sums[:, 0]


def _delay(module: types.ModuleType, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = module.DelayEvalDataset(rows, l_seq=4000, n_lag=1, l_lag=1000, dt=0.00025, freq=1000.0).tensors
    return inputs[:, :, 0], labels[:, :, 0]


def by_chomsky(task: str, length: int) -> Draw:
    """Return the draw of tokens (rows, length) and one answer each, (rows,)."""

    def draw(module: types.ModuleType, rows: int) -> Examples:
        batch = getattr(module, task)().sample_batch(module.jrandom.PRNGKey(SEED), rows, length)
        return np.asarray(batch["input"]).argmax(axis=-1), np.asarray(batch["output"]).argmax(axis=-1)

    return draw


def _regression(module: types.ModuleType, rows: int) -> Examples:
    """41 vectors of 20 dimensions, and what their functions give."""
    torch.manual_seed(SEED)
    sampler = importlib.import_module("samplers").get_data_sampler("gaussian", n_dims=20)
    x = sampler.sample_xs(41, rows)
    y = module.get_task_sampler("linear_regression", 20, rows)().evaluate(x)
    return x.numpy(), y.numpy()


def _stacked(module: types.ModuleType, rows: int) -> Examples:
    """64 keys and 64 values that are their own numbers, 1 ... 64 and 65 ... 128; two passes over 16 pairs."""
    numbers = torch.arange(1.0, 129.0)[:, None]
    segment = module.continuous_mqar(rows, num_kv_pairs=16, num_passes=2, embeddings=numbers, seed=SEED)
    inputs = segment.inputs.numpy().astype(int)
    labels = np.full(inputs.shape[:2], IGNORED)
    labels[:, 32:] = segment.labels.numpy()
    return inputs - [1, 65], labels


def _automata(module: types.ModuleType, rows: int) -> Examples:
    """Many words of each automaton, cut at 256; those labels that our task keeps, by their automaton's own edges."""
    drawn = module.ICLDFADataModule(
        num_examples=rows + rows // 4,
        num_test_examples=4,
        vocab_size=20,
        max_num_nodes=12,
        max_num_in_context_examples=61,
        min_num_in_context_examples=60,
        max_outgoing_edges=4,
        max_len_per_example=50,
        seed=SEED,
    )
    drawn.setup()
    data = drawn.dataset["train"]
    tokens = data.inputs.numpy()[:, :257] - 1  # their 0 is the padding, which does not come so early
    labels = np.full((len(tokens), 256), IGNORED)
    for row, (word_by_word, automaton) in enumerate(zip(tokens.tolist(), data.dfas, strict=True)):
        edges = automaton.dfa.transition_function
        state, read, seen = automaton.dfa.initial_state, (), set()
        for place, token in enumerate(word_by_word):
            if token == 18:
                state, read = automaton.dfa.initial_state, ()
                continue
            onward, read = edges[state], (*read, token)
            if place and len(onward) == 1 and read in seen:
                labels[row, place - 1] = token
            seen.add(read)
            state = onward[chr(97 + token)]
    kept = (labels != IGNORED).any(axis=1)
    return tokens[kept][:rows, :-1], labels[kept][:rows]


MAD_FILE = "mad/data/instances.py"
MQAR_FILE = "zoology/data/multiquery_ar.py"
CHOMSKY = "neural_networks_chomsky_hierarchy"
BASIC = {"vocab_size": 256, "input_seq_len": 64}
FIGURE_2 = {"vocab_size": 8192, "input_seq_len": 512, "num_kv_pairs": 64, "random_non_queries": False}
RECALL = {"vocab_size": 16, "seq_len": 128, "multi_query": True, "noise_vocab_size": 0}
NOISY = RECALL | {"vocab_size": 32, "noise_vocab_size": 16, "frac_noise": 0.2}
FUZZY = RECALL | {"k_motif_size": 3, "v_motif_size": 3}

GENERATORS: dict[str, tuple[str, str, Draw]] = {
    "mqar-basic": ("zoology", MQAR_FILE, by_zoology("multiquery_ar", num_kv_pairs=4, **BASIC)),
    "mqar-figure2": ("zoology", MQAR_FILE, by_zoology("multiquery_ar", **FIGURE_2)),
    "forgetting": (
        "zoology",
        "zoology/data/forgetting_mqar.py",
        by_zoology("forgetting_mqar", num_kv_pairs=8, num_updates=4, **BASIC),
    ),
    "compositional": (
        "zoology",
        "zoology/data/compositional_mqar.py",
        by_zoology("compositional_mqar", num_kv_pairs=4, **BASIC),
    ),
    "in_context_recall": ("mad-lab", MAD_FILE, by_mad("generate_in_context_recall_instance", **RECALL)),
    "noisy_recall": ("mad-lab", MAD_FILE, by_mad("generate_noisy_in_context_recall_instance", **NOISY)),
    "fuzzy_recall": ("mad-lab", MAD_FILE, by_mad("generate_fuzzy_in_context_recall_instance", **FUZZY)),
    "fuzzy_recall-train": (
        "mad-lab",
        MAD_FILE,
        by_mad("generate_fuzzy_in_context_recall_instance", is_training=True, **FUZZY),
    ),
    "memorization": ("mad-lab", MAD_FILE, by_mad("generate_memorization_instance", vocab_size=256, seq_len=32)),
    "compression": ("mad-lab", MAD_FILE, by_mad("generate_compression_instance", vocab_size=16, seq_len=32)),
    "selective_copying": (
        "mad-lab",
        MAD_FILE,
        by_mad("generate_selective_copying_instance", vocab_size=16, seq_len=256, num_tokens_to_copy=16),
    ),
    "copying": ("s4", "src/dataloaders/datasets/copying.py", by_s4(_copying)),
    "adding": ("s4", "src/dataloaders/datasets/adding.py", by_s4(_adding)),
    "delay": ("s4", "src/dataloaders/datasets/delay.py", by_s4(_delay)),
    "even_pairs": (CHOMSKY, "tasks/regular/even_pairs.py", by_chomsky("EvenPairs", 40)),
    "cycle_navigation": (CHOMSKY, "tasks/regular/cycle_navigation.py", by_chomsky("CycleNavigation", 40)),
    "modular_arithmetic": (CHOMSKY, "tasks/regular/modular_arithmetic.py", by_chomsky("ModularArithmetic", 40)),
    "in_context_regression": ("in-context-learning", "src/tasks.py", _regression),
    "stacked_mqar": ("zoology", "zoology/data/stacked_mqar.py", _stacked),
    "automata": ("seq_icl", "src/dataloaders/dfa.py", _automata),
}


def record(name: str, checkouts: Path) -> dict[str, Any]:
    """Return the record of one generator."""
    repository, file, draw = GENERATORS[name]
    rows = ROWS.get(name, USUAL_ROWS)
    with contextlib.redirect_stdout(io.StringIO()):
        inputs, labels = draw(upstream_module(checkouts, repository, file), rows)
    made = len(inputs)
    found: dict[str, Any] = {}
    if name.startswith("fuzzy"):
        padding = 15
        found["padding of all"] = counts((inputs == padding).sum(axis=1))
        kept = is_answerable(inputs, 7, padding)
        inputs, labels = inputs[kept], labels[kept]
    address, commit = SOURCES[repository]
    about = {"repository": address, "commit": commit, "file": file, "seed": SEED, "rows": made}
    found |= {what: counts(numbers) for what, numbers in SUMMARIES[name](inputs, labels).items()}
    record = {"about": about, "rows that ask for what they never showed": made - len(inputs), "counts": found}
    if labels.dtype.kind == "i":
        share = np.unique(labels[labels != IGNORED], return_counts=True)[1] / (labels != IGNORED).sum()
        # What the best constant guess scores: MAD's accuracy averages over the classes that there are.
        record["constant guess"] = {"micro": round(float(share.max()), 8), "macro": round(1 / len(share), 8)}
    return record


def main() -> None:
    """Record the generators that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(GENERATORS)}; all when absent")
    arguments = parser.parse_args()
    for name in arguments.names or GENERATORS:
        text = json.dumps(record(name, arguments.checkouts), separators=(",", ":"))
        RECORDS.mkdir(exist_ok=True)
        (RECORDS / f"{name}.json").write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")
        sys.stdout.write(f"{name}: {len(text)} bytes\n")


if __name__ == "__main__":
    main()
