"""Adapters, one per protocol: how to call a module on whole sequences and to continue it chunk by chunk."""
