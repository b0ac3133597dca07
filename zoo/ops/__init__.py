"""The mathematics of the mixers, once each, as pure functions on tensors."""
