"""Private hyperparameter tuning for federated learning, with the exact price.

>>> import tacit
>>> tacit.Budget(epsilon=1.0, delta=1e-5)
Budget(epsilon=1.0, delta=1e-05)
"""

from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation
from tacit.result import Result
from tacit.sklearn_task import SklearnTask
from tacit.space import Choice, Float, Int, Space
from tacit.tables import ScoreTable
from tacit.torch_task import TorchTask
from tacit.training import PrivateAveraging
from tacit.tuners.adaptive import AdaptiveRate
from tacit.tuners.bandit import Bandit, Stage
from tacit.tuners.baselines import Opt, RandomGuess
from tacit.tuners.combine import Combine
from tacit.tuners.fedex import FedEx
from tacit.tuners.flora import Flora
from tacit.tuners.nas import Feathers
from tacit.tuners.selection import Selection
from tacit.tuners.together import Together
from tacit.tuners.voting import Vote
from tacit.tuning import tune

__version__ = "0.1.0"

__all__ = [
    "AdaptiveRate",
    "Bandit",
    "Budget",
    "Choice",
    "Combine",
    "Feathers",
    "FedEx",
    "Float",
    "Flora",
    "Int",
    "Ledger",
    "Opt",
    "Participation",
    "PrivateAveraging",
    "RandomGuess",
    "Result",
    "ScoreTable",
    "Selection",
    "SklearnTask",
    "Space",
    "Stage",
    "Together",
    "TorchTask",
    "Vote",
    "tune",
]
