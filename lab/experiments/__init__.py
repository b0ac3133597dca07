"""The experiments of configs/experiment/: predictions, and verdicts on them from runs."""
