"""The networks of the papers, by name, as torch modules.

Liebenow, Peinemann and Mohammadi, "DP-HYPE: Distributed Differentially Private Hyperparameter
Search" (2025), section VI-B, says only "a small convolutional model", "a slightly larger one" and
"a few fully connected layers"; the layers here are those of its authors' code. Mitic, Pyrgelis and
Sav, "How to Privately Tune Hyperparameters in Federated Learning?" (PrivTuna, 2024), section
IV-B2, gives layers and numbers of parameters, and the two disagree. Our networks have exactly the
numbers; they are those of the authors' Keras code, for the local searches. Their FedJAX code, for
the federated searches, pools with stride 1 as the text does, and so has 7 to 35 times as many
parameters: their local and federated searches train different networks, ours the same one.

How we differ: every network ends in logits, without softmax or sigmoid, since torch's losses expect
those (PrivTuna minimises the squared error of a softmax). Weights start as torch's layers do, from
torch's global generator (PrivTuna's network C: He uniform). Images are (channels, height, width)
and of any size that leaves at least one pixel to the last layer.

Torch is imported by the functions that build, not with this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.nn import Module

_IMAGES = "images (channels, height, width)"

Shape = tuple[int, ...]
"""One example: (channels, height, width) for an image, (features,) for a row of a table."""


@dataclass(frozen=True)
class Network:
    """A network of a paper: what is known about it, and how to make a fresh one.

    >>> emnist = network("privtuna-b").build((1, 28, 28), classes=62)
    >>> parameters(emnist)
    29896
    >>> network("privtuna-b").build((1, 8, 8), classes=10)
    Traceback (most recent call last):
        ...
    ValueError: privtuna-b was asked for examples of shape (1, 8, 8); allowed are images \
(channels, height, width) with height and width of at least 16
    """

    name: str
    paper: str
    known: str
    """How sure we are that the authors used these layers."""
    data: tuple[str, ...]
    """The data sets it was used for."""
    layers: Callable[[Shape, int], Module]
    """From the shape of an example and the number of classes; ``build`` checks both first."""
    smallest: int | None
    """The least height and width of an image; None where examples may have any shape."""

    def build(self, shape: Shape, classes: int) -> Module:
        """A fresh network that maps a batch of examples to one logit for each class."""
        if classes < 2:
            raise ValueError(f"{self.name} was asked for {classes} classes; allowed is 2 and above")
        if self.smallest is None:
            fits, allowed = len(shape) > 0 and min(shape) >= 1, "those of at least one number"
        else:
            fits = len(shape) == 3 and shape[0] >= 1 and min(shape[1:]) >= self.smallest
            allowed = f"{_IMAGES} with height and width of at least {self.smallest}"
        if not fits:
            raise ValueError(
                f"{self.name} was asked for examples of shape {shape}; allowed are {allowed}"
            )
        return self.layers(shape, classes)


def parameters(module: Module) -> int:
    """How many numbers training adjusts; running means of a batch norm are not among them."""
    return sum(weights.numel() for weights in module.parameters() if weights.requires_grad)


def network(name: str) -> Network:
    """The network of this name, or a ValueError that lists the names there are.

    >>> network("dp-hype-mnist").data
    ('MNIST',)
    """
    if name not in NETWORKS:
        raise ValueError(f"no network is called {name!r}; allowed are {', '.join(NETWORKS)}")
    return NETWORKS[name]


def _dense(*widths: int) -> list[Module]:
    """Linear layers between these widths, with ReLU between the layers."""
    from torch import nn

    layers: list[Module] = []
    for before, after in pairwise(widths):
        layers += [nn.ReLU(), nn.Linear(before, after)]
    return layers[1:]


def dense(shape: Shape, classes: int, hidden: tuple[int, ...]) -> Module:
    """Dense layers of these widths, with dropout after each, at rate 0 until it is tuned."""
    from torch import nn

    layers: list[Module] = [nn.Flatten()]
    for layer in _dense(math.prod(shape), *hidden, classes):
        layers += [layer, nn.Dropout(0.0)] if isinstance(layer, nn.ReLU) else [layer]
    return nn.Sequential(*layers)


def _mlp(shape: Shape, classes: int, hidden: tuple[int, ...]) -> Module:
    from torch import nn

    return nn.Sequential(nn.Flatten(), *_dense(math.prod(shape), *hidden, classes))


def mlp(shape: Shape, classes: int) -> Module:
    """Dense 128 and 64; on MNIST 100,480 + 8,256 + 650 = 109,386 parameters. Not from a paper."""
    return _mlp(shape, classes, hidden=(128, 64))


def dp_hype_adult(shape: Shape, classes: int) -> Module:
    """Dense 64 and 64.

    The authors end in one output z and a sigmoid. Two logits are the same model, with z their
    difference; as both move, z takes twice the step in the last layer at equal learning rate.
    """
    return _mlp(shape, classes, hidden=(64, 64))


def dp_hype_mnist(shape: Shape, classes: int) -> Module:
    """Conv 32 and 64 (3x3), max pool 2, dense 128.

    Convolutions are not padded, our assumption: 28 - 2 - 2 = 24, pooled 12, 64 x 12 x 12 = 9,216.
    Parameters on MNIST: 320 + 18,496 + 1,179,776 + 1,290 = 1,199,882.
    """
    from torch import nn

    channels, *sides = shape
    pixels = math.prod((side - 4) // 2 for side in sides)
    return nn.Sequential(
        nn.Conv2d(channels, 32, kernel_size=3),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *_dense(64 * pixels, 128, classes),
    )


def dp_hype_cifar(shape: Shape, classes: int) -> Module:
    """Conv 32-32, max pool 2, conv 64-128 (3x3, batch norm, ReLU), global average pool.

    Our assumptions: padding 1, and no bias before a batch norm, which would cancel it. The running
    means and variances of the batch norms are buffers, which federated averaging has to average or
    leave at home. Parameters on CIFAR-10: convolutions 864 + 9,216 + 18,432 + 73,728, batch norms
    2 x (32 + 32 + 64 + 128), dense 1,290; in all 104,042.
    """
    from torch import nn

    def convolution(before: int, after: int) -> tuple[Module, ...]:
        layer = nn.Conv2d(before, after, kernel_size=3, padding=1, bias=False)
        return layer, nn.BatchNorm2d(after), nn.ReLU()

    return nn.Sequential(
        *convolution(shape[0], 32),
        *convolution(32, 32),
        nn.MaxPool2d(2),
        *convolution(32, 64),
        *convolution(64, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


def privtuna_a(shape: Shape, classes: int) -> Module:
    """Conv 32 (5x5), average pool 3, conv 32 (5x5), average pool 2, dense 200.

    Parameters on MNIST, 28 -> 24 -> 8 -> 4 -> 2 and 32 x 2 x 2 = 128 features:
    832 + 25,632 + 25,800 + 2,010 = 54,274. The paper says pools of 2 and dense 64, which cannot be:
    54,274 - 832 - 25,632 = h (32 s^2 + 1) + 10 h + 10 has the one solution h = 200, s = 2. Pools of
    2 and 3, 2 and 4, 4 and none, or none and 7 to 10 also give s = 2; the authors' code has 3, 2.
    """
    return _two_convolutions(shape, (32, 32), (3, 2), (200, classes))


def privtuna_b(shape: Shape, classes: int) -> Module:
    """Conv 16 (5x5), average pool 2, conv 6 (5x5), average pool 2, dense 120 and 84.

    Parameters on EMNIST, 28 -> 24 -> 12 -> 8 -> 4 and 6 x 4 x 4 = 96 features:
    416 + 2,406 + 11,640 + 10,164 + 5,270 = 29,896. On SVHN, 32 -> 28 -> 14 -> 10 -> 5 and 150:
    1,216 + 2,406 + 18,120 + 10,164 + 850 = 32,756. The paper says channels 6, then 16, and
    stride 1; of all channels up to 64 and all final sides only 16, then 6, with sides 4 and 5 give
    both numbers. Pools of 3 and none would give those sides as well.
    """
    return _two_convolutions(shape, (16, 6), (2, 2), (120, 84, classes))


def _two_convolutions(
    shape: Shape, filters: tuple[int, int], pools: tuple[int, int], dense: tuple[int, ...]
) -> Module:
    from torch import nn

    channels, *sides = shape
    layers: list[Module] = []
    for before, after, pool in zip((channels, filters[0]), filters, pools, strict=True):
        layers += [nn.Conv2d(before, after, kernel_size=5), nn.ReLU(), nn.AvgPool2d(pool)]
        sides = [(side - 4) // pool for side in sides]
    features = filters[1] * math.prod(sides)
    return nn.Sequential(*layers, nn.Flatten(), *_dense(features, *dense))


def privtuna_c(shape: Shape, classes: int) -> Module:
    """Conv 64-64, 96-96, 128-128 (3x3, padding 1), average pool 2 after each pair, dense 128.

    Dropout 0.2, 0.3 and 0.4 after the pools and 0.5 after the dense layer, as in the authors' code.
    Parameters on CIFAR-10, 32 -> 16 -> 8 -> 4 and 128 x 4 x 4 = 2,048 features: convolutions
    1,792 + 36,928 + 55,392 + 83,040 + 110,720 + 147,584 = 435,456, dense 262,272 + 1,290, in all
    699,018. The paper says 5x5 and stride 1 and names no channels; with 5x5 no three growing pairs
    of multiples of 8 give its number. That does not tell where the pools are; the code does.
    """
    from torch import nn

    channels, *sides = shape
    layers: list[Module] = []
    for before, after, dropout in ((channels, 64, 0.2), (64, 96, 0.3), (96, 128, 0.4)):
        layers += [nn.Conv2d(before, after, kernel_size=3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(after, after, kernel_size=3, padding=1), nn.ReLU()]
        layers += [nn.AvgPool2d(2), nn.Dropout(dropout)]
    first, activation, last = _dense(128 * math.prod(side // 8 for side in sides), 128, classes)
    return nn.Sequential(*layers, nn.Flatten(), first, activation, nn.Dropout(0.5), last)


_HYPE = "DP-HYPE (Liebenow, Peinemann and Mohammadi, 2025), section VI-B"
_TUNA = "PrivTuna (Mitic, Pyrgelis and Sav, 2024), section IV-B2, network "
_CODE = "layers of the authors' code; padding and the place of the pools are assumed"
_EXACT = "has the paper's number of parameters and the authors' local layers, not the text's"

NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        one.name: one
        for one in (
            Network("dp-hype-mnist", _HYPE, _CODE, ("MNIST",), dp_hype_mnist, 6),
            Network("dp-hype-cifar", _HYPE, _CODE, ("CIFAR-10",), dp_hype_cifar, 2),
            Network("dp-hype-adult", _HYPE, "authors' layers", ("Adult",), dp_hype_adult, None),
            Network("privtuna-a", _TUNA + "A", _EXACT, ("MNIST",), privtuna_a, 22),
            Network("privtuna-b", _TUNA + "B", _EXACT, ("EMNIST", "SVHN"), privtuna_b, 16),
            Network("privtuna-c", _TUNA + "C", _EXACT, ("CIFAR-10",), privtuna_c, 8),
            Network("mlp", "none", "the MLP of our benchmarks", ("MNIST",), mlp, None),
        )
    }
)
"""Every network, by its name."""
