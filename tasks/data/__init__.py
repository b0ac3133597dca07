"""From a task to batches: seeded splits, the cache on disk, mixtures, the Lightning data module, export."""
