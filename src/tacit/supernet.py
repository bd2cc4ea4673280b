"""Networks of cells: in search, where every edge mixes all operations, and as found.

Liu, Simonyan and Yang, "DARTS" (2019), with FEATHERS' operations (appendix B.3). A cell is a graph:
two inputs (the outputs of the two cells before), some inner nodes, each the sum over all earlier
nodes of one edge's output, and their concatenation as output. In search an edge is the sum of all
operations, weighted by the softmax of its architecture parameters; :func:`discretised` keeps the
two strongest edges into every node, each with its strongest operation other than none. Every third
image cell is a reduction cell: it halves the height and width and doubles the channels.

How we differ: normalisation is over groups of channels, not over batches, whose running statistics
neither average well nor can be clipped; cells for tables are small dense layers (the paper's text
names activations and widths, no graph); dropout acts on the outputs of operations. Networks found
are built from a text such as ``sep3@0 skip@1 | avg3@2 sep5@0``, nodes divided by bars, and for
images a second such text, after a semicolon, for reduction cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from tacit.rules import ARCHITECTURE
from tacit.sgd import Weights

Found = tuple[tuple[tuple[str, int], ...], ...]
"""For every inner node, its edges: an operation and the node it comes from."""

KEPT = 2
NONE = "none"
_NORMAL, _REDUCTION = f"{ARCHITECTURE}_normal", f"{ARCHITECTURE}_reduction"


class _Zero(nn.Module):
    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x[:, :, :: self.stride, :: self.stride] if x.dim() == 4 else x)


class _Halved(nn.Module):
    """The identity of a reduction cell: two strided halves side by side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(channels, channels // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(channels, channels - channels // 2, 1, stride=2, bias=False)
        self.norm = _norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(x)
        return cast(Tensor, self.norm(torch.cat([self.even(x), self.odd(x)], dim=1)))


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(math.gcd(channels, 4), channels)


def _separable(channels: int, kernel: int, stride: int, dilation: int = 1) -> list[nn.Module]:
    padding = dilation * (kernel - 1) // 2
    return [
        nn.ReLU(),
        nn.Conv2d(
            channels, channels, kernel, stride, padding, dilation, groups=channels, bias=False
        ),
        nn.Conv2d(channels, channels, 1, bias=False),
        _norm(channels),
    ]


IMAGE_OPERATIONS = (NONE, "skip", "max3", "avg3", "sep3", "sep5", "dil3", "dil5")
TABLE_OPERATIONS = (
    *(NONE, "skip", "tanh-narrow", "tanh-wide", "sigmoid-narrow", "sigmoid-wide"),
    *("relu-narrow", "relu-wide"),
)
_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "relu": nn.ReLU,
}
Make = Callable[[str, int, int], nn.Module]
"""An operation from its name, the number of channels and the stride."""


def _image_operation(name: str, channels: int, stride: int) -> nn.Module:
    match name:
        case "none":
            return _Zero(stride)
        case "skip":
            return nn.Identity() if stride == 1 else _Halved(channels)
        case "max3":
            return nn.Sequential(nn.MaxPool2d(3, stride, padding=1), _norm(channels))
        case "avg3":
            pool = nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)
            return nn.Sequential(pool, _norm(channels))
        case "sep3" | "sep5":
            kernel = int(name[-1])
            first, then = _separable(channels, kernel, stride), _separable(channels, kernel, 1)
            return nn.Sequential(*first, *then)
        case _:
            return nn.Sequential(*_separable(channels, int(name[-1]), stride, dilation=2))


def _table_operation(name: str, width: int, stride: int) -> nn.Module:
    if name == NONE:
        return _Zero(stride)
    if name == "skip":
        return nn.Identity()
    activation, _, size = name.partition("-")
    inner = max(1, width // 2) if size == "narrow" else 2 * width
    return nn.Sequential(
        nn.Linear(width, inner), _ACTIVATIONS[activation](), nn.Linear(inner, width)
    )


class _Mixed(nn.Module):
    """All operations of an edge, weighted."""

    def __init__(self, make: Make, names: Sequence[str], channels: int, stride: int) -> None:
        super().__init__()
        self.operations = nn.ModuleList(make(name, channels, stride) for name in names)

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        parts = [w * operation(x) for w, operation in zip(weights, self.operations, strict=True)]
        return torch.stack(parts).sum(0)


class _SearchCell(nn.Module):
    """Every earlier node feeds every inner node through a mixed operation."""

    def __init__(
        self, make: Make, names: Sequence[str], nodes: int, channels: int, *, reduces: bool
    ) -> None:
        super().__init__()
        self.nodes, self.reduces = nodes, reduces
        self.edges = nn.ModuleList(
            _Mixed(make, names, channels, 2 if reduces and source < 2 else 1)
            for node in range(nodes)
            for source in range(2 + node)
        )

    def forward(self, first: Tensor, second: Tensor, weights: Tensor) -> Tensor:
        states = [first, second]
        edges = iter(zip(self.edges, weights, strict=True))
        for _ in range(self.nodes):
            into = [next(edges) for _ in states]
            states.append(
                sum(
                    (edge(s, w) for s, (edge, w) in zip(states, into, strict=True)), torch.zeros(())
                )
            )
        return torch.cat(states[2:], dim=1)


class _FoundCell(nn.Module):
    """The operations that were kept."""

    def __init__(self, make: Make, found: Found, channels: int, *, reduces: bool) -> None:
        super().__init__()
        self.found, self.reduces = found, reduces
        self.edges = nn.ModuleList(
            nn.Sequential(make(name, channels, 2 if reduces and source < 2 else 1), nn.Dropout(0.0))
            for node in found
            for name, source in node
        )

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        states = [first, second]
        edges = iter(self.edges)
        for node in self.found:
            found = [next(edges)(states[source]) for _, source in node]
            states.append(torch.stack(found).sum(0))
        return torch.cat(states[2:], dim=1)


class _Cells(nn.Module):
    """A stem, cells on the outputs of the two before, and a classifier."""

    def __init__(self, nodes: int, *, search: bool) -> None:
        super().__init__()
        self.search, self.nodes = search, nodes
        self.cells = nn.ModuleList()
        self.before = nn.ModuleList()

    def architecture_weights(self, cell: _SearchCell) -> Tensor:
        return torch.softmax(getattr(self, _REDUCTION if cell.reduces else _NORMAL), dim=1)

    def declare(self, operations: Sequence[str], *names: str) -> None:
        edges = sum(2 + node for node in range(self.nodes))
        for name in names:
            start = 1e-3 * torch.randn(edges, len(operations))
            self.register_parameter(name, nn.Parameter(start))

    def through(self, x: Tensor) -> Tensor:
        first = second = x
        for index, cell in enumerate(self.cells):
            one = self.before[2 * index](first)
            other = self.before[2 * index + 1](second)
            out = (
                cell(one, other, self.architecture_weights(cast(_SearchCell, cell)))
                if self.search
                else cell(one, other)
            )
            first, second = second, out
        return second


class ImageCells(_Cells):
    """Cells for images; without ``found`` in search."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        found: tuple[Found, Found] | None = None,
        *,
        channels: int = 16,
        cells: int = 8,
        nodes: int = 4,
        stem_stride: int = 1,
    ) -> None:
        super().__init__(nodes if found is None else len(found[0]), search=found is None)
        planes = shape[0] if len(shape) == 3 else 1
        self.planes = planes
        if found is None:
            self.declare(IMAGE_OPERATIONS, _NORMAL, _REDUCTION)
        kernel = 3 if stem_stride < 3 else 5
        self.stem = nn.Sequential(
            nn.Conv2d(planes, channels, kernel, stem_stride, kernel // 2, bias=False),
            _norm(channels),
        )
        widths, halved = [channels, channels], [False, False]
        for number in range(1, cells + 1):
            reduces = number % 3 == 0
            if reduces:
                channels *= 2
            self.before.append(_Reshape(widths[-2], channels, halve=halved[-1]))
            self.before.append(_Reshape(widths[-1], channels, halve=False))
            self.cells.append(
                _SearchCell(_image_operation, IMAGE_OPERATIONS, nodes, channels, reduces=reduces)
                if found is None
                else _FoundCell(_image_operation, found[reduces], channels, reduces=reduces)
            )
            widths.append(channels * self.nodes)
            halved.append(reduces)
        self.classify = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None] if x.dim() == 3 else x
        stem = self.stem(x).contiguous(memory_format=torch.channels_last)  # a seventh faster
        out = self.through(stem)
        return cast(Tensor, self.classify(out.mean(dim=(2, 3))))


class TableCells(_Cells):
    """Cells for rows of numbers; without ``found`` in search."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        found: tuple[Found] | None = None,
        *,
        width: int = 16,
        cells: int = 2,
        nodes: int = 2,
    ) -> None:
        super().__init__(nodes if found is None else len(found[0]), search=found is None)
        if found is None:
            self.declare(TABLE_OPERATIONS, _NORMAL)
        self.stem = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width))
        widths = [width, width]
        for _ in range(cells):
            self.before.append(nn.Linear(widths[-2], width))
            self.before.append(nn.Linear(widths[-1], width))
            self.cells.append(
                _SearchCell(_table_operation, TABLE_OPERATIONS, nodes, width, reduces=False)
                if found is None
                else _FoundCell(_table_operation, found[0], width, reduces=False)
            )
            widths.append(width * self.nodes)
        self.classify = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.classify(self.through(self.stem(x))))


class _Reshape(nn.Module):
    """What comes from earlier cells, in this cell's channels and size."""

    def __init__(self, before: int, after: int, *, halve: bool) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(before, after, 1, stride=2 if halve else 1, bias=False)
        self.norm = _norm(after)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.norm(self.convolve(torch.relu(x))))


def discretised(names: Sequence[str], weights: Weights) -> str:
    """The network that a search found, from the named arrays of one model."""
    arrays = dict(zip(names, weights, strict=True))
    found = [arrays[name] for name in (_NORMAL, _REDUCTION) if name in arrays]
    operations = list(IMAGE_OPERATIONS if _REDUCTION in arrays else TABLE_OPERATIONS)
    return " ; ".join(_strongest(array[0], operations) for array in found)


def _strongest(logits: np.ndarray[tuple[int, ...], np.dtype[np.float32]], names: list[str]) -> str:
    """DARTS, section 2.4: the two strongest edges into each node, and their strongest operation."""
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares = odds / odds.sum(axis=1, keepdims=True)
    shares[:, names.index(NONE)] = -1.0
    nodes, first, sources = [], 0, 2
    while first < len(shares):
        into = shares[first : first + sources]
        best = sorted(np.argsort(-into.max(axis=1), kind="stable")[:KEPT])
        nodes.append(" ".join(f"{names[int(into[s].argmax())]}@{s}" for s in best))
        first, sources = first + sources, sources + 1
    return " | ".join(nodes)


def parsed(text: str, operations: Sequence[str]) -> tuple[Found, ...]:
    """The graphs that a text describes."""
    graphs = []
    for part in text.split(";"):
        nodes = []
        for number, node in enumerate(part.split("|")):
            edges = []
            for word in node.split():
                name, _, source = word.partition("@")
                if name not in operations or not source.isdecimal() or int(source) >= 2 + number:
                    raise ValueError(
                        f"an architecture holds {word!r}; allowed is an operation ("
                        f"{', '.join(operations)}) @ the number of an earlier node"
                    )
                edges.append((name, int(source)))
            if not edges:
                raise ValueError(f"node {number} of the architecture {text!r} has no edge")
            nodes.append(tuple(edges))
        graphs.append(tuple(nodes))
    return tuple(graphs)


def image_cells(
    shape: tuple[int, ...],
    classes: int,
    architecture: str = "",
    *,
    channels: int = 16,
    cells: int = 8,
    nodes: int = 4,
    stem_stride: int = 1,
) -> nn.Module:
    """The search network for images, or the network that a text describes."""
    found = parsed(architecture, IMAGE_OPERATIONS) if architecture else None
    if found and len(found) != 2:
        raise ValueError(
            f"the architecture {architecture!r} has {len(found)} cells; allowed for images are a "
            "normal and a reduction cell, divided by a semicolon"
        )
    pair = (found[0], found[1]) if found else None
    return ImageCells(
        shape, classes, pair, channels=channels, cells=cells, nodes=nodes, stem_stride=stem_stride
    )


def table_cells(
    shape: tuple[int, ...],
    classes: int,
    architecture: str = "",
    *,
    width: int = 16,
    cells: int = 2,
    nodes: int = 2,
) -> nn.Module:
    """The search network for tables, or the network that a text describes."""
    found = parsed(architecture, TABLE_OPERATIONS) if architecture else None
    if found and len(found) != 1:
        raise ValueError(
            f"the architecture {architecture!r} has {len(found)} cells; allowed for tables is one"
        )
    return TableCells(
        shape, classes, (found[0],) if found else None, width=width, cells=cells, nodes=nodes
    )
