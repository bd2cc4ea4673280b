"""What a private vote will cost and how likely it succeeds, before anyone is asked.

Everything here is computed from public numbers. Besides Tacit's own noise the plan shows what the
paper prescribes (DP-HYPE, Theorems II.1 and IV.1) and what an exactly accounted continuous Gaussian
would need; continuous noise exists for this comparison only and is never drawn for a client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.abstentions import Counting
from tacit.privacy.accounting import Budget
from tacit.privacy.bounds import Box, TopVotes
from tacit.privacy.mechanisms import Participation, SkellamMechanism
from tacit.privacy.skellam import FloatArray
from tacit.secure.graph import wiring
from tacit.secure.opening import upload_bytes
from tacit.secure.protocol import modulus_bits

Group = tuple[float, int]
"""Candidates with equally many votes: (votes of each, how many candidates)."""

POOR_CHANCE = 0.9
CLEAR_REWARD = 0.25
"""Noise of a mean reward, in units of its clip, up to which it tells good from bad."""
REWARD_STEPS = 32
"""Steps of a clipped reward: finer than any noise that protects it."""


@dataclass(frozen=True)
class Noise:
    """Tacit's own noise: integers, sized by exact accounting."""

    mechanism: str
    required_variance: float
    delivered_variance: float
    share_variance: float
    sigma: float


@dataclass(frozen=True)
class GaussianNoise:
    """A continuous Gaussian, for comparison."""

    sigma: float
    variance: float


@dataclass(frozen=True)
class Plan:
    """A private vote, priced. ``sigma`` is the deviation with every client present."""

    noise: Noise
    published: GaussianNoise
    exact_gaussian: GaussianNoise
    success: float
    success_bound: float
    recommended_votes: int
    threshold: int
    degree: int
    share_threshold: int
    bytes_per_client: int
    abstentions: Counting | None
    """What a count of abstentions would tell; None where ballots name too many candidates."""

    @property
    def warning(self) -> str:
        """What to tell whoever is about to spend, when even unanimous clients often pick badly."""
        if self.success >= POOR_CHANCE:
            return ""
        return (
            f"even if all clients agree, a good candidate wins only {percent(self.success)} of "
            "the time. More clients help most; then a larger epsilon or fewer candidates."
        )


def percent(chance: float) -> str:
    """Rounded down: a chance is never shown larger than it is.

    >>> percent(0.9996)
    '99.9 %'
    """
    return f"{math.floor(1000 * chance) / 10:.1f} %"


def plan(
    participation: Participation,
    candidates: int,
    votes: int,
    budget: Budget,
    good: int | None = None,
) -> Plan:
    """Price a vote of ``votes`` among ``candidates`` of which ``good`` (default: votes) are good.

    The chance of success assumes that every client votes for the good candidates: the best case, a
    ceiling on what any federation of this size can reach with this budget.
    """
    bound = TopVotes(candidates, votes)
    if good is not None and not 1 <= good < candidates:
        raise ValueError(
            f"good is {good} of {candidates} candidates; allowed is 1 to {candidates - 1}"
        )
    assumed_good = votes if good is None else good
    mechanism = SkellamMechanism.calibrated(bound, participation, budget)
    wired = wiring(participation, participation.clients)
    sigma = math.sqrt(mechanism.delivered_variance)
    good_group, bad_group = unanimous_votes(participation.clients, candidates, votes, assumed_good)
    return Plan(
        noise=Noise(
            mechanism="skellam",
            required_variance=mechanism.required_variance,
            delivered_variance=mechanism.delivered_variance,
            share_variance=mechanism.share_variance,
            sigma=sigma,
        ),
        published=_gaussian(published_sigma(votes, budget)),
        exact_gaussian=_gaussian(exact_gaussian_sigma(bound, budget)),
        success=chance_of_good([good_group], [bad_group], sigma),
        success_bound=chance_bound([good_group], [bad_group], sigma),
        recommended_votes=recommend_votes(participation, candidates, budget, good),
        threshold=participation.threshold,
        degree=wired.degree,
        share_threshold=wired.share_threshold,
        bytes_per_client=upload_bytes(participation, candidates, modulus_bits(mechanism)),
        abstentions=Counting.of(bound, participation.clients, mechanism.delivered_variance),
    )


@dataclass(frozen=True)
class RewardPlan:
    """Reward rounds of FEATHERS, priced. Noise is that of a mean reward, in units of its clip."""

    rounds: int
    drawn: int
    noise: float
    affordable_rounds: int
    clients_needed: int

    @property
    def warning(self) -> str:
        """What to tell whoever is about to spend, when the noise drowns the rewards."""
        if self.noise <= CLEAR_REWARD:
            return ""
        rounds = (
            f"or {self.affordable_rounds} rounds at most"
            if self.affordable_rounds
            else "as not even one round can be afforded"
        )
        return (
            f"a mean reward carries noise of {self.noise:.2g} times its clip; above "
            f"{CLEAR_REWARD:g} it tells little. It takes {self.clients_needed} clients, {rounds}."
        )


def reward_plan(
    participation: Participation, drawn: int, rounds: int, budget: Budget, share: float = 1.0
) -> RewardPlan:
    """What so many reward rounds leave of the rewards, on a share of the budget.

    Shares are of the squared distance between neighbours, in which Gaussian-like noise adds up.

    >>> priced = reward_plan(Participation(100, 0.0), drawn=5, rounds=57, budget=Budget(3.0, 1e-5))
    >>> round(priced.noise, 2), priced.affordable_rounds
    (0.47, 15)
    """
    if drawn < 1 or rounds < 1 or not 0 < share <= 1:
        raise ValueError(
            f"found {drawn} configurations in {rounds} rounds on a share of {share:g}; allowed is "
            "at least 1 of either, and a share above 0, up to 1"
        )
    bound = Box(drawn, REWARD_STEPS, REWARD_STEPS)
    variance = SkellamMechanism.calibrated(bound, participation, budget, rounds).variance / share
    present = participation.clients / participation.guaranteed
    noise = math.sqrt(variance * present) / participation.clients
    excess = noise / CLEAR_REWARD
    return RewardPlan(
        rounds,
        drawn,
        noise,
        affordable_rounds=math.floor(rounds / excess**2),
        clients_needed=math.ceil(participation.clients * excess),
    )


def enough_noise(participation: Participation, candidates: int, votes: int, chance: float) -> float:
    """The largest variance with which unanimous clients still pick a good candidate so often.

    >>> round(enough_noise(Participation(200), candidates=100, votes=5, chance=0.95))
    5233
    """
    good, bad = unanimous_votes(participation.clients, candidates, votes, votes)
    present = participation.clients / participation.guaranteed

    def reached(variance: float) -> bool:
        return chance_of_good([good], [bad], math.sqrt(variance * present)) >= chance

    low, high = 1e-6, 1.0
    while reached(high):
        low, high = high, 4 * high
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if reached(middle) else (low, middle)
    return low


def published_sigma(votes: int, budget: Budget) -> float:
    """The paper's noise: the Rényi curve ``a k / sigma^2`` converted by Theorem II.1.

    For a fixed order ``a`` the theorem solves for sigma in closed form; the best order wins.

    >>> [round(published_sigma(5, Budget(e, 1e-5)), 2) for e in (0.1, 0.25, 0.5, 1.0, 3.0)]
    [107.46, 46.06, 24.25, 12.79, 4.72]
    """
    order = 1 + np.exp(np.linspace(-8.0, 12.0, 200_001))
    conversion = np.log1p(-1 / order) - (math.log(budget.delta) + np.log(order)) / (order - 1)
    room = budget.epsilon - conversion
    return math.sqrt(votes * float(np.min(order[room > 0] / room[room > 0])))


def exact_gaussian_sigma(bound: TopVotes, budget: Budget) -> float:
    """The least sigma of a continuous Gaussian on the bound's worst pair.

    >>> round(exact_gaussian_sigma(TopVotes(100, 5), Budget(1.0, 1e-5)), 2)
    11.8
    """
    from dp_accounting import get_sigma_gaussian

    sensitivity = math.sqrt(sum(count * distance**2 for distance, count in bound.shifts))
    return sensitivity * float(get_sigma_gaussian(budget.epsilon, budget.delta))


def unanimous_votes(clients: int, candidates: int, votes: int, good: int) -> tuple[Group, Group]:
    """Expected votes of the good and the bad candidates when every client knows which are good.

    With fewer votes than good candidates they spread evenly over the good; with more, the rest
    spread evenly over the bad.

    >>> unanimous_votes(clients=50, candidates=100, votes=5, good=5)
    ((50.0, 5), (0.0, 95))
    """
    bad = candidates - good
    return (clients * min(votes, good) / good, good), (clients * max(votes - good, 0) / bad, bad)


def chance_of_good(good: Sequence[Group], bad: Sequence[Group], sigma: float) -> float:
    """The chance that the largest noisy count belongs to a good candidate, given the votes.

    The largest good count exceeds all bad ones with probability
    ``integral of prod_bad Phi((t - v_b)/sigma) d prod_good Phi((t - v_g)/sigma)``, where
    Theorem V.1 only has a union bound.

    >>> good, bad = unanimous_votes(clients=50, candidates=100, votes=5, good=5)
    >>> [round(chance_of_good([good], [bad], s), 2) for s in (107.46, 46.06, 24.25)]
    [0.14, 0.37, 0.83]
    """
    from scipy.special import log_ndtr

    leader = max(votes for votes, _ in good)  # the largest good count lies near the best good one
    points = leader + sigma * np.linspace(-9.0, 9.0, 4001)

    def all_below(groups: Sequence[Group]) -> FloatArray:
        votes, count = np.array(groups).T
        log_chance = log_ndtr((points[:, None] - votes) / sigma) @ count
        return np.asarray(np.exp(log_chance), dtype=np.float64)

    good_below, bad_below = all_below(good), all_below(bad)
    return float(np.clip(np.diff(good_below) @ (bad_below[1:] + bad_below[:-1]) / 2, 0.0, 1.0))


def chance_bound(good: Sequence[Group], bad: Sequence[Group], sigma: float) -> float:
    """Theorem V.1's lower bound on the same chance; 0 where it says nothing."""
    gap = min(votes for votes, _ in good) - max(votes for votes, _ in bad)
    if gap <= 0:
        return 0.0
    miss = (
        sum(count for _, count in bad)
        * sigma
        / (gap * math.sqrt(math.pi))
        * math.exp(-((gap / sigma) ** 2) / 4)
    )
    return max(0.0, 1 - miss)


def recommend_votes(
    participation: Participation, candidates: int, budget: Budget, good: int | None = None
) -> int:
    """How many votes a client should have.

    The number with the best chance of success under unanimous clients; where the number of good
    candidates is not known, the best average over 1, 2, 4, .. up to a quarter of the candidates.
    Ties, as with ample budgets, go to the widest gap in units of the noise (geometric mean over
    those cases). Tried are some 60 numbers up to half of the candidates, evenly spaced on a
    logarithmic scale.

    >>> recommend_votes(Participation(250), candidates=100, budget=Budget(0.5, 1e-5))
    4
    """
    from dp_accounting import get_sigma_gaussian

    clients = participation.clients
    delivered = clients / participation.guaranteed
    unit = float(get_sigma_gaussian(budget.epsilon, budget.delta)) * math.sqrt(2 * delivered)
    quarter = max(1, candidates // 4)
    cases = [2**i for i in range(quarter.bit_length())] if good is None else [good]

    def merit(votes: int) -> tuple[float, float]:
        sigma = unit * math.sqrt(min(votes, candidates - votes))
        tallies = [unanimous_votes(clients, candidates, votes, case) for case in cases]
        chance = sum(chance_of_good([best], [rest], sigma) for best, rest in tallies) / len(cases)
        log_gap = sum(math.log(best[0] - rest[0]) for best, rest in tallies)
        return round(chance, 3), log_gap - len(cases) * math.log(sigma)

    spaced = np.geomspace(1, max(1, candidates // 2), 60).round().astype(int).tolist()
    tried: set[int] = {*spaced, *cases}
    return max(sorted(tried), key=merit)


def _gaussian(sigma: float) -> GaussianNoise:
    return GaussianNoise(sigma=sigma, variance=sigma**2)
