"""Tests, in folders as the rooms they test. Shared parts are imported as `tests.reference`, `tests.tolerances`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The project's folder."""
