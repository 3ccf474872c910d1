"""The fleet in a real browser, by keyboard and without a script; labels over the plots that never cross."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from pages import samples
from pages.browser import Watch
from pages.site import Site


def filled(site: Site) -> str:
    """Record two pairs, ask about one, wait until the fleet is up to date, and return the address of the first pair."""
    site.post([*samples.worked_case(), *samples.failures(), *samples.vllm_starts(), *samples.upgrade()])
    pair = site.pair(samples.MODEL)
    body = {"pair_id": pair, "target_tokens": 200_000}
    httpx.post(f"{site.url}/recommendations", json=body).raise_for_status()
    while "brought up to date" in httpx.get(f"{site.url}/ui/fleet").raise_for_status().text:
        pass
    return f"{site.url}/ui/pairs/{pair}"


def test_the_fleet_is_used_with_the_keyboard(page: Page, site: Site) -> None:
    """Tab reaches search, filter and columns; Enter sorts, the way back restores, a verdict leads to its answer."""
    filled(site)
    page.goto(f"{site.url}/ui/fleet")
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        if reached[-1].startswith("Headroom"):
            break
    assert [name for name in reached if name in ("search", "show", "sort")] == ["search", "show", "sort"]
    page.keyboard.press("Enter")
    page.wait_for_url("**sort=headroom*")
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("Headroom, GiB ▲")
    page.go_back()
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("Answers its last question")
    page.get_by_role("link", name="200,000 tokens").click()
    headline = page.locator("#answer .headline").text_content()
    page.go_back()
    expect(page.locator("tbody tr").first).to_contain_text(headline or "no headline")


def test_the_fleet_brings_itself_up_to_date(page: Page, site: Site) -> None:
    """A page that shows old rows says so, and shows the new ones by itself."""
    site.post(samples.worked_case())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvyield_server.usecases.fleet.look_at", lambda *_: None)
        page.goto(f"{site.url}/ui/fleet")
        expect(page.locator("main")).to_contain_text("1 pair has newer starts or questions")
        expect(page.locator("tbody")).to_contain_text("not looked at yet")
    expect(page.locator("tbody")).to_contain_text("218,484")
    expect(page.locator("main")).not_to_contain_text("brought up to date")


def test_no_column_of_the_fleet_is_cut_on_a_laptop(browser: Browser, site: Site) -> None:
    """At 1280 px the table fits its panel, with the longest way to write times."""
    filled(site)
    profile = browser.new_context(viewport={"width": 1280, "height": 800}, locale="en-US")
    page = profile.new_page()
    page.goto(f"{site.url}/ui/fleet?sort=model")
    expect(page.locator(".fleet table")).to_contain_text(samples.MODEL)
    assert page.evaluate("(e => e.scrollWidth - e.clientWidth)(document.querySelector('.fleet .scroll'))") <= 0
    profile.close()


@pytest.mark.parametrize("path", ["/ui", "/ui/fleet", "/ui/drift", "/ui/advice", "pair", "asked"])
def test_pages_are_read_without_a_script(browser: Browser, site: Site, path: str) -> None:
    """With scripts off every figure is there, forms have their button, and nothing claims to need a script."""
    pair = filled(site)
    profile = browser.new_context(java_script_enabled=False, viewport={"width": 360, "height": 740})
    watch, page = Watch(profile, site.url), profile.new_page()
    at = {"pair": pair, "asked": f"{pair}?target_tokens=200000"}
    page.goto(at.get(path) or f"{site.url}{path}")
    wanted = {"/ui/drift": "Qwen/Qwen3-8B", "asked": "--mem-fraction-static 0.926"}
    expect(page.locator("main")).to_contain_text(wanted.get(path, samples.MODEL))
    for form in page.locator("form[method=get]").all():
        expect(form.get_by_role("button").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    profile.close()
    assert watch.faults == []


def labels(page: Page) -> list[dict[str, Any]]:
    """Return where the labels of the advised and the running line stand in the pool's plot."""
    page.wait_for_selector("html[data-plots='2']")
    found: list[dict[str, Any]] = json.loads(page.locator("#plot-pool .uplot").get_attribute("data-labels") or "[]")
    return found


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_labels_of_advised_and_running_never_cross(page: Page, site: Site, width: int) -> None:
    """Wherever the two lines stand, each label has a row of its own and no line runs through it."""
    address = filled(site)
    page.set_viewport_size({"width": width, "height": 800})
    seen = 0
    for target in (20_000, 100_000, 150_000, 195_000, 200_000, 212_000, 240_000):
        page.goto(f"{address}?target_tokens={target}&prefer=headroom")
        found = labels(page)
        if len(found) < 2:
            continue
        seen += 1
        one, other = found
        assert {one["row"], other["row"]} == {0, 1}
        for label, line in ((one, other), (other, one)):
            starts_above = line["row"] <= label["row"]
            assert not (starts_above and label["from"] < line["x"] < label["to"]), (target, found)
    assert seen >= 4


def test_an_infeasible_answer_draws_no_advised_line(page: Page, site: Site) -> None:
    """The plots show what runs and the target; nothing is called advised."""
    address = filled(site)
    page.goto(f"{address}?target_tokens=2000000")
    expect(page.locator("#answer")).to_contain_text("infeasible")
    assert [label["text"] for label in labels(page)] == ["running 0.94"]
