"""A browser for a test module, and a service, a watched page and a signed-out page for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from playwright.sync_api import Browser, BrowserContext, Page

from pages.browser import Watch, chromium, require_chromium
from pages.site import Site, serving


@pytest.fixture(autouse=True, scope="session")
def silent_logs() -> None:
    """Keep the request log out of the test report, just as the tests of the API do: this outlives the folder."""
    structlog.configure(processors=[structlog.dev.ConsoleRenderer()], logger_factory=structlog.ReturnLoggerFactory())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for a module: its event loop must not be open while other modules run theirs."""
    require_chromium()
    with chromium() as running:
        yield running


@pytest.fixture
def site() -> Iterator[Site]:
    """A service with an empty ledger and no tokens."""
    with serving() as running:
        yield running


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A fresh profile, in a zone and with a clipboard that tests can know."""
    profile = browser.new_context(
        viewport={"width": 1440, "height": 900},
        timezone_id="Asia/Tokyo",
        locale="en-GB",
        permissions=["clipboard-read", "clipboard-write"],
    )
    profile.set_default_timeout(60_000)
    yield profile
    profile.close()


@pytest.fixture
def watch(context: BrowserContext, site: Site) -> Iterator[Watch]:
    """What the page did that it must not do; anything at all fails the test."""
    watching = Watch(context, site.url)
    yield watching
    assert watching.faults == []


@pytest.fixture
def page(context: BrowserContext, watch: Watch) -> Page:
    """A watched page."""
    return context.new_page()
