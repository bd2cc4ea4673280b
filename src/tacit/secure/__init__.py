"""Secure sums: the server learns a total and nothing else."""
