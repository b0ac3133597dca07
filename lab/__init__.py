"""The application around the library `zoo`: train runs, sweep over their options, judge experiments, view results.

    run = lab.train("attention", "mqar", trainer={"max_steps": 200})
    table = lab.read_runs("runs").to_pandas()

Names are imported on first use.
"""

from __future__ import annotations

from zoo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
