"""A pair's page in a real browser: what runs, then advice, plots that answer, history that filters and compares."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import Page, expect

from pages import samples
from pages.browser import Watch
from pages.site import Site

ASKED = "?target_tokens=200000"


def visit(page: Page, site: Site, query: str = ASKED) -> str:
    """Record the worked case with its failures, open its pair with a question, and return the pair's id."""
    site.post([*samples.worked_case(), *samples.failures()])
    pair = site.pair()
    page.goto(f"{site.url}/ui/pairs/{pair}{query}")
    return pair


def drawn(page: Page) -> dict[str, Any]:
    """Return what the advice gave the plots."""
    found: dict[str, Any] = json.loads(page.locator("#advice-data").text_content() or "{}")
    return found


def test_a_pair_opens_with_what_runs_now(page: Page, site: Site) -> None:
    """Nobody who asked nothing is told to restart; a changed field alone asks nothing, Advise and its address do."""
    visit(page, site, "")
    answer = page.locator("#answer")
    for part in ("What runs now", "--mem-fraction-static 0.94", "218,484 tokens", "4.2 GiB", "60,010 tokens"):
        expect(answer).to_contain_text(part)
    expect(answer.get_by_role("button")).to_have_count(0)
    expect(page.locator("#readout")).to_contain_text("mem_fraction_static 0.94")
    expect(page.locator(".legend")).not_to_contain_text("safe window", use_inner_text=True)
    field = page.get_by_label("Target: longest prompt, tokens")
    expect(field).to_have_value("200000")
    field.fill("120000")
    field.blur()
    page.wait_for_timeout(150)
    expect(answer).to_contain_text("What runs now")
    page.get_by_role("button", name="Advise").click()
    expect(page.locator("#text-args")).to_contain_text(re.compile(r"--mem-fraction-static 0\.9[0-3]"))
    expect(page.locator(".legend")).to_contain_text("safe window", use_inner_text=True)
    page.reload()
    expect(page.locator("#text-args")).to_contain_text(re.compile(r"--mem-fraction-static 0\.9[0-3]"))
    page.get_by_label("Preferred fraction").select_option("headroom")
    page.get_by_role("button", name="Advise").click()
    expect(page.locator("#text-args")).to_contain_text("--mem-fraction-static 0.86")


def test_no_restart_is_asked_for_where_none_is_needed(page: Page, site: Site) -> None:
    """What runs and holds the target is kept: its own figures and flags, and no restart."""
    proof = {**samples.worked_case()[2]["verifications"][0], "prompt_tokens": 100_000}
    site.post([*samples.worked_case()[:2], {**samples.worked_case()[2], "verifications": [proof]}])
    page.goto(f"{site.url}/ui/pairs/{site.pair()}?target_tokens=100000")
    expect(page.locator("#answer h2")).to_have_text("Keep what runs")
    expect(page.locator("#answer .headline")).to_contain_text("Keep what runs (mem_fraction_static 0.94)")
    expect(page.locator("#answer dl").first).to_contain_text("218,484 tokens")
    expect(page.locator("#readout")).to_contain_text("mem_fraction_static 0.94")
    expect(page.locator("#text-args")).to_contain_text("--mem-fraction-static 0.94")


def read_at(page: Page, fraction: str) -> list[str]:
    """Return the median and interval of free memory that the read-out and the table say at a fraction."""
    page.locator("#stage").focus()
    page.keyboard.press("Home")
    for _ in range(120):
        if (page.locator("#readout").text_content() or "").startswith(f"mem_fraction_static {fraction}predicted pool"):
            break
        page.keyboard.press("ArrowRight")
    told = re.search(r"at ready ([\d.,]+) GiB \(90 %: ([\d.,]+ to [\d.,]+)\)", page.locator("#readout").inner_text())
    assert told is not None
    page.get_by_text("The same numbers as a table").click()
    row = page.locator("#numbers tr", has=page.locator(f"th:text-is('{fraction}')"))
    cells = row.locator("td").all_inner_texts()
    assert [f"{told[1]}\u00a0GiB", told[2]] == cells[2:]
    return cells


def test_one_fraction_has_one_figure_everywhere(page: Page, site: Site) -> None:
    """Tile, read-out and table agree, also where SGLang chose the running requests by itself for the pool it had."""
    facts = samples.vllm_starts()[0]["model"]
    flags = {"mem_fraction_static": 0.8, "context_length": 40960, "max_running_requests": 4096, "tp_size": 1}
    one = {"pool_tokens": 698_790, "free_at_ready_gib": 26.27, "free_before_load_gib": 138.7}
    host = {"hardware": {"gpu": "NVIDIA H200", "gpu_count": 1, "memory_gib": 139.8}, "model": facts}
    site.post([samples.start(0.8, 4096, None, None, flags=flags, measurements=one, **host)])
    page.goto(f"{site.url}/ui/pairs/{site.pair()}?target_tokens=40000&prefer=headroom")
    advised = drawn(page)["advised"]
    assert advised < 0.4
    cells = read_at(page, str(advised))
    tile = page.locator("#answer dl").last.locator("div", has_text="Free memory at ready")
    expect(tile.locator(".value")).to_have_text(cells[2])
    expect(tile.locator(".muted")).to_have_text(f"90 %: {cells[3]}")
    pool = page.locator("#answer dl").last.locator("div", has_text="Pool")
    expect(pool.locator(".value")).to_have_text(f"{cells[0]} tokens")


def test_an_upper_bound_is_drawn_and_explained_as_one(page: Page, site: Site) -> None:
    """Free memory that was read at pool end has its own shape in the legend, and a mark in the history."""
    first, *others = samples.worked_case()
    bound = {**first["measurements"], "free_at_pool_end_gib": first["measurements"]["free_at_ready_gib"]}
    site.post([{**first, "measurements": bound}, *others])
    page.goto(f"{site.url}/ui/pairs/{site.pair()}")
    expect(page.locator(".plots .legend use[href='#mark-bound']")).to_have_count(1)
    expect(page.locator(".legend")).to_contain_text("free at pool end, before graphs: an upper bound")
    expect(page.locator("#history")).to_contain_text("≤ 10.37")
    expect(page.locator("#history .bound-note")).to_contain_text("an upper bound")


def test_advice_is_the_first_thing_to_see(page: Page, site: Site) -> None:
    """Without scrolling, a newcomer who asked reads which flags to restart with and how sure that is."""
    visit(page, site)
    flags = page.locator("#text-args")
    expect(flags).to_contain_text("--mem-fraction-static 0.926 --context-length 200007")
    box = flags.bounding_box()
    assert box is not None
    assert box["y"] < 300
    expect(page.locator("#answer")).to_contain_text("at risk")
    expect(page.locator("#answer")).to_contain_text("200,2")


def test_both_plots_are_drawn_on_one_axis(page: Page, site: Site) -> None:
    """Pool and free memory share their axis, and every outcome has its own shape in the legend."""
    visit(page, site)
    expect(page.locator("html")).to_have_attribute("data-plots", "2")
    pool, free = page.locator("#plot-pool canvas").bounding_box(), page.locator("#plot-free canvas").bounding_box()
    assert pool is not None
    assert free is not None
    assert (pool["x"], pool["width"]) == (free["x"], free["width"])
    shapes = page.locator(".plots .legend use").evaluate_all("nodes => nodes.map(node => node.getAttribute('href'))")
    assert shapes == ["#mark-ready", "#mark-refused", "#mark-oom_startup", "#mark-oom_runtime", "#mark-failed"]


def test_hovering_tells_exact_values(page: Page, site: Site) -> None:
    """Under the pointer, the fraction, the median and the interval are said; near a start, the start too."""
    visit(page, site)
    over = page.locator("#plot-pool .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 30)
    expect(page.locator("#readout")).to_contain_text(re.compile(r"pool [\d,]+ tokens \(90 %: [\d,]+ to [\d,]+\)"))
    at = page.evaluate(
        """() => { const over = document.querySelector('#plot-pool .u-over').getBoundingClientRect();
        const line = JSON.parse(document.getElementById('advice-data').textContent).line.fraction;
        return over.x + (0.94 - line[0]) / (line.at(-1) - line[0]) * over.width; }"""
    )
    for y in range(int(box["y"]), int(box["y"] + box["height"]), 6):
        page.mouse.move(at, y)
        if "218,484 tokens" in (page.locator("#readout").text_content() or ""):
            break
    expect(page.locator("#readout")).to_contain_text("0.94: 218,484 tokens, 4.2 GiB free at ready")
    page.mouse.click(at, y)
    page.wait_for_url("**/ui/observations/*")


def test_the_curves_can_be_read_with_the_keyboard(page: Page, site: Site) -> None:
    """Arrow keys move along the curves, and a screen reader is told the values."""
    visit(page, site)
    stage = page.locator("#stage")
    stage.focus()
    page.keyboard.press("ArrowRight")
    first = stage.get_attribute("aria-valuetext") or ""
    page.keyboard.press("PageUp")
    assert "tokens" in first
    assert stage.get_attribute("aria-valuetext") != first
    page.keyboard.press("End")
    assert stage.get_attribute("aria-valuenow") == stage.get_attribute("aria-valuemax")


def test_a_changed_target_moves_the_window(page: Page, site: Site) -> None:
    """A smaller target and less confidence give a window and other flags, without loading the page again."""
    pair = visit(page, site)
    before = drawn(page)
    page.evaluate("() => { globalThis.stayed = true; }")
    page.get_by_label("Target: longest prompt, tokens").fill("150,000")
    page.get_by_label("Confidence, pool and memory each").focus()
    expect(page.locator("#text-args")).to_contain_text("--context-length 200000 ")
    after = drawn(page)
    assert before["window"] is None
    assert after["window"][0] <= after["advised"] <= after["window"][1]
    assert page.evaluate("globalThis.stayed")
    assert page.url.startswith(f"{site.url}/ui/pairs/{pair}?")
    assert "target_tokens=150" in page.url
    page.get_by_label("Confidence, pool and memory each").select_option("0.8")
    page.wait_for_function(
        "was => JSON.parse(document.getElementById('advice-data').textContent).window[1] > was", arg=after["window"][1]
    )
    page.reload()
    expect(page.locator("#text-args")).to_contain_text("--mem-fraction-static 0.9")


def test_fewer_requests_move_free_memory(page: Page, site: Site) -> None:
    """Running requests are held in the advice and move the line of free memory."""
    visit(page, site)
    before = drawn(page)["line"]["free"]["median"][0]
    page.get_by_label("Running requests, at most").fill("64")
    page.keyboard.press("Enter")
    expect(page.locator("#text-args")).to_contain_text("--max-running-requests 64")
    assert drawn(page)["line"]["free"]["median"][0] < before


def test_a_faulty_target_is_said_and_the_plots_stay(page: Page, site: Site, watch: Watch) -> None:
    """A target that is not a number is reported with a link to its field, and correcting it brings the advice back."""
    watch.expected = ("422",)
    visit(page, site)
    field = page.get_by_label("Target: longest prompt, tokens")
    field.fill("a lot")
    field.blur()
    fault = page.locator("#answer .faults a")
    expect(fault).to_be_visible()
    expect(page.locator("#plot-pool canvas")).to_be_visible()
    fault.click()
    expect(field).to_be_focused()
    field.fill("120000")
    field.blur()
    expect(page.locator("#text-args")).to_be_visible()


def test_every_form_can_be_copied(page: Page, site: Site) -> None:
    """Arguments, systemd, docker, compose and Kubernetes reach the clipboard as they are shown."""
    visit(page, site)
    for name, key, part in (
        ("Arguments", "args", "--mem-fraction-static 0.926"),
        ("systemd", "systemd", "[Service]"),
        ("docker", "docker", "docker run"),
        ("compose", "compose", "services:"),
        ("Kubernetes", "kubernetes", "apiVersion: apps/v1"),
    ):
        page.locator(".tabs label", has_text=re.compile(f"^{name}$")).click()
        page.get_by_role("button", name=f"Copy as {name}").click()
        expect(page.get_by_role("button", name=f"Copy as {name}")).to_have_text("Copied")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert part in copied
        assert copied == (page.locator(f"#text-{key}").text_content() or "").strip()
    page.get_by_label("Target: longest prompt, tokens").fill("150000")
    page.keyboard.press("Enter")
    expect(page.locator("#text-kubernetes")).to_be_visible()


def test_the_plots_can_be_saved_as_one_picture(page: Page, site: Site) -> None:
    """The button gives a PNG that holds both plots."""
    visit(page, site)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as PNG").click()
    assert download.value.suggested_filename == "kvyield.png"
    assert download.value.path().read_bytes().startswith(b"\x89PNG")


def test_the_numbers_are_there_as_a_table(page: Page, site: Site) -> None:
    """What the plots draw can be read as a table, which follows the question."""
    visit(page, site)
    page.get_by_text("The same numbers as a table").click()
    rows = page.locator("#numbers tbody tr")
    fractions = rows.locator("th").all_text_contents()
    assert {"0.926", "0.94"} <= set(fractions)
    before = rows.first.inner_text()
    page.get_by_label("Running requests, at most").fill("64")
    page.keyboard.press("Enter")
    page.wait_for_function("was => document.querySelector('#numbers tbody tr').innerText !== was", arg=before)


def test_the_history_filters_by_outcome_and_host(page: Page, site: Site) -> None:
    """A filter shows only what passes, says so when nothing does, and can be shared by its address."""
    visit(page, site)
    rows = page.locator("#history tbody tr:not(.note)")
    assert rows.count() == 7
    page.get_by_label("Outcome").select_option("oom_runtime")
    expect(rows).to_have_count(1)
    expect(page.locator("#history")).to_contain_text("Failed on a prompt of 180,000 tokens")
    assert "outcome=oom_runtime" in page.url
    page.get_by_label("Host").fill("gpu-02")
    page.keyboard.press("Enter")
    expect(page.locator("#history")).to_contain_text("No start passes this filter")
    page.get_by_label("Outcome").select_option("")
    expect(rows).to_have_count(1)
    page.get_by_label("Target: longest prompt, tokens").fill("150000")
    page.keyboard.press("Enter")
    page.wait_for_url("**target_tokens=150000*")
    assert "host=gpu-02" in page.url
    page.reload()
    expect(rows).to_have_count(1)
    expect(page.locator("#text-args")).to_contain_text(re.compile(r"--mem-fraction-static 0\.9[0-3]"))


def test_long_histories_come_in_pages(page: Page, site: Site) -> None:
    """Older starts are a click away and no start is shown twice."""
    site.post(samples.many(60))
    page.goto(f"{site.url}/ui/pairs/{site.pair()}")
    links = page.locator("#history tbody a")
    seen: list[str] = links.evaluate_all("nodes => nodes.map(node => node.href)")
    page.get_by_role("link", name="Older starts").click()
    page.wait_for_function("was => document.querySelector('#history tbody a').href !== was", arg=seen[0])
    seen += links.evaluate_all("nodes => nodes.map(node => node.href)")
    assert (len(seen), len(set(seen))) == (50, 50)
    page.get_by_role("link", name="Newest").click()
    page.wait_for_function("was => document.querySelector('#history tbody a').href === was", arg=seen[0])


def test_two_starts_are_compared_side_by_side(page: Page, site: Site) -> None:
    """Exactly two starts can be compared; the flags that differ, the measurements and the proof are told."""
    visit(page, site)
    boxes, button = page.get_by_label("Compare the start of"), page.get_by_role("button", name="Compare two starts")
    expect(button).to_be_disabled()
    boxes.nth(0).check()
    boxes.nth(1).check()
    boxes.nth(2).check()
    expect(button).to_be_disabled()
    expect(page.locator("#compare-hint")).to_have_text("Choose only two.")
    boxes.nth(1).uncheck()
    button.click()
    page.wait_for_url("**/compare?*")
    expect(page.get_by_role("row", name="mem_fraction_static")).to_contain_text("+0.09")
    expect(page.get_by_role("row", name="Pool")).to_contain_text("+117,350 tokens")
    expect(page.get_by_role("row", name="Verification")).to_contain_text("60,010 passed")
    page.get_by_text("flags are the same").click()
    expect(page.get_by_role("row", name="tp_size")).to_be_visible()


def test_a_deployment_can_be_chosen(page: Page, site: Site) -> None:
    """Each deployment of a pair has its own advice and plots; the form keeps to the chosen one."""
    later = {"name": "sglang", "version": "0.6.1"}
    site.post(samples.worked_case())
    site.post([samples.start(0.9, 8, 166_000, 8.0, engine=later, observed_at=samples.hour(30))])
    page.goto(f"{site.url}/ui/pairs/{site.pair()}")
    choice = page.get_by_label("Deployment")
    expect(choice.locator("option")).to_have_count(2)
    older = choice.locator("option", has_text="0.5.12").get_attribute("value")
    choice.select_option(older)
    page.wait_for_url(f"**deployment={older}*")
    page.get_by_label("Target: longest prompt, tokens").fill("150000")
    page.keyboard.press("Enter")
    page.wait_for_url("**target_tokens=150000*")
    assert f"deployment={older}" in page.url


def test_times_are_in_the_readers_zone(page: Page, site: Site) -> None:
    """20:00 UTC is shown as the next morning to a reader in Tokyo, with its zone, UTC on hover."""
    visit(page, site)
    cell = page.locator("#history time", has_text="31 May 2026").last
    expect(cell).to_contain_text(re.compile("GMT\\+9|JST"))
    assert "UTC" in (cell.get_attribute("title") or "")
    expect(page.locator("#zone")).to_have_text("Times in Asia/Tokyo")


def test_ten_thousand_starts_are_thinned_and_said_so(page: Page, site: Site) -> None:
    """A pair with ten thousand starts draws at most 400 and says so."""
    site.post(samples.many(2_000))
    page.goto(f"{site.url}/ui/pairs/{site.pair()}", timeout=60_000)
    expect(page.locator(".plots")).to_contain_text(re.compile(r"Showing \d+ of 2,000 starts"))
    curve = json.loads(page.locator("#curve-data").text_content() or "{}")
    assert 100 < len(curve["starts"]) <= 400


def test_the_page_works_without_scripts(site: Site, browser: Any) -> None:
    """Without JavaScript the advice, the numbers, filters and forms still work."""
    site.post(samples.worked_case())
    profile = browser.new_context(java_script_enabled=False)
    page = profile.new_page()
    page.goto(f"{site.url}/ui/pairs/{site.pair()}")
    page.get_by_label("Target: longest prompt, tokens").fill("150000")
    page.get_by_role("button", name="Advise").click()
    expect(page.locator("#text-args")).to_contain_text(re.compile(r"--mem-fraction-static 0\.9[0-3]"))
    page.get_by_label("Outcome").select_option("refused")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#history")).to_contain_text("No start passes this filter")
    profile.close()
