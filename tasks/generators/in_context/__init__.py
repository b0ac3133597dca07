"""In-context learning: infer a rule that is new in every sequence from earlier examples."""
