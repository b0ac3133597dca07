"""What README and docs/findings.md say of single runs, counted from docs/results/."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any, TypeAlias

import pytest

from lab.experiments import judge
from lab.experiments.vocabulary import LEARNED
from lab.guesses import without_order
from tasks import create_task

WORDS = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
ACCURACY, STEPS = "test/accuracy", "steps_to_90"
GUESSING = 0.3  # among four values one is right in 0.25
Row: TypeAlias = dict[str, str]


@functools.cache
def rows(name: str) -> tuple[Row, ...]:
    with (judge.ROOT / "docs" / judge.LISTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


@functools.cache
def stored() -> Mapping[str, Any]:
    return judge.read_stored(judge.ROOT / "docs" / judge.STORED)


def cells(name: str, task: str, configuration: str = ".*", column: str = ACCURACY) -> list[list[float]]:
    """Return a column, a list over seeds for each configuration of the tasks; those that lack it are left out."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows(name):
        if re.fullmatch(task, row["task"]) and re.fullmatch(configuration, row["configuration"]):
            values = found.setdefault((row["task"], row["configuration"]), [])
            values += [float(row[column])] if row[column] else []
    assert found, (name, task, configuration)
    return list(found.values())


def cell(name: str, task: str, configuration: str, column: str = ACCURACY) -> list[float]:
    (values,) = cells(name, task, configuration, column)
    return values


def curves(name: str, title: str) -> dict[str, dict[float, float]]:
    """Return the lines of a plot of a record, {label: {x: y}}."""
    panels = stored()[name]["panels"]
    (panel,) = (each for each in panels if each["title"] == title)
    return {each["label"]: dict(zip(each["x"], each["y"], strict=True)) for each in panel["curves"]}


def pooled(name: str, task: str, configuration: str) -> list[float]:
    return [value for values in cells(name, task, configuration) for value in values]


def n_learned(scores: Iterable[float]) -> int:
    return sum(score >= LEARNED for score in scores)


def medians(found: list[list[float]]) -> list[float]:
    return sorted(map(median, found))


FIRST, LATER = r"hybrid lr=\S+ pattern=(?:\d×)?attention.*", r"hybrid lr=\S+ pattern=(?:\d×)?diagonal_ssm.*"
FIRST_OF_SIX = r".*pattern=attention\+5×diagonal_ssm"
STARTS = "ssd dt_max=.* init=recall .*"
PUBLISHED = "ssd .* init=published .* max_steps=400"
NO_OUTPUT_NORM = "selective_ssm .* norm_eps=1e-05 out_norm_eps=none"


def needles_of_a_gru() -> str:
    near, far = (cell("gradient_threshold", f"needle distance={n}", "gru") for n in (64, 256))
    assert len(near) == len(far) == 5
    return f"a needle 64 back in {WORDS[n_learned(near)]} runs of five, and one 256 back in {WORDS[n_learned(far)]}"


def far_needles_of_a_gru() -> str:
    n = n_learned(cell("gradient_threshold", "needle distance=256", "gru"))
    return f"a GRU learned a needle 256 back in {WORDS[n]} runs of five"


def needles_that_nobody_learns() -> str:
    short = cells("gradient_highway", "needle distance=128", "(lstm|selective_ssm) .* max_steps=400")
    assert sum(map(len, short)) == 10
    assert sum(map(n_learned, short)) == 0
    (lstm,) = cell("gradient_highway", "needle distance=128", "lstm .* max_steps=1600")
    (mamba,) = cell("gradient_highway", "needle distance=128", "selective_ssm .* max_steps=1600")
    assert lstm < 0.15
    return (
        f"in none of ten runs. In four times as many steps, at a rate tuned anew, the LSTM still guesses and Mamba-1 \
reaches {mamba:g}, one seed each"
    )


def mamba_2_in_readme() -> str:
    worst, second, *_ = sorted(cell("trainability", "mqar n_pairs=4", PUBLISHED))
    assert second > 0.995
    return f"one seed of ten {worst:.2f}"


def mamba_2_in_findings() -> str:
    worst, *_ = sorted(cell("trainability", "mqar n_pairs=4", PUBLISHED))
    return f"one seed of ten is at {worst:.2f}"


def mamba_1_after_four_times_the_steps() -> str:
    (score,) = cell("trainability", "mqar n_pairs=4", "selective_ssm .* max_steps=1600")
    return f"learns in four times as many steps ({score:.2f}, one seed)"


def steps_of_the_starts_of_mamba_2() -> str:
    found = medians(cells("trainability", "mqar n_pairs=4", STARTS, STEPS))
    assert len(found) == 4
    return f"the medians of four initialisations are {found[0]:g} to {found[-1]:.0f} steps"


def steps_of_mamba_2() -> str:
    published = cell("trainability", "mqar n_pairs=4", PUBLISHED, STEPS)
    recall = cell("trainability", "mqar n_pairs=4", "ssd dt_max=none dt_min=none init=recall .*", STEPS)
    assert (len(published), len(recall)) == (9, 10)
    return f'learns in {median(published):g} steps in the median of the nine seeds of ten that learn, that with \
`init="recall"` in {median(recall):.0f}'


def starts_of_mamba_1() -> str:
    found = pooled("starts_of_mamba", "mqar", ".*")
    return f"{min(found):.2f} to {round(max(found), 2):g} in every seed"


def steps_without_a_norm_of_the_output() -> str:
    *fast, fourth, last = sorted(cell("starts_of_mamba", "mqar", NO_OUTPUT_NORM, STEPS))
    assert len(fast) == 3
    return f"{fast[0]:g} to {fast[-1]:g} steps in three seeds, {fourth:g} and {last:g} in two"


def mamba_1_on_eight_pairs() -> str:
    found = cell("recall_capacity", "mqar n_pairs=8 .*", "selective_ssm")
    return f"it recalls {median(found):.2f} after 600 steps, {min(found):.2f} to {max(found):.2f} in five seeds"


def delta_rules_that_hardly_learn() -> str:
    names = ("delta_product", "gated_delta_net")
    product, gated = (cell("recall_capacity", "mqar n_pairs=8 .*", name) for name in names)
    assert max(product) < 1 / 8
    below = sum(score < 1 / 8 for score in gated)
    return f"DeltaProduct stays below guessing among the eight values (0.13) in every seed, Gated DeltaNet in \
{WORDS[below]} of {WORDS[len(gated)]}"


def gated_delta_net_2() -> str:
    found = cell("gates_on_tasks", "mqar", "gdn2")
    assert [score < 0.4 for score in found].count(True) == len(found) - n_learned(found) == 1
    return "one seed of five of Gated DeltaNet 2 hardly got beyond guessing"


def parameters_of_two_reflections() -> str:
    of_one, of_two = (
        [cells[headings.index("parameters")] for cells in rows if f"n_householder={n} max_steps=800" in cells[0]]
        for group in stored()["state_tracking"]["tables"]["groups"]
        for headings, rows, _ in [group["cells"]]
        if "group=S3" in group["title"]
        for n in (1, 2)
    )
    one, two = (int(params.replace(",", "")) for (params,) in (of_one, of_two))
    return f"A model with two reflections has {two / one - 1:.0%} more parameters".replace("%", " %")


def rotations_at_eight_times_the_length() -> str:
    column = "test/accuracy_at_length/64"
    found = medians(cells("rotations", ".*group=Z3.*", column=column))
    three = max(cell("rotations", ".*group=Z3.*", "delta_product .* n_householder=3 .*", column))
    slstm = max(cell("rotations", ".*group=Z3.*", "slstm", column))
    return f"medians of the accuracy are {found[0]:.2f} to {found[-1]:.2f}, though single runs reach {three:.2f} with \
three reflections and {slstm:.3f} in sLSTM"


def needles_of_a_stack_without_attention() -> str:
    pattern = r"hybrid .* pattern=4×diagonal_ssm max_steps={}"
    usual, longer = (cell("hybrid_ratio", "needle distance=128", pattern.format(n))[0] for n in (400, 1600))
    return f"from {usual:.2f} to {longer:.2f}"


def single_places() -> str:
    first, later = cell("placement", "mqar", FIRST), pooled("placement", "mqar", LATER)
    again, probed = (cell(name, "mqar", FIRST_OF_SIX) for name in ("placement_of_two", "placement_probes"))
    assert len(later) == 5 * 5
    return f"where attention comes first ({min(first):.2f} to {max(first):.2f}; on other seeds, in `placement_of_two`, \
in {WORDS[n_learned(again)]} of five, in `placement_probes`, in {n_learned(probed)} of {len(probed)}), and left at \
guessing, {min(later):.2f} to {max(later):.2f}"


def probes_of_places() -> str:
    first, later = (cells("placement_probes", "mqar", pattern) for pattern in (FIRST_OF_SIX, LATER))
    assert (len(first), len(later)) == (1, 5)
    behind = [max(each) - each[0] for each in zip(*first, *later, strict=True) if each[0] < GUESSING]
    assert all(max(each) < GUESSING for each in later)
    return f"in {WORDS[len(first[0]) - n_learned(first[0])]} seeds the first place does not reach 0.9, in \
{WORDS[len(behind)]} of these it guesses, as every place does then, {min(behind):.2f} to {max(behind):.2f} behind the \
luckiest"


def restored_layers() -> str:
    (panel,) = (each for each in stored()["placement_probes"]["panels"] if each["title"].endswith("restored"))
    first, *others = panel["curves"][0]["y"]
    return f"the first layer leaves {first:.2f} nats, each other one {min(others):.2f} to {max(others):.2f}"


def places_in_readme() -> str:
    first, later = (pooled("placement_of_two", "mqar", pattern) for pattern in (FIRST, LATER))
    return f"({n_learned(first)} runs of {len(first)}, and {WORDS[n_learned(later)]} of {len(later)} others;"


def places_in_findings() -> str:
    first, later = (pooled("placement_of_two", "mqar", pattern) for pattern in (FIRST, LATER))
    n_guess = sum(score < GUESSING for score in first)
    return f"Of the {len(first)} runs of those six, {n_learned(first)} reach 0.9 and {WORDS[n_guess]} guess; of the \
{len(later)} others {WORDS[n_learned(later)]} learns"


def medians_of_places() -> str:
    first, later = (medians(cells("placement_of_two", "mqar", pattern)) for pattern in (FIRST, LATER))
    assert (len(first), len(later)) == (6, 15)
    return f"at medians of {first[0]:.2f} to {first[-1]:.2f}, the other fifteen are left at {later[0]:.2f} to \
{later[-1]:.2f}"


def seeds_of_the_first_place() -> str:
    found = cell("placement_of_two", "mqar", FIRST_OF_SIX)
    return f"since {WORDS[len(found) - n_learned(found)]} seeds of the first place alone have not learned at the end"


def places_on_k_hop() -> str:
    found = medians(cells("placement_of_two", "k_hop"))
    return f"which every place learns, at medians of {found[0]:.2f} to {found[-1]:g}"


def mamba_1_in_one_layer() -> str:
    found = cell("functional_heads_one_layer", "mqar", "selective_ssm")
    assert sum(score < GUESSING for score in found) == 1
    return f"{WORDS[len(found) - n_learned(found)]} seeds of five stay below 0.9, one of them guesses"


def needles_in_one_layer() -> str:
    mamba, rnn = (cell("functional_heads_one_layer", "needle", name) for name in ("selective_ssm", "rnn"))
    return f"Of Mamba-1 and an RNN, which learned it in {WORDS[n_learned(mamba)]} and in {WORDS[n_learned(rnn)]} seeds \
of five"


def the_first_functional_heads() -> str:
    hybrid, ssd = (cell("functional_heads", "mqar", name) for name in ("hybrid", "ssd"))
    assert max(hybrid) < 0.4
    return f"the hybrid has not learned there, and {WORDS[len(ssd) - n_learned(ssd)]} seed of Mamba-2 falls short"


def operators_on_recall() -> str:
    found = curves("functional_heads_one_layer", "mqar: operators of that layer")
    spanned, copying = ([found[name][at] for name in found if name != "selective_ssm"] for at in (0, 1))
    assert {found[name][2] for name in found if name != "selective_ssm"} == {1}
    return f"of {min(spanned)} to {max(spanned)} that are spanned and {min(copying)} to {max(copying)} that copy the \
layer to 10 %"


def operators_of_two_layers() -> str:
    found = curves("functional_heads_trained", "Operators of that layer")
    one = [name for name in found if found[name][2] == 1]
    spanned = [found[name][0] for name in one]
    return f"one of {min(spanned)} to {max(spanned)} in {WORDS[len(one)]} of {WORDS[len(found)]} mixers"


def gradients_of_recurrent_nets() -> str:
    found = curves("gradient_threshold", "Gradient before training")
    near, far = (f"{found['gru'][n]:.0e}" for n in (64, 256))
    return f"the gradient before training is {near} and {far} of that of the last position. Nor is a large gradient \
enough: an LSTM of forget bias 4 does not learn the needle 256 back within 300 steps, where it is \
{found['lstm, forget_bias 4.0'][256]:.1f}"


def gradients_of_places() -> str:
    points = [point for line in curves("placement_of_two", "mqar").values() for point in line.items()]
    first, later = ([x for x, y in points if (y > LEARNED) is with_first] for with_first in (True, False))
    assert (len(first), len(later)) == (6, 15)
    return f"{min(first):.2f} to {max(first):.2f} with attention first and {min(later):.2f} to {max(later):.2f} without"


def words_of_turns() -> str:
    far = "test/accuracy_at_length/64"
    found = cell("generators", ".*group=A5 seq_len=16", "slstm", far)
    assert len(found) == 20
    return f"sLSTM comes to {median(found):.2f} (0.97 to 1.00; twenty seeds, of which \
{WORDS[len(found) - n_learned(found)]} are below 0.9)"


def words_that_are_not_learned() -> str:
    one = cell("generators", ".*group=A5 seq_len=16", "delta_product .* n_householder=1 max_steps=1600")
    attention = cell("generators", ".*group=A5 seq_len=16", "attention max_steps=1600")
    task = create_task("group_words", group="A5", seq_len=16, generators="23451+12453")
    return (
        f"after four times the training {median(one):.2f} and {median(attention):.2f} are right there, where a guess \
from the letters without their order has {without_order(task):.2f}"
    )


def the_likeliest_product() -> str:
    task = create_task("group_words", group="A5", seq_len=64, generators="23451+12453")
    return f"where the likeliest product is right in {task.spec.chance:.3f}"


def far_words_in_readme() -> str:
    far, names = "test/accuracy_at_length/64", ("delta_product .* n_householder=1", "attention")
    one, attention = (
        [max(pair) for pair in zip(*cells("generators", ".*seq_len=16", f"{name} max_steps=.*", far), strict=True)]
        for name in names
    )
    swaps = cell("generators", ".*group=S5.*", "delta_product", far)
    return (
        f"with one reflection {median(one):.2f}, attention {median(attention):.2f}, four times the training included. \
One is enough for swaps of S5, twice as large: {median(swaps):.2f}"
    )


def needles_of_nine_mixers() -> str:
    checks = stored()["functional_heads_one_layer"]["checks"]
    learned = [
        check["value"]
        for check in checks
        if (name := re.fullmatch("needle, (.*): operators that keep 99 % of the accuracy", check["quantity"]))
        and not check["reason"]
        and min(cell("functional_heads_one_layer", "needle", name[1])) > LEARNED
    ]
    few = [value for value in learned if value <= 4]
    return f"the median is one to four in {WORDS[len(few)]} of the {WORDS[len(learned)]} mixers that learn it in every \
seed and whose controls hold"


def short_copies_of_the_delta_rule() -> str:
    worst, second, *_ = found = sorted(cell("copying", "copying n_copied=6 .*", "delta_net .* d_head=4"))
    assert second > LEARNED
    return f"one seed of {WORDS[len(found)]} of the delta rule {worst:.2f}"


FINDINGS: tuple[Callable[[], str], ...] = (
    needles_of_a_gru,
    needles_that_nobody_learns,
    mamba_2_in_findings,
    mamba_1_after_four_times_the_steps,
    steps_of_the_starts_of_mamba_2,
    steps_of_mamba_2,
    starts_of_mamba_1,
    steps_without_a_norm_of_the_output,
    mamba_1_on_eight_pairs,
    delta_rules_that_hardly_learn,
    gated_delta_net_2,
    parameters_of_two_reflections,
    rotations_at_eight_times_the_length,
    needles_of_a_stack_without_attention,
    single_places,
    places_in_findings,
    medians_of_places,
    seeds_of_the_first_place,
    probes_of_places,
    restored_layers,
    places_on_k_hop,
    mamba_1_in_one_layer,
    needles_in_one_layer,
    the_first_functional_heads,
    operators_on_recall,
    operators_of_two_layers,
    gradients_of_recurrent_nets,
    gradients_of_places,
    words_of_turns,
    words_that_are_not_learned,
    the_likeliest_product,
    needles_of_nine_mixers,
    short_copies_of_the_delta_rule,
)
README = (operators_on_recall, far_words_in_readme, far_needles_of_a_gru, mamba_2_in_readme, places_in_readme)


@pytest.mark.parametrize(
    ("document", "counted"),
    [*(("docs/findings.md", each) for each in FINDINGS), *(("README.md", each) for each in README)],
)
def test_a_count_of_runs_in_prose_is_that_of_the_files(document: str, counted: Callable[[], str]) -> None:
    said = " ".join((judge.ROOT / document).read_text(encoding="utf-8").split())
    assert counted() in said
