"""A note on the accuracy that MAD reports for its six tasks."""

from __future__ import annotations

REPORTED = (
    "MAD reports `accuracy_macro` (torchmetrics' macro average over the vocabulary, ignore_index -100). We compute it "
    "over the whole split; MAD averages it over batches of 128 examples. A single wrong guess of a token that is "
    "never an answer adds a class with accuracy 0. `accuracy` is the share of right answers."
)
