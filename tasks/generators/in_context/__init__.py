"""Learn a rule that is new in every sequence from the examples before."""
