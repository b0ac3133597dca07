"""Turn a task into batches: seeded splits, the cache on disk, mixtures, reading of real data, export."""
