"""Synthetic and real sequence tasks: vectorised generators, seeded splits, a cache on disk for slow tasks.

    >>> import numpy as np
    >>> import tasks
    >>> task = tasks.create_task("mqar", vocab_size=256, seq_len=64, n_pairs=4)
    >>> batch = task.sample(np.random.default_rng(0), 2)
    >>> {name: array.shape for name, array in batch.items()}
    {'inputs': (2, 64), 'labels': (2, 64), 'distance': (2, 64), 'pairs': (2, 64)}

Importing the package does not load numpy or torch: names are imported on first use.
"""

from __future__ import annotations

from zoo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
