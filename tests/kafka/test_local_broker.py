"""Ports for programs that are still to be started."""

from __future__ import annotations

from pathlib import Path

import pytest

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
