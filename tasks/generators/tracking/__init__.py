"""Follow a state that each token changes: a group, an automaton, the depth of brackets."""
