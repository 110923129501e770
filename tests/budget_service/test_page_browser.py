"""The page in a real browser: what it shows, without JavaScript, at two sizes and in two colour schemes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.budget_service.harness import Service, start
from tests.budget_service.page_ledger import KEYS, PUBLISHED, TICKS, fill

from evertally.accountants.budget.service import Grant, ServiceTables, TokenStore

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail("no Chromium")
        pytest.skip("no Chromium: the program chromium was not found")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=120_000)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    location = str(tmp_path_factory.mktemp("page") / "ledger.db")
    fill(location)
    service = start(location, "", {})
    yield service
    service.kill()


@pytest.fixture
def login_starter() -> Iterator[Callable[[str], Service]]:
    started: list[Service] = []

    def begin(location: str) -> Service:
        started.append(start(location, "", {}, page="login"))
        return started[-1]

    yield begin
    for service in started:
        service.kill()


def _page(browser: Any, scheme: str = "light", width: int = 1280, height: int = 900) -> Any:
    context = browser.new_context(
        java_script_enabled=False, color_scheme=scheme, viewport={"width": width, "height": height}
    )
    page = context.new_page()
    page.set_default_timeout(120_000)
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)], ids=["desktop", "phone"])
def test_overview_shows_spend_and_totals(
    chromium: Any, site: Service, tmp_path: Path, scheme: str, width: int, height: int
) -> None:
    page = _page(chromium, scheme, width, height)
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    assert page.goto(site.address + "/").status == 200
    text = page.inner_text("body")
    for expected in ("hospital/visits", "flights/aircraft", "ε ≤ 2", "nearly spent", "over 80 %"):
        assert expected in text
    assert "not a differential privacy statement" in text
    assert "for ever, by at most a factor of 7.39" in text
    assert "total loss grows without bound" in text
    assert KEYS[3] in text  # shown as text, not run
    assert page.locator("svg.spark").count() == 6
    assert page.locator("svg.meter").count() >= 4
    box = page.locator("svg.meter .fill").first.bounding_box()
    track = page.locator("svg.meter .track").first.bounding_box()
    assert 0.95 < box["width"] / track["width"] < 1.0  # flights/aircraft at 97 %
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(246, 247, 245)" if scheme == "light" else "rgb(16, 21, 19)")
    assert not [message for message in refused if "Content Security Policy" in message]
    shots = Path(os.environ.get("EVERTALLY_SCREENSHOTS", str(tmp_path)))
    shots.mkdir(exist_ok=True)
    page.screenshot(path=str(shots / f"overview-{scheme}-{width}.png"), full_page=True)
    page.context.close()


def test_only_published_ticks_are_shown(chromium: Any, site: Service) -> None:
    page = _page(chromium)
    page.goto(site.address + "/streams/hospital/visits-by-ward")
    text = page.inner_text("main")
    assert f"{PUBLISHED} × 1 hour" in text
    assert str(TICKS) not in text.split("Ticks")[1][:20]
    assert "2026-01-03 08:00:00" in text  # the end of tick 56
    assert page.locator("svg.spark").count() == len(KEYS)
    page.context.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_scope_page_shows_its_history(chromium: Any, site: Service, tmp_path: Path, width: int) -> None:
    page = _page(chromium, width=width)
    page.goto(site.address + "/")
    page.click("text=flights/aircraft")
    assert page.url.endswith("/scopes/flights/aircraft")
    text = page.inner_text("main")
    assert "reserved" in text
    assert "1 Gaussian release, sensitivity 1, σ 300" in text
    assert "zCDP" in text
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shots = Path(os.environ.get("EVERTALLY_SCREENSHOTS", str(tmp_path)))
    page.screenshot(path=str(shots / f"scope-light-{width}.png"), full_page=True)
    page.context.close()


def test_open_page_answers_local_names_only(site: Service) -> None:
    for headers in (
        {"Host": "evil.example"},
        {"X-Forwarded-For": "10.0.0.1"},
        {"Host": "127.0.0.1.evil.example"},
    ):
        for path in ("/", "/scopes/hospital/visits", "/metrics"):
            answer = httpx.get(site.address + path, headers=headers, trust_env=False, timeout=60)
            assert answer.status_code == 421
            assert "hospital" not in answer.text
    port = site.address.rpartition(":")[2]
    answer = httpx.get(site.address + "/", headers={"Host": f"localhost:{port}"}, trust_env=False, timeout=60)
    assert answer.status_code == 200
    assert "<script" not in answer.text
    assert "style=" not in answer.text
    assert httpx.post(site.address + "/", trust_env=False, timeout=60).status_code == 405


def test_login_shows_what_the_token_may_read(
    chromium: Any, login_starter: Callable[[str], Service], tmp_path: Path
) -> None:
    location = str(tmp_path / "ledger.db")
    fill(location)
    tables = ServiceTables(location)
    store = TokenStore(tables)
    entry, token = store.create(
        "auditor", (Grant.parse("scope:flights/*=read"), Grant.parse("service:*=operate"))
    )
    service = login_starter(location)
    page = _page(chromium)
    page.goto(service.address + "/")
    assert page.url == service.address + "/login"
    page.fill("#token", "evt_wrong")
    page.click("button")
    assert "not valid" in page.inner_text("main")
    page.fill("#token", token)
    page.click("button")
    assert page.url == service.address + "/"
    text = page.inner_text("body")
    assert "flights/aircraft" in text
    assert "auditor" in text
    assert "hospital" not in text
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert token not in str(cookie)
    assert page.goto(service.address + "/scopes/hospital/visits").status == 404
    with httpx.Client(base_url=service.address, trust_env=False, timeout=60) as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        forged = client.post("/login", data={"token": token}, headers={"Origin": "http://evil.example"})
        assert forged.status_code == 403
    store.revoke(entry.token_id)
    tables.close()
    page.wait_for_timeout(1500)
    page.goto(service.address + "/")
    assert page.url == service.address + "/login"
    shots = Path(os.environ.get("EVERTALLY_SCREENSHOTS", str(tmp_path)))
    page.screenshot(path=str(shots / "login.png"))
    page.context.close()
