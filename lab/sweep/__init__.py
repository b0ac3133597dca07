"""Many runs: which (grid, matching), how they are carried out (engine), what is shown (board), all of it (sweep)."""
