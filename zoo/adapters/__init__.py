"""Adapters for modules of other packages: build them, call them, stream them, and use them as mixers."""
