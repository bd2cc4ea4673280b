from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.data.sources import digits
from tacit.grids import grid
from tacit.table_maker import clients_of, make
from tacit.tables import Recipe, ScoreTable, shipped
from tacit.training import federated_average
from tests.journals import rewrite

TINY = Recipe("digits", clients=4, examples=120, epochs=1, rounds=1, batch=16, seeds=1)


def quiet(done: int, total: int) -> None:
    del done, total


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ScoreTable:
    return make(TINY, None, tmp_path_factory.mktemp("work"), quiet)


def test_local_entries_are_what_the_clients_measure(tiny: ScoreTable) -> None:
    clients = clients_of(TINY, None, 0)
    for number, client in enumerate(clients):
        loss, accuracy = client.measure_many(grid(TINY.grid))
        np.testing.assert_allclose(tiny.losses[0, number], loss, rtol=1e-4)
        assert (
            tiny.wrong[0, number].tolist()
            == np.rint((1 - accuracy) * len(client.validation)).tolist()
        )
        assert tiny.validation_sizes[0, number] == len(client.validation)
        assert tiny.training_sizes[0, number] == len(client.train_examples)
        np.testing.assert_allclose(
            tiny.scores(0)[number], client.score_many(grid(TINY.grid)), rtol=1e-5
        )


def test_scores_of_several_folds_are_those_of_clients_who_cross_validate(tmp_path: Path) -> None:
    recipe = replace(TINY, clients=3, folds=2)
    table = make(recipe, None, tmp_path, quiet)
    for number, client in enumerate(clients_of(recipe, None, 0)):
        assert table.validation_sizes[0, number] == 2 * len(client.validation)
        found = client.cross_validate(grid(recipe.grid), 2)
        np.testing.assert_allclose(table.scores(0)[number], found, rtol=1e-4)


def test_accuracies_are_those_of_federated_models_on_test_data(tiny: ScoreTable) -> None:
    clients = clients_of(TINY, None, 0)
    task, data = clients[0].task, digits()
    for place in (0, 44, 99):
        weights = federated_average(
            lambda query: (query.answer(client) for client in clients),
            [tiny.candidates[place]],
            task.initial(1),
            TINY.rounds,
            TINY.epochs,
        )
        test = data.standardise(data.test)
        assert tiny.accuracy[0, place] == pytest.approx(task.accuracies(weights, test)[0])
        validation = np.mean([client.validate_many(weights)[0] for client in clients])
        assert tiny.validation_accuracy[0, place] == pytest.approx(validation)


def test_a_table_survives_its_file(tiny: ScoreTable, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tiny.npz"
    tiny.save(path)
    again = ScoreTable.load(path)
    assert again.recipe == tiny.recipe
    assert again.candidates == tiny.candidates
    assert again.made == tiny.made
    for name in ("losses", "wrong", "validation_sizes", "accuracy", "validation_accuracy"):
        assert np.array_equal(getattr(again, name), getattr(tiny, name))
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.npz"]


def test_losses_survive_their_file_bit_for_bit_and_plain_files_are_read(
    tiny: ScoreTable, tmp_path: Path
) -> None:
    odd = tiny.losses.copy()
    odd[0, 0, :4] = np.inf, -0.0, np.finfo(np.float32).tiny, np.nan
    path = tmp_path / "odd.npz"
    replace(tiny, losses=odd).save(path)
    again = ScoreTable.load(path).losses
    assert again.dtype == odd.dtype
    assert again.tobytes() == odd.tobytes()
    with np.load(path) as arrays:
        held = {name: arrays[name] for name in arrays.files}
    np.savez(path, **(held | {"losses": odd}))
    assert ScoreTable.load(path).losses.tobytes() == odd.tobytes()


def local_sizes_of_77(pieces: dict[Any, Any]) -> None:
    pieces[0]["training_sizes"] = [77, 77]  # the first piece holds the clients' local scores


def test_finished_pieces_are_not_trained_again_and_seeds_can_be_added(tmp_path: Path) -> None:
    recipe = replace(TINY, clients=2, examples=60)
    make(recipe, None, tmp_path, quiet)
    (journal,) = tmp_path.glob("journal-*.jsonl")
    lines = rewrite(journal, local_sizes_of_77)
    heard: list[tuple[int, int]] = []
    found = make(replace(recipe, seeds=2), None, tmp_path, lambda d, t: heard.append((d, t)))
    assert found.training_sizes.tolist() == [[77, 77], [24, 24]]
    assert heard[0] == (0, 2 * lines)
    assert heard[-1] == (2 * lines, 2 * lines)
    assert not np.array_equal(found.losses[0], found.losses[1]), "a seed is a run of its own"
    assert found.first(1).accuracy.shape == (1, 100)


def finished_lines(folder: Path) -> int:
    return sum(path.read_text().count("\n") for path in folder.glob("journal-*.jsonl"))


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_table_goes_on_where_it_was_and_leaves_no_process_behind(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from tests.test_tables import TINY, make, quiet\n"
        f"if __name__ == '__main__': make(TINY, None, Path({str(tmp_path)!r}), quiet)"
    )
    file = tmp_path / "run.py"
    file.write_text(script)
    places = [str(Path(__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    process = subprocess.Popen([sys.executable, file], env=environment, start_new_session=True)
    while not finished_lines(tmp_path) and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    while group_lives(process.pid):  # workers notice, and leave; the test's time limit is CI's
        time.sleep(0.05)
    before = finished_lines(tmp_path)
    table = make(TINY, None, tmp_path, quiet)
    assert finished_lines(tmp_path) == 5 >= before >= 1
    assert (table.accuracy > 0).any()


def test_names_tell_recipes_apart() -> None:
    recipes = [
        Recipe("adult"),
        Recipe("digits"),
        Recipe("adult", clients=50),
        Recipe("adult", "dirichlet", alpha=0.5),
        Recipe("adult", "dirichlet", alpha=5),
        Recipe("adult", "quantity-skew", alpha=5),
        Recipe("adult", "feature-skew", noise=0.2),
        Recipe("adult", "class-pairs", similarity=0.2),
        Recipe("adult", "dominant-label", percent=50),
        Recipe("adult", grid="dp-hype-code"),
        Recipe("adult", network="mlp"),
        Recipe("adult", examples=100),
        Recipe("adult", test_examples=100),
        Recipe("adult", epochs=2),
        Recipe("adult", rounds=2),
        Recipe("adult", batch=16),
        Recipe("adult", validation=0.5),
        Recipe("adult", smallest=2),
        Recipe("adult", folds=5),
    ]
    assert len({recipe.name for recipe in recipes}) == len(recipes)
    assert Recipe("adult", seeds=9).name == Recipe("adult").name


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ({"data": "imagenet"}, "no data set is called 'imagenet'"),
        ({"data": "digits", "partition": "fair"}, "partition is 'fair'; allowed are iid"),
        ({"data": "digits", "grid": "mine"}, "no grid is called 'mine'; allowed are dp-hype-table"),
        ({"data": "digits", "network": "lenet"}, "no network is called 'lenet'; allowed are"),
        ({"data": "digits", "examples": 5000}, "examples is 5000; allowed is 0 for all, or up to"),
        (
            {"data": "digits", "test_examples": 999},
            "test_examples is 999; allowed is 0 for all",
        ),
        ({"data": "digits", "clients": 500}, "clients is 500 with at least 10 examples"),
        ({"data": "digits", "clients": 1}, "clients is 1; allowed is 2 and above"),
        ({"data": "digits", "seeds": 0}, "seeds is 0; allowed is 1 and above"),
        ({"data": "digits", "epochs": 0}, "epochs is 0; allowed is 1 and above"),
    ],
)
def test_recipes_that_cannot_be_followed_are_refused_at_once(
    recipe: dict[str, object], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=reason):
        make(Recipe(**recipe), None, tmp_path, quiet)  # type: ignore[arg-type]


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    said = (
        "no table 'adult-n5'; allowed are a file, or a name that .* shows, such as adult-iid-n50,"
    )
    with pytest.raises(ValueError, match=said):
        ScoreTable.load("adult-n5")
    for content in (b"", b"nonsense"):
        (tmp_path / "x.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.npz is not a score table: it is no npz file"):
            ScoreTable.load(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", accuracy=np.zeros(3))
    with pytest.raises(ValueError, match=r"y\.npz is not a score table"):
        ScoreTable.load(tmp_path / "y.npz")


@pytest.mark.parametrize("name", sorted(shipped()))
def test_tables_that_come_with_tacit_are_sound(name: str) -> None:
    table = ScoreTable.load(name)
    shape = (table.recipe.seeds, table.recipe.clients, len(table.candidates))
    assert table.name == name
    assert table.candidates == grid(table.recipe.grid)
    assert table.losses.shape == table.wrong.shape == shape
    assert table.accuracy.shape == table.validation_accuracy.shape == (shape[0], shape[2])
    assert not np.isnan(table.losses).any()
    assert np.isfinite(table.losses).any(axis=2).all(), "every client can vote"
    assert (table.wrong <= table.validation_sizes[:, :, None]).all()
    assert ((table.accuracy >= 0) & (table.accuracy <= 1)).all()
    assert shape[0] >= 3, "at least three training seeds"
    # some candidates are much better than most, or the benchmark would tell nothing
    assert (table.accuracy.max(axis=1) > np.median(table.accuracy, axis=1) + 0.05).all()


def test_tables_are_shipped_for_five_data_sets_and_stay_small() -> None:
    tables = shipped()
    names = {name.split("-")[0] for name in tables}
    assert names == {"digits", "adult", "mnist", "cifar", "fashion"}
    assert sum(path.stat().st_size for path in tables.values()) < 5_000_000


@pytest.mark.parametrize("planes", [0, 1, 3])
def test_another_number_of_planes_of_bytes_is_one_sentence(planes: int, tmp_path: Path) -> None:
    with np.load(shipped()["digits-iid-n20"]) as held:
        arrays = dict(held)
    np.savez(tmp_path / "table.npz", **{**arrays, "losses": arrays["losses"][:planes]})
    with pytest.raises(ValueError, match="is not a score table"):
        ScoreTable.load(tmp_path / "table.npz")
