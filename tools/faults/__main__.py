"""Run the campaigns (``python -m tools.faults``), all or some of them."""

from __future__ import annotations

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["TACIT_CORES"] = "1"  # before any library is loaded

from tools.faults.shim import with_shim

if __name__ == "__main__":
    with_shim(sys.argv[1:])
    from tools.faults.running import app

    app()
