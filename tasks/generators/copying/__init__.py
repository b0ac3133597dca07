"""Give back tokens that were read, in order or by their place."""
