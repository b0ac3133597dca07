"""What sweep.py is made of: which runs (grid, matching), how they are carried out (engine), what is shown (board)."""
