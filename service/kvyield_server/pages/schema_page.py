"""The API's documentation for people: the framework's Swagger UI page, with all assets from here."""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from typing import Any

from litestar import MediaType, Request, Response
from litestar.openapi.plugins import SwaggerRenderPlugin

from kvyield_server.pages.rendering import SECURITY_HEADERS, static_address
from kvyield_server.pages.session import look

_INLINE_SCRIPT = re.compile(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL)
_SWAGGER = "vendor/swagger-ui-5.35.0"
_HEAD = '<link rel="icon" href="{icon}" type="image/svg+xml"><script src="{theme}"></script>'.format(
    icon=static_address("icon.svg"), theme=static_address("schema.js")
)
_PLUGIN = SwaggerRenderPlugin(
    js_url=static_address(f"{_SWAGGER}.js"),
    standalone_preset_js_url=static_address(f"{_SWAGGER}-preset.js"),
    css_url=static_address(f"{_SWAGGER}.css"),
    favicon=_HEAD,
    style="",
)


@look("/schema", guards=())
async def show_schema(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Show the OpenAPI document; of scripts in the page, the framework's own alone may run, by its digest."""
    html = _PLUGIN.render(request, request.app.state.openapi())
    digests = [base64.b64encode(sha256(script).digest()).decode() for script in _INLINE_SCRIPT.findall(html)]
    scripts = " ".join(["script-src 'self'", *(f"'sha256-{digest}'" for digest in digests)])
    policy = SECURITY_HEADERS["Content-Security-Policy"]
    policy = policy.replace("script-src 'self'", scripts).replace("img-src 'self'", "img-src 'self' data:")
    headers = {**SECURITY_HEADERS, "Content-Security-Policy": policy, "Cache-Control": "no-cache"}
    return Response(html, media_type=MediaType.HTML, headers=headers)
