"""Recall: look up the value of a key seen before, of one token or several, once or often, among noise."""
