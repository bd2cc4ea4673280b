from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tacit.modules import draw
from tacit.supernet import (
    IMAGE_OPERATIONS,
    TABLE_OPERATIONS,
    discretised,
    image_cells,
    table_cells,
)

SMALL: dict[str, Any] = {"channels": 4, "cells": 3, "nodes": 2}
IMAGES = "sep3@0 skip@1 | avg3@2 dil5@0 ; max3@0 skip@1 | sep5@0 dil3@2"


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def named(module: nn.Module) -> tuple[list[str], tuple[np.ndarray, ...]]:
    pairs = [(name, p.detach().numpy()[None].copy()) for name, p in module.named_parameters()]
    return [name for name, _ in pairs], tuple(array for _, array in pairs)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 11, 9), (8, 8)])
@pytest.mark.parametrize("architecture", ["", IMAGES])
def test_images_become_logits(shape: tuple[int, ...], architecture: str) -> None:
    module = image_cells(shape, 5, architecture, **SMALL)
    assert module(torch.randn(6, *shape)).shape == (6, 5)


@pytest.mark.parametrize("architecture", ["", "tanh-wide@0 skip@1 | relu-narrow@2 sigmoid-wide@0"])
def test_rows_become_logits(architecture: str) -> None:
    module = table_cells((7,), 3, architecture, width=6)
    assert module(torch.randn(4, 7)).shape == (4, 3)


@pytest.mark.parametrize("name", IMAGE_OPERATIONS)
@pytest.mark.parametrize("stride", [1, 2])
def test_every_image_operation_keeps_its_channels_and_strides_alike(name: str, stride: int) -> None:
    from tacit.supernet import _image_operation

    for size in (7, 8):
        found = _image_operation(name, 4, stride)(torch.randn(2, 4, size, size))
        assert found.shape == (2, 4, -(-size // stride), -(-size // stride))


def test_every_third_cell_reduces() -> None:
    sizes: list[tuple[int, ...]] = []
    module = image_cells((1, 16, 16), 2, "", channels=4, cells=6, nodes=2)
    for cell in module.cells:  # type: ignore[union-attr]
        cell.register_forward_hook(lambda _cell, _in, out: sizes.append(tuple(out.shape[1:])))
    module(torch.randn(1, 1, 16, 16))
    assert sizes == [
        *[(8, 16, 16)] * 2,
        *[(16, 8, 8)] * 3,
        (32, 4, 4),
    ]


def test_a_mixed_edge_is_the_weighted_sum_of_its_operations() -> None:
    module = draw(lambda: table_cells((3,), 2, width=4, cells=1, nodes=1), 0)
    cells: Any = module.cells
    cell = cells[0]
    x = torch.randn(5, 4)
    logits = torch.randn(2, len(TABLE_OPERATIONS))
    shares = torch.softmax(logits, dim=1)

    def edge(number: int, given: Tensor) -> Tensor:
        operations = cell.edges[number].operations
        return sum((s * op(given) for s, op in zip(shares[number], operations, strict=True)), x * 0)

    torch.testing.assert_close(cell(x, 2 * x, shares), edge(0, x) + edge(1, 2 * x))


def test_the_strongest_edges_and_operations_are_kept() -> None:
    """Node 1 hears nodes 0 and 1; node 2 hears 0, 1 and 2, of which two are kept."""
    module = table_cells((3,), 2, width=4, cells=1, nodes=2)
    names, arrays = named(module)
    logits = np.zeros((1, 5, len(TABLE_OPERATIONS)), np.float32)
    best = {0: "skip", 1: "relu-wide", 2: "tanh-narrow", 3: "sigmoid-wide", 4: "relu-narrow"}
    strength = {0: 3.0, 1: 2.0, 2: 1.0, 3: 5.0, 4: 4.0}
    for row, name in best.items():
        logits[0, row, TABLE_OPERATIONS.index(name)] = strength[row]
        logits[0, row, TABLE_OPERATIONS.index("none")] = 9.0  # never kept, however strong
    logits[0, :2, 0] = -9.0
    logits[0, 2:, 0] = -9.0
    arrays = tuple(
        logits if name == "architecture_normal" else a
        for name, a in zip(names, arrays, strict=True)
    )
    assert discretised(names, arrays) == "skip@0 relu-wide@1 | sigmoid-wide@1 relu-narrow@2"


def test_none_is_never_kept() -> None:
    names, arrays = named(image_cells((1, 8, 8), 2, **SMALL))
    arrays = tuple(
        np.eye(8, dtype=np.float32)[[0] * a.shape[1]][None] * 50 if "architecture" in name else a
        for name, a in zip(names, arrays, strict=True)
    )
    assert "none" not in discretised(names, arrays)


def test_what_is_found_can_be_built_and_is_smaller_than_the_search_network() -> None:
    for seed in range(5):
        search = draw(lambda: image_cells((1, 8, 8), 3, **SMALL), seed)
        names, arrays = named(search)
        rng = np.random.default_rng(seed)
        noisy = tuple(
            a + rng.normal(size=a.shape).astype(np.float32) if "architecture" in n else a
            for n, a in zip(names, arrays, strict=True)
        )
        text = discretised(names, noisy)
        assert [len(part.split("|")) for part in text.split(";")] == [2, 2]
        found = image_cells((1, 8, 8), 3, text, **SMALL)
        assert count(found) < count(search)
        assert not [n for n, _ in found.named_parameters() if n.startswith("architecture")]


@pytest.mark.parametrize("module", [image_cells((1, 8, 8), 2, **SMALL), table_cells((5,), 2)])
def test_no_network_keeps_running_statistics(module: nn.Module) -> None:
    assert not [name for name, b in module.named_buffers() if b.is_floating_point()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sep9@0", "holds 'sep9@0'; allowed is an operation (none, skip"),
        ("sep3@2", "holds 'sep3@2'"),
        ("sep3@0 | skip@3", "holds 'skip@3'"),
        ("sep3", "holds 'sep3'"),
        ("sep3@0 | ", "node 1 of the architecture"),
        ("sep3@0", "has 1 cells; allowed for images are a normal and a reduction cell"),
    ],
)
def test_texts_that_describe_nothing_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        image_cells((1, 8, 8), 2, text)
