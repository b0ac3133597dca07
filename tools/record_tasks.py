"""Draw examples from the published generators of the tasks, and record their histograms for tests/upstream/tasks.

    python -m tools.record_tasks CHECKOUTS [NAME ...]

CHECKOUTS contains a clone of each repository in `SOURCES`, named by its key and at its commit. Install pydantic and
pandas (for zoology), pythomata (seq_icl), jax and chex (neural_networks_chomsky_hierarchy). The clones are imported;
empty modules replace packages that they import but that are not needed here.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import itertools
import json
import random
import re
import sys
import types
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tools.task_summaries import IGNORED, ROWS, SUMMARIES, USUAL_ROWS, counts, is_answerable

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "tests" / "upstream" / "tasks" / "records"
SOURCES = {
    "zoology": ("HazyResearch/zoology", "d88d6f5474f36998d82d5c3bd58a190248d0a669"),
    "mad-lab": ("athms/mad-lab", "0f49a452b84ca0d13f8eb9c1ffa649032376fb1b"),
    "s4": ("state-spaces/s4", "e757cef57d89e448c413de7325ed5601aceaac13"),
    "seq_icl": ("berlino/seq_icl", "9b9223d15348b5a415fb453ed988ed5f7ab9fbdc"),
    "in-context-learning": ("dtsip/in-context-learning", "338337192195827c58356f9b627e5f999ea703d2"),
    "PhysicsLM4": ("facebookresearch/PhysicsLM4", "75806965208c55e9f7f2e2363d3793d2da75d2e4"),
    "selectivbench": ("symseqbench/selectivbench", "54609fb00a9036b975e54d7f93e7c112cb7140f7"),
    "neural_networks_chomsky_hierarchy": (
        "google-deepmind/neural_networks_chomsky_hierarchy",
        "2b8eb4bee872acf5b637fcc672f01c06939dc4ef",
    ),
}
SEED = 2026

Examples = tuple[np.ndarray, np.ndarray]
Draw = Callable[[types.ModuleType, int], Examples]
"""Function of the upstream module and a number of rows; returns inputs and labels."""


def stand_in(name: str, **attributes: Any) -> None:
    """Register an empty module under this name unless it exists, and set attributes on it."""
    module = sys.modules.setdefault(name, types.ModuleType(name))
    for attribute, value in attributes.items():
        setattr(module, attribute, value)


def load(file: Path, name: str) -> types.ModuleType:
    """Import a file as a module, without the packages around it."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # PhysicsLM4's files use these names without importing them.
    vars(module).update(random=random, deque=deque, defaultdict=defaultdict)
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
    if repository == "selectivbench":
        stand_in("symseqbench.seqbench.dataset.shd_ssc", SpikingDataset=None, SpeechCommands=None)
        stand_in("symseqbench.symseq.markov_chain", MarkovChain=None)
        stand_in("symseqbench.symseq.utils.metrics")
        sys.path.insert(0, str(folder))
        return importlib.import_module(file.removesuffix(".py").replace("/", "."))
    if repository == "neural_networks_chomsky_hierarchy":
        sys.path.insert(0, str(checkouts))
        return importlib.import_module(f"{repository}.{file.removesuffix('.py').replace('/', '.')}")
    if repository == "PhysicsLM4":
        stand_in("xlsxwriter")
    if repository == "in-context-learning":
        sys.path.insert(0, str(folder / "src"))
    return load(folder / file, f"upstream_{Path(file).stem}")


def by_zoology(function: str, **options: Any) -> Draw:
    """Return the `Draw` of a function of zoology, which generates all examples at once."""

    def draw(module: types.ModuleType, rows: int) -> Examples:
        torch.manual_seed(SEED)
        segment = getattr(module, function)(num_examples=rows, seed=SEED, **options)
        return segment.inputs.numpy(), segment.labels.numpy()

    return draw


def by_mad(function: str, is_training: bool = False, **options: Any) -> Draw:
    """Return the `Draw` of a function of MAD, which generates one example per call."""

    def draw(module: types.ModuleType, rows: int) -> Examples:
        np.random.seed(SEED)  # noqa: NPY002 (selective copying draws its gaps from the global generator)
        rng = np.random.default_rng(SEED)
        generate = getattr(module, function)
        made = [generate(rng=rng, is_training=is_training, **options) for _ in range(rows)]
        return np.stack([inputs for inputs, _ in made]), np.stack([labels for _, labels in made])

    return draw


def by_s4(function: Callable[[types.ModuleType, int], tuple[torch.Tensor, torch.Tensor]]) -> Draw:
    """Return the `Draw` of a function of module and rows that uses global random generators."""

    def draw(module: types.ModuleType, rows: int) -> Examples:
        torch.manual_seed(SEED)
        np.random.seed(SEED)  # noqa: NPY002 (signals are drawn from the global generator)
        inputs, labels = function(module, rows)
        return inputs.numpy(), labels.numpy()

    return draw


def _copying(module: types.ModuleType, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw 10 tokens of an alphabet of 10, and 100 blanks; the last 10 positions have labels."""
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
    """Return the `Draw` of a task of neural_networks_chomsky_hierarchy: tokens (rows, length) and answers (rows,)."""

    def draw(module: types.ModuleType, rows: int) -> Examples:
        batch = getattr(module, task)().sample_batch(module.jrandom.PRNGKey(SEED), rows, length)
        return np.asarray(batch["input"]).argmax(axis=-1), np.asarray(batch["output"]).argmax(axis=-1)

    return draw


def _regression(module: types.ModuleType, rows: int) -> Examples:
    """Draw 41 vectors of 20 dimensions, and the values of a linear function."""
    torch.manual_seed(SEED)
    sampler = importlib.import_module("samplers").get_data_sampler("gaussian", n_dims=20)
    x = sampler.sample_xs(41, rows)
    y = module.get_task_sampler("linear_regression", 20, rows)().evaluate(x)
    return x.numpy(), y.numpy()


def _stacked(module: types.ModuleType, rows: int) -> Examples:
    """Draw two passes over 16 pairs; the embeddings of 64 keys and 64 values are their indices, from 1 to 128."""
    numbers = torch.arange(1.0, 129.0)[:, None]
    segment = module.continuous_mqar(rows, num_kv_pairs=16, num_passes=2, embeddings=numbers, seed=SEED)
    inputs = segment.inputs.numpy().astype(int)
    labels = np.full(inputs.shape[:2], IGNORED)
    labels[:, 32:] = segment.labels.numpy()
    return inputs - [1, 65], labels


def _automata(module: types.ModuleType, rows: int) -> Examples:
    """Draw words of an automaton per row, cut at 256, with the labels that our task has too, from upstream's edges."""
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
    tokens = data.inputs.numpy()[:, :257] - 1  # upstream's 0 is padding, which occurs only later
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
LANO_FILE = "data-synthetic-pretrain/Lano-cfg/data_cfg.py"
SELECTIVBENCH_FILE = "symseqbench/seqbench/seq_dataset.py"
MQAR_FILE = "zoology/data/multiquery_ar.py"
CHOMSKY = "neural_networks_chomsky_hierarchy"
BASIC = {"vocab_size": 256, "input_seq_len": 64}
FIGURE_2 = {"vocab_size": 8192, "input_seq_len": 512, "num_kv_pairs": 64, "random_non_queries": False}
RECALL = {"vocab_size": 16, "seq_len": 128, "multi_query": True, "noise_vocab_size": 0}
NOISY = RECALL | {"vocab_size": 32, "noise_vocab_size": 16, "frac_noise": 0.2}
FUZZY = RECALL | {"k_motif_size": 3, "v_motif_size": 3}


def _brevo(module: types.ModuleType, rows: int) -> Examples:
    """Draw graphs of up to 70 nodes, without the end token, with upstream's training labels."""
    vars(module)["rng"], most = random.Random(SEED), 70
    inputs = np.full((rows, 9 * (most - 2)), most + 2)
    labels = np.full(inputs.shape, IGNORED)
    for row in range(rows):
        drawn = module.topsort_data(N=most)
        tokens = [{9997: most, 9998: most + 1}.get(token, token - 1) for token in drawn[0][1:-1]]
        inputs[row, -len(tokens) + 1 :] = tokens[:-1]
        asked = np.array(drawn["label"][1:-2]) == 1
        labels[row, -len(tokens) + 1 :][asked] = np.array(tokens[1:])[asked]
    return inputs, labels


def lano_sentences(module: types.ModuleType, grammar: str, rows: int) -> tuple[Any, list[list[int]]]:
    """Return upstream's grammar, and sentences of the terminals 1, 2 and 3."""
    file = Path(str(module.__file__)).with_name("configs") / f"{grammar}.json"
    found, rng = module.CFG_Config.from_graph(file), random.Random(SEED)
    return found, [found.generate_onedata_pure(rng) for _ in range(rows)]


def _lano(module: types.ModuleType, rows: int, grammar: str) -> Examples:
    """Draw one sentence per row, with the token that our task puts before and after it."""
    _, sentences = lano_sentences(module, grammar, rows)
    inputs = np.full((rows, max(map(len, sentences)) + 2), 3)
    for row, sentence in zip(inputs, sentences, strict=True):
        row[1 : len(sentence) + 1] = np.array(sentence) - 1
    labels = np.full_like(inputs, IGNORED)
    labels[:, :-1] = inputs[:, 1:]
    return inputs, labels


def lano_extras(module: types.ModuleType, grammar: str) -> dict[str, Any]:
    """Return the grammar's rules, and next-token distributions (# first) along the shortest of 64 sentences."""
    found, sentences = lano_sentences(module, grammar, 64)
    shortest = min(sentences, key=len)
    laws, _ = found.solve_dp_prob_highprecision(shortest, debug=False)
    rules = [[symbol.children for symbol in level] for level in found.all[:-1]]
    return {"rules": rules, "sentence": shortest, "next token": np.round(laws, 6).tolist()}


CAPO_SENTENCES = ("birthmonth", "birthcity", "university", "field", "company1name")
"""The first field of each sentence of a biography; our task has no sentence about the employer's city."""


def capo_sizes(module: types.ModuleType) -> dict[str, int]:
    """Return the number of values of each field, from upstream's lists, or from the paper for the date of birth."""
    fields = Path(str(module.__file__)).with_name("fields")

    def listed(file: str) -> int:
        return sum(bool(line.strip()) for line in (fields / f"{file}.txt").read_text(encoding="utf-8").splitlines())

    names = {f"{name}_name": listed(f"{name}_name") for name in ("first", "middle", "last")}
    birth = {"birthmonth": 12, "birthday": 28, "birthyear": 200, "birthcity": listed("city")}
    return (
        names | birth | {name: listed(name) for name in ("university", "field")} | {"company1name": listed("company")}
    )


def _capo(module: types.ModuleType, rows: int) -> Examples:
    """Draw people, and put them into upstream's sentences; their words are replaced by one -1 per sentence."""
    random.seed(SEED)
    sizes = capo_sizes(module)
    inputs, labels = np.empty((rows, 15), dtype=np.int64), np.full((rows, 15), IGNORED)
    for row in range(rows):
        person = {name: f"<{name}:{random.randrange(size)}>" for name, size in sizes.items()}
        text = module.get_text_simple3(person | {"id": row, "company1city": ""})
        found = [(name, int(value)) for name, value in re.findall(r"<(\w+):(\d+)>", text)]
        tokens = [token for name, value in found for token in ([-1] if name in CAPO_SENTENCES else []) + [value]]
        facts = [place for place, token in enumerate(tokens) if token >= 0 and place > 2]
        inputs[row], labels[row, np.array(facts) - 1] = tokens, np.array(tokens)[facts]
    return inputs, labels


def _selectivbench(module: types.ModuleType, rows: int, longest_gap: float, **gaps: Any) -> Examples:
    """Draw 64 positions over 8 letters with 4 states each; a position is a time step of 0.1.

    Each row has a new grammar; grammars whose initial states share a letter are skipped.
    """
    utils, n_symbols, n_states = importlib.import_module("symseqbench.seqbench.utils"), 8, 4
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    for seed in itertools.count(1):
        if len(kept) == rows:
            break
        grammar = {"alphabet_size": n_symbols + 1, "ambiguities": n_symbols, "ambiguity_depth": n_states}
        config = {
            "gramm": grammar | {"initial_states": 4, "transition_density": 0.4},
            "vocab_size": n_symbols + 1,
            "seq_len_min": 1,
            "seq_len_max": 200,
            "combine_sequences": True,
            "combined_seq_length": 64,
            "duration": {"dist": "uniform", "params": {"low": 0.1, "high": longest_gap}},
            "timestep": 0.1,
            "inp_enc": "one_hot",
            "do_classify": True,
            "target_prob_generator": "restricted",
            "noise": 0,
            "read_from_file": False,
            "dataset_output_dir": "",
            "base_dataset_path": "",
            "dataset_size": 1,
            "seed": seed,
        }
        dataset = module.create_seq_dataset_from_config(utils.prepare_config(utils.Config(config | gaps)), "train")
        if len({start[0] for start in dataset.gs.sequencer.start_symbols}) < 4:
            continue
        data, target, *_ = dataset[1]
        token, state = data[:64].argmax(axis=1) - 1, target[:64].long() - 1
        token, state = (np.where(x < 0, end, x) for x, end in ((token, n_symbols), (state, n_symbols * n_states)))
        kept.append((np.where(data[:64].sum(axis=1) > 0, token, n_symbols + 1), state))
    inputs, labels = zip(*kept, strict=True)
    return np.stack(inputs), np.stack(labels)


def _mano(module: types.ModuleType, rows: int) -> Examples:
    rng, m, longest = random.Random(SEED), 23, 10
    sizes = list(range(1, longest + 1))
    inputs, labels = np.full((rows, 2 * longest + 2), m + 4), np.empty(rows, dtype=np.int64)
    for row in range(rows):
        _, _, *expression, _, answer = module.encode_pure_arithmetic(rng, qids=sizes, lens=sizes, ops=["+", "-", "*"])
        # Each operator has two token ids, four apart.
        written = [token - 5000 if token >= 5000 else m + (token - 1) % 4 for token in expression]
        inputs[row, -len(written) - 1 :] = [*written, m + 3]
        labels[row] = answer - 5000
    return inputs, labels


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
    "brevo": ("PhysicsLM4", "data-synthetic-pretrain/Brevo/brevo.py", _brevo),
    "lano-cfg3f": ("PhysicsLM4", LANO_FILE, partial(_lano, grammar="cfg3f")),
    "lano-cfg3k": ("PhysicsLM4", LANO_FILE, partial(_lano, grammar="cfg3k")),
    "capo": ("PhysicsLM4", "data-synthetic-pretrain/Capo-bioS-bioR/Capo-bioS-bioR.py", _capo),
    "mano": ("PhysicsLM4", "data-synthetic-pretrain/Mano/mano.py", _mano),
    "selectivbench-blanks": ("selectivbench", SELECTIVBENCH_FILE, partial(_selectivbench, longest_gap=1.0)),
    "selectivbench-distractors": (
        "selectivbench",
        SELECTIVBENCH_FILE,
        partial(_selectivbench, longest_gap=0.3, gap_prob=0.5, gap_start=10, add_nongramm_gap=True),
    ),
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
    if name.startswith("lano"):
        record |= lano_extras(upstream_module(checkouts, repository, file), name.partition("-")[2])
    elif name.startswith("selectivbench"):
        pass  # each grammar has a different most common state
    elif name == "capo":
        record["sizes"] = capo_sizes(upstream_module(checkouts, repository, file))
    elif labels.dtype.kind == "i":
        share = np.unique(labels[labels != IGNORED], return_counts=True)[1] / (labels != IGNORED).sum()
        # Scores of the best constant guess; MAD's accuracy averages over the classes that occur.
        record["constant guess"] = {"micro": round(float(share.max()), 8), "macro": round(1 / len(share), 8)}
    return record


def main() -> None:
    """Record the generators given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(GENERATORS)}; default all")
    arguments = parser.parse_args()
    for name in arguments.names or GENERATORS:
        text = json.dumps(record(name, arguments.checkouts), separators=(",", ":"))
        RECORDS.mkdir(exist_ok=True)
        (RECORDS / f"{name}.json").write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")
        sys.stdout.write(f"{name}: {len(text)} bytes\n")


if __name__ == "__main__":
    main()
