"""Export examples as Parquet or JSON lines, or to the Hugging Face hub."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tasks.base import Arrays, Task
from tasks.data.arrow import to_table
from zoo.report.files import as_json, write_atomically


def write_parquet(file: Path, arrays: Arrays, about: dict[str, Any]) -> None:
    """Write one row per example, a list (of lists) in each column, and `about` as JSON in the schema's metadata."""
    table = to_table(arrays).replace_schema_metadata({"mixer-zoo": json.dumps(about)})
    written = io.BytesIO()
    pq.write_table(table, written)
    write_atomically(file, written.getvalue())


def write_jsonl(file: Path, arrays: Arrays, about: dict[str, Any]) -> None:
    """Write one object per example, with null for NaN. `about` is ignored, since every line is an example."""
    columns = {name: array.tolist() for name, array in arrays.items()}
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    write_atomically(file, "".join(as_json(row, indent=None) for row in rows))


def push_to_hub(task: Task, arrays: Arrays, split: str, repository: str, private: bool) -> str:
    """Upload a split as a data set to the hub, with the user's token.

    Returns:
        The address of the data set.

    Raises:
        ValueError: the hub refuses the upload or cannot be reached.
    """
    import datasets
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    try:
        info = datasets.Dataset(to_table(arrays), split=datasets.NamedSplit(split)).push_to_hub(
            repository, private=private
        )
    except (HfHubHTTPError, LocalTokenNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{task.name} was not uploaded to {repository!r}: {reason} (a token: hf auth login)") from None
    return str(info)
