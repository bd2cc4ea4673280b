from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from tacit.cores import cores, spread


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TACIT_CORES", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def has_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(count)), raising=False)


@pytest.mark.parametrize(
    ("wanted", "expected"), [("", 8), ("1", 1), ("3", 3), ("8", 8), ("9", 8), ("007", 7)]
)
def test_the_environment_lowers_the_number_of_cores(
    monkeypatch: pytest.MonkeyPatch, wanted: str, expected: int
) -> None:
    has_cores(monkeypatch, 8)
    assert cores() == 8
    monkeypatch.setenv("TACIT_CORES", wanted)
    assert cores() == expected


@pytest.mark.parametrize("text", ["0", "-1", "2.5", "two", " 2", "1e1", "²"])
def test_nonsense_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TACIT_CORES", text)
    with pytest.raises(ValueError, match=f"TACIT_CORES is {text!r}; allowed is a whole number of"):
        cores()


def test_elsewhere_than_on_linux_all_cores_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1


def test_a_piece_that_was_spread_has_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    has_cores(monkeypatch, 8)
    assert spread(lambda _: cores(), range(6), workers=3) == [1] * 6
    assert spread(lambda _: cores(), range(2), workers=1, threads=8) == [8, 8]
    assert cores() == 8


@pytest.mark.parametrize("workers", [1, 2, 5, 20])
def test_results_come_in_the_order_of_the_items(workers: int) -> None:
    def slow_first(number: int) -> int:
        time.sleep(0.01 if number < 3 else 0)
        return number * number

    assert spread(slow_first, range(9), workers) == [n * n for n in range(9)]
    assert spread(slow_first, [], workers) == []


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_at_most_so_many_pieces_run_at_once_and_as_many_where_there_is_work(workers: int) -> None:
    running, most, lock = 0, 0, threading.Lock()
    all_there = threading.Barrier(workers, timeout=30)

    def work(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        all_there.wait()
        time.sleep(0.005)  # for a piece too many to show up
        with lock:
            running -= 1

    spread(work, range(6), workers)
    assert most == workers


@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_torch_has_the_threads_inside_and_its_own_ones_afterwards(
    workers: int, threads: int
) -> None:
    torch.set_num_threads(3)
    assert set(spread(lambda _: torch.get_num_threads(), range(4), workers, threads)) == {threads}
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("workers", [1, 3])
def test_an_exception_comes_out_and_gives_torchs_threads_back(workers: int) -> None:
    torch.set_num_threads(3)

    def fails(number: int) -> int:
        if number == 2:
            raise ArithmeticError("number 2 diverged")
        return number

    with pytest.raises(ArithmeticError, match="number 2 diverged"):
        spread(fails, range(5), workers)
    assert torch.get_num_threads() == 3
    assert spread(fails, [0, 1], workers) == [0, 1]  # and nothing stays locked


def test_pools_do_not_nest() -> None:
    def inner(_: int) -> int:
        return threading.get_ident()

    def outer(_: int) -> tuple[int, list[int]]:
        return threading.get_ident(), spread(inner, range(4), workers=4, threads=4)

    for own, inside in spread(outer, range(4), workers=2):
        assert set(inside) == {own}
    assert threading.get_ident() not in [own for own, _ in spread(outer, range(4), workers=2)]


def test_two_callers_do_not_spread_at_the_same_time() -> None:
    """Otherwise there would be twice as many threads as cores."""
    active: set[str] = set()
    overlaps = []

    def caller(name: str) -> None:
        def work(_: int) -> None:
            active.add(name)
            overlaps.append(len(active))
            time.sleep(0.005)

        spread(lambda n: work(n) if n < 5 else active.discard(name), range(6), workers=1)

    callers = [threading.Thread(target=caller, args=(name,)) for name in "ab"]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    assert overlaps == [1] * 10


def test_importing_loads_no_torch() -> None:
    script = "import sys, tacit.cores; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.strip() == "False", found.stderr


def test_missing_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"pip install 'tacit\[torch\]'"):
        spread(str, [1, 2], workers=2)
