"""Sweeps: which runs (grid, matching), how they are started (engine), what is shown (board), the command (sweep)."""
