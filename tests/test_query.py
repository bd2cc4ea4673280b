from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tacit.arrays import Array
from tacit.combining import LocalFindings
from tacit.local_search import LocalSearch, ranking
from tacit.query import Ballot
from tacit.space import Config, Int, Space
from tacit.task import FunctionClient, NothingToSay, as_client, scores
from tests.randomness import FALSE_ALARM

CANDIDATES: tuple[Config, ...] = tuple({"x": i} for i in range(6))
FINDINGS = LocalFindings(LocalSearch(Space({"x": Int(0, 5)}).to_json(), trials=6))


def scored(*losses: float) -> FunctionClient:
    return FunctionClient(lambda config: losses[int(config["x"])])


def test_a_ballot_votes_for_the_lowest_losses() -> None:
    ballot = Ballot(CANDIDATES, votes=2).answer(scored(5, 1, 4, 0.5, 3, 2))
    assert ballot.tolist() == [0, 1, 0, 1, 0, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite_rank_last(bad: float) -> None:
    ballot = Ballot(CANDIDATES, votes=2).answer(scored(bad, bad, 4, 9, bad, bad))
    assert ballot.tolist() == [0, 0, 1, 1, 0, 0]


def test_too_few_finite_losses_still_make_a_valid_ballot() -> None:
    ballot = Ballot(CANDIDATES, votes=3)
    answer = ballot.answer(scored(math.nan, math.nan, 4, math.nan, math.inf, math.nan))
    assert ballot.bound.admits(answer)
    assert answer[2] == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_client_without_a_finite_loss_has_nothing_to_say(bad: float) -> None:
    with pytest.raises(NothingToSay):
        Ballot(CANDIDATES, votes=2).answer(scored(*[bad] * 6))
    with pytest.raises(NothingToSay):
        FINDINGS.answer(scored(*[bad] * 6))


def test_ties_break_at_random() -> None:
    """A pair of places is drawn 600 times: each about 40 times; false-alarm rate below 1e-6."""
    ballot = Ballot(CANDIDATES, votes=2)
    counts = Counter(tuple(ballot.answer(scored(*[1.0] * 6)).tolist()) for _ in range(600))
    assert len(counts) == 15
    statistic = sum((found - 40) ** 2 / 40 for found in counts.values())
    from scipy.stats import chi2

    assert chi2.sf(statistic, 14) > FALSE_ALARM


def test_an_overflow_in_one_score_is_a_diverged_candidate() -> None:
    def divides(config: Config) -> float:
        return 1.0 / int(config["x"])

    found = scores(FunctionClient(divides), CANDIDATES)
    assert math.isnan(found[0])
    assert np.isfinite(found[1:]).all()


def test_scores_of_the_wrong_number_are_refused() -> None:
    class Careless:
        def score(self, _config: Config) -> float:
            return 0.0

        def score_many(self, configs: object) -> object:
            del configs
            return np.zeros(2)

    with pytest.raises(ValueError, match=r"scores of shape \(2,\) for 6 configurations"):
        scores(Careless(), CANDIDATES)


def test_who_can_cross_validate_does_and_the_others_score() -> None:
    class Careful:
        def score(self, config: Config) -> float:
            return float(config["x"])

        def cross_validate(self, configs: Sequence[Config], folds: int) -> object:
            return [folds - self.score(config) for config in configs]

    one, many = Ballot(CANDIDATES, 1), Ballot(CANDIDATES, 1, folds=3)
    assert one.answer(Careful()).argmax() == 0
    assert many.answer(Careful()).argmax() == len(CANDIDATES) - 1
    simple = FunctionClient(lambda config: float(config["x"]))
    assert many.answer(simple).argmax() == 0
    assert one.bound == many.bound
    endless = msgspec.msgpack.encode(many).replace(b"folds\x03", b"folds\xcd\xff\xff")
    with pytest.raises(msgspec.ValidationError, match="folds is 65535; allowed is 1 to 100"):
        msgspec.msgpack.decode(endless, type=Ballot)


def test_what_cannot_score_is_no_client() -> None:
    with pytest.raises(TypeError, match=r"found a str among the clients; allowed are"):
        as_client("http://client")  # type: ignore[arg-type]


@given(st.lists(st.floats(), min_size=2, max_size=30), st.data())
def test_every_ballot_is_valid(losses: list[float], data: st.DataObject) -> None:
    votes = data.draw(st.integers(1, len(losses) - 1))
    candidates = tuple({"x": i} for i in range(len(losses)))
    ballot = Ballot(candidates, votes)  # type: ignore[arg-type]
    try:
        answer = ballot.answer(scored(*losses))
    except NothingToSay:
        assert not np.isfinite(losses).any()
        return
    assert ballot.bound.admits(answer)
    chosen = [loss for loss, vote in zip(losses, answer, strict=True) if vote]
    left = [loss for loss, vote in zip(losses, answer, strict=True) if not vote]
    if all(map(math.isfinite, chosen)):
        assert max(chosen) <= min(filter(math.isfinite, left), default=math.inf)
    else:
        assert not any(map(math.isfinite, left))


@given(
    arrays(st.sampled_from(["<f4", "<f8", "<i8"]), st.tuples(st.integers(0, 3), st.integers(0, 3)))
)
def test_arrays_survive_the_wire(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
    sent = msgspec.msgpack.encode(Array.of(array))
    found = msgspec.msgpack.decode(sent, type=Array).numpy()
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()
    assert found.shape == array.shape


def test_arrays_of_objects_never_travel() -> None:
    with pytest.raises(ValueError, match="allowed are"):
        Array.of(np.array([object()]))
    with pytest.raises(ValueError, match="allowed are"):
        Array("|O", (1,), b"12345678").numpy()


def test_ranking_is_complete() -> None:
    assert sorted(ranking(np.array([3.0, np.nan, 1.0]))) == [0, 1, 2]
