"""One command line of every command, as its --help shows it. A test parses each."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["EXAMPLES", "show_examples"]

_MECHANISM: Final = "--strategy bsr --participation balls-in-bins --batches 100 --epochs 10"

EXAMPLES: Final = {
    "demo": "evertally demo --out my-demo",
    "run": "evertally run --config visits.toml",
    "check-config": "evertally check-config --config visits.toml --against visits.ledger",
    "plot": "evertally plot releases.jsonl --out releases.png",
    "worker": "evertally worker --config worker.toml --from earliest",
    "release": "evertally release --config worker.toml",
    "beam": "evertally beam --config worker.toml --from earliest --prism-location "
    "~/.cache/evertally/prism/2.77.0/prism",
    "flink submit": "evertally flink submit --config worker.toml --from earliest --parallelism 2",
    "flink watch": "evertally flink watch --config worker.toml --metrics-listen 127.0.0.1:9467",
    "flink stop": "evertally flink stop --config worker.toml --savepoints file:///var/lib/flink/savepoints",
    "topics create": "evertally topics create --config worker.toml --replication 3",
    "topics check": "evertally topics check --config worker.toml",
    "train": "evertally train --config train.toml --device cuda",
    "account": f"evertally account {_MECHANISM} --noise-multiplier 4 --delta 1e-5",
    "calibrate": f"evertally calibrate {_MECHANISM} --epsilon 2 --delta 1e-5",
    "compare": "evertally compare --to 2^20",
    "exporter": "evertally exporter --ledger visits.ledger --window 1h",
    "serve": "evertally serve --ledger budget.ledger --port 8400",
    "token create": "evertally token create --ledger budget.ledger --principal analyst "
    "--grant 'scope:museum=read,quote'",
    "token revoke": "evertally token revoke 62886eedbc8db76e --ledger budget.ledger",
    "token list": "evertally token list --ledger budget.ledger",
    "ledger verify": "evertally ledger verify visits.ledger",
    "ledger show": "evertally ledger show visits.ledger",
    "ledger extend-horizon": "evertally ledger extend-horizon visits.ledger visits --to 4294967296 --dry-run",
    "ledger publish": "evertally ledger publish visits.ledger visits --to releases.jsonl",
}


def show_examples(name: str, command: Any) -> None:
    """Put its example below the help of a command, or of each command of a group."""
    inside = getattr(command, "commands", None)
    if inside is None:
        command.epilog = f"Example: {EXAMPLES[name]}"
        return
    for word, one in inside.items():
        show_examples(f"{name} {word}", one)
