"""Look up the value of a key that was read before: one token or several, once or often, among noise."""
