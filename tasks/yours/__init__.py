"""Tasks that users bring: a function, a file or a folder of arrays."""
