"""The application: configuration files, run folders and their metrics, and sweeps. The library is `zoo`.

    run = lab.train("attention", "mqar", trainer={"max_steps": 200})
    table = lab.read_runs("runs").to_pandas()

Names are imported when they are used.
"""

from __future__ import annotations

from zoo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
