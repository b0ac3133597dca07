"""How models meet what others have: checkpoints on disk, packed batches, models of transformers."""
