"""Dropout that draws from a generator of its own; a file apart, because it needs torch at once."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn


class SeededDropout(nn.Module):
    """Dropout with one draw a row and place, as :class:`tacit.dense.Dense` has it.

    Torch's own draws from a global generator, which candidates on several cores would share.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.built_rate = self.rate = rate
        self.generator: Generator | None = None

    def forward(self, signal: Tensor) -> Tensor:
        if self.rate == 0 or not self.training:
            return signal
        if self.rate == 1:
            return torch.zeros_like(signal)
        chance = torch.rand(signal.shape, generator=self.generator)
        return signal * ((chance >= self.rate) / (1 - self.rate))
