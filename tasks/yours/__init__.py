"""Tasks that users bring: a function, a file or a folder of arrays."""

SUFFIXES = (".npz", ".parquet", ".arrow", ".feather", ".jsonl")
"""Suffixes of files of data."""
