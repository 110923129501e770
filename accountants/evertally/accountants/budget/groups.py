"""Groups of disjoint members: mu^2 is first added over what one member sees, then the maximum is paid."""

from __future__ import annotations

from collections.abc import Sequence

from evertally.accountants.budget.sql import Transaction

__all__ = ["join", "leave", "rise", "sums"]


def rise(tx: Transaction, scope_id: int, group: str, members: Sequence[str], main: int) -> int:
    """How much the largest member grows when `main` is added to each of these; `main` without a group."""
    if not group:
        return main
    sums = [_member(tx, scope_id, group, member) + main for member in members]
    return max(0, max(sums) - _peak(tx, scope_id, group))


def join(tx: Transaction, scope_id: int, group: str, members: Sequence[str], main: int) -> None:
    """Add `main` to each of these members."""
    for member in members:
        tx.run(
            "INSERT INTO member (scope_id, group_name, member, main) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (scope_id, group_name, member) DO UPDATE SET main = member.main + excluded.main",
            *(scope_id, group, member, main),
        )


def leave(tx: Transaction, scope_id: int, group: str, members: Sequence[str], main: int) -> int:
    """Take `main` from each of these members; how much the largest member falls. `main` without a group."""
    if not group:
        return main
    before = _peak(tx, scope_id, group)
    for member in members:
        tx.run(
            "UPDATE member SET main = main - ? WHERE scope_id = ? AND group_name = ? AND member = ?",
            *(main, scope_id, group, member),
        )
    return before - _peak(tx, scope_id, group)


def sums(tx: Transaction, scope_id: int) -> dict[tuple[str, str], int]:
    """What is stored of every member that anything was charged for, by (group, member)."""
    rows = tx.rows("SELECT group_name, member, main FROM member WHERE scope_id = ? AND main <> 0", scope_id)
    return {(group, member): main for group, member, main in rows}


def _peak(tx: Transaction, scope_id: int, group: str) -> int:
    found = tx.rows(
        "SELECT main FROM member WHERE scope_id = ? AND group_name = ? ORDER BY main DESC LIMIT 1",
        *(scope_id, group),
    )
    return int(found[0][0]) if found else 0


def _member(tx: Transaction, scope_id: int, group: str, member: str) -> int:
    found = tx.rows(
        "SELECT main FROM member WHERE scope_id = ? AND group_name = ? AND member = ?",
        *(scope_id, group, member),
    )
    return int(found[0][0]) if found else 0
