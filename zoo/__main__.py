"""The command line `zoo`: list, measure and check mixers, count heads, and test the claims of the theory.

`zoo --help` and most errors for misspelt names do not import torch. Tables and plots need the extra `report`.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.check import command as checking
from zoo.errors import UsageError, unknown
from zoo.extras import require_extra
from zoo.lookup import entry_points, offered
from zoo.registry import MIXERS
from zoo.report.machine import describe_machine
from zoo.report.terminal import Parser, ends_unread, fail, listing, make_console, progress
from zoo.theory.claims import CLAIMS

if TYPE_CHECKING:
    from zoo.backbone import Backbone
    from zoo.theory.claims.claim import Settings

PROGRAM = "zoo"
# Waiting OpenMP threads should yield their core. OpenMP reads this when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

FIGURES = {
    "staircase": "error against number of heads: the lower bound, trained models, the drop to zero at H = k",
    "gradients": "gradient against distance for several mixers, on random input and on highway input",
    "highways": "gradient against distance in cases that theory predicts: SSMs, attention, closed gates, a stack",
}
"""Figures of `zoo figure` and their help."""

NOT_OF_FIGURE = {"staircase": ("mixer", "seq_len"), "gradients": ("steps",), "highways": ("mixer", "steps")}
"""Flags that a figure does not use: its sequences have a fixed length, or it trains nothing."""

FIGURE_MIXERS = ("attention", "diagonal_ssm", "selective_ssm", "gated_delta_net", "lstm", "hybrid")
"""Default mixers of the figure `gradients`; with more, the curves hide each other."""


@ends_unread
def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit status.

    0: success. 1: a claim fails, a slogan is not refuted, a checked property fails, a file cannot be written, or memory
    runs out. 2: the command line is invalid, or a package that it needs is not installed. 3: no claim fails, but some
    are undecided. 130: interrupted.
    """
    try:
        argv = sys.argv[1:] if argv is None else argv
        if argv and not argv[0].startswith("-") and argv[0] not in VERBS:
            return _other_verb(argv[0])(argv[1:])
        arguments = _parser().parse_args(argv)
        return arguments.run(arguments)
    except (ValueError, ImportError) as error:
        return fail(PROGRAM, error, 2)
    except (OSError, MemoryError) as error:
        return fail(PROGRAM, error, 1)
    except KeyboardInterrupt:
        return fail(PROGRAM, "interrupted", 130)


def _parser() -> Parser:
    parser = Parser(PROGRAM, description="Sequence mixers and the theory that measures them.")
    parser.set_defaults(run=lambda _: parser.print_help() or 0)
    verbs = parser.add_subparsers(metavar="VERB", parser_class=Parser)
    for name, (summary, declare) in VERBS.items():
        declare(verbs.add_parser(name, help=summary))
    for name, verb in offered(OTHER_VERBS).items():
        summary = (inspect.getdoc(verb) or "").partition("\n")[0].removesuffix(".")
        verbs.add_parser(name, help=summary[:1].lower() + summary[1:])
    return parser


def _other_verb(name: str) -> Callable[[Sequence[str]], int]:
    """Return the verb of this name from another package.

    Raises:
        UsageError: no package declares this verb, or its package is not installed.
    """
    targets = dict(entry_points(OTHER_VERBS))
    if name not in targets:
        raise UsageError(unknown("verb", name, [*VERBS, *targets]))
    verbs = offered(OTHER_VERBS)
    if name not in verbs:
        package = targets[name].partition(".")[0]
        raise UsageError(
            f"{PROGRAM} {name} needs the package {package}, which is part of the project's repository but not of the "
            f"installed library: run python -m {PROGRAM} {name} in a clone"
        )
    return verbs[name]


def _declare_mixers(parser: Parser) -> None:
    parser.description = "List all mixers, or show the definition and options of one."
    parser.add_argument("name", nargs="?", metavar="NAME", help="the mixer to show; default: list all")
    parser.set_defaults(run=_mixers)


def _declare_pages(parser: Parser) -> None:
    parser.description = "Write a page per mixer from its docstring, and an index by family."
    _declare_out(parser, "docs/mixers")
    parser.set_defaults(run=_pages)


def _declare_measure(parser: Parser) -> None:
    parser.description = (
        "Measure each mixer: measured and predicted interaction rank, heads needed for a given error, gradient decay, "
        "cost against length, input dependence, sizes. Prints tables; writes measure.md, measure.json and measure.png."
    )
    add, number = parser.add_argument, _number(parser)
    add("--mixer", nargs="+", action="extend", metavar="NAME", help="mixers to measure; default all")
    add(
        "--ckpt_path",
        metavar="RUN",
        help="measure the layers of a trained model instead, one row per layer: "
        "a run folder, a .ckpt file or the folder of a transformers model",
    )
    _declare_allow(parser)
    number("--d_model", help="width of the mixers; default 16")
    number("--n_heads", "--heads", help="heads of mixers with this option; default 4")
    number("--seq_len", help="sequence length of the operators; default 64")
    number("--gradient_len", least=16, help="sequence length of the gradient profiles; default 256")
    number("--lengths", nargs="+", help="sequence lengths for the costs; default 512 1024 2048")
    number("--seed", help="seed of all random numbers; default 0")
    number("--seeds", least=5, dest="n_seeds", help="draws for the gradient's interval, at least 5; default 8")
    add("--device", metavar="DEVICE", help="cpu or cuda; default cpu")
    _declare_out(parser, "runs/measure")
    parser.set_defaults(run=_measure)


def _declare_allow(parser: Parser) -> None:
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="PLACE:CLASS",
        help="import this class of yours if the model file refers to it; repeatable; not needed for a run folder",
    )


def _declare_heads(parser: Parser) -> None:
    parser.description = (
        "Count the heads that each layer of a model has, spans and uses. To count functional heads, we cut a layer to "
        "its best operators, found on some sequences, and report the fewest that keep the model's score on others."
    )
    add, number = parser.add_argument, _number(parser)
    add("model", metavar="MODEL", help="a run folder, a .ckpt file or the folder of a transformers model")
    _declare_allow(parser)
    add("--text", type=Path, metavar="FILE", help="text to read, for a transformers model with a tokenizer")
    add("--inputs", type=Path, metavar="FILE", help=".npz file with inputs, and labels for the score")
    number("--seq_len", help="sequence length; default: of the run's task, otherwise 64")
    number("--sequences", least=1, default=8, help="sequences on which operators are computed; default 8")
    scored = "further sequences, to score cut models; default 24, fewer for a large model"
    number("--others", least=1, help=scored)
    add(
        "--functional",
        choices=("auto", "always", "never"),
        default="auto",
        help="count functional heads by cutting layers; auto (default) skips this if it needs over 15 minutes on two "
        "cores",
    )
    number("--processes", least=1, help="parallel processes, each with its own memory; default: number of cores")
    add("--html", type=Path, metavar="PAGE", help="write an interactive page about the layers")
    add("--json", type=Path, metavar="FILE", help="write all measurements")
    parser.set_defaults(run=_heads)


def _declare_claims(parser: Parser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Test predictions of the theory. Prints a table; writes claims.md, claims.json and plots.\n"
        "Exit status: 1 if a claim fails or a slogan is not refuted; otherwise 3 if some are undecided."
    )
    parser.epilog = "\n".join(["claims:", *listing({name: CLAIMS.summary(name) for name in CLAIMS})])
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="claims to test; default all")
    add("--paper", metavar="NUMBER", help="test the claims that cite this paper, such as 2411.12537")
    add("--page", type=Path, metavar="FILE", help="only write the list of claims by paper; measure nothing")
    add("--full", action="store_true", help="larger sizes, on a GPU if available")
    _declare_settings(parser)
    number = _number(parser)
    number("--ranks", nargs="+", help="interaction ranks of the teachers, 1 to 16; default 1 2 4 8")
    number("--starts", help="random initialisations for non-convex losses; default 2")
    _declare_out(parser, "runs/claims")
    parser.set_defaults(run=_claims)


def _declare_figure(parser: Parser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Measure and draw one figure."
    parser.epilog = "\n".join(["figures:", *listing(FIGURES)])
    parser.add_argument("name", metavar="NAME", help="the figure")
    parser.add_argument("--out", type=Path, metavar="FILE", help="output: .pdf, .svg or .png; default NAME.png")
    parser.add_argument(
        "--mixer", nargs="+", metavar="NAME", help=f"mixers, for gradients; default {' '.join(FIGURE_MIXERS)}"
    )
    _declare_settings(parser)
    parser.set_defaults(run=_figure)


def _declare_settings(parser: Parser) -> None:
    number = _number(parser)
    number("--seed", help="seed of all random numbers; default 0")
    number("--seeds", least=5, dest="n_seeds", help="number of repetitions, at least 5; results are medians")
    number("--seq_len", least=16, help="sequence length of the gradient profiles")
    number("--steps", help="training steps, if a model is trained")
    parser.add_argument("--device", metavar="DEVICE", help="cpu or cuda")


def _number(parser: Parser) -> Callable[..., argparse.Action]:
    """Return a function that declares an integer flag, with the lower bound `least` if given."""

    def declare(*names: str, least: int | None = None, **options: Any) -> argparse.Action:
        def number(text: str) -> int:
            if not re.fullmatch(r"[-+]?\d+", text):
                raise argparse.ArgumentTypeError(f"must be a whole number, got {text}")
            if least is not None and int(text) < least:
                raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
            return int(text)

        return parser.add_argument(*names, type=number, metavar="N", **options)

    return declare


def _folder(text: str) -> Path:
    if Path(text).exists() and not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a file, but a folder is needed")
    return Path(text)


def _declare_out(parser: Parser, folder: str) -> None:
    parser.add_argument(
        "--out", type=_folder, default=Path(folder), metavar="DIR", help=f"output folder; default {folder}"
    )


VERBS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "mixers": ("list the mixers, or show the options of one", _declare_mixers),
    "measure": ("measure mixers, or the layers of a trained model", _declare_measure),
    "heads": ("count the heads that each layer of your model has, spans and uses", _declare_heads),
    "claims": ("test predictions of the theory", _declare_claims),
    "figure": ("draw a figure of the theory", _declare_figure),
    "check": (checking.SUMMARY, checking.declare),
    "pages": ("write the pages of docs/mixers", _declare_pages),
}
"""Help of each verb, and the function that declares its flags."""

OTHER_VERBS = "zoo.commands"
"""Group of entry points through which other packages add verbs.

A verb is a function from the rest of the command line to the exit status. The first line of its docstring is its help.
The project's `lab` adds `compare`."""


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the values of the flags in `names` that were given; lists become tuples."""
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _mixers(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        entries = {name: MIXERS.entry(name) for name in MIXERS}
        lines = listing({n: f"{e.year}  {MIXERS.summary(n)} [{e.source}]" for n, e in entries.items()})
        for family in dict.fromkeys(entry.family for entry in entries.values()):
            of_family = (line for line, entry in zip(lines, entries.values(), strict=True) if entry.family == family)
            print(f"{family}:", *of_family, sep="\n")
        print(f"\nTo show the options of a mixer: {PROGRAM} mixers NAME")
        return 0
    name = MIXERS.check(arguments.name)
    from zoo.pages import options

    entry = MIXERS.entry(name)
    published = f", {entry.year} [{entry.source}]" if entry.year else ""
    used = f"\nused by {entry.models}" if entry.models else ""
    print(f"{name}: {MIXERS.summary(name)}\n{entry.family}{published}{used}\n")
    print(f"{inspect.getdoc(MIXERS[name])}\n")
    found = [option for option in options(name) if option.name != "d_model"]
    print("options:" if found else "no options")
    defaults = {o.name: "required" if o.default is inspect.Parameter.empty else f"default {o.default!r}" for o in found}
    for line in listing({option.name: f"{option.kind}, {defaults[option.name]}" for option in found}):
        print(line)
    return 0


def _pages(arguments: argparse.Namespace) -> int:
    from zoo.pages import pages
    from zoo.report.files import write_all

    _print_files(write_all(arguments.out, pages(arguments.out)))
    return 0


def _measure(arguments: argparse.Namespace) -> int:
    named = [MIXERS.check(name) for name in arguments.mixer or ()]
    fresh = _given(arguments, "mixer", "d_model", "n_heads")
    if arguments.ckpt_path is not None and fresh:
        raise UsageError(
            f"--{next(iter(fresh))} cannot be combined with --ckpt_path: it is an option of newly built mixers"
        )
    if arguments.allow and arguments.ckpt_path is None:
        raise UsageError("--allow is for the file of a model: it needs --ckpt_path")
    _check_report()
    from zoo.report.page import print_page
    from zoo.theory.measure import QUANTITIES, Sizes, measure_backbone, measure_mixers, sizes_within
    from zoo.theory.measure_page import measure_page, write_measurements
    from zoo.theory.processes import cores
    from zoo.validate import require_device

    flags = _given(arguments, "d_model", "n_heads", "seq_len", "gradient_len", "lengths", "seed", "n_seeds", "device")
    sizes = Sizes(**flags)
    require_device(sizes.device)
    if arguments.ckpt_path is not None:
        model = _trained(arguments.ckpt_path, arguments.allow)
        sizes = sizes_within(model, replace(sizes, d_model=model.d_model, n_heads=None))
        n_rows, measure = len(model.layers.chain()), functools.partial(measure_backbone, model, sizes)
    else:
        names = named or list(MIXERS)
        n_rows, measure = len(names), functools.partial(measure_mixers, names, sizes, processes=cores())
    with progress(n_rows * len(QUANTITIES)) as advance:
        rows = measure(progress=lambda row, quantity: advance(f"{row}: {quantity}"))
    machine = describe_machine(sizes.device)
    files = write_measurements(rows, arguments.out, sizes, machine)
    print_page(measure_page(rows, sizes, machine), make_console())
    _print_files(files)
    return 0


def _heads(arguments: argparse.Namespace) -> int:
    _check_report(*(["jinja2"] if arguments.html else []))
    from zoo.report.files import check_place, write_all
    from zoo.report.numbers import duration, size
    from zoo.report.page import print_page
    from zoo.theory.budget import BUDGET, least_seconds, memory_needed
    from zoo.theory.model_heads import QUANTITIES, measure_heads
    from zoo.theory.model_heads_page import Reading, heads_as_html, heads_as_json, model_heads_page
    from zoo.theory.model_inputs import model_inputs
    from zoo.theory.processes import cores

    files = {path: write for path, write in ((arguments.json, heads_as_json), (arguments.html, heads_as_html)) if path}
    for path in files:
        check_place(path)
    model = _trained(arguments.model, arguments.allow, "zoo heads")
    sizes = (arguments.seq_len, arguments.sequences, arguments.others)
    found = model_inputs(arguments.model, model, *sizes, text=arguments.text, arrays=arguments.inputs)
    seq_len, n_inputs = found.inputs.shape[1], len(found.inputs)
    seconds = least_seconds(model, seq_len, n_inputs, len(found.others))
    cut = arguments.functional == "always" or (arguments.functional == "auto" and seconds <= BUDGET)
    n_others, n_layers = len(found.others) if cut else 0, len(model.layers.chain())
    processes = min(n_layers, cores() if arguments.processes is None else arguments.processes)
    memory = memory_needed(model, seq_len, n_inputs, n_others, processes)
    console = make_console()
    console.print(
        f"Measuring needs about {size(memory)} of memory besides the model"
        + (f", for {processes} processes." if processes > 1 else "."),
        highlight=False,
    )
    with progress(n_layers * len(QUANTITIES)) as advance:
        rows = measure_heads(
            model,
            found.inputs,
            found.others if cut else None,
            found.score,
            progress=lambda row, quantity: advance(f"{row}: {quantity}"),
            processes=processes,
            explore=arguments.html is not None,
        )
    reading = Reading(arguments.model, found.where, found.scored if cut else "", found.chance)
    print_page(model_heads_page(rows, reading), console)
    if not cut and arguments.functional == "auto":
        console.print(
            f"Functional heads were not counted: that would take at least about {duration(seconds)} on one core. "
            "Use --functional always to count them; fewer --others are faster."
        )
    _print_files(write_all("", {str(path): write(rows, reading) for path, write in files.items()}))
    return 0


def _trained(path: str, allow: Sequence[str] = (), taker: str = "--ckpt_path") -> Backbone:
    """Load the model of a run, a checkpoint, or a folder written by transformers or `save_pretrained`.

    Args:
        path: the run folder, the file or the folder.
        allow: classes outside the package that may be imported; see `zoo.load`.
        taker: the argument or command that received `path`, for error messages.

    Raises:
        ValueError: `path` is none of these; errors of `zoo.load` and `zoo.load_transformers`.
    """
    from zoo.loading.names import CHECKPOINTS
    from zoo.loading.saved import load
    from zoo.pretrained import FILE

    folder = Path(path)
    if not folder.is_dir() or (folder / CHECKPOINTS).is_dir():
        return load(path, allow=allow or None)
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{path} is not a model folder: it has no {CHECKPOINTS} folder (as a run) and no config.json (as a "
            f"transformers model); {taker} needs one of these, or a .ckpt file"
        )
    if (folder / FILE).is_file() and '"model_type"' not in (folder / "config.json").read_text(encoding="utf-8"):
        return load(folder / FILE, allow=allow)
    from zoo.backbone import Backbone
    from zoo.loading.transformers import load_transformers

    model = load_transformers(folder)
    assert isinstance(model, Backbone)  # load_transformers returns layers only when given layers
    return model


def _claims(arguments: argparse.Namespace) -> int:
    for name in arguments.names:
        CLAIMS.check(name)
    from zoo.evidence import exit_status
    from zoo.evidence.page import verdict_table
    from zoo.theory.claims import claims_by_paper, run_claims
    from zoo.theory.claims.page import claims_page, write_report

    if arguments.page is not None:
        from zoo.report.files import write_atomically

        write_atomically(arguments.page, claims_page())
        _print_files([arguments.page])
        return 0
    of_paper: list[str] = []
    if arguments.paper is not None:
        known = {paper: found for paper, found in claims_by_paper().items() if paper}
        if arguments.paper not in known:
            raise UsageError(unknown("paper", arguments.paper, known))
        of_paper = known[arguments.paper]
    _check_report("scipy.stats")
    names = list(dict.fromkeys([*arguments.names, *of_paper])) or list(CLAIMS)
    settings = replace(_settings(arguments, arguments.full), **_given(arguments, "ranks", "starts"))
    with progress(len(names)) as advance:
        verdicts = run_claims(names, settings, lambda name, *_: advance(name) if name else None)
    files = write_report(verdicts, arguments.out)
    make_console().print(verdict_table(verdicts))
    _print_files(files[:2])
    return exit_status(verdicts)


def _figure(arguments: argparse.Namespace) -> int:
    if arguments.name not in FIGURES:
        raise UsageError(unknown("figure", arguments.name, FIGURES))
    if unused := _given(arguments, *NOT_OF_FIGURE[arguments.name]):
        raise UsageError(f"figure {arguments.name} has no option --{next(iter(unused))}")
    names = [MIXERS.check(name) for name in arguments.mixer or FIGURE_MIXERS]
    _check_report()
    from zoo.report.files import write_all
    from zoo.report.plots import as_image, require_kind
    from zoo.theory import figures, measure
    from zoo.theory.claims import page
    from zoo.validate import require_device

    file = arguments.out or Path(f"{arguments.name}.png")
    require_kind("--out", file)
    if arguments.name == "gradients":
        flags = _given(arguments, "seed", "n_seeds", "device")
        flags |= {} if arguments.seq_len is None else {"gradient_len": arguments.seq_len}
        sizes = measure.Sizes(**flags)
        require_device(sizes.device)
        with progress(len(names)) as advance:
            measured = measure.measure_gradients(names, sizes, lambda name, _: advance(name))
        picture = figures.gradient_comparison_figure(measured)
    else:
        settings = _settings(arguments, full=False)
        with progress(1) as advance:
            advance(f"measuring {arguments.name}")
            draw = page.staircase_figure if arguments.name == "staircase" else page.gradient_figure
            picture = draw(settings=settings)
    _print_files(write_all("", {str(file): as_image(picture, file.suffix[1:])}))
    return 0


def _settings(arguments: argparse.Namespace, full: bool) -> Settings:
    """Return the quick or full settings of claims, with the given flags applied."""
    import torch

    from zoo.theory.claims.claim import FULL, QUICK
    from zoo.validate import require_device

    flags = _given(arguments, "seed", "n_seeds", "seq_len", "steps", "device")
    if full and torch.cuda.is_available():
        flags = {"device": "cuda"} | flags
    settings = replace(FULL if full else QUICK, **flags)
    require_device(settings.device)
    return settings


def _check_report(*more: str) -> None:
    """Raise if a module that the report needs is not installed: before measuring, so that no work is lost."""
    for module in ("rich.table", "matplotlib.figure", *more):
        require_extra(module)


def _print_files(files: Sequence[Path]) -> None:
    for path in files:
        print(path)


if __name__ == "__main__":
    sys.exit(main())
