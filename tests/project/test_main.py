"""The command `zoo`: its output and files, its exit status, its one-line errors."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import error_line, python, raising
from zoo import __main__ as command
from zoo.evidence import Check, Evidence, Panel, Verdict
from zoo.evidence.page import panels_figure
from zoo.registry import list_mixers
from zoo.theory.claims import list_claims
from zoo.theory.claims import page as claims_page
from zoo.theory.claims.claim import FULL, QUICK, Claim, Settings
from zoo.theory.measure import Sizes

SHORT = ("--seq_len", "8", "--gradient_len", "16", "--lengths", "4", "8", "--seeds", "5")
SMALL = ("--d_model", "4", "--heads", "2", *SHORT)


def test_zoo_compare_exists_only_in_a_clone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    assert "compare" in capsys.readouterr().out
    for module in ("lab", "lab.view", "lab.view.command"):
        monkeypatch.setitem(sys.modules, module, None)
    assert "compare needs the package lab, which is part of the project's repository" in refused(
        capsys, "compare", "runs"
    )
    with pytest.raises(SystemExit):
        command.main(["--help"])
    assert "compare" not in capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run a command that must fail with a one-line error and no output, and return that line."""
    assert command.main(argv) == 2
    return error_line(capsys, "zoo", output="")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            "measur",
            "did you mean 'measure'?); choose from: mixers, measure, heads, claims, figure, check, pages, compare",
        ),
        ("mixers atention", "did you mean 'attention'?"),
        ("measure --mixer lstn", "did you mean 'lstm'?"),
        ("measure --d_mode 4", "unrecognized arguments: --d_mode 4 (see zoo --help)"),
        ("measure --mixer attention --d_model 5", "d_model=5 is not divisible by n_heads=4"),
        ("measure --seeds 1", "argument --seeds: must be at least 5, got 1"),
        ("measure --seeds a", "argument --seeds: must be a whole number, got a"),
        ("measure --mixer lstm --out pyproject.toml", "pyproject.toml is a file, but a folder is needed"),
        ("measure --ckpt_path nowhere", "no run at nowhere"),
        ("measure --ckpt_path nowhere --d_model 4", "--d_model cannot be combined with --ckpt_path"),
        ("measure --device abacus", "device 'abacus' cannot be used"),
        ("measure --device meta", "device 'meta' cannot be used"),
        ("measure --allow mine:Mixer", "--allow is for the file of a model: it needs --ckpt_path"),
        ("heads nowhere --processes 0", "argument --processes: must be at least 1, got 0"),
        ("heads nowhere --sequences 0", "argument --sequences: must be at least 1, got 0"),
        ("figure gradients --seq_len 4", "argument --seq_len: must be at least 16, got 4"),
        ("figure gradients --out x.gif", "--out needs a file name in .pdf, .svg, .png, got x.gif"),
        ("claims head_cont", "did you mean 'head_count'?"),
        ("claims --ranks 4 17", "ranks must be integers from 1 to 16"),
        ("figure stairs", "did you mean 'staircase'?"),
        ("figure gradients --steps 3", "figure gradients has no option --steps"),
        ("figure staircase --mixer lstm", "figure staircase has no option --mixer"),
        ("figure staircase --seq_len 64", "figure staircase has no option --seq_len"),
        ("figure highways --steps 3", "figure highways has no option --steps"),
        ("figure gradients --mixer lstn", "unknown mixer 'lstn'"),
    ],
)
def test_wrong_arguments_are_one_line_errors(argv: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, *argv.split())


def test_help_and_errors_of_names_need_only_the_standard_library() -> None:
    """With `-S` Python sees no installed package, so any import of torch or rich fails."""
    right = "zoo --help", "zoo claims --help", "zoo mixers", "tasks list"
    for argv, status in (*((argv, 0) for argv in right), ("zoo measure --mixer x", 2)):
        assert "Traceback" not in python("-S", "-m", *argv.split(), status=status).stderr


@pytest.mark.parametrize(("verb", "sizes"), [("measure", Sizes()), ("claims", QUICK)])
def test_the_help_shows_the_defaults(
    verb: str, sizes: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        command.main([verb, "--help"])
    found = re.findall(r"^  --(\w+) .*default ([\d ]+)$", capsys.readouterr().out, re.MULTILINE)
    assert "seed" in dict(found)
    for flag, text in found:
        default = getattr(sizes, {"seeds": "n_seeds"}.get(flag, flag))
        assert text == " ".join(map(str, default if isinstance(default, tuple) else [default])), flag


def test_mixers_lists_all_and_shows_the_options_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*argv: str) -> str:
        assert command.main(["mixers", *argv]) == 0
        return capsys.readouterr().out

    assert all(f"  {name} " in shown() for name in list_mixers())
    assert re.search(r"^  gates +.*default 'channel'$", shown("gdn2"), re.MULTILINE)
    assert shown("selective_ssm") == shown("mamba")
    assert "(or mamba)" in shown("mamba")
    (tmp_path / "own.py").write_text(
        "from torch import nn\nclass Own(nn.Module):\n    def __init__(self, d_model, size: int): ..."
    )
    assert shown(f"{tmp_path}/own.py:Own").endswith("  size  int, required\n")


@pytest.mark.usefixtures("unpainted")
def test_measure_prints_and_writes_a_row_per_mixer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["measure", "--mixer", "attention", "--mixer", "diagonal_ssm", *SMALL, "--out", str(tmp_path / "a/b")]
    assert command.main(argv) == 0
    out = capsys.readouterr().out
    assert out.count("attention") == 3
    rows = json.loads((tmp_path / "a/b/measure.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["attention", "diagonal_ssm"]
    assert rows[0]["rank"] == rows[0]["predicted_rank"] == 2
    assert {path.name for path in (tmp_path / "a/b").iterdir()} == {"measure.md", "measure.json", "measure.png"}


@pytest.mark.usefixtures("unpainted")
def test_measure_reads_the_layers_of_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from zoo.backbone import Backbone
    from zoo.loading import saved

    model = Backbone({"name": "attention", "n_heads": 2}, 4, 2, vocab_size=5, n_outputs=5)
    monkeypatch.setattr(saved, "load", lambda path, allow: {"runs/x": model}[path])
    assert command.main(["measure", "--ckpt_path", "runs/x", *SHORT, "--out", str(tmp_path)]) == 0
    content = json.loads((tmp_path / "measure.json").read_text())
    assert [row["name"] for row in content["rows"]] == ["layer 0: attention", "layer 1: attention"]
    assert content["sizes"]["d_model"] == 4
    out = capsys.readouterr().out
    assert "layer 1: attention" in out
    assert "heads, operators" not in out  # --heads does not apply to a model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Llama", "Mamba"])
@pytest.mark.usefixtures("unpainted")
def test_measure_reads_the_layers_of_a_transformers_model(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import transformers

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shape: dict[str, Any] = {"vocab_size": 5, "hidden_size": 4, "num_hidden_layers": 2, "pad_token_id": None}
    shape |= {"num_attention_heads": 2, "intermediate_size": 6} if kind == "Llama" else {"state_size": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**shape))
    theirs.bfloat16().save_pretrained(tmp_path / "model")
    capsys.readouterr()
    assert command.main(["measure", "--ckpt_path", str(tmp_path / "model"), *SHORT, "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "measure.json").read_text())["rows"]
    name = {"Llama": "attention", "Mamba": "selective_ssm"}[kind]
    assert [row["name"] for row in rows] == [f"layer 0: {name}", f"layer 1: {name}"]
    assert all(row["rank"] == row["predicted_rank"] for row in rows)


def test_a_folder_that_is_neither_run_nor_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{tmp_path} is not a model folder" in refused(capsys, "measure", "--ckpt_path", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert f"transformers cannot load {tmp_path}" in refused(capsys, "measure", "--ckpt_path", str(tmp_path))


@pytest.mark.usefixtures("unpainted")
def test_a_model_of_short_sequences_is_measured_up_to_its_longest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from zoo.backbone import Backbone
    from zoo.loading import saved

    def model(max_seq_len: int) -> Backbone:
        mixer = {"name": "factorized", "n_heads": 2, "max_seq_len": max_seq_len}
        return Backbone(mixer, 4, 1, vocab_size=5, n_outputs=5)

    monkeypatch.setattr(saved, "load", lambda path, allow: model(int(path)))
    assert command.main(["measure", "--ckpt_path", "32", "--seeds", "5", "--out", str(tmp_path)]) == 0
    sizes = json.loads((tmp_path / "measure.json").read_text())["sizes"]
    assert [sizes[name] for name in ("seq_len", "gradient_len", "lengths", "cut_to")] == [32, 32, [8, 16, 32], 32]
    remark = "Reduced to the model's longest sequence, 32 positions."
    assert remark in " ".join(capsys.readouterr().out.split())
    assert remark in (tmp_path / "measure.md").read_text()
    message = "the model takes sequences of up to 8 positions: gradient_len must be at least 16, got 8"
    assert message in refused(capsys, "measure", "--ckpt_path", "8")


def _run_claims(holds: bool, seen: dict[str, Any]) -> Any:
    """A replacement of `run_claims` with a single check, which holds or fails."""

    def run(names: Sequence[str], settings: Settings, progress: Any) -> list[Verdict]:
        seen.update(names=names, settings=settings)
        check = Check("a quantity", 1.0, high=2.0 if holds else 0.5)
        verdicts = []
        for at, name in enumerate(names):
            progress(name, at, len(names))
            claim = Claim(name, "statement", "source", "refuted by", lambda _: Evidence((check,)))
            evidence = Evidence((check,), ())
            verdicts.append(Verdict(claim, evidence, claim.judge(evidence), 0.1))
        progress("", len(names), len(names))
        return verdicts

    return run


@pytest.mark.parametrize(("holds", "status"), [(True, 0), (False, 1)])
def test_claims_exit_with_the_verdict(
    holds: bool, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from zoo.theory import claims

    seen: dict[str, Any] = {}
    monkeypatch.setattr(claims, "run_claims", _run_claims(holds, seen))
    assert command.main(["claims", "--seed", "3", "--out", str(tmp_path)]) == status
    assert seen["names"] == list_claims()
    assert seen["settings"] == replace(QUICK, seed=3)
    assert ("holds" if holds else "fails") in capsys.readouterr().out
    assert len(json.loads((tmp_path / "claims.json").read_text())) == len(list_claims())
    again = ["claims", "head_count", "head_count", "--full", "--device", "cpu", "--steps", "7", "--out", str(tmp_path)]
    again += ["--ranks", "2", "3", "--starts", "1"]
    assert command.main(again) == status
    assert seen["names"] == ["head_count"]
    assert seen["settings"] == replace(FULL, steps=7, ranks=(2, 3), starts=1)


def test_the_claims_of_a_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from zoo.theory import claims

    seen: dict[str, Any] = {}
    monkeypatch.setattr(claims, "run_claims", _run_claims(True, seen))
    assert command.main(["claims", "alibi_ema", "--paper", "2411.12537", "--out", str(tmp_path)]) == 0
    assert seen["names"] == ["alibi_ema", "slogan_rank_is_power"]
    capsys.readouterr()
    error = refused(capsys, "claims", "--paper", "2411.12357", "--out", str(tmp_path))
    assert "unknown paper '2411.12357' (did you mean '2411.12537'?); choose from: " in error
    assert command.main(["claims", "--page", str(tmp_path / "page.md")]) == 0
    assert "## [2411.12537]" in (tmp_path / "page.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_figure_gradients_writes_a_figure_of_the_chosen_mixers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "figure.png"
    argv = ["figure", "gradients", "--mixer", "attention", "lstm", "--seq_len", "16", "--seeds", "5"]
    assert command.main([*argv, "--out", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.strip() == str(path)


def test_figures_of_claims_use_the_given_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []

    def draw(settings: Settings) -> Any:
        seen.append(settings)
        return panels_figure([Panel("title", "x", "y", ())])

    monkeypatch.chdir(tmp_path)
    for name, function, own in (("staircase", "staircase_figure", "steps"), ("highways", "gradient_figure", "seq_len")):
        monkeypatch.setattr(claims_page, function, draw)
        with pytest.warns(UserWarning, match="No artists with labels"):
            assert command.main(["figure", name, "--seed", "5", f"--{own}", "64"]) == 0
        with pytest.warns(UserWarning, match="No artists with labels"):
            assert command.main(["figure", name, "--out", "figure.pdf"]) == 0
        assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
        seen.pop()
        assert seen.pop() == replace(QUICK, seed=5, **{own: 64})
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_extra_is_reported_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich.table", None)
    for argv in (["measure"], ["claims"], ["figure", "staircase"], ["heads", "nowhere"]):
        assert "pip install 'path/to/the/clone[report]'" in refused(capsys, *argv)


@pytest.mark.slow
def test_an_output_folder_that_cannot_be_created_is_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    argv = ["measure", "--mixer", "identity", *SMALL, "--out", str(tmp_path / "file" / "below")]
    assert command.main(argv) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_ctrl_c_is_a_one_line_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_check_report", raising(KeyboardInterrupt()))
    assert command.main(["measure"]) == 130
    assert capsys.readouterr().err == "zoo: interrupted\n"
