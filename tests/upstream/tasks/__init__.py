"""Compare our task generators with the published ones, by recorded statistics."""
