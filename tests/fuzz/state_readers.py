"""Readers of state: snapshots, sealed states, records between processes, key files, releases.

Most of these bytes are sealed or checksummed, so that a mutation never gets past the first check. Each
such reader is fired at twice: with the bytes as stored, and with the bytes inside sealed again after
the mutation, as an older or newer program with the key would have written them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.fuzz.attack import Reader

from evertally.counters import CounterBank, KeyedNoise, LogPerturbed, NoiseKey, Rational
from evertally.counters.factorization import Factorization
from evertally.counters.snapshot import frame, unframe
from evertally.pipelines.aggregation_keys import AggregationKeys
from evertally.pipelines.beam.parts import Part, PartSealer, merge
from evertally.pipelines.beam.positions import Cuts, Digests
from evertally.pipelines.events import EventColumns
from evertally.pipelines.flink.messages import Letter, Message, lane_of
from evertally.pipelines.kafka.aggregation import OpenTick
from evertally.pipelines.kafka.candidates import CandidateCounts, decode_counts
from evertally.pipelines.kafka.collector import LogPosition
from evertally.pipelines.kafka.position_text import decode_position_text, encode_position_text
from evertally.pipelines.kafka.sealed_records import Piece, Place, StreamSealer
from evertally.pipelines.kafka.sums import decode_sums, encode_sums
from evertally.pipelines.kafka.unit_bound import Contributed
from evertally.pipelines.kafka.unit_events import UnitEvents, decode_events
from evertally.pipelines.kafka.unit_state import ChangelogSealer
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releaser import _open_state
from evertally.pipelines.releases import Release, SelectionLoss, StreamHeader, read_releases
from evertally.pipelines.sealing import Sealer
from evertally.pipelines.training.checkpoint import Checkpoint, CheckpointStore
from evertally.pipelines.training.export import Publisher
from evertally.pipelines.training.manifest import Manifest
from evertally.pipelines.training.run_state import RunFolder, RunState

KEY = bytes(range(32))
LIFE = "00112233aabbccdd"


def _snapshots(mechanism: Factorization) -> Reader:
    """Snapshots of a bank of two keys, as they are and framed again after the mutation."""

    def bank() -> CounterBank:
        key = NoiseKey(KEY, stream="s", stream_id=bytes(16))
        return CounterBank.for_mu(mechanism, mu=1.0, source=KeyedNoise(key, (0, 1)))

    corpus = []
    for ticks in (0, 1, 5):
        good = bank()
        good.close_ticks([[n, -n] for n in range(ticks)])
        corpus.append(good.snapshot())
    target = bank()

    def read(data: bytes) -> None:
        if data[:1] == b"E":
            target.load(data)
        else:  # one of the bodies below
            target.load(frame(1, data[1:]))

    bodies = [b"b" + unframe(good, (1,))[1] for good in corpus]
    return Reader((*corpus, *bodies), read, text=False)


def rational_snapshot(folder: Path) -> Reader:
    """Integer states."""
    return _snapshots(Rational.preset("W32"))


def fft_snapshot(folder: Path) -> Reader:
    """The draws of an FFT engine."""
    return _snapshots(LogPerturbed(horizon=64))


def constant_snapshot(folder: Path) -> Reader:
    """A hundred states of fixed-point decay."""
    return _snapshots(LogPerturbed(memory="constant"))


def sealed_state(folder: Path) -> Reader:
    """What a ledger's head holds of a stream: sealed, framed, with chain and positions."""
    sealer = Sealer(KEY, "s", 1)
    plain = bytes(32) + struct.pack(">I", 5) + b"place" + bytes(range(64))
    framed = frame(1, plain)

    def read(data: bytes) -> None:
        kind, body = data[:1], data[1:]
        if kind == b"s":
            _open_state(sealer, 0, 3, body)
        elif kind == b"f":
            _open_state(sealer, 0, 3, sealer.seal(body, 0, 3))
        else:
            _open_state(sealer, 0, 3, sealer.seal(frame(1, body), 0, 3))

    return Reader((b"s" + sealer.seal(framed, 0, 3), b"f" + framed, b"p" + plain), read, text=False)


def kafka_records(folder: Path) -> Reader:
    """Records on the topics of a stream, their bodies, and what is committed beside offsets."""
    sealer, changes = StreamSealer(KEY, "t", bytes.fromhex(LIFE), 1), ChangelogSealer(KEY, LIFE, 1, 0)
    place = Place(sealer.life, 1, 0, 7, True)
    body = encode_sums({0: 5, 2: 2**100}, [0, 1, 2])
    events = UnitEvents(1)
    columns = np.arange(3, dtype=np.int64)
    events.add(1, EventColumns(columns, columns, columns, columns))
    counts = CandidateCounts()
    counts.count(1, {"north": 3, "é": 4})
    key, value = sealer.seal(Piece(place, 10, 20, body), 0)
    unit_key, unit_value = changes.seal(77, Contributed(3, 1))
    position = LogPosition(5, 10, 20, (1, -1, 7))
    plain = struct.pack(">QQI", 10, 20, len(body)) + body
    text = encode_position_text(LIFE, 1, position, 9)
    open_tick = OpenTick(LIFE, 1, 3).encode()

    def resealed(data: bytes) -> None:
        nonce = bytes(12)
        sealed = nonce + sealer._cipher.encrypt(nonce, data, sealer._associated(key, 0))
        piece = sealer.open(key, sealed, 0)
        assert piece is not None
        decode_sums(piece.body)

    def changelog(data: bytes) -> None:
        nonce = bytes(12)
        changes.open(unit_key, nonce + changes._cipher.encrypt(nonce, data, unit_key))

    kinds: dict[bytes, tuple[Callable[[bytes], object], bytes]] = {
        b"k": (lambda data: sealer.open(data, value, 0), key),
        b"v": (lambda data: sealer.open(key, data, 0), value),
        b"p": (resealed, plain),
        b"s": (decode_sums, body),
        b"e": (decode_events, events.take(1, 0)[0]),
        b"c": (decode_counts, counts.take(1, 0)[0].rstrip()),
        b"l": (LogPosition.decode, position.encode()),
        b"o": (lambda data: OpenTick.decode(data.decode("utf-8", "replace")), open_tick.encode()),
        b"t": (lambda data: decode_position_text(data.decode("utf-8", "replace"), LIFE, 1, 4), text.encode()),
        b"u": (lambda data: changes.open(data, unit_value), unit_key),
        b"w": (lambda data: changes.open(unit_key, data), unit_value),
        b"x": (changelog, struct.pack(">QQ", 3, 1)),
    }  # fmt: skip
    return _by_kind(kinds)


def beam_bytes(folder: Path) -> Reader:
    """Parts of ticks and positions in the state of a Beam job."""
    sealer = PartSealer(KEY, "s")
    part = Part(7, {0: 2**100, 3: -5}, np.array([[1], [2], [3]]), 4, {0: 3, 2: -1}, {1: (10, 20)})

    def resealed(data: bytes) -> None:
        nonce = bytes(12)
        sealer.open_bytes(nonce + sealer._cipher.encrypt(nonce, data, sealer._associated(b"part")), b"part")

    framed = struct.pack(">Q", 5) + b"plain" + bytes(16)
    kinds: dict[bytes, tuple[Callable[[bytes], object], bytes]] = {
        b"p": (lambda data: merge([Part.decode(data)]), part.encode()),
        b"s": (sealer.open, sealer.seal(part)),
        b"r": (resealed, framed),
        b"c": (Cuts.decode, Cuts(3, ((1, 2), (4, 5))).encode()),
        b"d": (Digests.decode, Digests(3, (bytes(16), bytes(16))).encode()),
    }
    return _by_kind(kinds)


def flink_bytes(folder: Path) -> Reader:
    """Messages between a Flink job's operators, and its workers' key file."""
    path = folder / "aggregation.keys"
    AggregationKeys(bytes(16), 1, KEY, KEY, KEY).write(path)
    good = path.read_bytes()

    def message(data: bytes) -> None:
        lane_of(data)
        Message.decode(data)

    rows = np.array([[0, 0], [1, 2], [5, 7]])
    kinds: dict[bytes, tuple[Callable[[bytes], object], bytes]] = {
        b"m": (message, Message(3, [Letter(1, b"{}"), Letter(0, b"x" * 40)], rows).encode()),
        b"k": (lambda data: AggregationKeys.open(_written(path, data)), good),
    }
    return _by_kind(kinds)


def key_file(folder: Path) -> Reader:
    """The master secret's file."""
    path = folder / "key"
    KeyFile.create(path)
    return Reader((path.read_bytes(),), lambda data: KeyFile.open(_written(path, data)), text=False)


def releases_file(folder: Path) -> Reader:
    """A file of releases, as `evertally plot` and dashboards read it."""
    path = folder / "releases.jsonl"
    header = StreamHeader(
        "s", 1, ("a", "é"), 1_704_067_200_000, 1000, "rational:W32", "event", "add-remove", 1.0, 4.8, 1e-6,
        2.1, 1, 0, 1, 1, 1, 2**30, SelectionLoss(0.1, 0.3, 1.0, 4.9),
    )  # fmt: skip
    lines = [
        Release("s", "a", 1, t, 1_704_067_200_000 + t, -t, 2.1, "rational:W32").encode() for t in (1, 2, 3)
    ]
    whole = header.encode() + b"".join(lines)

    def read(data: bytes) -> None:
        _, releases = read_releases(_written(path, data))
        for _ in releases:
            pass

    return Reader((whole, header.encode()), read, text=True)


def training_files(folder: Path) -> Reader:
    """Checkpoints, manifests, a run's state and its published steps."""
    sealer = Sealer(KEY, "run", 1)
    store = CheckpointStore(folder / "checkpoints", sealer)
    store.save(Checkpoint(3, {"attempt": 1, "steps": []}, bytes(range(200))))
    path = folder / "checkpoints" / "step-000000000003.checkpoint"
    stored = path.read_bytes()
    manifest = json.dumps(
        {
            "version": "evertally.manifest/1",
            "source": {"path": "x"},
            "form": {"features": "x"},
            "ranges": [["0", 0, 10, 10, "ab"], ["1", 5, 9, 4, "cd"]],
        }
    ).encode()
    run = RunFolder(folder / "run")
    run.save(RunState("ab" * 16, "p", "m", 1, "lease", 2, "cpu"))
    state_path, publisher = folder / "run" / "run.json", Publisher(folder)
    state = state_path.read_bytes()
    run.close()
    facts = json.dumps({"attempt": 1}).encode()

    def checkpoint(data: bytes) -> None:
        _written(path, data)
        store.latest()

    def again(data: bytes) -> None:
        """With the checksum of what the mutation left."""
        checkpoint(data + hashlib.sha256(data).digest())

    def inside(data: bytes) -> None:
        sealed = sealer.seal(data, 0, 3)
        head = stored[: len(b"evertally-checkpoint\n") + 13]
        again(head + len(sealed).to_bytes(8, "big") + sealed)

    def run_state(data: bytes) -> None:
        _written(state_path, data)
        opened = RunFolder(folder / "run")
        try:
            opened.state()
        finally:
            opened.close()

    def steps(data: bytes) -> None:
        _written(folder / "steps.jsonl", data)
        publisher.published()

    kinds: dict[bytes, tuple[Callable[[bytes], object], bytes]] = {
        b"c": (checkpoint, stored),
        b"a": (again, stored[:-32]),
        b"i": (inside, len(facts).to_bytes(8, "big") + facts + bytes(40)),
        b"m": (Manifest.decode, manifest),
        b"r": (run_state, state),
        b"s": (steps, b'{"digest": "ab", "step": 0}\n{"digest": "cd", "step": 1}\n'),
    }
    return _by_kind(kinds)


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _by_kind(kinds: dict[bytes, tuple[Callable[[bytes], object], bytes]]) -> Reader:
    """One reader for several kinds of bytes, told by a first byte of the corpus entry.

    An edit of that byte fires one kind's bytes at another kind's reader.
    """
    readers = [reader for reader, _ in kinds.values()]
    numbers = {kind: number for number, kind in enumerate(kinds)}

    def read(data: bytes) -> None:
        kind = data[:1]
        readers[numbers.get(kind, sum(kind) % len(readers))](data[1:])

    return Reader([kind + good for kind, (_, good) in kinds.items()], read, text=True)
