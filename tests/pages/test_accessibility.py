"""Axe finds nothing serious on any page, in light and in dark; and each page is kept as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page

from pages import samples
from pages.browser import Watch, picture
from pages.site import Site, serving

AXE = (Path(__file__).parent / "vendor" / "axe-4.14.1.min.js").read_text()
PAGES = (
    "first",
    "pairs",
    "pair",
    "asked",
    "held",
    "faulty",
    "infeasible",
    "start",
    "failure",
    "compare",
    "advice",
    "sign-in",
)
WIDTHS = (360, 900, 1440)
ALSO_NARROW = ("pairs", "pair", "asked", "held", "advice")


@pytest.fixture(scope="module")
def full() -> Iterator[tuple[Site, dict[str, str]]]:
    """A service with something on every page, and the address of each."""
    with serving() as site, serving() as empty:
        ids = site.post([*samples.worked_case(), *samples.failures(), *samples.vllm_starts()])
        pair = site.pair(samples.MODEL)
        body = {"pair_id": pair, "target_tokens": 200_000}
        answer = httpx.post(f"{site.url}/recommendations", json=body).raise_for_status().json()
        run = {**samples.worked_case()[2]["flags"], **answer["flags"]}
        proof = [samples.measured_prompt()]
        more = {"recommendation_id": answer["id"], "verifications": proof, "observed_at": samples.hour(5)}
        ids += site.post([samples.start(0.926, 8, 200_225, 5.4, flags=run, **more)])
        at = {
            "pairs": "/ui",
            "pair": f"/ui/pairs/{pair}",
            "asked": f"/ui/pairs/{pair}?target_tokens=200000",
            "held": f"/ui/pairs/{pair}?target_tokens=120000",
            "faulty": f"/ui/pairs/{pair}?target_tokens=many",
            "infeasible": f"/ui/pairs/{pair}?target_tokens=2000000",
            "start": f"/ui/observations/{ids[-1]}",
            "failure": f"/ui/observations/{ids[5]}",
            "compare": f"/ui/pairs/{pair}/compare?start={ids[0]}&start={ids[2]}",
            "advice": "/ui/advice",
            "sign-in": "/ui/sign-in",
        }
        yield site, {"first": f"{empty.url}/ui", **{name: f"{site.url}{path}" for name, path in at.items()}}


def serious(page: Page) -> list[str]:
    """Return what axe finds that keeps people from using a page."""
    page.evaluate(AXE)
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_no_page_keeps_anybody_out(browser: Browser, full: tuple[Site, dict[str, str]], name: str, scheme: Any) -> None:
    """On each page with every part opened, on a phone also where people look first, axe finds nothing serious."""
    _, at = full
    profile = browser.new_context(color_scheme=scheme, timezone_id="Europe/Berlin", locale="en-GB")
    watch = Watch(profile, at[name])
    page = profile.new_page()
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(at[name])
        page.wait_for_timeout(100)
        picture(page, f"{name}-{width}-{scheme}")
        if width == WIDTHS[-1] or (width == WIDTHS[0] and name in ALSO_NARROW):
            page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
            assert serious(page) == []
    profile.close()
    assert watch.faults == []
