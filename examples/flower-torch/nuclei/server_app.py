"""The server's side."""

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import tacit  # tacit
import tacit.flower  # tacit
from nuclei import task

app = ServerApp()
SPACE = {  # tacit
    "lr": tacit.Float(1e-4, 1e-1, log=True),
    "weight_decay": tacit.Float(1e-6, 1e-1, log=True),
}


@app.main()
def main(grid: Grid, context: Context) -> None:
    # Before: settings = {"lr": 1e-3, "weight_decay": 1e-4}, which somebody had guessed.
    settings = tacit.flower.tune(grid, context, space=SPACE).config  # tacit
    FedAvg(fraction_evaluate=0.0).start(
        grid,
        ArrayRecord(task.net().state_dict()),
        num_rounds=context.run_config["rounds"],
        train_config=ConfigRecord({**settings, "epochs": context.run_config["epochs"]}),
        evaluate_fn=evaluate,
    )


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy on the public test set."""
    model = task.net()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = task.test(model, task.everything()[1])
    return MetricRecord({"loss": loss, "accuracy": accuracy})
