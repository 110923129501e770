"""Snapshots of earlier releases stay readable: frozen bytes of each version go on to the same releases."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from evertally.counters import CounterBank, KeyedNoise, NoiseKey, parse_mechanism

GOLDEN = json.loads((Path(__file__).resolve().parents[1] / "golden" / "snapshots.json").read_text())


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"v{case['version']}-{case['mechanism']}")
def test_a_frozen_snapshot_goes_on_to_its_frozen_releases(case: dict[str, object]) -> None:
    key = NoiseKey(bytes(range(32)), stream="golden", stream_id=bytes(16))
    source = KeyedNoise(key, range(int(str(case["keys"]))))
    bank = CounterBank.for_mu(parse_mechanism(str(case["mechanism"])), mu=0.5, source=source)
    bank.load(base64.b64decode(str(case["snapshot"])))
    assert bank.t == case["t"]
    releases = bank.close_ticks([[1] * bank.keys] * 3)
    assert [[r.t, list(r.values), r.standard_error] for r in releases] == case["next"]
