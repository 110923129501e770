"""kill -9 at every named point: one lease is spent, and what is published is a bit-equal prefix."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.training_crashes import POINTS, copied, crashing_seams, prepared, run_killed
from tests.training.training_runs import Toy

from evertally.errors import Fenced, IntegrityError, InvalidParameter, StorageFull
from evertally.pipelines.training.checkpoint import Checkpoint, CheckpointStore
from evertally.pipelines.training.run import train_run
from evertally.pipelines.training.run_open import Seams, open_run
from evertally.pipelines.training.run_state import RunFolder
from evertally.testing import CrashPoints, SimulatedCrash

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A run with its key and random id, not begun."""
    return prepared(tmp_path_factory.mktemp("begun") / "toy")


@pytest.fixture(scope="module")
def reference(begun: Toy, tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """The same run, never interrupted."""
    toy = copied(begun, tmp_path_factory.mktemp("reference") / "toy")
    train_run(toy.config())
    assert len(toy.steps()) == 16
    return toy


def assert_same_run(toy: Toy, reference: Toy) -> None:
    assert toy.steps() == reference.steps()
    assert (toy.run / "model.safetensors").read_bytes() == (reference.run / "model.safetensors").read_bytes()
    assert toy.spent() == reference.spent()
    assert toy.spent()[0] == 1
    assert not (toy.run / "checkpoints").exists()
    assert not (toy.run / "spool").exists()


@pytest.mark.faults
@pytest.mark.parametrize("point", POINTS)
def test_a_run_killed_at_a_point_resumes_to_the_same_bits(
    point: str, begun: Toy, reference: Toy, tmp_path: Path
) -> None:
    name, hit = POINTS[point]
    toy = copied(begun, tmp_path / "toy")
    assert run_killed(toy, name, hit) == -9
    assert toy.steps() == reference.steps()[: len(toy.steps())]
    assert run_killed(toy) == 0
    assert_same_run(toy, reference)


@pytest.mark.soak
@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("point", POINTS)
def test_fifty_kills_at_each_point(point: str, begun: Toy, reference: Toy, tmp_path: Path) -> None:
    """Each run is killed again and again, at ever other times of the point."""
    name, latest = POINTS[point]
    kills, rounds = 0, 0
    while kills < 50:
        rounds += 1
        toy = copied(begun, tmp_path / f"toy-{rounds}")
        for hit in np.random.default_rng(rounds).integers(1, latest + 1, size=4).tolist():
            killed = run_killed(toy, name, hit) == -9
            kills += killed
            assert toy.steps() == reference.steps()[: len(toy.steps())]
            if not killed:
                break
        run_killed(toy)
        assert_same_run(toy, reference)
        shutil.rmtree(toy.folder)


def interrupted(toy: Toy, name: str, hit: int) -> None:
    with pytest.raises(SimulatedCrash):
        train_run(toy.config(), seams=crashing_seams(CrashPoints(hit, name)))


def test_where_bits_may_differ_a_fresh_attempt_draws_fresh_noise(
    begun: Toy, reference: Toy, tmp_path: Path
) -> None:
    """Other threads, another device or library: no second output under the noise of the first."""
    toy = copied(begun, tmp_path / "toy")
    interrupted(toy, "store.publish:after", 1)
    published = toy.steps()
    torch.set_num_threads(2)
    try:
        train_run(toy.config())
    finally:
        torch.set_num_threads(1)
    assert toy.steps()[:4] == published == reference.steps()[:4]
    assert all(a != b for a, b in zip(toy.steps()[4:], reference.steps()[4:], strict=True))
    folder = RunFolder(toy.run)
    assert folder.state().attempt == 2
    folder.close()
    assert toy.spent() == reference.spent()


def test_an_attempt_is_durable_before_its_first_draw(begun: Toy, tmp_path: Path) -> None:
    toy = copied(begun, tmp_path / "toy")
    interrupted(toy, "draw:after", 1)
    folder = RunFolder(toy.run)
    assert folder.state().attempt == 1
    folder.close()
    assert toy.spent()[0] == 1


def test_an_older_copy_of_a_run_is_not_taken_up(begun: Toy, tmp_path: Path) -> None:
    toy = copied(begun, tmp_path / "toy")
    interrupted(toy, "store.publish:after", 1)
    shutil.copytree(toy.run, tmp_path / "old")
    interrupted(toy, "store.publish:after", 2)  # the first one compares what is published already
    assert len(toy.steps()) == 8
    shutil.rmtree(toy.run)
    shutil.copytree(tmp_path / "old", toy.run)
    with pytest.raises(IntegrityError, match="older copy"):
        train_run(toy.config())


def test_other_data_under_the_same_noise_is_impossible(begun: Toy, tmp_path: Path) -> None:
    """Manifest, plan and key are bound in: each change is refused before anything is drawn."""
    toy = copied(begun, tmp_path / "toy")
    interrupted(toy, "store.publish:after", 1)
    shutil.rmtree(toy.run / "spool")
    features = dict(np.load(toy.folder / "train.npz"))
    features["x"][0] += 1
    np.savez(toy.folder / "train.npz", **features)
    with pytest.raises(IntegrityError, match="another file"):
        train_run(toy.config())
    (toy.run / "manifest.sealed").unlink()
    with pytest.raises(IntegrityError, match="manifest"):
        train_run(toy.config())
    assert len(toy.steps()) == 4


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("optimiser", 'kind = "sgd"\nrate = 0.2'),
        ("training", 'batches = 8\nepochs = 3\nstrategy = "bsr"\nbands = 3\nexpected_units = 240'),
        ("privacy", "noise_multiplier = 3.0\ndelta = 1e-5"),
    ],
)
def test_a_folder_goes_on_with_its_own_plan_only(begun: Toy, tmp_path: Path, table: str, text: str) -> None:
    toy = copied(begun, tmp_path / "toy")
    interrupted(toy, "store.publish:after", 1)
    toy.tables[table] = text
    with pytest.raises(InvalidParameter, match="plan"):
        train_run(toy.config())


def test_a_source_that_changed_before_the_first_draw_costs_nothing(begun: Toy, tmp_path: Path) -> None:
    toy = copied(begun, tmp_path / "toy")
    interrupted(toy, "store.open:before", 1)
    with np.load(toy.folder / "train.npz") as file:
        np.savez(toy.folder / "train.npz", x=file["x"][1:], y=file["y"][1:])
    with pytest.raises(IntegrityError, match="another file"):
        train_run(toy.config())
    assert toy.spent() == (0, 0)


def test_a_second_holder_fences_the_first(begun: Toy, tmp_path: Path) -> None:
    toy = copied(begun, tmp_path / "toy")
    first = open_run(toy.config())
    try:
        with pytest.raises(Fenced, match="another process"):
            open_run(toy.config())
        zombie = copied(toy, tmp_path / "zombie")
        zombie.tables["budget"] = f'scope = "people"\nledger = "{toy.folder / "budget.ledger"}"'
        second = open_run(zombie.config())
        try:
            with pytest.raises(Fenced):
                first.confirm(4)
            second.confirm(4)
        finally:
            second.close()
    finally:
        first.close()


def test_damaged_checkpoints_are_refused_by_name(begun: Toy, tmp_path: Path) -> None:
    toy = copied(begun, tmp_path / "toy")
    interrupted(toy, "store.publish:after", 2)
    newest = toy.run / "checkpoints" / "step-000000000008.checkpoint"
    good = newest.read_bytes()
    for position in (0, len(b"evertally-checkpoint\n"), 30, len(good) // 2, len(good) - 1):
        broken = bytearray(good)
        broken[position] ^= 1
        newest.write_bytes(broken)
        with pytest.raises(IntegrityError, match="checkpoint"):
            train_run(toy.config())
    newest.write_bytes((toy.run / "checkpoints" / "step-000000000004.checkpoint").read_bytes())
    with pytest.raises(IntegrityError, match="another step"):
        train_run(toy.config())
    newest.write_bytes(good)
    train_run(toy.config())


def test_a_full_disk_publishes_nothing(begun: Toy, reference: Toy, tmp_path: Path) -> None:
    toy = copied(begun, tmp_path / "toy")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageFull):
        train_run(toy.config(), seams=Seams(fsync=full))
    assert toy.steps() == []
    train_run(toy.config())
    assert_same_run(toy, reference)


def test_checkpoints_hold_no_plain_number_and_do_not_pickle(tmp_path: Path) -> None:
    import pickle

    from evertally.pipelines.sealing import Sealer

    store = CheckpointStore(tmp_path / "c", Sealer(bytes(32), "training:x", 0))
    checkpoint = Checkpoint(3, {"lease": "secret-lease"}, b"exact-sums" * 10)
    store.save(checkpoint)
    (path,) = (tmp_path / "c").iterdir()
    assert path.stat().st_mode & 0o077 == 0
    assert b"exact-sums" not in path.read_bytes()
    assert b"secret-lease" not in path.read_bytes()
    found = store.latest()
    assert found is not None
    assert (found.step, found.facts, found.state) == (3, {"lease": "secret-lease"}, b"exact-sums" * 10)
    with pytest.raises(TypeError):
        pickle.dumps(checkpoint)
    assert "exact" not in repr(checkpoint)
    for step in (4, 5, 6):
        store.save(Checkpoint(step, {}, b""))
    assert store.steps() == [5, 6]
