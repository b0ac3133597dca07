"""Read a tree or a picture: expressions, sentences of a grammar, dashed paths."""
