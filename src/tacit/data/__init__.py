"""Public data sets and the ways to deal them out to clients."""
