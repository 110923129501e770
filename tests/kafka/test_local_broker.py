"""Ports for programs that are still to be started."""

from __future__ import annotations

from pathlib import Path

import pytest

from evertally.errors import ServiceUnavailable
from evertally.pipelines.kafka import local_broker
from evertally.pipelines.kafka.local_broker import free_ports

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_ports_are_none_that_the_system_gives_to_others() -> None:
    """A broker takes seconds to listen on its port: any connection that began meanwhile could have it."""
    if not RANGE.exists() or int(RANGE.read_text().split()[0]) < 32_768:
        pytest.skip("this system gives away other ports than Linux does as it comes")
    found = free_ports(50)
    assert len(set(found)) == 50
    assert min(found) > 1024
    assert max(found) < int(RANGE.read_text().split()[0])


@pytest.mark.parametrize("count", [0, 1])
def test_no_port_and_one_are_found_too(count: int) -> None:
    assert len(free_ports(count)) == count


def test_the_search_for_ports_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_broker, "_PORT_MAX", local_broker._PORT_MIN + 3)
    with pytest.raises(ServiceUnavailable, match="fewer than 5 ports"):
        free_ports(5)
