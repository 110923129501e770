"""Opening a run: its secrets, its frozen records, its plan and its lease, each durable before the next."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from evertally.accountants.budget.client import BudgetClient, LeaseGrant
from evertally.accountants.budget.scopes import Scope
from evertally.counters.keys import NoiseKey
from evertally.errors import Fenced, IntegrityError, InvalidParameter
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.sealing import Sealer
from evertally.pipelines.training.checkpoint import CheckpointStore, write_durably
from evertally.pipelines.training.config import TrainConfig
from evertally.pipelines.training.config_sections import BudgetConfig
from evertally.pipelines.training.examples import ExampleSource
from evertally.pipelines.training.examples_files import FileExamples
from evertally.pipelines.training.examples_kafka import KafkaExamples
from evertally.pipelines.training.examples_spool import ExampleSpool
from evertally.pipelines.training.export import Publisher
from evertally.pipelines.training.lease import Budget, LocalBudget, lease_key
from evertally.pipelines.training.manifest import Manifest, freeze
from evertally.pipelines.training.noise import StepNoise
from evertally.pipelines.training.plan import Plan, line_of
from evertally.pipelines.training.run_components import Components, build_components, build_plan
from evertally.pipelines.training.run_keys import RunKeys
from evertally.pipelines.training.run_state import RunFolder, RunState

__all__ = ["OpenRun", "Seams", "open_budget", "open_run", "open_source"]

_MANIFEST: Final = "manifest.sealed"
_PLAN: Final = "plan.json"
_RESERVED_MS: Final = 24 * 3600 * 1000


def open_budget(config: BudgetConfig) -> Budget:
    """Who pays: a ledger on this machine, or a budget service."""
    if not config.service:
        return LocalBudget(config.ledger, config.chain_key_file)
    token = ""  # nosec B105  # none, where no file is named
    if config.token_file is not None:
        try:
            token = config.token_file.read_text("utf-8").strip()
        except OSError as error:
            got, why = str(config.token_file), f"a readable file ({error.strerror})"
            raise InvalidParameter("budget.token_file", got, why) from None
        except UnicodeDecodeError:
            raise InvalidParameter(
                "budget.token_file", str(config.token_file), "a file that holds a token"
            ) from None
    return BudgetClient(config.service, token, ca="" if config.ca is None else str(config.ca))


def open_source(config: TrainConfig) -> ExampleSource:
    """Where the examples come from."""
    data, refused = config.data, config.folder / "refused.jsonl"
    if data.broker is not None:
        return KafkaExamples(data.broker, data.topic, data.form, refused)
    assert data.path is not None
    return FileExamples(data.path, data.format, data.form, refused)


@dataclass(frozen=True, slots=True)
class Seams:
    """Where a run meets what is outside its mathematics; tests wrap these to stop it at a named point."""

    fsync: Callable[[int], None] = os.fsync
    noise: Callable[[NoiseKey, int], StepNoise] = StepNoise
    budget: Callable[[BudgetConfig], Budget] = open_budget
    publisher: Callable[[Path], Publisher] = Publisher
    components: Callable[[TrainConfig, str], Components] = build_components


@dataclass(slots=True, repr=False)
class OpenRun:
    """A run that holds its lease and has its examples; what `train` works with."""

    config: TrainConfig
    parts: Components
    plan: Plan
    folder: RunFolder
    state: RunState
    budget: Budget
    grant: LeaseGrant
    spool: ExampleSpool
    store: CheckpointStore
    publisher: Publisher
    keys: RunKeys
    manifest: str
    seams: Seams = field(default_factory=Seams)

    def __repr__(self) -> str:
        return f"OpenRun({self.config.name!r}, <secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a run does not leave its process")

    def confirm(self, steps_done: int) -> None:
        """Confirm the lease; the first time commits its budget.

        Raises:
            Fenced: another holder has taken it over, or the reservation lapsed before anything was drawn.
        """
        self.grant = self.budget.renew_lease(self.grant.lease_id, self.grant.epoch, steps_done)

    def noise(self) -> StepNoise:
        """The noise of the present attempt."""
        return self.seams.noise(self.keys.noise(self.state.attempt), self.plan.steps)

    def close(self) -> None:
        """Give folder and connections free."""
        self.budget.close()
        self.folder.close()


def open_run(config: TrainConfig, device: str = "cpu", seams: Seams | None = None) -> OpenRun:
    """Open or resume a run up to the point where its first noise may be drawn.

    In this order, each durable before the next: random id; frozen manifest; plan; reservation of the whole
    plan; spooled examples, equal to the manifest; the lease held and its budget committed.

    Raises:
        InvalidParameter: unusable input, or another configuration than the one this folder was begun with.
        BudgetExceeded: the scope does not admit the plan; nothing was drawn.
        IntegrityError: state, key or source contradict what was paid for.
        Fenced: another process holds the folder or the lease.
    """
    with_seams = seams or Seams()
    folder = RunFolder(config.folder)
    budget: Budget | None = None
    try:
        state = folder.state()
        keys = RunKeys(KeyFile.open_or_create(config.key_file), config.name, state.run_id)
        sealer = keys.sealer()
        source = open_source(config)
        manifest = _manifest(config, folder, source, sealer)
        digest = manifest.digest(keys.digest_key())
        parts = with_seams.components(config, device)
        budget = with_seams.budget(config.budget)
        scope = _scope(config.budget, budget)
        plan = _plan(config, folder, parts, budget, state)
        state = _bind(folder, state, plan, digest)
        spool = ExampleSpool(
            config.folder / "spool",
            sealer,
            keys.allocation(plan.participation.batches),
            config.data.form,
            config.data.records_per_unit,
        )
        store = CheckpointStore(config.folder / "checkpoints", sealer, fsync=with_seams.fsync)
        state, grant = _reserve(budget, scope, plan, digest, folder, state)
        if not spool.is_complete(digest):
            _spool(spool, source, manifest, digest, budget, grant)
        grant = budget.acquire_lease(grant.lease_id, digest)
        publisher = with_seams.publisher(config.folder)
        run = OpenRun(
            *(config, parts, plan, folder, state, budget, grant, spool, store, publisher, keys, digest),
            with_seams,
        )
        _commit(run, scope, digest)
        return run
    except BaseException:
        if budget is not None:
            budget.close()
        folder.close()
        raise


def _manifest(config: TrainConfig, folder: RunFolder, source: ExampleSource, sealer: Sealer) -> Manifest:
    path = folder.path / _MANIFEST
    if path.exists():
        return Manifest.decode(sealer.open(path.read_bytes(), 0, 0))
    manifest = freeze(source, config.data.form)
    write_durably(path, sealer.seal(manifest.encode(), 0, 0))
    return manifest


def _scope(config: BudgetConfig, budget: Budget) -> Scope:
    if config.scope is not None:
        budget.create_scope(config.scope)
    scope = budget.scope_status(config.name).scope
    if (scope.unit, scope.adjacency) != (config.unit, config.adjacency):
        raise InvalidParameter(
            "privacy.unit",
            f"{config.unit} under {config.adjacency}",
            f"the scope's unit {scope.unit} under {scope.adjacency}",
        )
    return scope


def _plan(config: TrainConfig, folder: RunFolder, parts: Components, budget: Budget, state: RunState) -> Plan:
    path = folder.path / _PLAN
    noise: float | None = None
    try:
        stored = dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}
        if config.privacy.loss is None and stored:
            # what remained when the run was begun: its own lease has been taken off since
            noise = float(stored.get("spends") or stored["noise_multiplier"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise IntegrityError(f"{_PLAN} is damaged") from None
    if config.privacy.loss is None and noise is None:
        noise = _remaining(config, budget)
    plan = build_plan(config, parts, noise)
    if state.plan and state.plan != plan.digest():
        raise InvalidParameter(
            "config",
            "another plan",
            f"the plan that {folder.path.name} was begun with; or another run.folder",
        )
    said: dict[str, Any] = {
        "digest": plan.digest(),
        "noise_multiplier": repr(plan.noise_multiplier),
        "plan": plan.to_json(),
        **({} if noise is None else {"spends": repr(noise)}),
    }
    if stored != said:
        write_durably(path, json.dumps(said, indent=1).encode())
    return plan


def _remaining(config: TrainConfig, budget: Budget) -> float:
    """The least noise that fits what is left of the scope."""
    mechanism = config.mechanism
    line = line_of(mechanism.strategy, mechanism.participation, "1", config.privacy.own_delta).to_json()
    draft = {key: value for key, value in line.items() if key != "noise_multiplier"}
    found = budget.calibrate(config.budget.name, draft)
    # a little more: a buffered strategy is charged with one more buffer
    return float(str(found.to_json()["noise_multiplier"])) * (1.0 + 2.0**-12)


def _bind(folder: RunFolder, state: RunState, plan: Plan, manifest: str) -> RunState:
    if state.manifest and state.manifest != manifest:
        raise IntegrityError("the manifest is not the one this run has paid for")
    if state.plan == plan.digest() and state.manifest == manifest:
        return state
    return folder.save(replace(state, plan=plan.digest(), manifest=manifest))


def _reserve(
    budget: Budget, scope: Scope, plan: Plan, manifest: str, folder: RunFolder, state: RunState
) -> tuple[RunState, LeaseGrant]:
    """The run's lease; a retry of a call that was cut off finds the first one."""
    request = plan.request(scope, lease_key(plan.digest(), manifest, state.generation))
    grant = budget.open_lease(request, _RESERVED_MS, manifest)
    if grant.line != plan.line or grant.steps_max != plan.steps:
        raise IntegrityError("the lease was granted for another run than was asked for")
    if state.lease_id not in ("", grant.lease_id):
        raise IntegrityError("the ledger does not know this run's lease: was the ledger replaced?")
    if not state.lease_id:
        state = folder.save(replace(state, lease_id=grant.lease_id))
    return state, grant


def _spool(
    spool: ExampleSpool,
    source: ExampleSource,
    manifest: Manifest,
    digest: str,
    budget: Budget,
    grant: LeaseGrant,
) -> None:
    """Read the source again; another set than the frozen one ends the lease, unspent if it was not begun."""
    try:
        spool.write(source.read(manifest.ranges), digest)
    except IntegrityError:
        with contextlib.suppress(Fenced):
            budget.close_lease(grant.lease_id, grant.epoch)
        raise


def _commit(run: OpenRun, scope: Scope, manifest: str) -> None:
    """Commit the lease's budget. A reservation that lapsed before anything was drawn is made again, once."""
    try:
        run.confirm(run.grant.steps_done)
    except Fenced:
        if run.grant.status != "reserved" or run.state.attempt or run.store.steps():
            raise
        # it lapsed, or a copy of this folder took it over: only its holder may end it, and only then is there
        # no other process that draws this run's noise
        run.budget.close_lease(run.grant.lease_id, run.grant.epoch)
        again = replace(run.state, generation=run.state.generation + 1, lease_id="")
        run.state, run.grant = _reserve(
            run.budget, scope, run.plan, manifest, run.folder, run.folder.save(again)
        )
        run.confirm(0)
