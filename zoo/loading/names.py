"""Names of checkpoints and their folder; imports nothing, so that a command line can read them quickly."""

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints in the folder of a run."""

BEST, LAST, PREVIOUS = "best.ckpt", "last.ckpt", "previous.ckpt"
"""The best on validation; the latest; the latest before that one."""
