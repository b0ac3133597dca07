"""The generators, a folder per family and a file per task; what several families share is here."""
