"""Tests run side by side, so that one thread each is fastest."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
