"""A clinic's side."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import tacit.flower  # tacit
from nuclei import task

app = ClientApp()


def scorer(context: Context):  # tacit
    """How bad settings are on this clinic's own rows."""
    rows, others = task.of_clinic(context)

    def score(config) -> float:
        model = task.net()
        task.train(model, rows, **config, epochs=10)
        return task.test(model, others)[0]

    return score


tacit.flower.answer(app, scorer)  # tacit


@app.train()
def train(message: Message, context: Context) -> Message:
    model = task.net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    settings = message.content["config"]
    task.train(
        model,
        task.of_clinic(context)[0],
        settings["lr"],
        settings["weight_decay"],
        settings["epochs"],
    )
    # All clinics count the same: how many rows one has is nobody's business.
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
