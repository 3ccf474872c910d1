"""A real headless Chromium, watched: what it may not do fails the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PICTURES = Path(__file__).parents[2] / ".screenshots"


def require_chromium() -> None:
    """Skip the test, loudly, when there is no Chromium; fail it on CI, where there must be one."""
    if CHROMIUM.exists():
        return
    message = f"NO BROWSER: {CHROMIUM} is missing, the pages were NOT tested; apt-get install chromium"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium until the block ends."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class Watch:
    """Notes console errors, script errors, broken policies and requests to other hosts."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.faults: list[str] = []
        self.expected: tuple[str, ...] = ()
        self._host = urlsplit(url).netloc
        context.on("console", lambda message: self._note(message.type, message.text))
        context.on("weberror", lambda error: self.faults.append(f"script: {error.error}"))
        context.on("request", lambda request: self._check(request.url))
        context.add_init_script(
            "addEventListener('securitypolicyviolation',"
            " e => console.error('policy: ' + e.violatedDirective + ' ' + e.blockedURI))"
        )

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(part in text for part in self.expected):
            self.faults.append(f"{kind}: {text}")

    def _check(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != self._host:
            self.faults.append(f"request to {url}")


def picture(page: Page, name: str) -> None:
    """Keep a picture of a whole page in an ignored folder, for people to look at."""
    PICTURES.mkdir(exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)
