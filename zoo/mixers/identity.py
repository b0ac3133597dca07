"""The identity: no mixing at all, as a control."""

from __future__ import annotations

from torch import Tensor

from zoo.contract import SequenceMixer
from zoo.ops.precision import Device, DType


class Identity(SequenceMixer):
    """No mixing, as a control: the model treats each position separately.

        y_i = x_i

    It has no parameters.

    Coefficients. None: W_ij is the identity at i = j and zero elsewhere. No offset.

    State. None, 0 bytes.

    Interaction rank. 1.

    Source. This project.

    Args:
        d_model: width of input and output.

    Raises:
        ValueError: a width that is not positive.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)

    def rank_law(self, seq_len: int) -> int:
        return 1

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> tuple[()]:
        return ()

    def mix(self, x: Tensor, state: tuple[()], lengths: Tensor | None) -> tuple[Tensor, tuple[()]]:
        return x.clone(), ()  # a copy, since a caller may write into its output
