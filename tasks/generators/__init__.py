"""The generators of examples: a folder per family, a file per task, and code that several families share."""
