"""In-context regression: linear regression with a new weight vector in every sequence."""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays, Task
from tasks.spec import TaskSpec


class InContextRegression(Task):
    """Predict w · x from earlier pairs (x, w · x), where w is new in every sequence.

    Definition, with d = d_x: w and x_1, x_2, ... are standard normal in d dimensions. The sequence is x_1, y_1, x_2,
    y_2, ..., where y_i = w · x_i is in channel 0 and the other channels are zero. The label at x_i is y_i.

    Before x_i there are i - 1 pairs. The best predictor is minimum-norm least squares, the limit of ridge regression
    without noise: it knows w in the span of the x seen so far and nothing orthogonal to it. Relative to the power of y,
    its expected squared error after k pairs is 1 - k/d, and 0 from d pairs on. `floors` returns this error for each k
    (`floor_at_pairs`) and over a whole sequence (`floor`), to compare with relative_squared_error, which is also split
    by `pairs`.

    Source: Garg et al., "What Can Transformers Learn In-Context? A Case Study of Simple Function Classes",
    arXiv 2208.01066: linear functions in 20 dimensions, 41 pairs. We leave out their curriculum over dimensions and
    pairs.

    `pairs` is the number of pairs before a label.

    Reported: The paper reports the squared error by number of pairs, divided by d_x.

    Prediction: A layer of linear attention takes one step of gradient descent, the delta rule one step per pair. Both
    approach least squares with more layers or pairs, in a state of d by d. Attention with several layers comes close to
    least squares (Garg et al.). Fixed transitions store no product of x and y, except through the nonlinearity between
    layers.

        >>> task = InContextRegression(seq_len=6, d_x=2)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(np.round(example["inputs"][0].T, 2))
        [[-0.43  0.64  0.6   0.78  0.06  0.11]
         [-0.8   0.   -0.07  0.   -0.03  0.  ]]
        >>> print(np.round(example["labels"][0, :, 0], 2))
        [0.64  nan 0.78  nan 0.11  nan]

    Args:
        seq_len: length of a sequence, even: two positions per pair.
        d_x: dimension of x.
    """

    def __init__(self, seq_len: int = 40, d_x: int = 8) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 2)
        self.d_x = self._whole("d_x", d_x, 1)
        self._demand(self.seq_len % 2 == 0, "seq_len must be even")

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.regression(self.seq_len, self.d_x, labelled=self.seq_len // 2, facts=("pairs",))

    def floors(self) -> dict[str, float | dict[str, float]]:
        """Return `floor_at_pairs` k, the least relative squared error after k pairs, and `floor`, over all labels."""
        errors = np.maximum(0.0, 1 - np.arange(self.seq_len // 2) / self.d_x)
        return {
            "floor": float(errors.mean()),
            "floor_at_pairs": {str(pairs): float(error) for pairs, error in enumerate(errors)},
        }

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        weights = rng.standard_normal((n, self.d_x, 1), dtype=np.float32)
        x = rng.standard_normal((n, self.seq_len // 2, self.d_x), dtype=np.float32)
        y = (x.astype(np.float64) @ weights).astype(np.float32)
        inputs = np.zeros((n, self.seq_len, self.d_x), dtype=np.float32)
        inputs[:, ::2], inputs[:, 1::2, :1] = x, y
        labels = np.full((n, self.seq_len, 1), np.nan, dtype=np.float32)
        labels[:, ::2] = y
        pairs = np.full((n, self.seq_len), -1, dtype=np.int32)
        pairs[:, ::2] = np.arange(self.seq_len // 2)
        return {"inputs": inputs, "labels": labels, "pairs": pairs}
