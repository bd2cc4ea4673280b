"""Tacit on Flower: the same federation over Flower's messages, in simulation and in deployment.

In a ClientApp, beside its own handlers::

    app = ClientApp()
    tacit.flower.answer(app, lambda context: MyClient(context))

In a ServerApp, before its own strategy::

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        result = tacit.flower.tune(grid, context, space=..., method=..., budget=...)
        FedAvg(...).start(grid, weights, train_config=ConfigRecord(result.config), ...)
"""

try:
    import flwr  # noqa: F401
except ModuleNotFoundError:
    raise ImportError(
        "Flower is not installed; allowed is flwr 1.41: pip install 'tacit[flower]'"
    ) from None

from tacit.flower.client import answer
from tacit.flower.comparing import compare
from tacit.flower.server import tune

__all__ = ["answer", "compare", "tune"]
