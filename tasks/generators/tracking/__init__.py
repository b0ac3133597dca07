"""State tracking: follow a state that each token changes, such as a group element or the depth of brackets."""
