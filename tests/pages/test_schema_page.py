"""The API's documentation in a real browser: every operation, requests that work, no error, nothing from elsewhere."""

from __future__ import annotations

import base64
import re
from hashlib import sha256

import httpx
import pytest
from playwright.sync_api import Page, expect

from kvyield_server.api.openapi import document
from kvyield_server.api.router import API
from kvyield_server.storage.records import Role
from pages import samples
from pages.browser import picture
from pages.site import Site

OPERATIONS = [operation for item in document(API)["paths"].values() for operation in item.values()]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_lists_every_operation(page: Page, site: Site, theme: str) -> None:
    """The page opens in the theme of the reader's system, with a row per operation and its summary."""
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page.goto(f"{site.url}/schema")
    expect(page.locator(".opblock")).to_have_count(len(OPERATIONS))
    for operation in OPERATIONS:
        expect(page.locator(f"[id$='-{operation['operationId']}'].opblock")).to_be_visible()
    text = page.evaluate("getComputedStyle(document.querySelector('.info .title')).color")
    brightness = sum(map(int, re.findall(r"\d+", text)[:3])) / 3
    assert (brightness > 128) == (theme == "dark"), text
    picture(page, f"schema-{theme}")


def test_an_operation_can_be_read_and_tried(page: Page, site: Site) -> None:
    """A field's sentence and the example are there, and the example can be sent from the page itself."""
    site.post(samples.worked_case())
    page.goto(f"{site.url}/schema")
    row = page.locator("[id$='-list_pairs'].opblock")
    row.locator(".opblock-summary-control").click()
    expect(row).to_contain_text("Part of a GPU or model name, in any case.")
    row.get_by_role("button", name="Try it out").click()
    row.get_by_role("button", name="Execute").click()
    expect(row.locator(".live-responses-table tbody .response-col_status").first).to_contain_text("200")
    expect(row.locator(".live-responses-table")).to_contain_text(samples.MODEL)


def test_a_token_can_be_given(page: Page, site: Site) -> None:
    """The page needs no token, and sends the one that the reader gives with each request."""
    site.post(samples.worked_case())
    text = site.token(Role.READ)
    page.goto(f"{site.url}/schema")
    page.get_by_role("button", name="Authorize").first.click()
    page.get_by_label("auth-bearer-value").fill(text)
    page.locator(".auth-btn-wrapper").get_by_role("button", name="Apply credentials").click()
    page.locator(".auth-btn-wrapper").get_by_role("button", name="Close").click()
    row = page.locator("[id$='-get_calibration'].opblock")
    row.locator(".opblock-summary-control").click()
    row.get_by_role("button", name="Try it out").click()
    row.get_by_role("button", name="Execute").click()
    expect(row.locator(".live-responses-table tbody .response-col_status").first).to_contain_text("200")


def test_only_its_own_script_may_run(site: Site) -> None:
    """The policy allows scripts of this service and the one inline script by its digest, nothing of another host."""
    answer = httpx.get(f"{site.url}/schema")
    policy = answer.headers["content-security-policy"]
    (script,) = re.findall(r"<script type='text/javascript'>(.*?)</script>", answer.text, re.DOTALL)
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}';" in policy
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "style-src 'self';" in policy
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", answer.text)
    assert httpx.head(f"{site.url}/schema").headers["content-security-policy"] == policy


def test_its_assets_are_served_and_licensed(site: Site) -> None:
    """Every script and style of the page is served by this service, and their licence lies beside them."""
    text = httpx.get(f"{site.url}/schema").text
    addresses = re.findall(r"(?:src|href)=\"(/[^\"]+)\"", text)
    assert len(addresses) == 5
    for address in addresses:
        assert httpx.get(f"{site.url}{address}").status_code == 200
    licence = httpx.get(f"{site.url}/ui/static/vendor/swagger-ui.LICENSE").text
    assert "SmartBear" in licence
    assert "Apache License" in licence
