"""Tasks of your own, from a function, a file of arrays or a folder of files."""

SUFFIXES = (".npz", ".parquet", ".arrow", ".feather", ".jsonl")
"""Suffixes of data files."""
