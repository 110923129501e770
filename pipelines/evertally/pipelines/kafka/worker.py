"""A worker: its stages on threads, its health, its end.

SIGTERM or SIGINT drains: what was read is committed, what is closed is released, exit 0. A second
signal stops at once; nothing is lost by it, as by any crash.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Final

from evertally.errors import EvertallyError, ServiceUnavailable
from evertally.pipelines.clock import AnchoredClock, Clock
from evertally.pipelines.kafka.aggregate_stage import AggregateStage
from evertally.pipelines.kafka.aggregation import OpenTick
from evertally.pipelines.kafka.bound_stage import bound_stage
from evertally.pipelines.kafka.broker import TopicPartition, translated
from evertally.pipelines.kafka.clock_guard import ClockGuard
from evertally.pipelines.kafka.config import WorkerConfig
from evertally.pipelines.kafka.context import StreamContext
from evertally.pipelines.kafka.health import HealthServer
from evertally.pipelines.kafka.release_stage import release_stage
from evertally.pipelines.kafka.select_stage import select_stage
from evertally.pipelines.kafka.stage import StageThread
from evertally.pipelines.kafka.start import settle_first_offsets
from evertally.pipelines.kafka.topics import check_topics
from evertally.pipelines.metrics import PlaneServer, internal_plane

__all__ = ["Worker", "run_worker"]

_LOG: Final = logging.getLogger(__name__)
_SILENT_S: Final = 30.0
_DRAIN_S: Final = 30.0


class Worker:
    """All stages of one process.

    Args:
        config: the declaration.
        start_from: where to begin at the very first start; None later.
        release_only: run the releasing stage alone (its closings come from elsewhere).
        make_clock: the clock; tests and the demo set another one.
    """

    def __init__(
        self,
        config: WorkerConfig,
        *,
        start_from: str | None = None,
        release_only: bool = False,
        make_clock: Callable[[], Clock] = AnchoredClock,
    ) -> None:
        self._config: Final = config
        self._clock: Final = ClockGuard(config.rule.tick_ms, make_clock)
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._context: Final = _open(config, start_from, release_only=release_only)
        self._stages: Final = self._make_stages(release_only=release_only)
        self._health: Final = (
            None
            if config.health is None
            else HealthServer(config.health, self.healthy, self.ready, self._confirm_clock)
        )
        self._plane: Final = self._make_plane()
        self._clock_told = False

    @property
    def health_port(self) -> int | None:
        """Port of the health server."""
        return None if self._health is None else self._health.port

    def run(self) -> None:
        """Work until `stop`, or until a stage fails; raises what made it fail."""
        if self._health is not None:
            self._health.start()
            _LOG.info("health on port %d", self._health.port)
        if self._plane is not None:
            self._plane.start()
            _LOG.info("the operators' plane listens on %s", self._plane.address)
        for stage in self._stages:
            stage.start()
        try:
            while not self._stopping.is_set() and not self._failed():
                self._wake.wait(1.0)
                self._wake.clear()
                self._watch()
        finally:
            hanging = self._end()
        failed = self._failed()
        if failed is not None and failed.error is not None:
            raise failed.error
        if hanging:
            raise ServiceUnavailable(f"the {hanging[0]} stage did not drain in {_DRAIN_S:g} s")

    def stop(self) -> None:
        """Drain and end; may be called from any thread."""
        self._stopping.set()
        self._wake.set()

    def healthy(self) -> Mapping[str, bool]:
        """Whether each loop turns."""
        return {stage.name: stage.silent_s() < _SILENT_S for stage in self._stages}

    def ready(self) -> Mapping[str, bool]:
        """Whether each stage has its partitions, the ledger answers and the clock is trusted."""
        return {
            **{stage.name: stage.ready() for stage in self._stages},
            "ledger": self._ledger_answers(),
            "clock": self._clock.trusted(),
        }

    def _make_stages(self, *, release_only: bool) -> list[StageThread]:
        context, clock = self._context, self._clock
        stages: list[StageThread] = []
        if not release_only:
            stages.append(StageThread(lambda: AggregateStage(context, clock), "aggregate", self._wake.set))
            selection = self._config.select
            if selection is not None:
                stages.append(StageThread(lambda: select_stage(context, selection), "select", self._wake.set))
            if self._config.bound is not None:
                stages.append(StageThread(lambda: bound_stage(context), "bound", self._wake.set))
        stages.append(StageThread(lambda: release_stage(context), "release", self._wake.set))
        return stages

    def _make_plane(self) -> PlaneServer | None:
        if self._config.metrics is None:
            return None
        operators = self._context.metrics.operators
        operators.watch(
            "clock_trusted",
            "1 while ticks close by the machine's clock.",
            lambda: float(self._clock.trusted()),
        )
        silent = operators.gauge("stage_silent_seconds", "Time since the last turn of a stage.", ("stage",))
        for stage in self._stages:
            silent.labels(stage.name).set_function(stage.silent_s)
        return internal_plane(self._config.metrics, operators)

    def _failed(self) -> StageThread | None:
        return next((stage for stage in self._stages if stage.error is not None), None)

    def _watch(self) -> None:
        if not self._clock.trusted() and not self._clock_told:
            _LOG.error(
                "the machine's clock was set by more than %d ms: no tick closes until POST /confirm-clock",
                self._clock.limit_ms,
            )
        self._clock_told = not self._clock.trusted()
        silent = max((stage.silent_s() for stage in self._stages), default=0.0)
        if silent > max(self._config.stall_s, 2 * _SILENT_S):
            _LOG.error("a stage hangs; stopping hard so that another worker takes over")
            os._exit(ServiceUnavailable.exit_code)

    def _ledger_answers(self) -> bool:
        try:
            return self._context.store.find_stream(self._config.spec.name) is not None
        except EvertallyError:
            return False

    def _confirm_clock(self) -> None:
        self._clock.confirm()
        _LOG.warning("an operator confirmed the clock; ticks close again")

    def _end(self) -> list[str]:
        """Drain the stages, one after the other; names of those that did not end in time."""
        hanging = []
        deadline = time.monotonic() + _DRAIN_S
        for stage in self._stages:  # upstream first: its last pieces are then released
            stage.stop()
            if not stage.join(max(0.1, deadline - time.monotonic())):
                hanging.append(stage.name)
        for server in (self._health, self._plane):
            if server is not None:
                server.close()
        self._context.store.close()
        return hanging


def run_worker(worker: Worker) -> None:
    """Run with signals: the first SIGTERM or SIGINT drains, the second stops at once."""

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the handler's signature
        if worker._stopping.is_set():
            os._exit(128 + number)
        _LOG.info("draining")
        worker.stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    worker.run()


def _open(config: WorkerConfig, start_from: str | None, *, release_only: bool) -> StreamContext:
    """Check the topics, open the stream, settle where reading begins."""
    topics = config.topics
    partitions = check_topics(
        config.broker,
        topics,
        shards=config.spec.shards,
        by_unit=config.bound is not None,
        max_request_bytes=config.max_request_bytes,
        select=config.select is not None,
    )
    closings = _has_records(config, topics.closed, config.spec.shards)
    begun = closings or _has_records(config, topics.releases, config.spec.shards)
    context = StreamContext.open(
        config, partitions, begun=begun, may_begin=release_only or start_from is not None
    )
    if not release_only:
        try:
            settle_first_offsets(
                config.broker,
                config.membership("aggregate").group,
                topics.events,
                partitions.events,
                start_from,
                OpenTick(context.life, context.opened.incarnation, 1),
                begun=begun,
            )
            if config.bound is not None:
                _settle_own(config, context, "bound", topics.units, partitions.units)
            if config.select is not None:
                _settle_own(config, context, "select", topics.candidates, 1)
        except BaseException:
            context.store.close()
            raise
    return context


def _settle_own(
    config: WorkerConfig, context: StreamContext, stage: str, topic: str, partitions: int
) -> None:
    """A stage in the middle begins where its topic begins, and only while that is empty."""
    settle_first_offsets(
        config.broker,
        config.membership(stage).group,
        topic,
        partitions,
        None,
        OpenTick(context.life, context.opened.incarnation, 1),
        begun=_has_records(config, topic, partitions),
        own=True,
    )


def _has_records(config: WorkerConfig, topic: str, partitions: int) -> bool:
    reader = config.broker.reader()
    try:
        with translated():
            places = [TopicPartition(topic, number) for number in range(partitions)]
            return any(reader.end_offsets(places).values())
    finally:
        reader.close(autocommit=False)
