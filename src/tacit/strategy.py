"""Which vote to hold, for how many clients, candidates and how much budget: by simulation.

The published vote (DP-HYPE) is one of many with the same guarantee. Ballots may rank, the tally may
be smoothed, a part of the budget may be kept for a run-off; what is best depends on the number of
clients, the candidates, the budget and the surface. The first three are public, and the surface is
not known: so every kind of vote is held on a family of made-up surfaces, and the one that loses
least on average is taken.

*The family.* Five of six surfaces are drawn from Gaussian processes over the candidates, with
lengths from a fifth of an axis to twice its extent; the sixth is rough, every candidate on its own.
All are squashed, gently or into plateaus with cliffs, so that a few or up to two fifths of the
candidates are good. Clients see a surface with a deviation of their own of the same kind, and with
noise of evaluation, small or large, which is stronger for some candidates than for others: erratic
settings look best to somebody, and a vote must not fall for them. Cross-validation divides that
noise by the root of its folds. What a pick loses is told in shares of the surface's range. Nothing
here looks at data, so choosing costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from tacit.abstentions import Counting
from tacit.deciding import final_winner, finalists, winner
from tacit.privacy.accounting import Budget
from tacit.privacy.bounds import BordaVotes, TopVotes
from tacit.privacy.mechanisms import Participation
from tacit.privacy.skellam import FloatArray, IntArray
from tacit.smoothing import Smoothed, Smoother, amplitudes, places
from tacit.space import Config, Space
from tacit.tuners.voting import RunOff, Vote

SURFACES, ROUGH = 120, 6
MOST_CLIENTS, MOST_CANDIDATES = 100, 200
RANKED = (3, 5, 10)
FOLDS = 5
"""In which clients cross-validate before they vote; as many as scikit-learn's searches have."""
RUN_OFFS = (RunOff(2, 0.1), RunOff(4, 0.2))
"""Between the peaks of the smoothed tally and the largest entries of the plain one. Without the
former, clients with few validation examples often prefer a finalist by luck."""
_SHUFFLES = 19
"""For the test of structure, in simulations; chances in steps of a twentieth will do there."""
PUBLISHED_VOTES = 5
POOR_LOSS = 0.25
"""Of the range, from which on a vote is not worth its epsilon."""
_STEEP = (1.0, 4.0, 12.0)
_DEVIATIONS = (0.05, 0.2)
"""Of clients from the common surface, in shares of its range."""
_EVALUATION = (0.05, 0.3)
"""Noise of a client's own scores, likewise, and how unequal it is among candidates."""
_ERRATIC = 0.7


@dataclass(frozen=True)
class Strategy:
    """A vote, what it is expected to lose, and what the published one would."""

    vote: Vote
    loss: float
    published: float
    """Both in shares of the range from the worst candidate to the best."""

    @property
    def why(self) -> str:
        """In two sentences."""
        return (
            f"On {SURFACES} made-up surfaces, a sixth of them rough, {describe(self.vote)} lose "
            f"{self.loss:.1%} of the range between the worst candidate and the best, and "
            f"plain votes as published {self.published:.1%}. Chosen from the number of "
            "clients and candidates and the budget alone, so choosing costs no privacy."
        )

    @property
    def warning(self) -> str:
        """What to tell whoever is about to spend, where even the best vote often picks badly."""
        return (
            f"noise leaves this vote {self.loss:.0%} of the range away from the best candidate on "
            "average; have more clients, a larger epsilon or fewer candidates"
        )


def describe(vote: Vote) -> str:
    """A vote in a few words.

    >>> describe(Vote(10, ballot="borda", smooth=True, run_off=RunOff(2, 0.2)))
    'ballots that rank 10, smoothed, with a run-off of 2 finalists on 20% of the budget'
    >>> describe(Vote(5, folds=5))
    '5 votes, cross-validated in 5 folds'
    """
    kind = f"ballots that rank {vote.votes}" if vote.ballot == "borda" else f"{vote.votes} votes"
    folds = [f"cross-validated in {vote.folds} folds"] if vote.folds > 1 else []
    parts = [kind, *folds, *(["smoothed"] if vote.smooth else [])]
    if vote.run_off is not None:
        share = f"{vote.run_off.share:.0%} of the budget"
        parts.append(f"with a run-off of {vote.run_off.finalists} finalists on {share}")
    return ", ".join(parts)


def counting(
    vote: Vote, candidates: int, participation: Participation, budget: Budget
) -> Counting | None:
    """What a count of the abstentions from this vote would tell; None where none is possible.

    >>> counting(Vote(5), 100, Participation(50), Budget(1.0, 1e-5))
    Counting(clients=50, off_by=18, said_from=43)
    """
    noise, _ = normal_noise(vote, candidates, participation, budget)
    kind = BordaVotes if vote.ballot == "borda" else TopVotes
    return Counting.of(kind(candidates, vote.votes), participation.clients, noise.deviation**2)


def choose(
    space: Space,
    participation: Participation,
    budget: Budget,
    candidates: int = 100,
    sampling: str = "sobol",
    votes: int = 0,
    folds: int = 0,
) -> Strategy:
    """The vote that loses least on the family; among nearly equal ones the simplest.

    With ``votes`` only among ballots that name so many. With ``folds`` clients cross-validate in so
    many, and not in :data:`FOLDS`.

    >>> from tacit.space import Float
    >>> axes = Space({"rate": Float(1e-4, 1.0, log=True), "momentum": Float(0.0, 0.9)})
    >>> found = choose(axes, Participation(60), Budget(0.5, 1e-5), candidates=60)
    >>> found.vote.ballot, found.loss < found.published
    ('borda', True)
    """
    from threadpoolctl import threadpool_limits

    if math.isinf(budget.epsilon):
        raise ValueError("epsilon is inf; allowed for a vote is a finite number")
    some = space.candidates(min(candidates, MOST_CANDIDATES), sampling, np.random.default_rng(0))
    count, folds = min(participation.clients, MOST_CLIENTS), folds or FOLDS
    menu = kinds(len(some), votes, folds)
    with threadpool_limits(1):  # many small products: threads would only wait for each other
        families = {n: Family.drawn(space, some, count, folds=n) for n in {1, folds}}
        losses = [families[vote.folds].loss(vote, participation, budget) for vote in menu]
    best = min(losses)
    close = max(0.05 * best, 0.002)
    place = next(place for place, loss in enumerate(losses) if loss <= best + close)
    chosen = replace(menu[place], candidates=candidates, sampling=sampling)
    return Strategy(chosen, losses[place], losses[0])


def kinds(candidates: int, votes: int = 0, folds: int = 1) -> list[Vote]:
    """All votes there are to choose from, the published one first, then from simple to less so."""
    most = candidates // 2
    published = Vote(min(votes or PUBLISHED_VOTES, candidates - 1), candidates)
    ranked = (votes,) if votes else RANKED
    plain = [replace(published, folds=folds)] if folds > 1 else []
    ballots = [Vote(b, candidates, ballot="borda", folds=folds) for b in ranked if b <= most]
    smooth = [replace(vote, smooth=True) for vote in ballots] if candidates >= 8 else []
    return [
        published,
        *plain,
        *ballots,
        *smooth,
        *(replace(vote, run_off=final) for vote in smooth for final in RUN_OFFS),
    ]


@dataclass(frozen=True)
class Family:
    """Made-up surfaces on some candidates, and how clients rank those."""

    space: Space
    candidates: tuple[Config, ...]
    values: FloatArray
    """(surfaces, candidates): how good every candidate is, from 0 to 1."""
    ranks: IntArray
    """(surfaces, clients, candidates): 0 for a client's best."""
    _smoothers: dict[int, Smoother] = field(default_factory=dict, repr=False)

    @classmethod
    def drawn(
        cls,
        space: Space,
        candidates: tuple[Config, ...],
        clients: int,
        surfaces: int = SURFACES,
        folds: int = 1,
    ) -> Family:
        """So many surfaces, every sixth of them rough; the same ones for all folds."""
        rng = np.random.default_rng(0)
        columns, ordered = places(space, candidates)
        apart = columns[:, None, :] - columns[None, :, :]
        squares = np.where(ordered, apart**2, apart != 0)
        values = np.empty((surfaces, len(candidates)))
        ranks = np.empty((surfaces, clients, len(candidates)), np.int64)
        for number in range(surfaces):
            root = np.eye(len(candidates))
            if number % ROUGH:
                lengths = np.exp(rng.uniform(math.log(0.2), math.log(2.0), columns.shape[1]))
                kernel = np.exp(-0.5 * squares @ (1 / lengths**2))
                root = np.linalg.cholesky(kernel + 1e-6 * np.eye(len(candidates)))
            surface, erratic = rng.normal(size=(2, len(candidates))) @ root.T
            surface = surface - np.quantile(surface, rng.uniform(0.6, 0.97))
            squashed = 1 / (1 + np.exp(-rng.choice(_STEEP) * surface))
            low, high = squashed.min(), squashed.max()
            values[number] = (squashed - low) / (high - low)
            own = rng.choice(_DEVIATIONS) * rng.normal(size=(clients, len(candidates))) @ root.T
            noise = rng.choice(_EVALUATION) / math.sqrt(folds) * np.exp(_ERRATIC * erratic)
            seen = values[number] + own + noise * rng.normal(size=own.shape)
            ranks[number] = np.argsort(np.argsort(-seen, axis=1), axis=1)
        return cls(space, candidates, values, ranks)

    def loss(self, vote: Vote, participation: Participation, budget: Budget) -> float:
        """What picks of this vote lose on average, with noise for this budget."""
        rng = np.random.default_rng(1)  # the same noise for every vote
        noise = normal_noise(vote, len(self.candidates), participation, budget)
        picks = self.picks(vote, participation.clients, noise, rng, _SHUFFLES)
        return float((1 - self.values[np.arange(len(picks)), picks]).mean())

    def picks(
        self,
        vote: Vote,
        clients: int,
        noise: tuple[Noise, Noise],
        rng: np.random.Generator,
        shuffles: int,
    ) -> IntArray:
        """The winner on every surface, with the noise of the first tally and of a run-off."""
        weights = weights_of(vote)
        tallies = self._tallies(weights, clients)
        tallies = tallies + noise[0].drawn(tallies.shape, rng)
        smoothed: list[Smoothed | None] = [None] * len(tallies)
        if vote.smooth:
            spread = amplitudes(float(weights.sum()) * clients, len(self.candidates))
            smoother = self._smoother(vote.votes)
            smoothed = [*smoother.read(tallies, noise[0].deviation ** 2, spread, rng, shuffles)]
        picks = np.empty(len(tallies), np.int64)
        for number, (tally, seen) in enumerate(zip(tallies, smoothed, strict=True)):
            if vote.run_off is None:
                picks[number] = winner(tally, seen)
                continue
            few = finalists(tally, seen, vote.run_off.finalists)
            favourites = np.bincount(self.ranks[number][:, few].argmin(axis=1), minlength=len(few))
            counts = favourites * (clients / favourites.sum())
            counts = counts + noise[1].drawn(counts.shape, rng)
            picks[number] = few[final_winner(counts, noise[1].deviation ** 2, tally, seen)]
        return picks

    def _smoother(self, votes: int) -> Smoother:
        """Made once: eigenvalues take most of the time."""
        if votes not in self._smoothers:
            self._smoothers[votes] = Smoother.of(self.space, self.candidates, votes)
        return self._smoothers[votes]

    def _tallies(self, weights: FloatArray, clients: int) -> FloatArray:
        """Votes of all clients; where there are more than were drawn, each stands for several."""
        table = np.zeros(len(self.candidates))
        table[: len(weights)] = weights
        found: FloatArray = table[self.ranks].mean(axis=1) * clients
        return found


def weights_of(vote: Vote) -> FloatArray:
    """What a ballot gives to a client's best, second best, and so on.

    >>> weights_of(Vote(3, ballot="borda")).tolist()
    [3.0, 2.0, 1.0]
    """
    if vote.ballot == "borda":
        return np.arange(vote.votes, 0, -1, dtype=np.float64)
    return np.ones(vote.votes)


@dataclass(frozen=True)
class Noise:
    """Of a tally: its deviation in votes, and whether it is the clients' integers or normal."""

    deviation: float
    integer: bool = False

    def drawn(self, shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
        """Simulated, so with a seed: no client is protected by it."""
        if not self.integer:
            return self.deviation * rng.normal(size=shape)
        rate = self.deviation**2 / 2
        return (rng.poisson(rate, shape) - rng.poisson(rate, shape)).astype(np.float64)


def normal_noise(
    vote: Vote, candidates: int, participation: Participation, budget: Budget
) -> tuple[Noise, Noise]:
    """Of the tally and of the run-off with everybody present, as they share the budget.

    That of a normal distribution, exactly accounted: within a few parts of a hundred of the integer
    noise that clients draw, which takes seconds to calibrate. What is charged does not rest on it.
    """
    from dp_accounting import get_sigma_gaussian

    present = math.sqrt(participation.clients / participation.guaranteed)
    whole = present * float(get_sigma_gaussian(budget.epsilon, budget.delta))
    kind = BordaVotes if vote.ballot == "borda" else TopVotes
    first = whole * math.sqrt(kind(candidates, vote.votes).release(1.0).squared_distance)
    if vote.run_off is None:
        return Noise(first), Noise(0.0)
    final = whole * math.sqrt(TopVotes(vote.run_off.finalists, 1).release(1.0).squared_distance)
    share = vote.run_off.share
    return Noise(first / math.sqrt(1 - share)), Noise(final / math.sqrt(share))
