"""A run on disk: `folder` writes it, `record` reads it; the others define its files, identity, lock and metrics."""
