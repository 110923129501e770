"""`evertally token`: who may ask the budget service for what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evertally.pipelines.cli.output import AsJson, LogFormat, begin, emit

if TYPE_CHECKING:
    from evertally.accountants.budget.service import Credential, TokenStore

__all__ = ["app"]

app = typer.Typer(
    help="Create, revoke and list credentials of the budget service.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_DAY_MS = 86_400_000
Ledger = Annotated[str, typer.Option(help="SQLite file of the ledger, or a postgresql:// address.")]
KeyFile = Annotated[Path | None, typer.Option(help="Chain key; LEDGER.chainkey where not given.")]


@app.command()
def create(
    ledger: Ledger,
    principal: Annotated[str, typer.Option(help="Who the credential stands for; owns charges and retries.")],
    grant: Annotated[
        list[str],
        typer.Option(
            help="KIND:NAME=VERB,VERB; a trailing * matches a prefix. "
            "scope: create, read, quote, reserve, commit, lease; stream: read; service: operate."
        ),
    ],
    expires_days: Annotated[int, typer.Option(min=0, help="Days until it expires; 0 for never.")] = 0,
    certificate_cn: Annotated[
        str, typer.Option(help="Map a client certificate's common name instead of making a token.")
    ] = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Create a credential. The token is printed once and kept only as a hash.

    A SQLite ledger is created where there is none.
    """
    from evertally.accountants.budget.service import Grant

    grants = tuple(Grant.parse(text) for text in grant)
    with _tokens(ledger, key_file, as_json=as_json, create=True) as tokens:
        entry, token = tokens.create(
            principal, grants, expires_in_ms=expires_days * _DAY_MS, certificate_cn=certificate_cn
        )
    if not as_json:
        about = f"{entry.token_id} stands for {entry.principal}: {' '.join(map(str, entry.grants))}"
        typer.echo(about, err=True)
    emit(
        {**_described(entry), "token": token},
        token or f"client certificates with common name {entry.certificate_cn} are accepted",
    )


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(help="The id that `list` shows.")],
    ledger: Ledger,
    key_file: KeyFile = None,
) -> None:
    """Make a credential useless; a running service notices within a second."""
    with _tokens(ledger, key_file, as_json=False, create=False) as tokens:
        changed = tokens.revoke(token_id)
    emit({}, f"{token_id} is revoked" if changed else f"{token_id} was revoked before")


@app.command("list")
def list_tokens(ledger: Ledger, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """List credentials, without secrets."""
    with _tokens(ledger, key_file, as_json=as_json, create=False) as tokens:
        entries = tokens.list()
    lines = []
    for entry in entries:
        state = (
            "revoked"
            if entry.revoked_ms
            else f"expires {_instant(entry.expires_ms)}"
            if entry.expires_ms
            else ""
        )
        kind = f"certificate {entry.certificate_cn}" if entry.certificate_cn else "token"
        grants = " ".join(map(str, entry.grants))
        lines.append(f"{entry.token_id}  {entry.principal}  {kind}  {grants}  {state}".rstrip())
    if lines or as_json:
        emit([_described(entry) for entry in entries], "\n".join(lines))


@contextmanager
def _tokens(ledger: str, key_file: Path | None, *, as_json: bool, create: bool) -> Iterator[TokenStore]:
    begin(as_json=as_json, log_format=LogFormat.TEXT)
    from evertally.accountants.budget.opening import open_ledger
    from evertally.accountants.budget.service import ServiceTables, TokenStore

    open_ledger(ledger, key_file=key_file, create=create).close()
    tables = ServiceTables(ledger)
    try:
        yield TokenStore(tables)
    finally:
        tables.close()


def _described(entry: Credential) -> dict[str, Any]:
    return {
        "token_id": entry.token_id,
        "principal": entry.principal,
        "grants": [str(grant) for grant in entry.grants],
        "certificate_cn": entry.certificate_cn,
        "created_ms": entry.created_ms,
        "expires_ms": entry.expires_ms,
        "revoked_ms": entry.revoked_ms,
    }


def _instant(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
