"""Public data sets and the ways to deal them out to clients.

>>> import numpy as np
>>> digits = load("digits")
>>> parts = deal(digits, partition("dirichlet", alpha=0.5), 10, np.random.default_rng(1))
>>> train, validation = split_validation(parts[0], 0.2, key=1)
>>> len(parts), len(train) + len(validation) == len(parts[0])
(10, True)
"""

from tacit.data.examples import Dataset, Examples, client_key, group_numbers, split_validation
from tacit.data.own_files import read_csv, read_npz
from tacit.data.partitions import deal, partition
from tacit.data.sources import fetch, load

__all__ = [
    "Dataset",
    "Examples",
    "client_key",
    "deal",
    "fetch",
    "group_numbers",
    "load",
    "partition",
    "read_csv",
    "read_npz",
    "split_validation",
]
