"""Parties and server of a multiparty session in one process."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

from tacit.secure import ring
from tacit.secure.bfv import (
    OpeningRequest,
    OpeningShare,
    Parameters,
    PublicKey,
)
from tacit.secure.circuit import (
    Encrypted,
)
from tacit.secure.multiparty import Party, Prepared, Server
from tacit.secure.ring import Integers, Residues, add

FOUR = Parameters(14, (60,) * 6)


@dataclass
class Session:
    """All parties and the server in one process, with their keys."""

    server: Server
    parties: list[Party]
    public_key: PublicKey

    @classmethod
    def begin(cls, parameters: Parameters, parties: int, *, products: bool = True) -> Session:
        seed = secrets.token_bytes(32)
        everybody = [Party.new(parameters, seed) for _ in range(parties)]
        server = Server(parameters, parties)
        session = cls(server, everybody, server.public_key([p.public_share() for p in everybody]))
        if products:
            total = server.relinearisation_total([p.relinearisation_first() for p in everybody])
            second = [party.relinearisation_second(total) for party in everybody]
            server.use(server.relinearisation_key(total, second))
        return session

    def sum(self, values: Integers) -> Encrypted:
        pairs = zip(self.parties, values, strict=True)
        return self.server.sum([party.encrypt(self.public_key, row) for party, row in pairs])

    def mask(self) -> Encrypted:
        return self.server.sum([party.encrypt_mask(self.public_key) for party in self.parties])

    def shares(self, prepared: Prepared) -> list[OpeningShare]:
        return [party.opening_share(prepared.request) for party in self.parties]

    def open(self, encrypted: Encrypted) -> Integers:
        prepared = self.server.prepare(encrypted)
        return self.server.open(prepared, self.shares(prepared))

    def split(self, totals: Integers) -> Integers:
        """Rows for every party that add up to the totals."""
        rng = np.random.default_rng(7)
        rows = rng.integers(-50, 51, (len(self.parties), totals.size))
        rows[0] += totals - rows.sum(0)
        return rows

    def noise_of(self, encrypted: Encrypted) -> npt.NDArray[np.float64]:
        """The true noise: t (c0 + c1 s) = q m + t e, and q m vanishes modulo q."""
        parameters = self.server.parameters
        level = parameters.ring.level(encrypted.primes)
        constant, linear = level.save(encrypted.ciphertext)
        secret = reduce(
            lambda a, b: add(level.primes, a, b),
            [party._secret_ntt[: len(level.primes)] for party in self.parties],
        )
        noisy = add(level.primes, constant, level.coefficients_times(linear[None], secret)[0])
        modulus = parameters.ring.plain_modulus
        return lifted(noisy, level.primes, times=modulus) / modulus


def lifted(residues: Residues, primes: tuple[int, ...], times: int = 1) -> npt.NDArray[np.float64]:
    """The integers between -q/2 and q/2 with these residues, by the Chinese remainder theorem."""
    q = reduce(lambda a, b: a * b, primes)
    total = np.zeros(residues.shape[-1], object)
    for row, prime in zip(residues, primes, strict=True):
        total += row.astype(object) * (q // prime * pow(q // prime, -1, prime) * times % q)
    total %= q
    return np.where(total > q // 2, total - q, total).astype(np.float64)


def a_request(parameters: Parameters) -> OpeningRequest:
    primes = parameters.ring.opening.primes
    drawn = [ring.uniform(prime, parameters.degree) for prime in primes]
    return OpeningRequest(parameters, np.array([drawn]))


def two_parties(parameters: Parameters) -> tuple[Party, Party]:
    seed = secrets.token_bytes(32)
    return Party.new(parameters, seed), Party.new(parameters, seed)


def uniform_p_value(signed: Integers, modulus: int) -> float:
    bins = ((signed % modulus) / modulus * 64).astype(np.int64)
    observed = np.bincount(bins, minlength=64)
    expected = signed.size / 64
    return float(chi2.sf(((observed - expected) ** 2 / expected).sum(), 63))
