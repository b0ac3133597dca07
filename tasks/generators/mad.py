"""How the accuracy of the six tasks of MAD is counted there."""

from __future__ import annotations

REPORTED = (
    "MAD reports `accuracy_macro` (torchmetrics' macro average over the vocabulary, ignore_index -100), here over the "
    "whole split; MAD takes it batch by batch, of 128 examples, and averages. A single wrong guess of a token that is "
    "never an answer adds a class with accuracy 0. `accuracy` is the share of all answers that are right."
)
