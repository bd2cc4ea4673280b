"""The two tables: Adult, with its published categories, and credit-card fraud.

Which columns exist and how they are standardised is written down here instead of being learned from
rows. A client's own rows would give every client other columns, and statistics of the pooled rows
would leave the clients without noise. In a real federation such constants must be public already,
or agreed on before anyone trains.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import numpy as np

from tacit.data.examples import Dataset, Examples, FloatArray
from tacit.data.folders import DataFile, Source
from tacit.data.formats import check_labels, naming, opened

ADULT_NUMBERS: Mapping[str, tuple[float, float]] = {
    "age": (38.58164676, 13.64022309),
    "fnlwgt": (189778.36651209, 105548.35688089),
    "education-num": (10.08067934, 2.57268083),
    "capital-gain": (1077.64884371, 7385.17867695),
    "capital-loss": (87.30382973, 402.95403083),
    "hours-per-week": (40.43745585, 12.34723908),
}
"""Adult's numeric columns, with the mean and standard deviation of the published train file."""

ADULT_CATEGORIES: Mapping[str, tuple[str, ...]] = {
    column: tuple(names.split())
    for column, names in {
        "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov "
        "Without-pay Never-worked",
        "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th "
        "7th-8th 12th Masters 1st-4th 10th Doctorate 5th-6th Preschool",
        "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed "
        "Married-spouse-absent Married-AF-spouse",
        "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial "
        "Prof-specialty Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing "
        "Transport-moving Priv-house-serv Protective-serv Armed-Forces",
        "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
        "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
        "sex": "Female Male",
        "native-country": "United-States Cambodia England Puerto-Rico Canada Germany "
        "Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras Philippines "
        "Italy Poland Jamaica Vietnam Mexico Portugal Ireland France Dominican-Republic Laos "
        "Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia "
        "El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
    }.items()
}
"""Adult's categorical columns, with every category of the published description, in its order."""

ADULT_FEATURES: tuple[str, ...] = (
    *ADULT_NUMBERS,
    *(f"{column}={name}" for column, names in ADULT_CATEGORIES.items() for name in names),
)
"""What the features of an Adult row are called: first the numbers, then one per category."""

_ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
)
_ADULT_INCOMES = {"<=50K": 0, ">50K": 1}
_ADULT_PLACES = {name: place for place, name in enumerate(ADULT_FEATURES)}
_UNKNOWN = "?"

FRAUD_SPREADS: tuple[float, ...] = (
    *(1.958696, 1.651309, 1.516255, 1.415869, 1.380247, 1.332271, 1.237094, 1.194353, 1.098632),
    *(1.088850, 1.020713, 0.9992014, 0.9952742, 0.9585956, 0.9153160, 0.8762529, 0.8493371),
    *(0.8381762, 0.8140405, 0.7709250, 0.7345240, 0.7257016, 0.6244603, 0.6056471, 0.5212781),
    *(0.4822270, 0.4036325, 0.3300833, 250.120109),
)
"""Standard deviations of V1 to V28 and Amount over all 284,807 published rows."""

FRAUD_CENTRES: tuple[float, ...] = (*[0.0] * 28, 88.349619)
"""Their means: V1 to V28 are principal components, so that theirs are 0."""

_FRAUD_HEADER = ("Time", *(f"V{number}" for number in range(1, 29)), "Amount", "Class")
_FRAUD_TEST_SHARE = 0.3
_FRAUD_SPLIT_SEED = 0


def read_adult(path: Path) -> Examples:
    """Rows of ``adult.data`` or ``adult.test``: 105 numbers each, and 1 for an income above 50K.

    An unknown value (``?``) is nobody's category: all features of its column are 0.
    """
    with opened(path) as stream, io.TextIOWrapper(stream, "ascii") as text:
        rows, labels = [], []
        for number, line in enumerate(text, 1):
            if line.strip() and not line.startswith("|"):  # adult.test begins with a remark
                row, label = _adult_row(line, number)
                rows.append(row)
                labels.append(label)
        if not rows:
            raise ValueError("it holds no rows")
        return Examples(np.stack(rows), np.array(labels, dtype=np.int64))


def read_fraud(path: Path) -> tuple[Examples, Examples]:
    """Train and test rows of ``creditcard.csv`` or of a subset: V1 to V28 and Amount.

    Time is dropped first and repeated rows second, so that no row of the test part can be seen in
    training; 30 % of either class are the test part, the same rows for everybody.
    """
    from sklearn.model_selection import train_test_split

    table = _fraud_table(path)
    _, first = np.unique(table, axis=0, return_index=True)
    distinct = table[np.sort(first)]
    labels = distinct[:, -1].astype(np.int64)
    with naming(path):
        counts = np.bincount(labels, minlength=2)
        if counts.min() < 2:
            raise ValueError(
                f"it holds {counts[0]} genuine and {counts[1]} fraudulent distinct transactions; "
                "at least 2 of either are needed, to train and to test"
            )
    train, test = train_test_split(
        np.arange(len(labels)),
        test_size=_FRAUD_TEST_SHARE,
        stratify=labels,
        random_state=_FRAUD_SPLIT_SEED,
    )
    examples = Examples(distinct[:, :-1], labels)
    return examples.take(np.sort(train)), examples.take(np.sort(test))


def _adult_row(line: str, number: int) -> tuple[FloatArray, int]:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != len(_ADULT_COLUMNS):
        raise ValueError(
            f"line {number} has {len(fields)} fields; allowed are {len(_ADULT_COLUMNS)}"
        )
    row = np.zeros(len(ADULT_FEATURES), dtype=np.float32)
    for column, field in zip(_ADULT_COLUMNS[:-1], fields, strict=False):
        if column in ADULT_NUMBERS:
            row[_ADULT_PLACES[column]] = _finite(field, column, number)
        elif field != _UNKNOWN:
            if f"{column}={field}" not in _ADULT_PLACES:
                raise ValueError(
                    f"line {number}: {column} is {field!r}; allowed are "
                    f"{', '.join(ADULT_CATEGORIES[column])}, and {_UNKNOWN} for unknown"
                )
            row[_ADULT_PLACES[f"{column}={field}"]] = 1
    income = fields[-1].removesuffix(".")  # adult.test ends its incomes so
    if income not in _ADULT_INCOMES:
        raise ValueError(f"line {number}: income is {income!r}; allowed are <=50K and >50K")
    return row, _ADULT_INCOMES[income]


def _finite(field: str, column: str, number: int) -> float:
    try:
        value = float(field)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"line {number}: {column} is {field!r}; allowed is a number")
    return value


def _fraud_table(path: Path) -> FloatArray:
    """V1 to V28, Amount and Class of every row."""
    with opened(path) as stream, io.TextIOWrapper(stream, "ascii") as text:
        header = tuple(name.strip().strip('"') for name in next(text, "").split(","))
        if header != _FRAUD_HEADER:
            raise ValueError(
                f"its first line is {','.join(header)[:60]!r}; allowed is Time, V1 to V28, Amount "
                "and Class"
            )
        first = next(text, None)
        if first is None:
            raise ValueError("it holds no rows")
        table = np.loadtxt(chain([first], text), delimiter=",", quotechar='"', ndmin=2)
        if table.shape[1] != len(_FRAUD_HEADER) or not np.isfinite(table).all():
            raise ValueError("a row has too few numbers, or one that is not finite")
        check_labels(table[:, -1], 0, 1)
        return table[:, 1:].astype(np.float32)


def _adult(paths: Mapping[str, Path]) -> Dataset:
    means, deviations = zip(*ADULT_NUMBERS.values(), strict=True)
    categories = len(ADULT_FEATURES) - len(ADULT_NUMBERS)  # they stay 0 or 1
    return Dataset(
        "adult",
        read_adult(paths["adult.data"]),
        read_adult(paths["adult.test"]),
        classes=tuple(_ADULT_INCOMES),
        centre=np.array(means + (0.0,) * categories, dtype=np.float32),
        spread=np.array(deviations + (1.0,) * categories, dtype=np.float32),
    )


def _fraud(paths: Mapping[str, Path]) -> Dataset:
    train, test = read_fraud(paths["creditcard.csv"])
    return Dataset(
        "fraud",
        train,
        test,
        classes=("genuine", "fraud"),
        centre=np.array(FRAUD_CENTRES, dtype=np.float32),
        spread=np.array(FRAUD_SPREADS, dtype=np.float32),
    )


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"

ADULT = Source(
    name="adult",
    title="Adult, also known as census income",
    citation="B. Becker and R. Kohavi, UCI Machine Learning Repository, 1996, doi:10.24432/C5XW20",
    licence="CC BY 4.0",
    files=tuple(
        DataFile(
            name,
            (f"adult/{name}", f"adult/{name}.gz", name, f"{name}.gz"),
            _UCI + name,
            checksum,
        )
        for name, checksum in (
            ("adult.data", "5d7c39d7b8804f071cdd1f2a7c460872"),
            ("adult.test", "35238206dfdf7f1fe215bbb874adecdc"),
        )
    ),
    by_hand=f"download adult.data and adult.test from {_UCI}",
    read=_adult,
)

FRAUD = Source(
    name="fraud",
    title="Credit card fraud detection",
    citation="A. Dal Pozzolo, O. Caelen, R. A. Johnson and G. Bontempi: Calibrating probability "
    "with undersampling for unbalanced classification, 2015",
    licence="Open Database Licence 1.0; contents under the Database Contents Licence 1.0",
    files=(
        DataFile(
            "creditcard.csv",
            (
                *("fraud/creditcard.csv", "fraud/creditcard.csv.gz"),
                *("creditcard.csv", "creditcard.csv.gz"),
                *("creditcard_fraud_subset.csv", "creditcard_fraud_subset.csv.gz"),
            ),
        ),
    ),
    by_hand="download creditcard.csv from https://www.kaggle.com/datasets/mlg-ulb/creditcardfraud "
    "(Kaggle asks for an account)",
    read=_fraud,
)
