"""Private hyperparameter tuning for federated learning, with the exact price."""

__version__ = "0.1.0"
