"""Sweeps: many runs of train.py.

A command line (command) or a file (experiment) becomes a grid (grid, matching), whose runs are started (engine, forks),
compared (tuning) and shown (board, summary, scores) by `lab.sweep.sweep`.
"""
