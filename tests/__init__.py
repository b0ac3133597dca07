"""Tests. Shared parts are imported as `tests.reference`, `tests.tolerances`."""
