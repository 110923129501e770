"""`evertally ledger verify`, `show`, `publish` and `extend-horizon`: what a ledger's holder may see and do.

All read public rows only. Sealed states are neither opened nor printed, not even their length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from evertally.accountants.budget import STATEMENT, LedgerStore, OpenedStream, ScopeStatus, open_ledger
from evertally.errors import InvalidParameter
from evertally.pipelines.cli.output import AsJson, LogFormat, Logs, begin, counted, emit

__all__ = ["app"]

app = typer.Typer(
    help="Look at a ledger, check it, write releases again, and pay for more ticks of a stream.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Location = Annotated[str, typer.Argument(help="Path of a SQLite ledger, or a postgresql:// address.")]
KeyFile = Annotated[
    Path | None,
    typer.Option("--key-file", help="Chain key; PATH.chainkey beside a SQLite ledger by default."),
]


@app.command()
def verify(
    location: Location, key_file: KeyFile = None, as_json: AsJson = False, log_format: Logs = LogFormat.TEXT
) -> None:
    """Walk every chain and recompute every charge; exit code 4 when something does not fit.

    Checks hash chains, contiguous ticks, one row for each key and tick, recomputed costs, and spend <= cap
    after every charge. Reservations that were never committed count as spent.
    """
    begin(as_json=as_json, log_format=log_format)
    with _opened(location, key_file) as ledger:
        report = ledger.verify()
    counts = {
        "scopes": report.scopes,
        "charge_rows": report.charges,
        "shards": report.shards,
        "released_rows": report.releases,
    }
    lines = [
        f"{counted(report.scopes, 'scope')}, {counted(report.charges, 'charge row')}, "
        f"{counted(report.shards, 'shard')}, {counted(report.releases, 'released row')}",
        *(f"problem: {problem}" for problem in report.problems),
        "the ledger is whole"
        if report.ok
        else f"{counted(len(report.problems), 'problem')}: release nothing from it",
    ]
    emit({"ok": report.ok, **counts, "problems": list(report.problems)}, "\n".join(lines))
    if not report.ok:
        raise typer.Exit(4)


@app.command()
def show(
    location: Location, key_file: KeyFile = None, as_json: AsJson = False, log_format: Logs = LogFormat.TEXT
) -> None:
    """Print scopes with spend against cap, and streams with how far they are released (units: ticks)."""
    begin(as_json=as_json, log_format=log_format)
    with _opened(location, key_file) as ledger:
        scopes = [_scope(status) for status in ledger.scopes()]
        streams = [_stream(ledger, stream) for stream in ledger.streams()]
    lines = [
        f"scope {scope['name']}: epsilon <= {scope['epsilon_cap']}, delta <= {scope['delta_cap']}"
        f" for one {scope['unit']} ({scope['adjacency']}); spent {scope['spent']} of {scope['cap']}"
        f" {scope['in']}, {counted(scope['charge_rows'], 'charge row')}"
        for scope in scopes
    ]
    for stream in streams:
        lines.append(
            f"stream {stream['name']}, incarnation {stream['incarnation']}:"
            f" {counted(stream['keys'], 'key')}, scope {stream['scope']}"
            + (f", paid up to tick {stream['slack_horizon']}" if stream["slack_horizon"] else "")
        )
        lines.extend(
            f"  shard {shard['shard']}: tick {shard['t']}, published to {shard['published_t']},"
            f" folded to {shard['folded_t']}, epoch {shard['epoch']}, chain {shard['chain'][:16]}"
            for shard in stream["shards"]
        )
    emit({"statement": STATEMENT, "scopes": scopes, "streams": streams}, "\n".join([*lines, STATEMENT]))


@app.command("extend-horizon")
def extend_horizon(
    location: Location,
    stream: Annotated[str, typer.Argument(help="Name of the stream.")],
    ticks: Annotated[int, typer.Option("--to", help="Last tick to be paid for (units: ticks).")],
    key_file: KeyFile = None,
    incarnation: Annotated[
        int | None, typer.Option("--incarnation", help="Incarnation; the latest by default.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it costs, and charge nothing.")
    ] = False,
    as_json: AsJson = False,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Pay for the rounding of more ticks of a running counter, before any of them is released.

    The stream's noise stays as it is; its mu rises to what it costs at the longer horizon, and the
    difference is charged to its scope. A running worker takes it up by itself. Exit code 3 when the scope
    does not admit it. A new key or any other change needs a new incarnation instead.
    """
    begin(as_json=as_json, log_format=log_format)
    with _opened(location, key_file) as ledger:
        opened = _find(ledger, stream, incarnation)
        act = ledger.quote_horizon if dry_run else ledger.extend_horizon
        receipt = act(stream, opened.incarnation, ticks)
        status = ledger.scope_status(opened.scope)
    emit(
        {
            "stream": stream,
            "incarnation": opened.incarnation,
            "charged": not dry_run,
            "horizon_before": opened.slack_horizon,
            "horizon": ticks,
            "in": status.scope.main_unit,
            "main": receipt.main,
            "delta_atto": receipt.delta,
            "remaining": status.remaining,
        },
        f"{'would charge' if dry_run else 'charged'} {receipt.main} {status.scope.main_unit} and "
        f"{receipt.delta} atto-delta for ticks {opened.slack_horizon} to {ticks} of {stream}, incarnation "
        f"{opened.incarnation}; scope {opened.scope} has {status.remaining} {status.scope.main_unit} left",
    )


@app.command()
def publish(
    location: Location,
    stream: Annotated[str, typer.Argument(help="Name of the stream.")],
    to: Annotated[Path, typer.Option("--to", help="The releases file to write, JSON lines.")],
    key_file: KeyFile = None,
    incarnation: Annotated[
        int | None, typer.Option("--incarnation", help="Which incarnation; the latest by default.")
    ] = None,
    shard: Annotated[int, typer.Option("--shard", help="Whose keys, where a stream has several shards.")] = 0,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also replace a file that says something else than the ledger.")
    ] = False,
    as_json: AsJson = False,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Write a lost, torn or changed releases file again from the ledger, byte for byte; nothing is charged.

    Refused with exit code 4 where the file holds a later tick than the ledger (an older ledger was put
    back), and with 5 while a running releaser has the file open.
    """
    begin(as_json=as_json, log_format=log_format)
    from evertally.pipelines.outbox import publish_again

    with _opened(location, key_file) as ledger:
        opened = _find(ledger, stream, incarnation)
        done = publish_again(ledger, opened, to, shard=shard, replace=replace)
    what = "is written again" if done.written else "was whole"
    emit(
        {
            "ok": True,
            "stream": stream,
            "incarnation": opened.incarnation,
            "t": done.t,
            "written": done.written,
            "releases": str(to),
        },
        f"{to} {what}: {stream}, incarnation {opened.incarnation}, ticks 1 to {done.t}",
    )


@contextmanager
def _opened(location: str, key_file: Path | None) -> Iterator[LedgerStore]:
    ledger = open_ledger(location, key_file=key_file, create=False)
    try:
        yield ledger
    finally:
        ledger.close()


def _find(ledger: LedgerStore, stream: str, incarnation: int | None) -> OpenedStream:
    opened = ledger.find_stream(stream, incarnation)
    if opened is None:
        raise InvalidParameter(
            "stream", stream, "a stream in this ledger; `evertally ledger show` lists them"
        )
    return opened


def _scope(status: ScopeStatus) -> dict[str, Any]:
    scope = status.scope
    return {
        "name": scope.name,
        "unit": scope.unit,
        "adjacency": scope.adjacency,
        "epsilon_cap": scope.epsilon_cap,
        "delta_cap": scope.delta_cap,
        "in": scope.main_unit,
        "spent": status.spent.main,
        "cap": status.caps.main,
        "delta_lines_spent_atto": status.spent.delta,
        "delta_lines_cap_atto": status.caps.delta,
        "charge_rows": status.rows,
        "chain": status.chain.hex(),
    }


def _stream(ledger: LedgerStore, stream: OpenedStream) -> dict[str, Any]:
    shards = []
    for shard in range(stream.shards):
        head = ledger.head(stream.shard(shard))
        shards.append(
            {
                "shard": shard,
                "t": head.t,
                "published_t": head.published_t,
                "folded_t": head.folded_t,
                "epoch": head.epoch,
                "chain": head.chain.hex(),
            }
        )
    return {
        "name": stream.name,
        "incarnation": stream.incarnation,
        "keys": len(stream.keys),
        "scope": stream.scope,
        "charge_id": stream.charge_id,
        "slack_horizon": stream.slack_horizon,
        "descriptor": stream.descriptor,
        "shards": shards,
    }
