"""A missed deadline is seen: votes count how many abstained, under the same noise, at no price."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.stats import binom

import tacit
from tacit import abstentions, query, task
from tacit.abstentions import Abstentions, Counting, noise_reach
from tacit.charged_questions import ChargedQuestions
from tacit.endpoint import VERSION
from tacit.federation import Federation
from tacit.job import run as carry_out
from tacit.plan import load_plan, participation_of, settled
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.bounds import BordaVotes, TopVotes, WithAbstentions
from tacit.privacy.events import compose, releases
from tacit.privacy.mechanisms import NoiseShare, Participation, SkellamMechanism
from tacit.privacy.skellam import IntArray
from tacit.query import Ballot
from tacit.result import MostAbstained, Result
from tacit.runs import run_in
from tacit.space import Config, Float, Space
from tacit.task import Client, FunctionClient
from tacit.training import PrivateAveraging
from tacit.tuners.together import Together
from tacit.tuners.tuner import noise_for
from tacit.tuners.voting import RunOff, Vote
from tests.brute_force import skellam_pmf
from tests.command_line import refusal
from tests.command_line import tacit as command
from tests.federations import channel, federation, likes
from tests.randomness import FALSE_ALARM

SPACE = Space({"x": Float(0.0, 1.0)})
TEN: tuple[Config, ...] = tuple({"x": 0.0} for _ in range(10))
GENEROUS = Budget(20.0, 1e-5)
"""So little noise that a dozen clients can be counted."""
COUNTED = Vote(2, 10, count_abstentions=True)
TOP, BORDA = WithAbstentions(TopVotes(100, 5)), WithAbstentions(BordaVotes(100, 10))


def failing(config: Config) -> float:
    raise RuntimeError(f"no data for {config}")


def slow(config: Config) -> float:
    time.sleep(30.0)
    return float(config["x"])


ABSENT = FunctionClient(failing)


def of(missing: int, clients: int) -> list[Client]:
    return [ABSENT] * missing + [likes(0.5)] * (clients - missing)


def held(clients: list[Client], vote: Vote = COUNTED, **terms: Any) -> Federation:
    """A federation with the noise that the vote needs."""
    variance = noise_for(vote, SPACE, GENEROUS)
    return federation(clients, variance, budget=GENEROUS, dropout=0.0, roster=False, **terms)


def asked(clients: list[Client], vote: Vote = COUNTED) -> tuple[Abstentions, ...]:
    questions = ChargedQuestions(held(clients, vote))
    return vote.tune(questions, SPACE, np.random.default_rng(1)).abstentions


def exact(weights: tuple[int, ...], variance: float, furthest: int) -> dict[int, float]:
    """The distribution of the weighted noise, convolved at full precision."""
    stretched = []
    for weight in weights:
        row = np.zeros(2 * furthest * weight + 1)
        row[::weight] = skellam_pmf(variance, furthest)
        stretched.append(row)
    masses = reduce(np.convolve, stretched)
    middle = len(masses) // 2
    return {place - middle: float(mass) for place, mass in enumerate(masses)}


NOISES = [
    ((1,), 0.05),
    ((1,), 2.0),
    ((1, 1, 1, 1, 1), 9.0),
    ((3, 2, 1), 0.2),
    ((4, 3, 2, 1), 30.0),
]


@pytest.mark.parametrize(("weights", "variance"), NOISES)
@pytest.mark.parametrize("chance", [1e-3, 0.05])
def test_the_reach_of_weighted_noise_is_the_exact_one(
    weights: tuple[int, ...], variance: float, chance: float
) -> None:
    masses = exact(weights, variance, furthest=20 + int(12 * variance**0.5))

    def tail(least: int) -> float:
        return sum(mass for value, mass in masses.items() if value >= least)

    found = noise_reach(weights, variance, chance)
    assert tail(found) <= chance
    assert tail(found - 1) > chance


@pytest.mark.parametrize(("weights", "variance"), NOISES)
def test_chernoffs_bound_where_that_would_be_too_large_is_never_too_small(
    weights: tuple[int, ...], variance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = noise_reach.__wrapped__(weights, variance, 1e-3)
    monkeypatch.setattr(abstentions, "_EXACT", 0)
    assert needed <= noise_reach.__wrapped__(weights, variance, 1e-3) <= 2 * needed + 8


def draws(bound: WithAbstentions, missing: int, clients: int, count: int) -> list[Abstentions]:
    """So many votes of these clients at epsilon 1, with the noise of the real mechanism."""
    mechanism = SkellamMechanism.calibrated(bound, Participation(clients), Budget(1.0, 1e-5))
    rng = np.random.default_rng(11)
    rate = mechanism.delivered_variance / 2
    shape = (count, len(bound.marks))
    noise = rng.poisson(rate, shape) - rng.poisson(rate, shape)
    true = missing * np.array(bound.marks)
    return [
        Abstentions.counted("vote", row, bound, clients, mechanism.delivered_variance)
        for row in true + noise
    ]


@pytest.mark.parametrize("bound", [TOP, BORDA], ids=["top", "borda"])
class TestTheCount:
    def test_nobody_misses_and_a_thousand_votes_raise_no_alarm(
        self, bound: WithAbstentions
    ) -> None:
        """The stated rate would allow one in a thousand at half; at none it is below 1e-6."""
        assert not any(vote.prevail for vote in draws(bound, 0, 50, 1000))

    def test_exactly_half_raise_no_more_alarms_than_stated(self, bound: WithAbstentions) -> None:
        """The worst case of what must not be called most; false-alarm rate of the test 1e-6."""
        count = 20_000
        alarms = sum(vote.prevail for vote in draws(bound, 25, 50, count))
        assert binom.sf(alarms - 1, count, abstentions.FALSE_ALARM) > FALSE_ALARM

    @pytest.mark.parametrize("missing", [0, 20, 40])
    def test_each_end_of_the_interval_holds_as_often_as_stated(
        self, bound: WithAbstentions, missing: int
    ) -> None:
        """False-alarm rate of the test 1e-6; the count is not biased either."""
        count = 20_000
        found = draws(bound, missing, 40, count)
        for wrong in (
            sum(vote.least > missing for vote in found),
            sum(vote.most < missing for vote in found),
        ):
            assert binom.sf(wrong - 1, count, abstentions.FALSE_ALARM) > FALSE_ALARM
        if missing == 20:
            mean = float(np.mean([vote.estimate for vote in found]))
            assert abs(mean - missing) < 0.5

    def test_all_of_sixty_that_miss_are_told(self, bound: WithAbstentions) -> None:
        found = draws(bound, 60, 60, 1000)
        assert sum(vote.prevail for vote in found) > 900


def test_the_outlook_says_when_noise_is_too_large_to_tell() -> None:
    few = Counting.of(TopVotes(100, 5), 20, variance=162.0)
    many = Counting.of(TopVotes(100, 5), 100, variance=154.0)
    assert few is not None
    assert many is not None
    assert not few.tells
    assert "too noisy to say that most did" in few.words
    assert many.tells
    said = [
        vote.prevail for vote in draws(WithAbstentions(TopVotes(100, 5)), many.said_from, 100, 2000)
    ]
    assert 0.4 < np.mean(said) < 0.7, "in about half of all votes"
    assert Counting.of(TopVotes(4, 3), 20, variance=30.0) is None


def test_a_vote_that_counts_costs_what_it_costs_without() -> None:
    for vote in (Vote(5), Vote(10, ballot="borda", smooth=True, run_off=RunOff(2, 0.2))):
        counted = replace(vote, count_abstentions=True)
        assert releases(counted.event(SPACE, 50.0)) == releases(vote.event(SPACE, 50.0))


def test_what_is_charged_is_the_release_of_the_whole_vector() -> None:
    built = held(of(2, 12))
    COUNTED.tune(ChargedQuestions(built), SPACE, np.random.default_rng(1))
    (charge,) = built.ledger.charges()
    bound = Ballot(TEN, 2, count_abstentions=True).bound
    assert isinstance(bound, WithAbstentions)
    assert bound.length == 12
    assert charge.event == bound.release(built.variance)
    assert spent(charge.event, 1e-5).epsilon <= GENEROUS.epsilon


def noised(monkeypatch: pytest.MonkeyPatch) -> list[IntArray]:
    """Every answer to which noise is added from now on."""
    found: list[IntArray] = []
    real = NoiseShare.added_to

    def watched(self: NoiseShare, answer: IntArray) -> IntArray:
        found.append(answer)
        return real(self, answer)

    monkeypatch.setattr(NoiseShare, "added_to", watched)
    return found


def test_who_abstains_is_marked_and_who_votes_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = noised(monkeypatch)
    asked(of(3, 12))
    marks = [answer[10:].tolist() for answer in answers]
    votes = [int(answer[:10].sum()) for answer in answers]
    assert marks == [[1, 1]] * 3 + [[0, 0]] * 9
    assert votes == [0] * 3 + [2] * 9


def test_a_ballot_that_forgets_the_entries_for_abstaining_never_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is no member of the bound, so it becomes an abstention that says so."""
    inner = Ballot(TEN, 2).bound
    assert isinstance(inner, TopVotes)
    monkeypatch.setattr(Ballot, "answer", lambda *_: inner.ballot([0, 1]))
    built = held(of(0, 12))
    channel(built).abstentions.append(ValueError("keeps the simulation from giving up"))
    outcome = COUNTED.tune(ChargedQuestions(built), SPACE, np.random.default_rng(1))
    assert outcome.abstentions[0].estimate > 8


def test_the_tally_has_the_candidates_only() -> None:
    built = held(of(4, 12))
    outcome = COUNTED.tune(ChargedQuestions(built), SPACE, np.random.default_rng(1))
    assert outcome.tally is not None
    assert len(outcome.tally.votes) == len(outcome.candidates) == 10
    (vote,) = outcome.abstentions
    assert vote.least <= 4 <= vote.most
    assert not outcome.warning


def test_both_votes_count_their_own_and_the_run_off_is_held_in_any_case() -> None:
    """Two votes were declared; what the first shows must not decide whether the other is held."""
    vote = Vote(3, 10, ballot="borda", run_off=RunOff(4, 0.5), count_abstentions=True)
    built = held(of(14, 16), vote)
    outcome = vote.tune(ChargedQuestions(built), SPACE, np.random.default_rng(1))
    assert [one.vote for one in outcome.abstentions] == ["vote", "run-off"]
    assert outcome.warning.startswith("Most clients had no score in time: about ")
    charged = compose(charge.event for charge in built.ledger.charges())
    assert releases(charged) == releases(vote.event(SPACE, built.variance))


def test_a_deadline_that_everybody_misses_is_told() -> None:
    """In one process, which would say so by itself if it did not believe that somebody voted."""
    built = held([FunctionClient(slow)] * 12, deadline=0.05)
    channel(built).abstentions.append(ValueError("keeps the simulation from giving up"))
    outcome = COUNTED.tune(ChargedQuestions(built), SPACE, np.random.default_rng(1))
    assert len(channel(built).abstentions) == 13
    assert outcome.warning.startswith("Most clients had no score in time: about 1")
    assert "raise federation.deadline" in outcome.warning


def test_messages_do_not_tell_who_abstained() -> None:
    """Every reply of a client that abstains has the size of a voter's, at every stage."""
    sizes: dict[str, list[int]] = {}
    built = held([ABSENT, likes(0.5)] * 6)
    real = channel(built).ask

    def watched(stage: str, requests: Any) -> Any:
        replies = real(stage, requests)
        sizes[stage] = [len(replies[client]) for client in sorted(replies)]
        return replies

    built.channel.ask = watched  # type: ignore[method-assign]
    COUNTED.tune(ChargedQuestions(built), SPACE, np.random.default_rng(1))
    assert len(sizes) > 1
    for found in sizes.values():
        assert found[::2] == found[1::2]


def test_an_older_client_is_told_that_it_speaks_another_version() -> None:
    """The question has a field that version 4 did not know."""
    assert "count_abstentions" in msgspec.json.encode(Ballot(TEN, 1)).decode()
    assert VERSION > 4


def test_tune_refuses_a_choice_that_means_nothing() -> None:
    clients = [lambda config: config["x"]] * 2 + [failing] * 18
    with pytest.raises(MostAbstained, match="Most clients had no score in time") as ended:
        tacit.tune(clients, SPACE, COUNTED, GENEROUS, dropout=0)
    result = ended.value.result
    assert result.warning == str(ended.value)
    assert 0 < result.privacy.epsilon <= GENEROUS.epsilon
    assert repr(result).startswith("<Result of 'vote': warning Most clients")
    assert Result.from_json(json.loads(json.dumps(result.to_json())), {}).warning == result.warning


def test_tune_tells_the_estimate_where_most_voted() -> None:
    clients = [likes(0.5).score] * 17 + [failing] * 3
    result = tacit.tune(clients, SPACE, COUNTED, GENEROUS, dropout=0)
    (vote,) = result.abstentions
    assert vote.least <= 3 <= vote.most
    assert f"Abstained vote: {vote.words}".lower() in repr(result).lower()


def test_uncounted_votes_tell_nothing_and_answer_as_before() -> None:
    assert asked(of(3, 12), Vote(2, 10)) == ()


@pytest.mark.parametrize("votes", [6, 9])
def test_counting_is_refused_where_it_would_not_be_free(votes: int) -> None:
    with pytest.raises(ValueError, match=f"names {votes} of 10 candidates; allowed .* is 1 to 5"):
        Vote(votes, 10, count_abstentions=True).event(SPACE, 10.0)


TINY = (
    "federation.clients=20",
    "search.candidates=6",
    "search.ballot=published",
    "search.votes=2",
    "task.score_epochs=1",
    "task.train_rounds=1",
    "task.train_epochs=1",
    "task.hidden=[]",
    "privacy.epsilon=20",
    "privacy.dropout=0",
    "federation.count_abstentions=true",
)


def only_the_first(monkeypatch: pytest.MonkeyPatch, voters: int) -> None:
    """From the next question on, so many clients can score and the others cannot."""
    real, answered = task.scores, iter(range(1000))

    def scores(*question: Any) -> Any:
        if next(answered) >= voters:
            raise RuntimeError("too late")
        return real(*question)

    monkeypatch.setattr(query, "scores", scores)


def planned(folder: Path, *changes: str, **more: bool) -> Result:
    plan = load_plan(None, [*TINY, *changes])
    return carry_out(plan, folder, lambda *_: None, lambda _: None, **more)


def test_a_run_from_which_most_abstained_says_so_first_and_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_the_first(monkeypatch, 1)
    with pytest.raises(MostAbstained) as ended:
        planned(tmp_path / "run")
    told = str(ended.value)
    assert told.startswith("Most clients had no score in time: about ")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert next(iter(result)) == "warning"
    assert result["warning"] == told
    assert result["accuracy"] is None
    assert result["privacy"]["epsilon"] > 1, "what was charged stays charged"
    assert not (tmp_path / "run" / "model.npz").exists()
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.index("Most clients abstained.") < page.index("chosen configuration")
    assert told in page.replace("&#x27;", "'")
    run = run_in(tmp_path / "run")
    assert (run.state, run.why) == ("spoiled", told)


def test_going_on_with_such_a_run_says_the_same_and_charges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_the_first(monkeypatch, 1)
    told = ""
    try:
        planned(tmp_path / "run")
    except MostAbstained as ended:  # and let go, since it holds the run's journal
        told = str(ended)
    assert told
    before = (tmp_path / "run" / "ledger.json").read_text()
    done = command("tune", "--resume", tmp_path / "run")
    assert done.returncode == 3
    assert " ".join(done.stderr.split()).endswith(told)
    assert (tmp_path / "run" / "ledger.json").read_text() == before


def test_a_run_that_most_took_part_in_tells_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_the_first(monkeypatch, 17)
    result = planned(tmp_path / "run")
    (vote,) = result.abstentions
    assert vote.least <= 3 <= vote.most
    assert result.accuracy is not None
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"{vote.words} in the vote" in page
    assert "Most clients abstained." not in page
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["abstentions"] == [msgspec.to_builtins(vote)]


def test_private_training_that_is_not_held_is_charged_all_the_same() -> None:
    """What is charged must not depend on the vote."""
    start = (np.zeros((1, 2, 3), np.float32),)
    method = Together(COUNTED, PrivateAveraging(rounds=3, epochs=1), start, 200)
    built = held(of(11, 12))
    built.variance = noise_for(method, SPACE, GENEROUS)
    # As much noise as three rounds leave room for: still little enough to count a dozen.
    outcome = method.tune(ChargedQuestions(built), SPACE, np.random.default_rng(1))
    assert outcome.warning
    assert outcome.weights is None
    charged = compose(charge.event for charge in built.ledger.charges())
    assert releases(charged) == releases(method.event(SPACE, built.variance))


COUNTS: dict[tuple[str, ...], bool | str] = {
    (): False,
    ("federation.engine=flower-simulation",): True,
    ("federation.engine=flower-simulation", "search.ballot=published"): "auto",
    ("search.ballot=published",): "auto",
    ("search.ballot=published", "federation.count_abstentions=true"): True,
    ("federation.engine=flower-simulation", "federation.count_abstentions=false"): False,
    ("federation.engine=flower-simulation", "search.ballot=top", "search.votes=60"): False,
    ("federation.engine=flower-simulation", "search.method=random-guess"): "auto",
}


@pytest.mark.parametrize("changes", COUNTS, ids=" ".join)
def test_abstentions_are_counted_where_clients_can_be_late(changes: tuple[str, ...]) -> None:
    plan = load_plan(None, changes)
    decided, _ = settled(plan, participation_of(plan))
    assert decided.federation.count_abstentions == COUNTS[changes]
    assert settled(decided, participation_of(decided))[0] == decided


def test_only_votes_count_and_only_where_it_is_free(tmp_path: Path) -> None:
    told = refusal(
        command("tune", "--set", "search.method=combine", *WANTED, "--out", tmp_path / "run")
    )
    assert "allowed with search.method 'combine' is false or 'auto': only votes count them" in told
    changes = ("search.ballot=top", "search.votes=60")
    sets = [word for change in changes for word in ("--set", change)]
    told = refusal(command("tune", *sets, *WANTED, "--out", tmp_path / "run"))
    assert "names 60 of 100 candidates; allowed where abstentions are counted is 1 to 50" in told
    told = refusal(command("tune", "--set", "federation.count_abstentions=1"))
    assert "allowed is true, false or 'auto'" in told


WANTED = ("--set", "federation.count_abstentions=true")


@pytest.mark.parametrize("clients", ["20", "100"])
def test_the_plan_of_a_vote_says_what_counting_costs_and_tells(clients: str) -> None:
    terms = ("--clients", clients, "--candidates", "100", "--epsilon", "1", "--delta", "1e-5")
    told = command("plan", *terms, "--votes", "5")
    assert told.returncode == 0, told.stderr
    assert "Abstentions" in told.stdout
    assert "at no cost" in " ".join(told.stdout.split())
    found = json.loads(command("plan", *terms, "--votes", "5", "--json").stdout)["abstentions"]
    assert (found["said_from"] <= int(clients)) == (clients == "100")
