"""The doors between the rooms: who may import whom, read from the syntax tree, so that lazy imports count too."""

from __future__ import annotations

import ast
import functools
import itertools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import ROOT

# A room imports from itself and from the rooms before it.
ROOMS = (
    "coefficient",
    "cores",
    "naming",
    "targets",
    "docstrings",
    "report",
    "signals",
    "ops",
    "contract",
    "protocols",
    "adopted",
    "registry",
    "pretrained",
    "blocks",
    "mixers",
    "backbone",
    "interop",
    "theory",
    "conformance",
    "training",
    "pages",
    "__main__",
)
CORE = {"torch", "einops", "jaxtyping"}
REPORT = {"matplotlib", "numpy", "pandas", "plotly", "rich", "scipy", "tensorboard", "yaml"}
LIGHTNING = {"lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning"}
# What a room may use beside Python's own library; every room that is not named here gets CORE.
THIRD_PARTY = {
    "naming": set(),
    "targets": set(),
    "docstrings": set(),
    "report": REPORT,
    "report.machine": {"torch"},
    "signals": set(),
    "registry": set(),
    "pretrained": CORE | {"huggingface_hub", "safetensors"},
    "ops.numba_loops": CORE | {"numba"},
    "ops.scan_numba": CORE | {"llvmlite", "numba", "numpy"},
    "ops.slstm_numba": CORE | {"numpy"},
    "ops.steps_numba": CORE | {"numba", "numpy"},
    "ops.scan_triton": CORE | {"triton"},
    "interop.transformers": CORE | {"transformers"},
    "theory.verdicts": CORE | REPORT,
    "theory.figures": CORE | REPORT,
    "theory.model_heads_page": CORE | REPORT,
    "conformance.command": CORE | REPORT,
    "conformance.card": CORE | REPORT,
    "conformance.page": CORE | REPORT,
    "training": CORE | REPORT | LIGHTNING | {"jsonargparse", "torchmetrics"},
    "pages": set(),
    "__main__": CORE | REPORT,
}
TASKS_KNOW = ("zoo.naming", "zoo.targets", "zoo.docstrings", "zoo.report")
TASK_THIRD_PARTY = {"datasets", "filelock", "numpy", "pyarrow", "sklearn", "torch", "tqdm"}
MORE_FOR_TASKS = {
    "datamodule": LIGHTNING,
    "export": {"huggingface_hub"},
    "__main__": {"jsonargparse", "rich"},
}
OURS = {"zoo", "tasks", "lab", "train", "sweep", "benchmarks", "tests"}

# Names decided at run time have one place, the registry; what a missing optional package means is said in one place.
MAY_IMPORT_BY_STRING = {"zoo.naming"}

BANNED = {"dim", "hidden_size", "transposed", "utils", "helpers", "misc"}


@dataclass(frozen=True)
class Import:
    target: str  # dotted name; "from a import b" gives "a.b"
    line: int
    lazy: bool  # inside a function
    typing: bool  # under `if TYPE_CHECKING`: no edge at run time
    by_string: bool = False  # import_module("a.b")


parsed = functools.cache(ast.parse)


def imports(source: str, module: str, *, package: bool) -> list[Import]:
    """Every import statement of a module, and every import by a literal string, wherever it stands."""
    found: list[Import] = []

    def visit(node: ast.AST, lazy: bool, typing: bool) -> None:
        if isinstance(node, (ast.Name, ast.Constant, ast.expr_context, ast.operator)):
            return  # two thirds of all nodes
        match node:
            case ast.Import(names=names):
                found.extend(Import(alias.name, node.lineno, lazy, typing) for alias in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                above = module.split(".")[: len(module.split(".")) - level + package] if level else []
                base = ".".join([*above, *([base] if base else [])])
                found.extend(Import(f"{base}.{alias.name}", node.lineno, lazy, typing) for alias in names)
            case ast.Call(args=[ast.Constant(value=str(target)), *_]) if _imports_by_string(node):
                found.append(Import(target, node.lineno, lazy, typing, by_string=True))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                lazy = True
            case ast.If(
                test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"), body=body, orelse=rest
            ):
                for child in body:
                    visit(child, lazy, True)
                for child in rest:
                    visit(child, lazy, typing)
                return
        for child in ast.iter_child_nodes(node):
            visit(child, lazy, typing)

    visit(parsed(source), False, False)
    return found


def _imports_by_string(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in {"import_module", "__import__"}


def broken_doors(source: str, module: str, *, package: bool = False) -> list[str]:
    """One line for each import of `module` that the rules forbid."""
    root, *inner = module.split(".")
    found = imports(source, module, package=package)
    if package:
        # What a package re-exports for the type checker is loaded by nobody until it is asked for.
        found = [each for each in found if not each.typing]
    check = {"zoo": _from_zoo, "tasks": _from_tasks, "lab": _from_lab}.get(root, _from_root)
    complaints = [
        f"{module}, line {each.line}: {why}" for each in found for why in check(each, root, ".".join(inner), package)
    ]
    if root in {"zoo", "tasks"} and module not in MAY_IMPORT_BY_STRING:
        calls = [n for n in ast.walk(parsed(source)) if isinstance(n, ast.Call) and _imports_by_string(n)]
        complaints += [f"{module}, line {n.lineno}: an import by string belongs in the registry" for n in calls]
    return complaints


def _third_party(target: str, allowed: set[str]) -> Iterator[str]:
    top = target.split(".")[0]
    if top not in allowed | OURS and top not in sys.stdlib_module_names:
        yield f"imports {top}; here only {', '.join(sorted(allowed)) or 'the standard library'}"


def _from_zoo(each: Import, root: str, inner: str, package: bool) -> Iterator[str]:
    room = inner.split(".")[0]
    top, *rest = each.target.split(".")
    allowed = THIRD_PARTY.get(inner, THIRD_PARTY.get(room, CORE)) if room else set()
    yield from _third_party(each.target, allowed)
    if top in REPORT and room in ("report", "theory") and not (each.lazy or each.typing):
        yield f"imports {top} at its top: it belongs to an extra"
    if top in OURS - {"zoo"}:
        yield f"zoo imports {top}"
    if top == "zoo":
        target = rest[0] if rest else ""
        if room == "":
            if target != "naming":
                yield f"zoo itself imports {each.target}: its names are looked up when used"
        elif target not in ROOMS:
            yield f"imports {each.target}: name the room it stands in, one of {', '.join(ROOMS)}"
        elif ROOMS.index(target) > ROOMS.index(room):
            yield f"{room} imports {target}, a later room"


def _from_tasks(each: Import, root: str, inner: str, package: bool) -> Iterator[str]:
    top = each.target.split(".")[0]
    yield from _third_party(each.target, TASK_THIRD_PARTY | MORE_FOR_TASKS.get(inner, set()))
    if top in OURS - {"zoo", "tasks"}:
        yield f"tasks imports {top}"
    if top == "zoo" and inner != "ssm_teacher" and not each.target.startswith(TASKS_KNOW):
        yield f"imports {each.target}: of the tasks only ssm_teacher knows zoo, beyond {TASKS_KNOW}"


LAB_ROOMS = (
    "config",
    "run",
    "score",
    "hparams",
    "build",
    "guesses",
    "train",
    "compare",
    "examples",
    "sweep",
    "experiments",
    "leaderboard",
    "__main__",
)
"""Of the application, in the order of who may import whom, as `ROOMS`."""

RUN_FORMAT = ("config.yaml", "metrics.json", "environment.json", "sweep.json", "done.json", "log.txt")
RUN_PREFIXES = ("task.", "trainer.")


def run_format_strings(source: str, prefixes: tuple[str, ...] = RUN_PREFIXES) -> list[str]:
    """String literals that spell a run's file format: names of its files, its options. Docstrings may speak of them."""
    tree = parsed(source)
    said = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    found = [
        n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in said
    ]
    return [
        f"line {node.lineno}: {node.value!r}"
        for node in found
        if any(name in node.value for name in RUN_FORMAT) or node.value.startswith(prefixes)
    ]


def _from_lab(each: Import, root: str, inner: str, package: bool) -> Iterator[str]:
    yield from _from_root(each, root, inner, package)
    top, *rest = each.target.split(".")
    room = inner.split(".")[0]
    if top in {"train", "sweep"}:
        yield f"lab imports {top}, a command"
    if top == "lab" and room:
        if not rest or rest[0] not in LAB_ROOMS:
            yield f"imports {each.target}: name the room it stands in, one of {', '.join(LAB_ROOMS)}"
        elif LAB_ROOMS.index(rest[0]) > LAB_ROOMS.index(room):
            yield f"{room} imports {rest[0]}, a later room"


def _from_root(each: Import, root: str, inner: str, package: bool) -> Iterator[str]:
    top = each.target.split(".")[0]
    if top in {"tests", "benchmarks"}:
        yield f"{root} imports {top}"
    if top in LIGHTNING and not (each.lazy or each.typing):
        yield f"imports {top} at its top: --help would wait for it"


def banned_names(source: str) -> list[str]:
    """Banned names that the source gives to something of its own: an argument, a variable, an attribute, a definition.

    Calling `x.sum(dim=1)` is torch's choice of word, not ours.
    """
    given: list[tuple[str, int]] = []
    for node in ast.walk(parsed(source)):
        match node:
            case (
                ast.arg(arg=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                given.append((name, node.lineno))
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                given.append((name, node.lineno))
    return [f"line {line}: {name}" for name, line in given if name in BANNED]


def _sources() -> list[Path]:
    roots = [ROOT / f"{name}.py" for name in ("train", "sweep")]
    packages = [path for name in ("zoo", "tasks", "lab") for path in sorted((ROOT / name).rglob("*.py"))]
    return [*packages, *filter(Path.exists, roots)]


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {path: path.read_text(encoding="utf-8") for path in _sources()}


def test_a_room_imports_only_from_those_before_it() -> None:
    found = [broken_doors(text, _module(path), package=path.name == "__init__.py") for path, text in SOURCES.items()]
    complaints = list(itertools.chain(*found))
    assert not complaints, "\n".join(complaints)


def test_no_banned_name_is_given() -> None:
    assert [path for path in SOURCES if set(_module(path).split(".")) & BANNED] == []
    assert {path: given for path, text in SOURCES.items() if (given := banned_names(text))} == {}


def test_the_zoo_knows_no_format_of_a_run() -> None:
    zoo = {path: text for path, text in SOURCES.items() if _module(path).split(".")[0] == "zoo"}
    assert {path: found for path, text in zoo.items() if (found := run_format_strings(text))} == {}


def test_the_application_spells_a_runs_files_in_one_place() -> None:
    others = [path for path in sorted((ROOT / "lab").rglob("*.py")) if _module(path) != "lab.run"]
    assert {_module(path): found for path in others if (found := run_format_strings(path.read_text(), ()))} == {}
    assert run_format_strings((ROOT / "lab" / "run.py").read_text(), ())


@pytest.mark.parametrize(
    "source",
    ['open("config.yaml")', 'f"{run}/metrics.json"', 'x = options["task.seq_len"]', 'name.startswith("trainer.")'],
)
def test_a_runs_format_in_the_zoo_is_seen(source: str) -> None:
    assert run_format_strings(source)
    assert not run_format_strings(f'"""A docstring says: {source.replace(chr(34), "")}"""')


def test_every_module_of_zoo_and_of_lab_stands_in_a_room() -> None:
    rooms = {_module(path).split(".")[1] for path in (ROOT / "zoo").rglob("*.py") if _module(path) != "zoo"}
    assert rooms <= set(ROOMS)
    rooms = {_module(path).split(".")[1] for path in (ROOT / "lab").rglob("*.py") if _module(path) != "lab"}
    assert rooms == set(LAB_ROOMS)


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("zoo.ops.scan", "from zoo.mixers.lstm import LSTM", "ops imports mixers, a later room"),
        ("zoo.ops.scan", "from zoo import mixers", "ops imports mixers, a later room"),
        ("zoo.ops.scan", "from ..mixers import lstm", "ops imports mixers, a later room"),
        ("zoo.ops.scan", "def f():\n    import zoo.backbone", "ops imports backbone, a later room"),
        ("zoo.ops.scan", "if TYPE_CHECKING:\n    from zoo.blocks import Block", "ops imports blocks, a later room"),
        ("zoo.contract", "import importlib\nimportlib.import_module('zoo.training')", "contract imports training"),
        ("zoo.contract", "import_module(name)", "belongs in the registry"),
        ("zoo.mixers.lstm", "from zoo import create_mixer", "name the room"),
        ("zoo.mixers.lstm", "import numpy as np", "imports numpy"),
        ("zoo.mixers.lstm", "from tasks.spec import TaskSpec", "zoo imports tasks"),
        ("zoo.training.module", "import lab.run", "zoo imports lab"),
        ("zoo.report.plots", "import matplotlib", "imports matplotlib at its top"),
        ("zoo.theory.rank", "def f():\n    import matplotlib", "imports matplotlib; here only"),
        ("zoo.interop.saved", "from lightning import LightningModule", "imports lightning"),
        ("zoo.naming", "import torch", "imports torch"),
        ("tasks.mqar", "from lightning import LightningDataModule", "imports lightning"),
        ("tasks.mqar", "def f():\n    from zoo.ops import conv", "only ssm_teacher knows zoo"),
        ("tasks.ssm_teacher", "from lab import config", "tasks imports lab"),
        ("lab.config", "from lightning.pytorch import Trainer", "imports lightning at its top"),
        ("lab.run", "from lab.compare.runs import Run", "run imports compare, a later room"),
        ("lab.compare.table", "import lab", "name the room"),
        ("lab.sweep.engine", "import train", "lab imports train, a command"),
        ("lab.train", "from tests.reference import attention", "lab imports tests"),
    ],
)
def test_a_broken_door_is_seen(module: str, source: str, complaint: str) -> None:
    assert any(complaint in line for line in broken_doors(source, module))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "zoo.mixers.lstm",
            "import math\nimport torch\nfrom zoo.ops.recurrent import lstm_scan\nfrom zoo.blocks import RMSNorm",
        ),
        ("zoo.mixers.hybrid", "from zoo.mixers.lstm import LSTM"),
        ("zoo.naming", "from importlib import import_module\nimport_module(name)"),
        ("zoo.training.module", "import lightning as L\nfrom zoo.backbone import Backbone"),
        ("zoo", "from zoo.naming import lazy_names"),
        ("zoo.theory.verdicts", "def f():\n    import matplotlib"),
        ("zoo.report.plots", "def f():\n    import matplotlib"),
        ("tasks.registry", "from zoo.naming import Registry"),
        ("tasks.ssm_teacher", "def f():\n    from zoo.theory.teacher import teacher"),
        ("tasks.datamodule", "import lightning as L"),
        ("lab.config", "def f():\n    from lightning.pytorch import Trainer"),
        ("lab.train", "import zoo\nimport tasks"),
        ("lab.sweep.grid", "from lab.sweep.matching import sizes\nfrom lab.run import RunFolder"),
    ],
)
def test_an_open_door_is_open(module: str, source: str) -> None:
    assert broken_doors(source, module) == []


def test_a_package_re_exports_for_the_type_checker_alone() -> None:
    source = "if TYPE_CHECKING:\n    from zoo.backbone import Backbone"
    assert broken_doors(source, "zoo", package=True) == []
    assert "looked up when used" in broken_doors("from zoo.backbone import Backbone", "zoo", package=True)[0]
    assert "imports torch" in broken_doors("import torch", "zoo", package=True)[0]


@pytest.mark.parametrize(
    "source",
    ["def f(dim): ...", "self.hidden_size = 3", "for dim in x: ...", "def utils(): ...", "f = lambda transposed: 0"],
)
def test_a_banned_name_is_seen(source: str) -> None:
    assert banned_names(source)


def test_torchs_own_words_are_no_banned_names() -> None:
    assert banned_names("y = x.sum(dim=1)\nn = config.hidden_size") == []


def test_the_reference_is_independent() -> None:
    """A reference that used the code it judges would share its errors."""
    path = ROOT / "tests" / "reference.py"
    tops = {each.target.split(".")[0] for each in imports(path.read_text(), "tests.reference", package=False)}
    assert tops <= {"einops", "numpy", *sys.stdlib_module_names}


@pytest.mark.parametrize("statement", ["import zoo; zoo.list_mixers()", "import tasks; tasks.list_tasks()"])
def test_listing_names_needs_the_standard_library_alone(statement: str) -> None:
    """`-S`: this Python sees no installed package, so any import of torch, numpy or lightning fails."""
    subprocess.run([sys.executable, "-S", "-c", statement], cwd=ROOT, check=True)
