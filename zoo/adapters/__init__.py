"""Modules of other packages under the contract: how to call them, what their states hold, how to build them."""
