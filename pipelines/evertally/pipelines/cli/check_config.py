"""`evertally check-config`: every mistake at once, and what a change would cost."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evertally.errors import BudgetExceeded, InvalidParameter
from evertally.pipelines.cli.output import AsJson, LogFormat, Logs, begin, counted, emit

if TYPE_CHECKING:
    from evertally.pipelines.config import RunConfig
    from evertally.pipelines.kafka.config import WorkerConfig
    from evertally.pipelines.stream_spec import StreamSpec

__all__ = ["check_config"]


def check_config(
    config: Annotated[Path, typer.Option("--config", "-c", help="TOML file that declares a stream.")],
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            help="State file, or a worker's postgresql:// address: say whether this configuration continues "
            "its stream.",
        ),
    ] = None,
    as_json: AsJson = False,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Check a configuration and print what it declares; exit code 2 lists every mistake in it.

    Epsilon is a natural logarithm, sigma and the standard error are in value units, ticks are in seconds.
    """
    begin(as_json=as_json, log_format=log_format)
    from evertally.pipelines.config import load_config
    from evertally.pipelines.guarantee import guarantee_sentence
    from evertally.pipelines.local.runner import check_source

    declared: RunConfig | WorkerConfig
    chain_key: Path | None = None  # a run's lies beside its state file
    tables = _tables(config)
    if "run" in tables and "stream" not in tables:
        raise InvalidParameter(
            "config", "a training run", "a stream; `evertally train` checks a run's file before it pays"
        )
    if "kafka" in tables:
        from evertally.pipelines.kafka.config import load_worker_config

        declared = live = load_worker_config(config)
        header, ticks, chain_key = live.header(1), None, live.chain_key_file
    else:
        declared = bounded = load_config(config)
        check_source(bounded)
        header, ticks = bounded.spec.header(1), bounded.ticks.ticks
    _check_key_file(declared.key_file)
    _check_cap(declared.spec)
    verdict = "" if against is None else _compare(declared, against, chain_key)
    fields: dict[str, Any] = {
        "ok": True,
        "stream": header.stream,
        "ticks": ticks,
        "keys": len(header.keys),
        "sigma": header.sigma,
        "mu": header.mu,
        "epsilon": header.epsilon,
        "delta": header.delta,
        "guarantee": guarantee_sentence(header),
    }
    if verdict:
        fields["against"] = verdict
    text = (
        f"{config}: no mistakes; {'live ticks' if ticks is None else counted(ticks, 'tick')} of "
        f"{header.tick_ms / 1000:g} s, {counted(len(header.keys), 'key')}\n{fields['guarantee']}"
    )
    emit(fields, text + (f"\n{verdict}" if verdict else ""))


def _tables(path: Path) -> frozenset[str]:
    """Names of the file's tables, which tell whose it is; what is wrong in them is found by who reads it."""
    try:
        return frozenset(tomllib.loads(path.read_text("utf-8")))
    except (OSError, ValueError, RecursionError):
        return frozenset()


def _check_key_file(path: Path) -> None:
    from evertally.pipelines.keyfile import KeyFile

    if os.path.exists(path):
        KeyFile.open(path)


def _check_cap(spec: StreamSpec) -> None:
    """Refuse what the whole of its scope cannot pay for: it never begins, so its guarantee is none."""
    from evertally.accountants.budget.charges import cost

    price, caps = cost(spec.scope, spec.charge()), spec.scope.caps()
    for unit, wanted, cap in (
        (spec.scope.main_unit, price.main, caps.main),
        ("nano-epsilon", price.epsilon, caps.epsilon),
        ("atto-delta", price.delta, caps.delta),
    ):
        if wanted > cap:
            raise BudgetExceeded(wanted, 0, cap, unit)


def _compare(declared: RunConfig | WorkerConfig, state: str, chain_key: Path | None) -> str:
    """Whether the state's stream would be continued, or could begin.

    Raises:
        InvalidParameter: it is there with other parameters.
        BudgetExceeded: it would begin, and its scope has too little left.
    """
    from evertally.accountants.budget.opening import open_ledger

    store = open_ledger(state, key_file=chain_key, create=False)
    try:
        opened = store.find_stream(declared.spec.name)
        if opened is None:
            if any(declared.spec.scope.name == status.scope.name for status in store.scopes()):
                store.quote(declared.spec.charge())
            return "the state file holds no stream of this name: it would begin, with a charge of its own"
        changes = declared.spec.changes(opened)
    finally:
        store.close()
    if changes:
        raise InvalidParameter(
            "stream",
            "another " + ", ".join(changes),
            f"what incarnation {opened.incarnation} has; a change is a new incarnation and a new charge",
        )
    return f"continues incarnation {opened.incarnation} with --resume, without a new charge"
