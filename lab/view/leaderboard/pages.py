"""The leaderboard as Markdown and as a page whose tables can be sorted: one table of all, then one for each task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lab.score import BASELINE, FACTS, SCORES, WINDOW, score_text, window_text
from lab.view.leaderboard.cells import Record, best_of
from lab.view.page import render
from zoo.report import markdown
from zoo.report.numbers import NOTHING, Number, duration, number

ABOUT = (
    "Every mixer is within 5 % of the parameters that configs/leaderboard.yaml asks for, and has the same short "
    "convolution and the same steps. Its learning rate is picked by validation with the first seed, as docs/tuning.md "
    "says. A score is the median over seeds on the test split, with its 95 % interval in brackets, which takes five "
    "seeds; the best medians of a task are bold, also where seeds are too few to tell them from the next. "
    "Relative squared errors and perplexities are better where they are less. An empty cell has not been run. Chance "
    "ignores the input; the best guess without order, given where it is known, counts the tokens that were read; of "
    "text it is the perplexity of the frequencies of its symbols. "
    "Tokens per second are those of training while other runs share the machine."
)
PICTURE = "figures/leaderboard.png"


class Entry(NamedTuple):
    """A cell of a table: what it says, what it is sorted by, whether it is the best."""

    text: str
    value: Number | str | None = None
    best: bool = False


class Table(NamedTuple):
    """A table under a title; of each column, by its heading, whether the first click puts the most on top."""

    title: str
    columns: dict[str, bool]
    rows: list[list[Entry]]


def tables(records: Sequence[Record], tasks: Sequence[str], baselines: Mapping[str, float | None]) -> list[Table]:
    """Return the table of all, with two levels of guessing for each task, and the tables of the tasks that have cells.

    Args:
        records: cells that were run.
        tasks: columns of the table of all.
        baselines: the best guess on a task that ignores order, where it is known.
    """
    of_task = {task: {each["mixer"]: each for each in records if each["task"] == task} for task in tasks}
    best = {task: best_of(list(found.values())) for task, found in of_task.items() if found}
    mixers = dict.fromkeys(record["mixer"] for record in records)
    rows = [
        [Entry(name, name), *(_score(of_task[task].get(name), best.get(task)) for task in tasks)] for name in mixers
    ]
    rows.append([Entry("guessing"), *(Entry(_guess(best.get(task))) for task in tasks)])
    rows.append([Entry(BASELINE), *(Entry(_baseline(best.get(task), baselines.get(task))) for task in tasks)])
    columns = {task: SCORES[best[task]["metric"]] if task in best else True for task in tasks}
    details = [_detail(task, of_task[task].values(), best[task], baselines.get(task)) for task in best]
    return [Table("All tasks", {"mixer": False, **columns}, rows), *details]


def _score(record: Record | None, best: Record | None) -> Entry:
    if record is None:
        return Entry("")
    interval = record["interval"]
    is_best = best is not None and record["score"] == best["score"]
    ends = f" [{', '.join(score_text(record['metric'], end) for end in interval)}]" if interval else ""
    return Entry(score_text(record["metric"], record["score"]) + ends, record["score"], is_best)


def _guess(record: Record | None) -> str:
    return "" if record is None or record["chance"] is None else score_text(record["metric"], record["chance"])


def _baseline(record: Record | None, value: float | None) -> str:
    return "" if record is None or value is None else score_text(record["metric"], value)


def _detail(task: str, records: Iterable[Record], best: Record, baseline: float | None) -> Table:
    metric, rows = best["metric"], []
    for record in sorted(records, key=lambda each: each["score"], reverse=SCORES[metric]):
        octaves = record["window_octaves"]
        window = {"octaves": octaves, "at_least": record["window_at_least"]} if octaves is not None else None
        facts = [record[name] for name in FACTS.values()]
        rows.append(
            [
                Entry(record["mixer"], record["mixer"]),
                _score(record, best),
                Entry(window_text(window), octaves),
                Entry(number(record["lr"]), record["lr"]),
                Entry(str(len(record["seeds"])), len(record["seeds"])),
                Entry(_guess(record) or NOTHING, record["chance"]),
                Entry(_baseline(record, baseline) or NOTHING, baseline),
                *(Entry(number(fact and round(fact)), fact) for fact in facts[1:]),
                Entry(duration(record["seconds"]), record["seconds"]),
            ]
        )
    chance, *others = FACTS
    columns = {"mixer": False, metric.replace("_", " "): SCORES[metric], WINDOW: True, "learning rate": False}
    columns |= {"seeds": True, chance: True, BASELINE: True}
    columns |= {name: name == "tokens/s" for name in (*others, "time of the runs")}
    return Table(task, columns, rows)


def as_markdown(found: Sequence[Table], origin: str) -> str:
    """Return docs/leaderboard.md."""
    lines = [
        "# Leaderboard",
        "",
        ABOUT,
        "",
        "[leaderboard.html](leaderboard.html) has the same tables, to be sorted.",
        "",
    ]
    if len(found) > 1:
        lines += [f"![Mixers against tasks, from guessing to a perfect score]({PICTURE})", ""]
    for table in found:
        rows = [[f"**{cell.text}**" if cell.best else cell.text for cell in row] for row in table.rows]
        align = "l" + "r" * (len(table.columns) - 1)
        lines += [f"## {table.title}", "", *markdown.table([*table.columns], rows, align), ""]
    command = ["```sh", "python -m lab leaderboard --mixers all  # runs what is missing", "```", ""]
    return "\n".join([*lines, origin, "", *command])


def as_html(found: Sequence[Table], origin: str) -> str:
    """Return the page; it needs no network."""
    return render(Path(__file__).with_name("page.html"), about=f"{ABOUT} {origin}", tables=found)
