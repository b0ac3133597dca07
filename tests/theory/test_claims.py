"""Every claim holds at a small size, and fails when its prediction or its measurement is made wrong."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import raising, slow
from zoo.contract import SequenceMixer
from zoo.errors import UnknownNameError
from zoo.evidence import (
    Check,
    Estimate,
    Panel,
    Verdict,
    at_most,
    equals,
    within,
)
from zoo.mixers.diagonal_ssm import DiagonalSSM
from zoo.theory.claims import (
    claims_by_paper,
    gradients,
    heads,
    list_claims,
    memory,
    page,
    ranks,
    retrieval,
    run_claims,
    softmax,
)
from zoo.theory.claims.claim import Findings, Settings, redrawn
from zoo.theory.claims.cores import Core
from zoo.theory.lags import head_count_bound
from zoo.theory.teacher import balanced_teacher

SMALL = Settings(n_seeds=5, seq_len=256, ranks=(2,), starts=1)
SHORT = {"gradient_attention", "gradient_closed_gates", "slogan_ssm_attenuates"}
"""Claims for which 128 positions are enough."""


@functools.cache
def measured(name: str) -> Verdict:
    """The verdict of a claim, cached."""
    (verdict,) = run_claims(name, dataclasses.replace(SMALL, seq_len=128) if name in SHORT else SMALL)
    return verdict


NOT_DRAWN = {"rank_of_mixers", "softmax_floor", "differential_floor", "softmax_heads", "reflection_counts"}
NOT_DRAWN |= {"reflections_rotate", "recall_by_weights", "nearest_neighbour"}
"""Claims with exact checks, of one draw or a construction; the others have only checks over several draws."""
QUICK_TO_MEASURE = {"gradient_lti", "heads_for_an_error", "key_removal", "one_head_gap", "outputs_need_fewer"}
QUICK_TO_MEASURE |= {"recall_by_weights", "slogan_rank_is_power"}
CLAIM_BY_CLAIM = [slow(name, unless=name in QUICK_TO_MEASURE) for name in list_claims()]


@pytest.mark.parametrize("name", CLAIM_BY_CLAIM)
def test_claims_hold_and_slogans_do_not(name: str) -> None:
    verdict = measured(name)
    right = "fails" if verdict.claim.slogan else "holds"
    assert [check for check in verdict.evidence.checks if check.verdict != right] == []
    assert verdict.status == ("refuted as predicted" if name.startswith("slogan_") else "holds")
    assert verdict.claim.name == name
    exact = [check.quantity for check in verdict.evidence.checks if check.interval is None]
    assert bool(exact) == (name in NOT_DRAWN)


_SPOILT: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "rank_of_cores": (ranks, "state_space_duality", lambda true: lambda draw, d, h, n: true(draw, d, 4, n)),
    "rank_of_mixers": (SequenceMixer, "predicted_rank", lambda true: lambda mixer, n: true(mixer, n) + 1),
    "gates_and_depth": (ranks, "gated", lambda _: lambda layer, gate: layer),
    "gates_and_depth: depth": (ranks, "Stack", lambda true: lambda layers: true(layers[:1])),
    "write_gate": (ranks, "written_delta_rule", lambda true: lambda draw, *sizes: true(draw, *sizes[:-1], 1)),
    "one_head_gap": (heads, "to_heads", lambda true: lambda lags, n_heads=None: true(lags)),
    "head_count": (heads, "head_count_bound", lambda true: lambda lags, h: 0.9 * true(lags, h)),
    "heads_for_an_error": (heads, "_real_poles", lambda _: lambda n, seq_len, device: torch.linspace(-0.99, 0.99, n)),
    "outputs_need_fewer": (heads, "turning_layer", lambda true: lambda lags: true(1.001 * lags)),
    "softmax_floor": (softmax, "least_floor", lambda true: lambda lags: 1.1 * true(lags)),
    "differential_floor": (softmax, "differential_heads_at_the_floor", lambda true: lambda lags: true(1.001 * lags)),
    "softmax_heads": (softmax, "to_softmax_heads", lambda true: lambda lags: true(1.001 * lags)),
    "alibi_ema": (softmax, "ema_as_alibi", lambda true: lambda poles, *maps: true(0.99 * poles, *maps)),
    "gradient_lti": (gradients, "real_poles", lambda true: lambda poles: true(poles**1.1)),
    "gradient_attention": (gradients, "_SHARPNESS", lambda _: 0.1),
    "gradient_closed_gates": (gradients, "_CLOSED", lambda _: 0.0),
    "gradient_hybrid": (gradients, "averages", lambda true: lambda n, residual, attention_at=None: true(n, residual)),
    "gradient_hybrid: rate": (
        gradients,
        "_rate",
        lambda true: lambda profile: Estimate(*(each + 1.6 / SMALL.seq_len for each in true(profile))),
    ),
    "gradient_residuals": (gradients, "moving_average", lambda true: lambda value, rho: true(value, rho - 0.1)),
    "state_size": (memory, "state_space_duality", lambda true: lambda draw, d, h, state: true(draw, d, h, state + 1)),
    "key_removal": (memory, "head_weights", lambda true: lambda layer, x: true(layer, 0.5 * x).tril(-1)),
    "reflection_counts": (memory, "_SLOW", lambda _: 1e-2),
    "reflections_rotate": (memory, "mirrors", lambda true: lambda rotations: true(rotations).flip(-2)),
    "polarised_channels": (gradients, "averaging_stack", lambda true: lambda poles, maps: true(0.9 * poles, maps)),
    "recall_by_weights": (retrieval, "written_recall", lambda true: lambda m, q, k: true(m, q, k.roll(1, 0))),
    "nearest_neighbour": (retrieval, "least_left", lambda true: lambda *sizes: 0.8 * true(*sizes)),
    "slogan_rank_is_power": (ranks, "parity_machine", lambda _: lambda settings: Core(2, lambda x: x[..., 1:])),
    "slogan_ssm_attenuates": (gradients, "real_poles", lambda true: lambda poles: true(0.5 * poles)),
    "slogan_selective_between": (
        gradients,
        "SelectiveSSM",
        lambda _: lambda d, dt_min, dt_max: DiagonalSSM(d, dt_min=dt_min / 3, dt_max=dt_max),
    ),
}
"""{claim, or claim: part: (module, attribute that is made wrong, its replacement)}."""


@pytest.mark.slow
@pytest.mark.parametrize("part", [*list_claims(), *(part for part in _SPOILT if ":" in part)])
def test_a_spoilt_claim_fails(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, spoil = _SPOILT[part]
    monkeypatch.setattr(module, attribute, spoil(getattr(module, attribute)))
    (verdict,) = run_claims([part.partition(":")[0]], SMALL)
    assert verdict.status == ("not refuted" if verdict.claim.slogan else "fails")
    assert not verdict.as_expected


def test_redrawn_turns_a_check_into_one_over_several_seeds() -> None:
    def seeds(settings: Settings) -> Findings:
        yield at_most("seed", settings.seed, 2003)
        yield Panel(f"seed {settings.seed}", "x", "y", ())
        yield equals("another", 1, 1)

    *panels, seed, other = redrawn(seeds)(Settings(seed=2, n_seeds=5))
    assert [panel.title for panel in panels if isinstance(panel, Panel)] == ["seed 2000"]
    assert isinstance(seed, Check)
    assert (seed.value, seed.interval, seed.seeds) == (2002, (2000, 2004), tuple(range(5)))
    assert seed.verdict == "undecided"  # one draw of five exceeds the bound
    assert other == within("another", dict.fromkeys(range(5), 1), 1, 1)
    assert redrawn(seeds).__name__ == "seeds"


def test_running_reports_progress_and_refuses_unknown_names_first() -> None:
    seen: list[tuple[str, int, int]] = []
    verdicts = run_claims(["outputs_need_fewer", "slogan_rank_is_power"], SMALL, lambda *now: seen.append(now))
    assert [verdict.claim.name for verdict in verdicts] == ["outputs_need_fewer", "slogan_rank_is_power"]
    assert seen == [("outputs_need_fewer", 0, 2), ("slogan_rank_is_power", 1, 2), ("", 2, 2)]
    seen.clear()
    with pytest.raises(UnknownNameError, match=r"unknown claim 'alibi_emu' \(did you mean 'alibi_ema'\?\)"):
        run_claims(["alibi_ema", "alibi_emu"], SMALL, lambda *now: seen.append(now))
    assert seen == []


def test_the_page_of_claims_has_each_of_them() -> None:
    text = page.claims_page()
    assert all(f"- `{name}`: " in text for name in list_claims())
    assert claims_by_paper()["2411.12537"] == ["slogan_rank_is_power"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_seeds": 4}, "n_seeds must be an integer of at least 5, got 4"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"seq_len": 16}, "seq_len must be an integer of at least 32, got 16"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"starts": True}, "starts must be an integer of at least 1, got True"),
        ({"ranks": ()}, r"ranks must be integers from 1 to 16, at least one, got \(\)"),
        ({"ranks": (1, 40)}, "ranks must be"),
    ],
)
def test_settings_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**options)


@pytest.mark.slow
def test_the_figures_of_claims() -> None:
    (axes,) = page.staircase_figure(settings=dataclasses.replace(SMALL, steps=5)).axes
    assert axes.get_yscale() == "log"
    bound, _ = axes.lines
    exact = head_count_bound(balanced_teacher(2, 6, 32), 1)
    assert list(bound.get_ydata()) == pytest.approx([exact, 1e-14, 1e-14])  # the step to zero at H = 2
    figure = page.gradient_figure(dataclasses.replace(SMALL, seq_len=32))
    assert len(figure.axes) == 4


@pytest.mark.usefixtures("unpainted")
def test_a_failed_report_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = [measured("gradient_lti"), measured("slogan_rank_is_power")]
    files = page.write_report(verdicts, tmp_path / "deep" / "folder")
    plots = [f"{verdict.claim.name}.png" for verdict in verdicts if verdict.evidence.panels]
    assert [file.name for file in files] == ["claims.md", "claims.json", *plots]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files[2:])
    text = files[0].read_text(encoding="utf-8")
    assert all(f"## {verdict.claim.name}\n" in text for verdict in verdicts)
    assert [each["verdict"] for each in json.loads(files[1].read_text())] == ["holds", "refuted as predicted"]
    before = {path.name: path.read_bytes() for path in files[0].parent.iterdir()}
    monkeypatch.setattr(os, "replace", raising(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        page.write_report(verdicts[:1], files[0].parent)
    assert {path.name: path.read_bytes() for path in files[0].parent.iterdir()} == before
