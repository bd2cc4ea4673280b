from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from tacit.networks import NETWORKS, Network, Shape, network, parameters

MNIST, CIFAR, SVHN, ADULT = (1, 28, 28), (3, 32, 32), (3, 32, 32), (108,)
USES: tuple[tuple[str, Shape, int, int], ...] = (
    ("dp-hype-mnist", MNIST, 10, 1_199_882),
    ("dp-hype-cifar", CIFAR, 10, 104_042),
    ("dp-hype-adult", ADULT, 2, 108 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2),
    ("privtuna-a", MNIST, 10, 54_274),
    ("privtuna-b", MNIST, 62, 29_896),
    ("privtuna-b", SVHN, 10, 32_756),
    ("privtuna-c", CIFAR, 10, 699_018),
    ("mlp", MNIST, 10, 109_386),
)
"""Each network on the data it was used for, with its number of parameters (PrivTuna's: printed)."""
NAMES = tuple(dict.fromkeys(name for name, *_ in USES))
OF_IMAGES = tuple(one for one in NETWORKS.values() if one.smallest is not None)

uses = pytest.mark.parametrize(("name", "shape", "classes"), [use[:3] for use in USES])
of_images = pytest.mark.parametrize("one", OF_IMAGES, ids=lambda one: one.name)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Parallel test workers whose threads outnumber the cores wait more than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)


def logits(module: nn.Module, shape: Shape, batch: int = 4) -> torch.Tensor:
    answer = module(torch.randn(batch, *shape))
    assert isinstance(answer, torch.Tensor)
    return answer


@pytest.mark.parametrize(("name", "shape", "classes", "count"), USES)
def test_has_the_published_number_of_parameters(
    name: str, shape: Shape, classes: int, count: int
) -> None:
    assert parameters(network(name).build(shape, classes)) == count


@uses
def test_gives_one_logit_for_each_class(name: str, shape: Shape, classes: int) -> None:
    module = network(name).build(shape, classes)
    answer = logits(module, shape)
    assert answer.shape == (4, classes)
    assert isinstance(list(module.children())[-1], nn.Linear)  # no softmax, no sigmoid
    assert answer.isfinite().all()


@uses
def test_gradients_reach_every_parameter(name: str, shape: Shape, classes: int) -> None:
    module = network(name).build(shape, classes)
    labels = torch.arange(8) % classes
    loss = nn.functional.cross_entropy(logits(module, shape, batch=8), labels)
    torch.autograd.backward(loss)
    largest = {
        key: 0.0 if weights.grad is None else weights.grad.abs().max().item()
        for key, weights in module.named_parameters()
    }
    assert min(largest.values()) > 1e-6, largest


@pytest.mark.parametrize("name", NAMES)
def test_every_build_is_fresh(name: str) -> None:
    shape, classes = next((s, c) for n, s, c, _ in USES if n == name)
    first, second = (network(name).build(shape, classes) for _ in range(2))
    addresses = [{weights.data_ptr() for weights in m.parameters()} for m in (first, second)]
    assert addresses[0].isdisjoint(addresses[1])
    assert not torch.equal(next(first.parameters()), next(second.parameters()))


@pytest.mark.parametrize("name", ["dp-hype-mnist", "dp-hype-cifar", "privtuna-c", "mlp"])
def test_fits_digits_of_eight_by_eight(name: str) -> None:
    assert logits(network(name).build((1, 8, 8), 10), (1, 8, 8)).shape == (4, 10)


@of_images
def test_height_and_width_may_differ(one: Network) -> None:
    shape = (2, 29, 45)
    assert logits(one.build(shape, 3), shape).shape == (4, 3)


@of_images
def test_works_on_the_smallest_image_and_refuses_a_smaller_one(one: Network) -> None:
    assert one.smallest is not None
    least = (1, one.smallest, one.smallest)
    assert logits(one.build(least, 10), least).shape == (4, 10)
    for shape in ((1, one.smallest - 1, 40), (1, 40, one.smallest - 1)):
        with pytest.raises(ValueError, match=f"{one.name}.*at least {one.smallest}$"):
            one.build(shape, 10)
        with pytest.raises((RuntimeError, UserWarning)):  # the limit is torch's, not ours
            logits(one.layers(shape, 10), shape)


@of_images
@pytest.mark.parametrize("shape", [(64,), (28, 28), (0, 28, 28), (1, 1, 28, 28), ()])
def test_refuses_what_is_no_image(one: Network, shape: Shape) -> None:
    with pytest.raises(ValueError, match=r"allowed are images \(channels, height, width\)"):
        one.build(shape, 10)


@pytest.mark.parametrize("name", ["mlp", "dp-hype-adult"])
def test_dense_networks_refuse_examples_without_numbers(name: str) -> None:
    for shape in ((), (0,), (3, 0, 3)):
        with pytest.raises(ValueError, match="at least one number"):
            network(name).build(shape, 2)


@pytest.mark.parametrize("name", NAMES)
def test_refuses_less_than_two_classes(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} was asked for 1 classes; allowed is 2"):
        network(name).build((1, 32, 32), 1)


def test_two_logits_are_a_sigmoid_of_their_difference() -> None:
    answer = logits(network("dp-hype-adult").build(ADULT, 2), ADULT)
    probability = answer.softmax(dim=1)[:, 1]
    torch.testing.assert_close(probability, torch.sigmoid(answer[:, 1] - answer[:, 0]))


def test_only_training_drops_units() -> None:
    module = network("privtuna-c").build(CIFAR, 10)
    images = torch.randn(4, *CIFAR)
    assert not torch.equal(module(images), module(images))
    module.eval()
    assert torch.equal(module(images), module(images))
    rates = [layer.p for layer in module.modules() if isinstance(layer, nn.Dropout)]
    assert rates == [0.2, 0.3, 0.4, 0.5]


def test_parameters_leave_out_what_is_frozen() -> None:
    frozen = nn.Linear(3, 2)
    frozen.bias.requires_grad_(False)
    assert parameters(nn.Sequential(frozen, nn.BatchNorm1d(2))) == 6 + 4


def test_names_are_unique_and_complete() -> None:
    assert sorted(NETWORKS) == sorted(NAMES)  # a repeated name would have displaced another
    assert all(key == one.name for key, one in NETWORKS.items())
    assert len({one.layers for one in NETWORKS.values()}) == len(NETWORKS)


def test_says_where_each_network_comes_from() -> None:
    assert all(one.paper and one.known and one.data for one in NETWORKS.values())


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'resnet'") as refusal:
        network("resnet")
    assert all(name in str(refusal.value) for name in NAMES)


def test_importing_does_not_load_torch() -> None:
    script = "import sys, tacit.networks; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
