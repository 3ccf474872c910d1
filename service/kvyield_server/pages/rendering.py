"""From a template and its values to a response that no script, frame or other host can get into."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import MediaType, Request, Response

from kvyield_server import __version__
from kvyield_server.api.auth import token_of
from kvyield_server.domain.facts.observation import Outcome
from kvyield_server.pages.views.starts import BOUND_NOTE
from kvyield_server.pages.views.words import flag_parts, moment, outcome_word

HERE = Path(__file__).parent
STATIC_FOLDER = HERE / "static"
STATIC_PATH = "/ui/static"
NO_BREAK_SPACE = "\u00a0"
# What is copied (commands, logs, fields) and the tags themselves keep their spaces.
_UNIT_SPACE = re.compile(
    r"<(pre|code|textarea|script|style)\b.*?</\1>|<[^>]*>"
    r"| (?<=[0-9] )(?=(?:%|GiB|min|s|h)(?![A-Za-z]))| (?<=&[gl]t; )(?=[0-9])",
    re.DOTALL,
)
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def page(
    request: Request[Any, Any, Any],
    template: str,
    values: Mapping[str, Any],
    *,
    status_code: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response[str]:
    """Return a template as HTML; all values are escaped, and only this server's own scripts may run."""
    html = render(template, {"caller": token_of(request), **values})
    sent = {**SECURITY_HEADERS, "Cache-Control": "no-store", **(headers or {})}
    return Response(html, media_type=MediaType.HTML, status_code=status_code, headers=sent)


def render(template: str, values: Mapping[str, Any]) -> str:
    """Return a template's text."""
    return join_units(_environment().get_template(template).render(version=__version__, **values))


def join_units(html: str) -> str:
    """Return HTML in which no line breaks between a number and its unit (%, GiB, h, min, s) or before a bound."""
    return _UNIT_SPACE.sub(lambda found: NO_BREAK_SPACE if found[0] == " " else found[0], html)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "moment": _moment,
        "outcome_word": _outcome_word,
        "query": query_text,
        "flag_parts": flag_parts,
    }
    environment.globals |= {"static": static_address, "here": "", "signed_out": False, "bound_note": BOUND_NOTE}
    return environment


@cache
def static_address(name: str) -> str:
    """Return the address of a static file; it changes with the file, so that browsers may cache it without end."""
    digest = sha256((STATIC_FOLDER / name).read_bytes()).hexdigest()[:12]
    return f"{STATIC_PATH}/{name}?v={digest}"


def query_text(values: Mapping[str, Any]) -> str:
    """Return values as a query, without the empty ones."""
    return urlencode({name: str(value) for name, value in values.items() if value not in (None, "")})


def address_after(request: Request[Any, Any, Any], path: str, given: Mapping[str, Any]) -> str:
    """Return the address that shows a page as it is after a part of it was swapped: what else it said stays said."""
    before = dict(parse_qsl(urlsplit(request.headers.get("hx-current-url", "")).query))
    before.pop("page_token", None)
    query = query_text({**before, **given})
    return f"{path}?{query}" if query else path


def _moment(at: datetime | None) -> str:
    return moment(at)


def _outcome_word(outcome: Outcome | str) -> str:
    return outcome_word(Outcome(outcome))
