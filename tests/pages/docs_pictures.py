"""Draw the pictures of the documents anew: a pair with a target asked, the fleet, the advice log with calibration.

Usage: PYTHONPATH=service:tests python tests/pages/docs_pictures.py
"""

from __future__ import annotations

import logging
import random
import time
from pathlib import Path
from typing import Any

import httpx
import structlog
from playwright.sync_api import Browser

from pages import samples
from pages.browser import chromium
from pages.site import Site, serving

DOCS = Path(__file__).parents[2] / "docs"
SETTLED = 24
MOST_BYTES = 200_000


def main() -> None:
    """Write the pictures into docs/; fail when one is too large for a document."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with serving() as site, serving() as log, serving() as fleet, chromium() as browser:
        site.post(as_logged(samples.worked_case()))
        log.post(samples.worked_case())
        settle(log)
        draw(browser, f"{site.url}/ui/pairs/{site.pair()}?target_tokens=200000", "pages-pair.png", "light", 1400)
        fill_fleet(fleet)
        draw(browser, f"{fleet.url}/ui/fleet", "pages-fleet.png", "light", 760)
        draw(browser, f"{log.url}/ui/advice", "pages-advice-log.png", "dark", 760)


def as_logged(starts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the worked case as its logs have it: free memory of the first start is what it was at pool end."""
    first, *others = starts
    bound = {**first["measurements"], "free_at_pool_end_gib": first["measurements"]["free_at_ready_gib"]}
    return [{**first, "measurements": bound}, *others]


def settle(site: Site) -> None:
    """Ask for many targets and record the starts that followed, on the worked case's line with its noise."""
    noise, pair = random.Random(7), site.pair()
    for number in range(SETTLED):
        body = {"pair_id": pair, "target_tokens": 120_000 + 4_000 * number}
        answer = httpx.post(f"{site.url}/recommendations", json=body).raise_for_status().json()
        flags = {**samples.worked_case()[2]["flags"], **answer["flags"]}
        fraction = answer["flags"]["mem_fraction_static"]
        pool = round(1_303_889 * (fraction - 0.77244) + noise.gauss(0, 25))
        free = round(answer["prediction"]["free_at_ready_gib"]["median"] + noise.gauss(0, 0.13), 2)
        start = samples.start(fraction, 8, pool, free, flags=flags, observed_at=samples.hour(10 + number))
        site.post([{**start, "recommendation_id": answer["id"]}])


def fill_fleet(site: Site) -> None:
    """Record pairs in each state that the fleet tells apart, ask about them, and wait until their rows are kept."""
    proved = {**samples.worked_case()[2]["verifications"][0], "prompt_tokens": 100_000, "lowest_free_gib": 2.9}
    held = [{**body, "model": {"name": "org/held-100k", "facts": samples.FACTS}} for body in samples.worked_case()]
    held[-1] = {**held[-1], "verifications": [proved]}
    refused = {**samples.failures()[0], "model": {"name": "org/never-came-up", "facts": samples.FACTS}}
    asked = {samples.MODEL: 200_000, "org/held-100k": 100_000, "Qwen/Qwen3-8B": 40_000}
    site.post([*samples.worked_case(), *held, refused, *samples.vllm_starts(), *samples.upgrade()])
    for model, target in asked.items():
        body = {"pair_id": site.pair(model), "target_tokens": target}
        httpx.post(f"{site.url}/recommendations", json=body).raise_for_status()
    while "brought up to date" in httpx.get(f"{site.url}/ui/fleet").raise_for_status().text:
        time.sleep(0.1)


def draw(browser: Browser, address: str, name: str, scheme: str, height: int) -> None:
    """Keep the top of a page as a picture."""
    profile = browser.new_context(
        viewport={"width": 1400, "height": height},
        device_scale_factor=0.85,
        color_scheme="dark" if scheme == "dark" else "light",
        locale="en-GB",
        timezone_id="Etc/UTC",
    )
    page = profile.new_page()
    page.goto(address)
    page.wait_for_timeout(300)
    page.evaluate("name => name.endsWith('log.png') && scrollTo(0, document.body.scrollHeight)", name)
    page.wait_for_timeout(100)
    picture = page.screenshot(path=DOCS / name)
    assert len(picture) < MOST_BYTES, f"{name} has {len(picture):,} bytes"
    profile.close()


if __name__ == "__main__":
    main()
