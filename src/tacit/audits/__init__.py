"""Audits: the real client path on the worst neighbouring worlds, and what its outputs give away."""
