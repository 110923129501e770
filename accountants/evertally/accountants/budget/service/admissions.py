"""Charges over HTTP, decided together: whatever comes while the ledger commits shares the next commit.

One thread talks to the ledger, so that a hundred waiting requests cost one wake-up, one transaction and
one sync instead of a hundred threads that take turns.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from evertally.accountants.budget.charges import ChargeRequest
from evertally.accountants.budget.ledger import LedgerStore, Receipt
from evertally.errors import EvertallyError

__all__ = ["Admissions"]

_BATCH_MAX: Final = 256
_Wish = tuple[ChargeRequest, int | None]


class Admissions:
    """The queue in front of one ledger; for one event loop."""

    def __init__(self, ledger: LedgerStore) -> None:
        self._ledger: Final = ledger
        self._thread: Final = ThreadPoolExecutor(1, "admission")
        self._waiting: list[tuple[_Wish, asyncio.Future[Receipt]]] = []
        self._busy = False

    async def admit(self, request: ChargeRequest, ttl_ms: int | None) -> Receipt:
        """What `charge` (None) or `reserve` would answer; it is decided even when the caller goes away."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Receipt] = loop.create_future()
        self._waiting.append(((request, ttl_ms), answer))
        if not self._busy:
            self._busy = True
            self._begin(loop)
        return await answer

    def close(self) -> None:
        """Wait for what is being decided."""
        self._thread.shutdown(wait=True)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._waiting = self._waiting[:_BATCH_MAX], self._waiting[_BATCH_MAX:]
        wishes, answers = [wish for wish, _ in batch], [answer for _, answer in batch]
        decided = loop.run_in_executor(self._thread, self._ledger.record_all, wishes)
        decided.add_done_callback(partial(self._deliver, loop, answers))

    def _deliver(
        self,
        loop: asyncio.AbstractEventLoop,
        answers: list[asyncio.Future[Receipt]],
        decided: asyncio.Future[list[Receipt | EvertallyError]],
    ) -> None:
        if self._waiting:
            self._begin(loop)
        else:
            self._busy = False
        failure = decided.exception()
        results = [failure] * len(answers) if failure is not None else decided.result()
        for answer, result in zip(answers, results, strict=True):
            if answer.done():
                continue  # its caller has gone away
            if isinstance(result, Receipt):
                answer.set_result(result)
            else:
                answer.set_exception(result)
