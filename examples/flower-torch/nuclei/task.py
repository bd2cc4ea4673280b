"""The data, the model and how it is trained. Nothing here knows of Tacit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from flwr.app import Context
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn


@dataclass(frozen=True)
class Rows:
    """Measurements of cell nuclei, and whether each tumour was benign."""

    features: Tensor
    labels: Tensor


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))


@lru_cache
def everything() -> tuple[Rows, Rows]:
    """What the clinics hold, and a public test set; a real clinic reads its own database."""
    features, labels = load_breast_cancer(return_X_y=True)
    features = np.log1p(features).astype(np.float32)  # no statistics of anybody's rows
    order = np.random.default_rng(1).permutation(len(labels))
    held, test = order[:469], order[469:]
    return _rows(features, labels, held), _rows(features, labels, test)


def of_clinic(context: Context) -> tuple[Rows, Rows]:
    """A clinic's rows to train on, and its rows to compare settings on."""
    number, clinics = (int(context.node_config[k]) for k in ("partition-id", "num-partitions"))
    held, _ = everything()
    mine = np.arange(number, len(held.labels), clinics)
    few = len(mine) // 4
    return _taken(held, mine[few:]), _taken(held, mine[:few])


def train(model: nn.Module, rows: Rows, lr: float, weight_decay: float, epochs: int) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(rows.labels)).split(8):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(rows.features[batch]), rows.labels[batch]).backward()
            optimiser.step()


def test(model: nn.Module, rows: Rows) -> tuple[float, float]:
    """Loss and accuracy."""
    model.eval()
    with torch.no_grad():
        logits = model(rows.features)
    loss = nn.functional.cross_entropy(logits, rows.labels).item()
    return loss, (logits.argmax(dim=1) == rows.labels).float().mean().item()


def _rows(features: np.ndarray, labels: np.ndarray, which: np.ndarray) -> Rows:
    return Rows(torch.from_numpy(features[which]), torch.from_numpy(labels[which]).long())


def _taken(rows: Rows, which: np.ndarray) -> Rows:
    return Rows(rows.features[which], rows.labels[which])
