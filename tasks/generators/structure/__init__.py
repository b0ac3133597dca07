"""Structure: trees, graphs and pictures, such as expressions, sentences of a grammar, dashed paths."""
