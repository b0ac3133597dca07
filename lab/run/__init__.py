"""A run on disk: `folder` writes it, `record` reads it; the other modules define its file names, lock and metrics."""
