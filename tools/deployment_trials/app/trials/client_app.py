"""A node whose favourite depends on its number, and whose training adds one."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import tacit.flower
from tacit.task import Client, FunctionClient

app = ClientApp()


def client(context: Context) -> Client:
    """It likes values near its own."""
    best = (1 + int(str(context.node_config["partition-id"]))) / 10
    return FunctionClient(lambda config: abs(float(config["x"]) - best))


tacit.flower.answer(app, client)


@app.train()
def train(message: Message, _context: Context) -> Message:
    """One step of what stands for training."""
    arrays = [array + 1 for array in message.content.array_records["arrays"].to_numpy_ndarrays()]
    content = RecordDict(
        {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
    )
    return Message(content, reply_to=message)
