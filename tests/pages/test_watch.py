"""The watch over the browser sees what it is there to see, and a missing browser is never silent."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from pages import browser as browsers
from pages.browser import Watch
from pages.site import Site


@pytest.mark.parametrize(
    ("misdeed", "seen"),
    [
        ("document.body.append(Object.assign(document.createElement('script'), {text: 'x()'}))", "policy: script-src"),
        ("document.body.innerHTML = '<p style=\"color: red\">'", "policy: style-src"),
        ("fetch('http://127.0.0.1:9/elsewhere').catch(() => 0)", "connect-src"),
        ("setTimeout(() => { throw new Error('broken') })", "script: "),
        ("console.error('unwell')", "error: unwell"),
        ("document.body.innerHTML = '<img src=\"http://other.example/x.png\">'", "img-src"),
    ],
)
def test_misdeeds_are_seen(browser: Browser, site: Site, misdeed: str, seen: str) -> None:
    """Inline script or style, other hosts, script errors and console errors each leave a fault."""
    profile = browser.new_context()
    watch = Watch(profile, site.url)
    page = profile.new_page()
    page.goto(f"{site.url}/ui")
    assert watch.faults == []
    page.evaluate(f"() => {{ {misdeed}; }}")
    page.wait_for_timeout(200)
    assert any(seen in fault for fault in watch.faults), watch.faults
    profile.close()


def test_a_missing_browser_is_never_silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Chromium the tests are skipped with a loud word at a desk, and fail on CI."""
    monkeypatch.setattr(browsers, "CHROMIUM", tmp_path / "chromium")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="NO BROWSER"):
        browsers.require_chromium()
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="NO BROWSER"):
        browsers.require_chromium()
