"""Signing in and out."""

from __future__ import annotations

from typing import Any

from litestar import MediaType, Request, Response, post

from kvyield_server.api.services import services_of
from kvyield_server.errors import ForbiddenError, UnauthenticatedError
from kvyield_server.pages.rendering import page
from kvyield_server.pages.session import COOKIE, look, safe_next, session_cookie, signed_in


@look("/ui/sign-in", "next", guards=())
async def sign_in_page(request: Request[Any, Any, Any]) -> Response[str]:
    """Show the form that takes a token."""
    return _form(request, safe_next(request.query_params.get("next")), "", 200)


@post("/ui/sign-in")
async def sign_in(request: Request[Any, Any, Any]) -> Response[Any]:
    """Keep a valid token in a cookie and go on; show the form again for any other."""
    form = await request.form()
    text, wanted = str(form.get("token", "")).strip(), safe_next(str(form.get("next", "")))
    try:
        token = await signed_in(services_of(request), text)
    except (UnauthenticatedError, ForbiddenError) as error:
        return _form(request, wanted, error.detail, 403 if isinstance(error, ForbiddenError) else 401)
    cookie = session_cookie(token, text, is_https=request.url.scheme == "https")
    return Response("", status_code=303, headers={"Location": wanted}, cookies=[cookie], media_type=MediaType.HTML)


@post("/ui/sign-out")
async def sign_out() -> Response[Any]:
    """Forget the token."""
    response = Response("", status_code=303, headers={"Location": "/ui/sign-in"}, media_type=MediaType.HTML)
    response.delete_cookie(COOKIE, path="/ui")
    return response


def _form(request: Request[Any, Any, Any], wanted: str, fault: str, status: int) -> Response[str]:
    values = {"next": wanted, "fault": fault, "signed_out": True}
    return page(request, "sign_in.html", values, status_code=status)
