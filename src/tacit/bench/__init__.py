"""Benchmarks: the papers' experiments and our own measurements, behind ``tacit bench``."""
