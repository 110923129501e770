"""The probes' server: who may confirm the clock."""

from __future__ import annotations

import httpx

from evertally.pipelines.kafka.health import HealthServer


def test_a_web_page_cannot_confirm_the_clock() -> None:
    """A form on any page reaches a loopback address from its reader's browser, which names the page."""
    confirmed: list[int] = []
    server = HealthServer(("127.0.0.1", 0), dict, dict, lambda: confirmed.append(1))
    server.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
            page = client.post("/confirm-clock", headers={"Origin": "https://elsewhere.example"})
            assert (page.status_code, confirmed) == (403, [])
            assert client.post("/confirm-clock").json() == {"clock": True}
    finally:
        server.close()
    assert confirmed == [1]
