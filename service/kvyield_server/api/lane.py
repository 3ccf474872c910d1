"""A short way for the few routes that hosts and tools call all the time.

It does what the framework does for them (who calls, the body as a struct, errors as problems), and nothing that these
handlers do not use: no parameters from the path, no dependencies, no hooks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from litestar import Litestar, Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.types import Receive, Scope, Send

from kvyield_server.api.problems import answer_error
from kvyield_server.api.request import StrictRequest

Admit = Callable[[Request[Any, Any, Any]], Awaitable[None]]


class Lane:
    """Takes requests whose method and path are exactly a handler's; the handlers answer with an EncodedResponse."""

    def __init__(self, app: Litestar, handlers: Sequence[HTTPRouteHandler], admit: Admit) -> None:
        self._app = app
        self._admit = admit
        self._handlers: dict[tuple[str, str], HTTPRouteHandler] = {}
        for handler in handlers:
            for path in handler.paths:
                for method in handler.http_methods:
                    self._handlers[method, path] = app.asgi_router.handle_routing(path=path, method=method)[1]  # type: ignore[assignment]  # these are HTTP handlers

    def handler_of(self, scope: Scope) -> HTTPRouteHandler | None:
        """Return the handler that takes a request here, if one does."""
        return self._handlers.get((str(scope.get("method")), scope["path"]))

    async def run(self, handler: HTTPRouteHandler, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request."""
        scope.update(litestar_app=self._app, app=self._app, route_handler=handler, path_params={})
        scope["path_template"] = scope["path"]
        request = StrictRequest(scope, receive, send)
        try:
            response = await self._answer(handler, request)
        except Exception as error:
            response = answer_error(request, error)
        await response.to_asgi_response(None, request)(scope, receive, send)

    async def _answer(self, handler: HTTPRouteHandler, request: StrictRequest) -> Response[Any]:
        await self._admit(request)
        has_body = handler.parsed_data_field is not None
        given = {"data": await request.json()} if has_body else {}
        response: Response[Any] = await handler.fn(request=request, **given)
        return response
