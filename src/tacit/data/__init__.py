"""Public data sets and the ways to deal them out to clients.

>>> import numpy as np
>>> digits = load("digits")
>>> parts = deal(digits, partition("dirichlet", alpha=0.5), 10, np.random.default_rng(1))
>>> train, validation = split_validation(parts[0], 0.2, np.random.default_rng(1))
>>> len(parts), len(train) + len(validation) == len(parts[0])
(10, True)
"""

from tacit.data.examples import Dataset, Examples, split_validation
from tacit.data.partitions import deal, partition
from tacit.data.sources import fetch, load

__all__ = ["Dataset", "Examples", "deal", "fetch", "load", "partition", "split_validation"]
