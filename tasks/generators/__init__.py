"""The generators: a folder per family, a file per task; pieces that several families share are here."""
