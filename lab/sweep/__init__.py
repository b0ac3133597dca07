"""Sweeps: many runs of train.py.

`lab.sweep.sweep` reads a command line (command) or a file (experiment), expands it into a grid (grid, matching), starts
the runs (engine, forks), compares them (tuning) and shows them (board, summary, scores).
"""
