"""The exporter's page in a real browser, at two sizes and in two colour schemes, without JavaScript."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.metrics.metrics_ledgers import Stream, exporting, opened, scrape, spec, spend

from evertally.pipelines.metrics.exporter import Exporter

pytestmark = [pytest.mark.browser, pytest.mark.slow]
KEYS = ("Emergency", "Cardiology", "<script>alert(1)</script>", "Paediatrics")


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
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    folder = tmp_path_factory.mktemp("page")
    store, key_file = opened(folder)
    stream = Stream(store, key_file, spec("hospital/visits-by-ward", KEYS, mu=0.25))
    stream.release([[40 + 3 * t % 17, 25, 7, 12] for t in range(90)])
    Stream(store, key_file, spec("not/yet", ("a", "b"))).release([], publish=False)
    spend(store, 0.5)
    with exporting(folder / "ledger.db") as exporter:
        yield exporter
    store.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)], ids=["desktop", "phone"])
def test_the_page_shows_totals_windows_and_budget(
    chromium: Any, site: Exporter, tmp_path: Path, scheme: str, width: int, height: int
) -> None:
    context = chromium.new_context(
        java_script_enabled=False, color_scheme=scheme, viewport={"width": width, "height": height}
    )
    page = context.new_page()
    page.set_default_timeout(120_000)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    assert page.goto(site.addresses[0] + "/").status == 200
    text = page.inner_text("body")
    for expected in (
        *("hospital/visits-by-ward", "not/yet", "No tick is released yet", "rational:W32", "visits"),
        *("2026-01-01T01:30:00", "not a differential privacy statement"),
    ):
        assert expected in text
    assert KEYS[2] in text  # shown as text, not run
    rows = page.locator("#totals table.totals tbody tr")
    assert rows.count() == len(KEYS)
    shown = rows.nth(0).locator("td").all_inner_texts()
    exact = re.search(r'released_events\{key="Emergency".*\} (\S+)', scrape(site))
    assert exact is not None
    assert shown[0].split(" ±")[0].replace(",", "").replace("−", "-") == f"{float(exact[1]):.0f}"
    assert all("±" in cell for cell in shown)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(246, 247, 245)" if scheme == "light" else "rgb(16, 21, 19)")
    assert complaints == failed == []
    shots = Path(os.environ.get("EVERTALLY_SCREENSHOTS", str(tmp_path)))
    shots.mkdir(exist_ok=True)
    page.screenshot(path=str(shots / f"exporter-{scheme}-{width}.png"), full_page=True)
    context.close()
