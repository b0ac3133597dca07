"""Copying: reproduce tokens of the input, in order or by position."""
