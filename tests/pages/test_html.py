"""Pages are valid HTML, parsed strictly: ids are unique, references lead somewhere, titles tell pages apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import Element

import html5lib
import pytest
from litestar.testing import TestClient

from _storages import fresh_storage
from kvyield_server.app import create_app
from kvyield_server.pages.rendering import NO_BREAK_SPACE, join_units
from kvyield_server.settings import Settings
from pages import samples
from pages.test_fleet import Client, kept, post, shown

REFERENCES = ("for", "aria-labelledby", "aria-describedby", "aria-controls")


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[Client, dict[str, str]]]:
    """A service with something on every page, hostile names too, and the address of each page."""
    with TestClient(create_app(Settings(), fresh_storage())) as client:
        starts = post(client, *samples.worked_case(), *samples.failures())
        post(client, *samples.vllm_starts(), *samples.upgrade())
        hostile = {"model": {"name": samples.HOSTILE, "facts": {}}, "host": samples.HOSTILE}
        (odd,) = post(client, samples.start(0.9, 8, 165_000, 7.0, **hostile, log_excerpt=samples.HOSTILE))
        corrected = {"flags": {"page_size": 16}, "reason": "<b>from</b> the log"}
        client.post(f"/observations/{starts[0]['id']}/corrections", json=corrected).raise_for_status()
        pair = starts[0]["pair_id"]
        kept(client, pair, 200_000)
        kept(client, odd["pair_id"], 100_000)
        shown(client)
        first, third = starts[0]["id"], starts[2]["id"]
        yield (
            client,
            {
                "pairs": "/ui",
                "pairs, none": "/ui?search=none+of+that+name",
                "fleet": "/ui/fleet",
                "fleet, none": "/ui/fleet?show=at_risk&search=none",
                "drift": "/ui/drift",
                "pair": f"/ui/pairs/{pair}",
                "asked": f"/ui/pairs/{pair}?target_tokens=200000",
                "infeasible": f"/ui/pairs/{pair}?target_tokens=2000000",
                "faulty": f"/ui/pairs/{pair}?target_tokens=many",
                "hostile pair": f"/ui/pairs/{odd['pair_id']}?target_tokens=100000",
                "hostile start": f"/ui/observations/{odd['id']}",
                "start": f"/ui/observations/{third}",
                "corrected": f"/ui/observations/{first}",
                "failure": f"/ui/observations/{starts[5]['id']}",
                "compare": f"/ui/pairs/{pair}/compare?start={first}&start={third}",
                "advice": "/ui/advice",
                "problem": "/ui/fleet?sort=nonsense",
                "sign-in": "/ui/sign-in",
            },
        )


PAGES = (
    "pairs",
    "pairs, none",
    "fleet",
    "fleet, none",
    "drift",
    "pair",
    "asked",
    "infeasible",
    "faulty",
    "hostile pair",
    "hostile start",
    "start",
    "corrected",
    "failure",
    "compare",
    "advice",
    "problem",
    "sign-in",
)


def parsed(text: str) -> Element:
    """Return a page's document; anything that HTML's own parser would have to repair fails."""
    parser: Any = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    document: Element = parser.parse(text)
    return document


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_valid_html(site: tuple[Client, dict[str, str]], name: str) -> None:
    """Nothing has to be repaired, no id is there twice, and what refers to an id finds it."""
    client, at = site
    document = parsed(client.get(at[name]).text)
    ids = Counter(node.attrib["id"] for node in document.iter() if "id" in node.attrib)
    assert [each for each, count in ids.items() if count > 1] == []
    wanted = {
        (key, text) for node in document.iter() for key in REFERENCES for text in node.attrib.get(key, "").split()
    }
    assert {each for each in wanted if each[1] not in ids} == set()
    assert document.find("head/title").text.endswith("· kvyield")  # type: ignore[union-attr]
    assert len(document.findall(".//h1")) == 1


def test_every_page_has_a_title_of_its_own(site: tuple[Client, dict[str, str]]) -> None:
    """Tabs, bookmarks and the back button tell two starts, two pairs and two comparisons apart."""
    client, at = site
    different = [name for name in PAGES if name not in ("pairs, none", "fleet, none", "asked", "infeasible", "faulty")]
    titles = [parsed(client.get(at[name]).text).findtext("head/title") for name in different]
    assert len(set(titles)) == len(titles)
    swapped = at["compare"].replace(at["start"].rpartition("/")[2], at["failure"].rpartition("/")[2])
    assert parsed(client.get(swapped).text).findtext("head/title") not in titles


def test_the_history_of_a_record_is_on_its_page(site: tuple[Client, dict[str, str]]) -> None:
    """Who corrected what, when and why, with the old and the new value; what a second account filled in, too."""
    client, at = site
    text = " ".join(parsed(client.get(at["corrected"]).text).itertext())
    for part in ("History of this record", "Corrected", "<b>from</b> the log", "flags.page_size", "16"):
        assert part in text
    body = samples.worked_case()[1]
    more = {**body["measurements"], "free_before_load_gib": 94.5}
    merged = post(client, {**body, "measurements": more})[0]
    assert merged["history"]
    text = " ".join(parsed(client.get(f"/ui/observations/{merged['id']}").text).itertext())
    for part in ("Merged with another account", "measurements.free_before_load_gib", "94.5"):
        assert part in text


def test_a_number_is_not_torn_from_its_unit() -> None:
    """A no-break space joins a number and its unit; tags, commands, logs and fields keep their spaces."""
    html = '<p title="84 %">84 % of 3.2 GiB in 2 min 33 s, &lt; 0.1 %, 5 starts</p><pre>10.3 GiB</pre>'
    joined = '<p title="84 %">84~% of 3.2~GiB in 2~min 33~s, &lt;~0.1~%, 5 starts</p><pre>10.3 GiB</pre>'
    assert join_units(html) == joined.replace("~", NO_BREAK_SPACE)
