"""Models in and out of files: checkpoints, safetensors, models of transformers; packed batches for them."""
