"""Tuners: each reads like its paper's pseudo-code, and sees sums only."""
