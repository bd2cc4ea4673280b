"""A vote among four candidates, then one round of averaging."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import tacit
import tacit.flower

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Tune, then train; how many nodes the training needs is a setting."""
    space, method = {"x": tacit.Float(0.0, 1.0)}, tacit.Vote(votes=1, candidates=4)
    tacit.flower.tune(grid, context, space=space, method=method)
    needed = int(str(context.run_config["nodes"]))
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=needed, min_available_nodes=needed)
    strategy.start(grid, ArrayRecord([np.zeros(2)]), num_rounds=1, timeout=30.0)
