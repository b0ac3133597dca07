"""Save and load models (checkpoints, safetensors, transformers), and run them on packed or left-padded batches."""
