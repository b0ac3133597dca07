"""The command `zoo`: mixers and their measured comparison, the theory's claims and figures, runs side by side.

`zoo --help` and a misspelt name need no torch; tables and pictures need the extra `report`.
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
# An OpenMP thread that waits for another should give its core away; read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

FIGURES = {
    "staircase": "error against number of heads: the bound, training on it, the step to zero at H = k",
    "gradients": "gradient against distance of several mixers, on random input and on highway input",
    "highways": "gradient against distance in cases that theory predicts: SSMs, attention, closed gates, a stack",
}

FIGURE_MIXERS = ("attention", "diagonal_ssm", "selective_ssm", "gated_delta_net", "lstm", "hybrid")
"""Mixers in the figure of gradients unless --mixer names others; more would hide each other."""


@ends_unread
def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit status.

    0: done. 1: a claim fails, a slogan is not refuted, a checked property fails, a file cannot be written, or memory is
    short. 2: the command line cannot be followed, or a package that it needs is not installed. 3: claims are undecided,
    and none fails. 130: interrupted.
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
        verbs.add_parser(name, help=(inspect.getdoc(verb) or "").partition("\n")[0])
    return parser


def _other_verb(name: str) -> Callable[[Sequence[str]], int]:
    """Return a verb that another package offers.

    Raises:
        UsageError: there is none of that name, or its package is not installed.
    """
    targets = dict(entry_points(OTHER_VERBS))
    if name not in targets:
        raise UsageError(unknown("verb", name, [*VERBS, *targets]))
    verbs = offered(OTHER_VERBS)
    if name not in verbs:
        package = targets[name].partition(".")[0]
        raise UsageError(
            f"{PROGRAM} {name} needs the package {package} of the project's repository, which is not installed with "
            f"the library: run python -m {PROGRAM} {name} in a clone"
        )
    return verbs[name]


def _declare_mixers(parser: Parser) -> None:
    parser.description = "List the mixers; with a name, its definition and options."
    parser.add_argument("name", nargs="?", metavar="NAME", help="a mixer")
    parser.set_defaults(run=_mixers)


def _declare_pages(parser: Parser) -> None:
    parser.description = "Write a page for each mixer, from its docstring, and one that lists them by family."
    _declare_out(parser, "docs/mixers")
    parser.set_defaults(run=_pages)


def _declare_measure(parser: Parser) -> None:
    parser.description = (
        "Measure each mixer: interaction rank and the predicted one, heads for an error, gradient decay, cost "
        "against length, input dependence, sizes. Prints tables; writes measure.md, measure.json and measure.png."
    )
    add, number = parser.add_argument, _number(parser)
    add("--mixer", nargs="+", action="extend", metavar="NAME", help="which mixers; default all")
    add(
        "--ckpt_path",
        metavar="RUN",
        help="a run folder, a .ckpt file or the folder of a transformers model: one row per layer of it",
    )
    _declare_allow(parser)
    number("--d_model", help="width of the mixers; default 16")
    number("--n_heads", "--heads", help="heads of the mixers that have them; default 4")
    number("--seq_len", help="positions of the operators; default 64")
    number("--gradient_len", least=16, help="positions of the gradient profiles; default 256")
    number("--lengths", nargs="+", help="lengths at which costs are measured; default 512 1024 2048")
    number("--seed", help="seed of every draw; default 0")
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
        help="a class of your own that a file may name, and that is imported; repeatable; a run needs none",
    )


def _declare_heads(parser: Parser) -> None:
    parser.description = (
        "How many heads a model has, spans and uses: a row per layer. Functional heads: the layer cut to its best "
        "operators, read on some sequences; the fewest that keep the model's score on others."
    )
    add, number = parser.add_argument, _number(parser)
    add("model", metavar="MODEL", help="a run folder, a .ckpt file or the folder of a transformers model")
    _declare_allow(parser)
    add("--text", type=Path, metavar="FILE", help="text to read, for a transformers model with a tokenizer")
    add("--inputs", type=Path, metavar="FILE", help=".npz file to read: inputs, and labels by which to score")
    number("--seq_len", help="positions of a sequence; default 64, for a run the length of its task")
    number("--sequences", least=1, default=8, help="sequences on which operators are read; default 8")
    scored = "sequences on which a cut model is scored; default 24, fewer for a large model"
    number("--others", least=1, help=scored)
    add(
        "--functional",
        choices=("auto", "always", "never"),
        default="auto",
        help="count functional heads by cutting layers; default auto: unless that needs over 15 minutes on two cores",
    )
    number("--processes", least=1, help="that share the layers, each with memory of its own; default: the cores")
    add(
        "--html",
        type=Path,
        metavar="PAGE",
        help="write a page on which to explore the layers",
    )
    add("--json", type=Path, metavar="FILE", help="write all that was measured")
    parser.set_defaults(run=_heads)


def _declare_claims(parser: Parser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Measure predictions of the theory and judge them. Prints a table; writes claims.md, claims.json and plots.\n"
        "Exits with 1 when a claim fails or a slogan is not refuted, with 3 when some are only undecided."
    )
    parser.epilog = "\n".join(["claims:", *listing({name: CLAIMS.summary(name) for name in CLAIMS})])
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="which claims; default all")
    add("--paper", metavar="NUMBER", help="the claims whose source names this paper, such as 2411.12537")
    add("--page", type=Path, metavar="FILE", help="write the list of claims by paper, and measure nothing")
    add("--full", action="store_true", help="larger sizes, on a GPU if there is one")
    _declare_settings(parser)
    number = _number(parser)
    number("--ranks", nargs="+", help="interaction ranks of the teachers, 1 to 16; default 1 2 4 8")
    number("--starts", help="starts of an optimiser of a loss that is not convex; default 2")
    _declare_out(parser, "runs/claims")
    parser.set_defaults(run=_claims)


def _declare_figure(parser: Parser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Measure and draw one figure."
    parser.epilog = "\n".join(["figures:", *listing(FIGURES)])
    parser.add_argument("name", metavar="NAME", help="which figure")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a name in .pdf, .svg or .png; default NAME.png")
    parser.add_argument(
        "--mixer", nargs="+", metavar="NAME", help=f"which mixers, for gradients; default {' '.join(FIGURE_MIXERS)}"
    )
    _declare_settings(parser)
    parser.set_defaults(run=_figure)


def _declare_settings(parser: Parser) -> None:
    number = _number(parser)
    number("--seed", help="seed of every draw; default 0")
    number("--seeds", least=5, dest="n_seeds", help="repetitions, of which medians are taken")
    number("--seq_len", least=16, help="positions of the gradient profiles")
    number("--steps", help="training steps, where something is trained")
    parser.add_argument("--device", metavar="DEVICE", help="cpu, cuda")


def _number(parser: Parser) -> Callable[..., argparse.Action]:
    """Return a function that declares a flag with a whole number, of at least `least` if that is given."""

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
        raise argparse.ArgumentTypeError(f"{text} is a file: give a folder")
    return Path(text)


def _declare_out(parser: Parser, folder: str) -> None:
    parser.add_argument(
        "--out", type=_folder, default=Path(folder), metavar="DIR", help=f"where files go; default {folder}"
    )


VERBS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "mixers": ("list the mixers, or show the options of one", _declare_mixers),
    "measure": ("the comparison table, measured: a row per mixer, or per layer of a trained model", _declare_measure),
    "heads": ("how many heads a model of yours has, spans and uses, layer by layer", _declare_heads),
    "claims": ("predictions of the theory, measured and judged", _declare_claims),
    "figure": ("one of the figures of the theory", _declare_figure),
    "check": (checking.SUMMARY, checking.declare),
    "pages": ("a page for each mixer, as docs/mixers has them", _declare_pages),
}
"""What each verb does, and its flags."""

OTHER_VERBS = "zoo.commands"
"""Entry points of this group are verbs of other packages: functions that take the rest of the command line and return
the exit status. The first line of their docstring is their help. The project's `lab` offers `compare`."""


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the flags among `names` that were given; of several values a tuple."""
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _mixers(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        entries = {name: MIXERS.entry(name) for name in MIXERS}
        said = listing({n: f"{e.year}  {MIXERS.summary(n)} [{e.source}]" for n, e in entries.items()})
        for family in dict.fromkeys(entry.family for entry in entries.values()):
            of_family = (line for line, entry in zip(said, entries.values(), strict=True) if entry.family == family)
            print(f"{family}:", *of_family, sep="\n")
        print(f"\noptions of one: {PROGRAM} mixers NAME")
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
    usual = {
        o.name: "required" if o.default is inspect.Parameter.empty else f"{o.default!r} unless given" for o in found
    }
    for line in listing({option.name: f"{option.kind}, {usual[option.name]}" for option in found}):
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
            f"--{next(iter(fresh))} cannot be combined with --ckpt_path, which brings a model with its own"
        )
    _check_report()
    from zoo.report.page import print_page
    from zoo.theory.measure import QUANTITIES, Sizes, measure_backbone, measure_mixers, sizes_within
    from zoo.theory.measure_page import measure_page, write_measurements
    from zoo.theory.processes import cores

    flags = _given(arguments, "d_model", "n_heads", "seq_len", "gradient_len", "lengths", "seed", "n_seeds", "device")
    sizes = Sizes(**flags)
    _check_device(sizes.device)
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
            f"Layers were not cut: that takes one core at least about {duration(seconds)}. --functional always cuts "
            "them, sooner with fewer --others."
        )
    _print_files(write_all("", {str(path): write(rows, reading) for path, write in files.items()}))
    return 0


def _trained(path: str, allow: Sequence[str] = (), taker: str = "--ckpt_path") -> Backbone:
    """Return the model of a run or a checkpoint, or of a folder that transformers or `save_pretrained` wrote.

    Args:
        path: the run, the file or the folder.
        allow: classes of others that a file may name.
        taker: the argument that has it, for messages.

    Raises:
        ValueError: none of these; errors of `zoo.load` and `zoo.load_transformers`.
    """
    from zoo.loading.names import CHECKPOINTS
    from zoo.loading.saved import load
    from zoo.pretrained import FILE

    folder = Path(path)
    if not folder.is_dir() or (folder / CHECKPOINTS).is_dir():
        return load(path, allow=allow or None)
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{path} is neither a run, with a folder {CHECKPOINTS}, nor a transformers model, with a config.json; "
            f"{taker} takes one of them, or a .ckpt file"
        )
    if (folder / FILE).is_file() and '"model_type"' not in (folder / "config.json").read_text(encoding="utf-8"):
        return load(folder / FILE, allow=allow)
    from zoo.backbone import Backbone
    from zoo.loading.transformers import load_transformers

    model = load_transformers(folder)
    assert isinstance(model, Backbone)  # layers have no folders
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
    gradients = arguments.name == "gradients"
    if (arguments.steps if gradients else arguments.mixer) is not None:
        raise UsageError(f"figure {arguments.name} has no --{'steps' if gradients else 'mixer'}")
    names = [MIXERS.check(name) for name in arguments.mixer or FIGURE_MIXERS]
    _check_report()
    from zoo.report.files import write_all
    from zoo.report.plots import as_image, require_kind
    from zoo.theory import figures, measure
    from zoo.theory.claims import page

    file = arguments.out or Path(f"{arguments.name}.png")
    require_kind("--out", file)
    if gradients:
        flags = _given(arguments, "seed", "n_seeds", "device")
        flags |= {} if arguments.seq_len is None else {"gradient_len": arguments.seq_len}
        sizes = measure.Sizes(**flags)
        _check_device(sizes.device)
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
    """Return the sizes of claims, quick or full, changed by the flags."""
    import torch

    from zoo.theory.claims.claim import FULL, QUICK

    flags = _given(arguments, "seed", "n_seeds", "seq_len", "steps", "device")
    if full and torch.cuda.is_available():
        flags = {"device": "cuda"} | flags
    settings = replace(FULL if full else QUICK, **flags)
    _check_device(settings.device)
    return settings


def _check_report(*more: str) -> None:
    """Raise, before anything is measured, if a module that shows the result or a further one is not installed."""
    for module in ("rich.table", "matplotlib.figure", *more):
        require_extra(module)


def _check_device(name: str) -> None:
    import torch

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None


def _print_files(files: Sequence[Path]) -> None:
    for path in files:
        print(path)


if __name__ == "__main__":
    sys.exit(main())
