"""FLoRA: one loss surface for the federation, from what each client's losses say.

Zhou, Ram, Salonidis, Baracaldo, Samulowitz and Ludwig, "Single-shot General Hyper-parameter
Optimization for Federated Learning" (ICLR 2023), as PrivTuna (section IV-C3) compares with it. The
choice is the candidate where the surface is lowest. Surfaces and modes:

=======  =====  ===  =========  =============================================================
surface  clear  dp   encrypted  what the clients are asked for, unless in clear
=======  =====  ===  =========  =============================================================
sgm      yes    yes  yes        the sum of their losses, candidate by candidate
sgm+u    yes    yes  yes        the same
aplm     yes    yes  yes        the sum of their own models' predictions
mplm     yes    no   no         a maximum is not a function of sums
=======  =====  ===  =========  =============================================================

How we differ under noise: a client's losses are centred and clipped to a public length, so that one
client's scale cannot drown the others; sgm's forest then sees mean losses instead of all pairs
(:func:`tacit.surfaces.sgm_of_means` says what that changes), sgm+u is exact on means, and its
Gaussian process knows the noise. The sums need candidates that all clients try (grid, sobol or
random); aplm does not, since each client models what it found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.charged_questions import ChargedQuestions
from tacit.combining import LossSums, SurfaceSums, encoded, losses_bound
from tacit.local_search import LocalSearch, check_sampler
from tacit.privacy.events import CLIENT, Event, Unprotected
from tacit.privacy.skellam import FloatArray
from tacit.space import SAMPLINGS, Config, Space
from tacit.surfaces import aplm, mplm, sgm, sgm_of_means, sgm_u, sgm_u_of_means
from tacit.tuners.modes import check_mode, check_sums, gathered
from tacit.tuners.tuner import Outcome

SURFACES = ("sgm", "sgm+u", "mplm", "aplm")
_NOT_A_SUM = {"mplm": "a maximum is not a function of sums"}
_LEAST_NOISE = 1e-10  # scikit-learn's own


@dataclass(frozen=True)
class Flora:
    """One surface in one mode.

    >>> Flora("mplm", mode="dp")
    Traceback (most recent call last):
        ...
    ValueError: the surface 'mplm' cannot be 'dp': a maximum is not a function of sums; allowed \
is the mode 'clear', or instead of it sgm, sgm+u, aplm

    Args:
        surface: how losses become a surface.
        mode: what leaves the clients.
        candidates: how many configurations a client tries, and how many are chosen from.
        sampling: how clients search; with a sampler of Optuna, the choice is among Sobol points.
        clip: the length to which a client's centred losses are clipped, unless in clear.
    """

    surface: str = "sgm"
    mode: str = "dp"
    candidates: int = 100
    sampling: str = "grid"
    clip: float = 1.0
    name = "flora"
    unit = CLIENT

    def __post_init__(self) -> None:
        check_mode("surface", self.surface, SURFACES, self.mode, _NOT_A_SUM)
        check_sampler(self.sampling)
        losses_bound(1, self.clip)
        if self.mode != "clear" and self.surface != "aplm" and self.sampling not in SAMPLINGS:
            raise ValueError(
                f"the surface {self.surface!r} needs losses of the same candidates from everybody; "
                f"with the sampler {self.sampling!r} each client tries its own: allowed are "
                f"{', '.join(SAMPLINGS)}, or the surface 'aplm'"
            )

    def event(self, space: Space, variance: float) -> Event:
        if self.mode == "clear":
            return Unprotected("LocalFindings")
        count = space.count(self.candidates, self._grid_sampling)
        return losses_bound(count, self.clip).release(variance)

    def tune(self, questions: ChargedQuestions, space: Space, rng: np.random.Generator) -> Outcome:
        self.check_sums(questions.secure)
        seed = int(rng.integers(2**31))
        search = LocalSearch(space.to_json(), self.sampling, self.candidates, seed)
        common = LocalSearch(search.space, self._grid_sampling, self.candidates, seed)
        candidates = common.candidates
        if self.mode == "clear":
            surface = self._in_clear(questions, search, encoded(space, candidates))
        else:
            surface = self._from_sums(questions, search, candidates)
        return Outcome(candidates[int(np.argmin(surface))], candidates)

    def check_sums(self, secure: str) -> None:
        """Refuse a secure sum that is not the mode's."""
        check_sums(self.mode, secure)

    @property
    def _grid_sampling(self) -> str:
        """How the candidates are drawn that the choice is among."""
        return self.sampling if self.sampling in SAMPLINGS else "sobol"

    def _in_clear(
        self, questions: ChargedQuestions, search: LocalSearch, grid: FloatArray
    ) -> FloatArray:
        parties = [(one.points, one.scores) for one in gathered(questions, search)]
        if self.surface == "sgm+u":
            return sgm_u(parties, grid)
        surfaces = {"sgm": sgm, "mplm": mplm, "aplm": aplm}
        return surfaces[self.surface](parties, grid, seed=search.seed)

    def _from_sums(
        self, questions: ChargedQuestions, search: LocalSearch, candidates: tuple[Config, ...]
    ) -> FloatArray:
        steps = questions.steps
        if self.surface == "aplm":
            total = questions.sum(SurfaceSums(search, candidates, self.clip, steps), "surfaces")
        else:
            total = questions.sum(LossSums(search, self.clip, steps), "losses")
        clients = max(total.answered, 1)
        means = total.value / (steps * clients)
        points = encoded(search.where, candidates)
        if self.surface == "aplm":
            return means
        if self.surface == "sgm":
            return sgm_of_means(points, means, points, seed=search.seed)
        noise = max(total.variance / (steps**2 * clients), _LEAST_NOISE)
        return sgm_u_of_means(points, means, points, parties=clients, noise=noise)
