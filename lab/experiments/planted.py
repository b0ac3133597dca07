"""The mixer of the experiment planted_heads: attention whose weights or values read only some channels."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.mixers.attention import Attention
from zoo.validate import require_choice, require_positive

Blind = Literal["weights", "values"]


class BlindAttention(Attention):
    """Softmax attention whose weights do not read the content, or whose values read nothing else.

    The first d_content channels of the input are its content. With blind=weights, queries and keys read only the other
    channels, so the weights do not depend on the content. With blind=values, values read only the content, so a token
    without content has the value zero.

    Args:
        d_model: width of input and output.
        d_content: number of content channels.
        blind: weights or values.
        n_heads: number of heads.
        d_head: width of a head; default d_model / n_heads.

    Raises:
        ValueError: an unknown choice, sizes that are not positive.
    """

    def __init__(
        self, d_model: int, d_content: int = 8, blind: Blind = "weights", n_heads: int = 4, d_head: int | None = None
    ) -> None:
        require_choice("blind", blind, Blind)
        require_positive(d_content=d_content)
        super().__init__(d_model, n_heads, d_head)
        visible = torch.ones_like(self.qkv_proj.weight)
        q_and_k = sum(self.widths[:2])
        if blind == "weights":
            visible[:q_and_k, :d_content] = 0
        else:
            visible[q_and_k:, d_content:] = 0
        self.qkv_proj = _Masked(self.qkv_proj.weight, visible)


class _Masked(nn.Module):
    """A linear map without bias whose weight is multiplied by a mask."""

    mask: Tensor

    def __init__(self, weight: nn.Parameter, mask: Tensor) -> None:
        super().__init__()
        self.weight = weight
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.mask)
