"""How accurate are private models by each method at the same epsilon, each tuned by the same search?

.venv-train/bin/python -m tests.benchmarks.bench_kfc_accuracy --task cnn14 --epsilon 1 --methods dp-sgd,kfc-2
.venv-train/bin/python -m tests.benchmarks.bench_kfc_accuracy --page   (writes docs/comparison-training.md)

The search, on seed 0, is the same for all: three rates at clip norm 0.3; more beyond an edge while that is
best, six in all at most; then clip norms 0.1 and 1 at the same update. The best is run on fresh seeds. Runs
are kept in kfc_runs.json, so a search can be continued. Accounting: random allocation, this package's
bound, delta 1e-5.
"""

from __future__ import annotations

import argparse

import torch
from tests.benchmarks import kfc_page
from tests.benchmarks.kfc_search import FRESH, Setting, keep, key_of, load, search, suited
from tests.benchmarks.kfc_tasks import Task, task
from tests.benchmarks.kfc_training import METHODS, train

from evertally.accountants import BallsInBins, Identity, calibrate_noise_multiplier

DELTA = 1e-5


def noise_multiplier(chosen: Task, epsilon: float) -> float:
    participation = BallsInBins(batches=chosen.batches, epochs=chosen.epochs)
    return calibrate_noise_multiplier(Identity(), participation, epsilon=epsilon, delta=DELTA).value


def measure(chosen: Task, epsilon: float, methods: list[str], seeds: int) -> None:
    sigma = noise_multiplier(chosen, epsilon)
    print(
        f"{chosen.name}: N = {len(chosen.train[1])}, b = {chosen.batches}, k = {chosen.epochs}, {sigma=:.4f}"
    )
    runs = load()

    def once(name: str, setting: Setting, seed: int) -> float:
        key = key_of(chosen.name, epsilon, name, setting, seed)
        if key not in runs:
            outcome = train(
                METHODS[name],
                chosen,
                noise_multiplier=sigma,
                rate=setting.rate,
                clip_norm=setting.clip,
                seed=seed,
            )
            runs.update(load())  # another process may have added its own
            runs[key] = {
                "accuracy": outcome.accuracy, "cpu_s": round(outcome.cpu_s, 2), "sigma": sigma,
                "condition": outcome.condition, "smallest": outcome.smallest,
            }  # fmt: skip
            keep(runs)
        return float(runs[key]["accuracy"])

    for name in methods:
        tried: dict[Setting, float] = {}

        def accuracy(setting: Setting, name: str = name, tried: dict[Setting, float] = tried) -> float:
            tried[setting] = once(name, setting, 0)
            return tried[setting]

        best = search(METHODS[name], accuracy)
        fresh = [once(name, best, seed) for seed in FRESH[:seeds]]
        shown = ", ".join(f"{s.rate:.3g}@{s.clip:g}: {value:.1f}" for s, value in tried.items())
        print(f"{name:12s} {best} -> {[round(v, 2) for v in fresh]}   (seed 0: {shown})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=kfc_page.TASKS, default="cnn14")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--methods", help="names with commas between; default: all that the task has")
    parser.add_argument("--seeds", type=int, default=len(FRESH))
    parser.add_argument("--page", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.page:
        kfc_page.write()
        return
    methods = arguments.methods.split(",") if arguments.methods else suited(arguments.task)
    measure(task(arguments.task), arguments.epsilon, methods, arguments.seeds)


if __name__ == "__main__":
    main()
