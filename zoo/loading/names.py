"""How checkpoints and their folder are called; imports nothing, since a command line asks for no more."""

CHECKPOINTS = "checkpoints"
"""Where in its folder a run keeps its checkpoints."""

BEST, LAST, PREVIOUS = "best.ckpt", "last.ckpt", "previous.ckpt"
"""The best on validation; where training stood; the `LAST` before that one."""
