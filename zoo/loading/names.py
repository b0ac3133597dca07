"""File names of checkpoints and their folder. Imports nothing, for fast command lines."""

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints within a run folder."""

BEST, LAST, PREVIOUS = "best.ckpt", "last.ckpt", "previous.ckpt"
"""The checkpoint with the best validation score, the latest one, and its predecessor."""
