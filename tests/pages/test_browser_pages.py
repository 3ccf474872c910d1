"""The other pages in a real browser: first visit, list, sign-in, one start, the advice log, hostile names."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import BrowserContext, Page, expect

from kvyield_server.storage.records import Role
from pages import samples
from pages.browser import Watch
from pages.site import Site

LONG = "organisation-with-a-long-name/" + "a-model-whose-name-never-seems-to-end-" * 8


def advised(site: Site, target: int = 200_000) -> tuple[str, dict[str, object]]:
    """Store an advice for the only pair; return its id and flags."""
    body = {"pair_id": site.pair(), "target_tokens": target}
    answer = httpx.post(f"{site.url}/recommendations", json=body).raise_for_status().json()
    return answer["id"], answer["flags"]


def test_a_first_visit_says_what_to_run(page: Page, site: Site) -> None:
    """An empty service shows commands with its own real address, and copying gives them whole."""
    page.goto(f"{site.url}/")
    expect(page.get_by_role("heading", name="No start recorded yet")).to_be_visible()
    expect(page.locator("#first-address")).to_have_text(f"export KVYIELD_URL={site.url}")
    page.locator("[data-copy=first-address]").click()
    expect(page.locator("[data-copy=first-address]")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == f"export KVYIELD_URL={site.url}"
    expect(page.locator("main")).to_contain_text("kvyield report --journal")
    expect(page.locator("#first-import")).to_be_visible()


def test_pairs_are_listed_and_searched(page: Page, site: Site) -> None:
    """The list shows what the last start gave; typing part of a model or a GPU narrows it at once."""
    site.post([*samples.worked_case(), *samples.failures(), *samples.vllm_starts()])
    page.goto(f"{site.url}/ui")
    rows = page.locator("#pairs tbody tr")
    expect(rows).to_have_count(2)
    row = page.get_by_role("row", name=re.compile("Kimi"))
    for part in ("8 × NVIDIA RTX PRO 6000", "SGLang", "7 starts", "218,484", "4.2", "0.94", "4 failures"):
        expect(row).to_contain_text(part)
    page.get_by_role("searchbox").press_sequentially("h200")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Qwen/Qwen3-8B")
    assert page.url.endswith("search=h200")
    page.get_by_role("searchbox").fill("no such thing")
    expect(page.locator("#pairs")).to_contain_text("No model or GPU name contains no such thing")
    page.get_by_role("link", name="Show all pairs").click()
    page.get_by_role("link", name="Qwen/Qwen3-8B").click()
    expect(page.locator("#answer")).to_contain_text("--gpu-memory-utilization 0.9")


def test_drift_is_seen_from_the_list(page: Page, site: Site) -> None:
    """A pair whose engine upgrade moved the line is marked in the list and on its page."""
    site.post(samples.worked_case())
    later = {"name": "sglang", "version": "0.5.13"}
    site.post([samples.start(0.92, 8, 171_000, 6.0, engine=later, observed_at=samples.hour(40))])
    page.goto(f"{site.url}/ui")
    expect(page.locator("#pairs .chip.loud")).to_have_text("drift")
    page.get_by_role("link", name=samples.MODEL).click()
    expect(page.locator(".head .chip.loud")).to_have_text("drift")


def test_signing_in_and_out(page: Page, site: Site, context: BrowserContext, watch: Watch) -> None:
    """Once a token exists every page leads to the sign-in and back; scripts cannot read the session."""
    watch.expected = ("401",)
    site.post(samples.worked_case())
    text = site.token(Role.READ, "reader")
    wanted = f"{site.url}/ui/pairs/{site.pair()}"
    page.wait_for_timeout(1_100)
    page.goto(wanted)
    assert "/ui/sign-in" in page.url
    page.get_by_label("Token").fill("kvy_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("The bearer token is not known here.")
    page.get_by_label("Token").fill(text)
    page.keyboard.press("Enter")
    page.wait_for_url(wanted)
    expect(page.locator(".bar")).to_contain_text("reader, read")
    cookie = next(cookie for cookie in context.cookies() if cookie["name"] == "kvyield_session")
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Lax", "/ui")
    assert "kvyield" not in page.evaluate("document.cookie")
    page.get_by_role("button", name="Sign out").click()
    page.goto(wanted)
    assert "/ui/sign-in" in page.url


def test_a_session_that_ended_leads_to_the_sign_in(page: Page, site: Site, context: BrowserContext) -> None:
    """A form on a page whose session is over goes to the sign-in instead of doing nothing."""
    site.post(samples.worked_case())
    page.goto(f"{site.url}/ui/pairs/{site.pair()}")
    site.token(Role.READ)
    page.wait_for_timeout(1_100)
    page.get_by_label("Target: longest prompt, tokens").fill("150000")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/sign-in*")


def test_a_start_shows_all_that_is_known(page: Page, site: Site) -> None:
    """Measurements, flags, proof, memory, source and log of a start are on its page."""
    ids = site.post(samples.worked_case())
    proof = samples.measured_prompt()
    httpx.post(f"{site.url}/observations/{ids[2]}/verifications", json=proof).raise_for_status()
    page.goto(f"{site.url}/ui/observations/{ids[2]}")
    for part in ("218,484 tokens", "4.2 GiB", "mem_fraction_static", "the engine's log", "a point on the line"):
        expect(page.locator("main")).to_contain_text(part)
    expect(page.get_by_role("row", name="60,010")).to_contain_text("passed")
    expect(page.get_by_role("row", name="120,000")).to_contain_text("<b>crane</b> (expected heron)")
    expect(page.locator(".memory li")).to_have_count(3)
    expect(page.locator(".memory .low")).to_contain_text("2.7 GiB")
    expect(page.locator("pre.log")).to_contain_text("max_total_num_tokens=218484")


def test_retracting_a_start_takes_it_out_of_the_fit(page: Page, site: Site) -> None:
    """A retraction needs a reason, marks the start everywhere, and cannot be sent twice."""
    ids = site.post(samples.worked_case())
    page.goto(f"{site.url}/ui/observations/{ids[0]}")
    page.get_by_role("button", name="Retract this start").click()
    assert page.get_by_label("Reason").evaluate("field => field.validity.valueMissing")
    page.get_by_label("Reason").fill("a <neighbour> on the GPU")
    page.get_by_role("button", name="Retract this start").click()
    expect(page.locator("main")).to_contain_text("a <neighbour> on the GPU")
    expect(page.locator("main")).to_contain_text("left out")
    expect(page.get_by_role("button", name="Retract this start")).to_have_count(0)
    page.get_by_role("link", name=samples.MODEL).click()
    expect(page.locator("#history tr.retracted")).to_have_count(1)
    page.get_by_role("button", name="Advise").click()
    expect(page.locator("#answer")).to_contain_text("Based on 2 starts")


def test_the_log_shows_what_was_advised_and_what_happened(page: Page, site: Site) -> None:
    """Kept advice waits in the log; the start that names it is compared with it and counts in the coverage."""
    site.post(samples.worked_case())
    page.goto(f"{site.url}/ui/advice")
    expect(page.locator("main")).to_contain_text("No advice was saved yet")
    page.goto(f"{site.url}/ui/pairs/{site.pair()}?target_tokens=200000")
    page.get_by_role("button", name="Save to the advice log").click()
    page.wait_for_url("**/ui/advice#*")
    expect(page.locator("main")).to_contain_text("no start followed it yet")
    number, flags = advised(site)
    run = {**samples.worked_case()[2]["flags"], **flags}
    settling = samples.start(0.926, 8, 200_229, 5.4, flags=run, recommendation_id=number, observed_at=samples.hour(5))
    site.post([settling])
    page.reload()
    expect(page.locator(f"[id='{number}']")).to_contain_text("pool within its interval")
    expect(page.locator("figure").first).to_contain_text("1 of 1")
    expect(page.locator("svg.coverage circle")).to_have_count(8)
    expect(page.locator("main")).to_contain_text("Restarts per target: 1 on average")
    page.locator(f"[id='{number}']").get_by_role("link", name="ready").click()
    expect(page.get_by_text("Follows advice")).to_be_visible()


def test_the_log_clips_nothing(page: Page, site: Site) -> None:
    """At 1280 px flags and ids are whole, and an id is copied whole."""
    site.post(samples.worked_case())
    number, _ = advised(site)
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{site.url}/ui/advice")
    frame = page.locator(".scroll").first
    assert frame.evaluate("node => node.scrollWidth - node.clientWidth") <= 0
    expect(page.locator(f"[id='flags-{number}']")).to_contain_text("--context-length 200007 --max-running-requests 8")
    expect(page.locator(f"[id='id-{number}']")).to_have_text(number)
    button = page.locator(f"[data-copy='id-{number}']")
    button.click()
    expect(button).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == number


def test_hostile_names_are_only_text(page: Page, site: Site) -> None:
    """HTML, quotes, a closing script tag and a right-to-left override in names stay text on every page."""
    name = samples.HOSTILE
    bodies = [
        samples.start(
            fraction,
            8,
            pool,
            6.1,
            model={"name": name, "facts": {}},
            hardware={"gpu": name, "gpu_count": 8, "memory_gib": 95.59},
            engine={"name": "sglang", "version": name[:60], "variant": name[:60]},
            host=name,
            log_excerpt=name,
            flags={"mem_fraction_static": fraction, "speculative_algorithm": name, "attention_backend": name},
            verifications=[{"prompt_tokens": 1000, "passed": False, "answer_received": name, "error": name}],
            observed_at=samples.hour(index),
        )
        for index, (fraction, pool) in enumerate(((0.85, 101_134), (0.92, 192_406)))
    ]
    ids = site.post(bodies)
    pair = site.pair(name)
    for path in (
        "/ui",
        "/ui?search=%3Cscript%3Ealert(1)%3C/script%3E",
        f"/ui/pairs/{pair}",
        f"/ui/pairs/{pair}?host=%22%3E%3Cscript%3Ealert(1)%3C/script%3E&target_tokens=%22%3E%3Cimg%20src=x%3E",
        f"/ui/observations/{ids[0]}",
        f"/ui/pairs/{pair}/compare?start={ids[0]}&start={ids[1]}",
        "/ui/sign-in?next=%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
    ):
        page.goto(f"{site.url}{path}")
        assert page.locator("img").count() == 0
        assert page.locator("script:not([src]):not([type='application/json'])").count() == 0
    page.goto(f"{site.url}/ui/pairs/{pair}")
    expect(page.locator("h1")).to_have_text(name)
    expect(page.locator("html")).to_have_attribute("data-plots", "2")


def test_no_page_is_wider_than_a_phone(page: Page, site: Site) -> None:
    """At 360 px nothing but tables in their own frames scrolls sideways, however long names are."""
    ids = site.post([{**body, "model": {"name": LONG, "facts": samples.FACTS}} for body in samples.worked_case()])
    advised(site)
    page.set_viewport_size({"width": 360, "height": 740})
    for path in (
        "/ui",
        f"/ui/pairs/{site.pair()}",
        f"/ui/observations/{ids[0]}",
        f"/ui/pairs/{site.pair()}/compare?start={ids[0]}&start={ids[1]}",
        "/ui/advice",
        "/ui/sign-in",
    ):
        page.goto(f"{site.url}{path}")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path


def test_everything_can_be_reached_with_the_keyboard(page: Page, site: Site) -> None:
    """Tab walks from the skip link through advice, form and plots to the history, and focus is always visible."""
    site.post(samples.worked_case())
    page.goto(f"{site.url}/ui/pairs/{site.pair()}?target_tokens=200000")
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.name || document.activeElement.tagName")
        )
    order = [reached.index(name) for name in ("format", "text-args", "target_tokens", "stage", "outcome", "start")]
    assert order == sorted(order)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
