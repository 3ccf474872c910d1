"""A short way for the few routes that hosts and tools call all the time.

It does what the framework does for them (who calls, the body as a struct, errors as problems), and nothing that these
handlers do not use: no parameters from the path, no dependencies, no hooks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from litestar import Litestar, Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.types import Receive, Send

from kvyield_server.api.problems import answer_error
from kvyield_server.api.request import StrictRequest

Admit = Callable[[Request[Any, Any, Any]], Awaitable[None]]


class Track(NamedTuple):
    """A handler, its function, and whether that takes a body."""

    handler: HTTPRouteHandler
    function: Callable[..., Awaitable[Response[Any]]]
    has_body: bool


class Lane:
    """Takes requests whose method and path are exactly a handler's; the handlers answer with an EncodedResponse."""

    def __init__(self, app: Litestar, handlers: Sequence[HTTPRouteHandler], admit: Admit) -> None:
        self._app = app
        self._admit = admit
        self._tracks: dict[tuple[str, str], Track] = {}
        for handler in handlers:
            for path in handler.paths:
                for method in handler.http_methods:
                    routed: Any = app.asgi_router.handle_routing(path=path, method=method)[1]
                    self._tracks[method, path] = Track(routed, routed.fn, routed.parsed_data_field is not None)

    def track_of(self, scope: Any) -> Track | None:
        """Return what takes a request here, if one of the handlers does."""
        return self._tracks.get((scope["method"], scope["path"]))

    async def run(self, track: Track, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request."""
        scope.update(litestar_app=self._app, app=self._app, route_handler=track.handler, path_params={})
        scope["path_template"] = scope["path"]
        request = StrictRequest(scope, receive, send)
        try:
            await self._admit(request)
            given = {"data": await request.json()} if track.has_body else {}
            response = await track.function(request=request, **given)
        except Exception as error:
            response = answer_error(request, error)
        await response.to_asgi_response(None, request)(scope, receive, send)
