"""Names of the files in a run's folder; only this module spells them."""

from __future__ import annotations

CONFIG, METRICS, ENVIRONMENT, LOCK = "config.yaml", "metrics.json", "environment.json", "lock"
RUNGS = "rungs.json"
"""The run's metrics where --stop_at stopped it, by that flag's value; of one that diverged, step and reason."""
HEADS = "heads.json"
"""What `zoo heads` says of the run's model, where an experiment asked for it."""
LOG, DONE, INDEX = "log.txt", "done.json", "sweep.json"
"""What sweep.py adds: a run's output, its mark when it needs nothing more; in its own folder, which runs it has."""
EVENTS, BY_LENGTH = "events.out.tfevents.", "_by_length.png"
"""How files of TensorBoard begin; how figures of a score against length end."""
HPARAMS = f"{EVENTS}0.hparams"
"""Of these the first in the alphabet: what the HParams tab knows the run by."""
