"""Axe finds nothing on any page, and no page overflows or breaks a word: light and dark, phone, tablet and screen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
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
    "fleet",
    "no-fleet",
    "drift",
    "no-drift",
    "pair",
    "asked",
    "held",
    "faulty",
    "infeasible",
    "start",
    "failure",
    "corrected",
    "compare",
    "advice",
    "no-advice",
    "problem",
    "sign-in",
)
WIDTHS = (360, 768, 1280)
SCHEMES = ("light", "dark")
BROKEN_WORDS = """() => {
  const broken = [], range = document.createRange();
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!parent.checkVisibility() || parent.closest("pre, script, .vh, option")) continue;
    if (parent.closest("thead")?.clientWidth < 2) continue;
    for (const word of node.textContent.matchAll(/\\p{L}{3,18}/gu)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const tops = new Set([...range.getClientRects()].map((rect) => Math.round(rect.top)));
      if (tops.size > 1) broken.push(word[0]);
    }
  }
  return broken;
}"""
OVERFLOWS = """() => [...document.querySelectorAll("html, .panel, .scroll")]
  .filter((node) => node.scrollWidth - node.clientWidth > 1)
  .map((node) => `${node.tagName}.${node.className} ${node.getAttribute("aria-label") || ""}`)"""


@pytest.fixture(scope="module")
def full() -> Iterator[tuple[Site, dict[str, str]]]:
    """A service with something on every page, and the address of each."""
    with serving() as site, serving() as empty:
        ids = site.post([*samples.worked_case(), *samples.failures(), *samples.vllm_starts(), *samples.upgrade()])
        pair, other = site.pair(samples.MODEL), site.pair("Qwen/Qwen3-8B")
        answer = ask(site, pair, 200_000)
        ask(site, other, 40_000)
        run = {**samples.worked_case()[2]["flags"], **answer["flags"]}
        proof = [samples.measured_prompt()]
        more = {"recommendation_id": answer["id"], "verifications": proof, "observed_at": samples.hour(5)}
        ids += site.post([samples.start(0.926, 8, 200_225, 5.4, flags=run, **more)])
        corrections = {"hardware": {"memory_gib": 95.0}, "flags": {"attention_backend": "flashinfer"}}
        corrected = {**corrections, "reason": "as the driver of this host prints it"}
        httpx.post(f"{site.url}/observations/{ids[0]}/corrections", json=corrected).raise_for_status()
        while "brought up to date" in httpx.get(f"{site.url}/ui/fleet").raise_for_status().text:
            time.sleep(0.1)
        at = {
            "pairs": "/ui",
            "fleet": "/ui/fleet",
            "no-fleet": "/ui/fleet?search=nothing+of+that+name",
            "drift": "/ui/drift",
            "pair": f"/ui/pairs/{pair}",
            "asked": f"/ui/pairs/{pair}?target_tokens=200000",
            "held": f"/ui/pairs/{pair}?target_tokens=120000",
            "faulty": f"/ui/pairs/{pair}?target_tokens=many",
            "infeasible": f"/ui/pairs/{pair}?target_tokens=2000000",
            "start": f"/ui/observations/{ids[-1]}",
            "failure": f"/ui/observations/{ids[5]}",
            "corrected": f"/ui/observations/{ids[0]}",
            "compare": f"/ui/pairs/{pair}/compare?start={ids[0]}&start={ids[2]}",
            "advice": "/ui/advice",
            "problem": "/ui/fleet?sort=nonsense",
            "sign-in": "/ui/sign-in",
        }
        nothing = {"first": "/ui", "no-drift": "/ui/drift", "no-advice": "/ui/advice"}
        where = {name: f"{site.url}{path}" for name, path in at.items()}
        yield site, {**where, **{name: f"{empty.url}{path}" for name, path in nothing.items()}}


def ask(site: Site, pair: str, target_tokens: int) -> dict[str, Any]:
    """Keep an answer about a pair."""
    body = {"pair_id": pair, "target_tokens": target_tokens}
    answer: dict[str, Any] = httpx.post(f"{site.url}/recommendations", json=body).raise_for_status().json()
    return answer


def found_by_axe(page: Page) -> list[str]:
    """Return all that axe finds."""
    page.evaluate(AXE)
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['id']} ({rule['impact']}): {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_accessible(browser: Browser, full: tuple[Site, dict[str, str]], name: str, scheme: Any) -> None:
    """On each page, with every part opened, axe finds nothing, nothing overflows and no word is broken inside. Each
    page is seen in both schemes and at all widths, of its six pairs of them in three."""
    number = PAGES.index(name) + SCHEMES.index(scheme)
    widths = WIDTHS[::2] if number % 2 == 0 else WIDTHS[1:2]
    inspect(browser, full[1], name, scheme, widths)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_accessible_in_all_pairs(
    browser: Browser, full: tuple[Site, dict[str, str]], name: str, scheme: Any
) -> None:
    """The same at every width in both schemes, each kept as a picture for people to look at."""
    inspect(browser, full[1], name, scheme, WIDTHS, keeps_pictures=True)


def inspect(
    browser: Browser, at: dict[str, str], name: str, scheme: Any, widths: Sequence[int], *, keeps_pictures: bool = False
) -> None:
    """Look at one page in one colour scheme."""
    profile = browser.new_context(color_scheme=scheme, timezone_id="Europe/Berlin", locale="en-GB")
    watch = Watch(profile, at[name])
    watch.expected = ("422",) if name in ("faulty", "problem") else ()
    page = profile.new_page()
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(at[name])
        page.wait_for_timeout(100)
        if keeps_pictures:
            picture(page, f"{name}-{width}-{scheme}")
        page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
        found = (found_by_axe(page), page.evaluate(OVERFLOWS), page.evaluate(BROKEN_WORDS))
        assert found == ([], [], []), width
    profile.close()
    assert watch.faults == []
