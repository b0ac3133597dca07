"""A run on disk: names of its files, lock, identity, environment, metrics; `folder` writes it and `record` reads it."""
