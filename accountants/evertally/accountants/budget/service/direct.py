"""Routes that are asked often: their body is read straight into its schema, past the framework's solver.

A `DirectRoute` is declared and published like every other one. Its endpoint may take a JSON `body`, the
`caller`, the `state` and an `idempotency_key`, and returns a response; the framework's general way to find
these costs several times what deciding a charge does.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from evertally.accountants.budget.service.access import PRINCIPAL, header
from evertally.accountants.budget.service.problems import Refusal, problem_of_body

__all__ = ["DirectRoute", "direct_apps"]

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class DirectRoute(APIRoute):
    """A route of one exact path, for endpoints as the module says."""

    def get_route_handler(self) -> Handler:
        """What answers a request: the endpoint with its arguments."""
        endpoint = self.endpoint
        wanted = inspect.signature(endpoint).parameters
        body = TypeAdapter[Any](typing.get_type_hints(endpoint)["body"])
        keyed = "idempotency_key" in wanted

        async def handle(request: Request) -> Response:
            try:
                given = body.validate_json(await request.body())
            except ValidationError as error:
                problem = problem_of_body(error.errors(include_url=False, include_context=False)[0])
                raise Refusal(problem) from None
            more = {"idempotency_key": header(request.scope, b"idempotency-key")} if keyed else {}
            answer: Response = await endpoint(
                body=given, caller=request.scope[PRINCIPAL], state=request.app.state.service, **more
            )
            return answer

        return handle


def direct_apps(app: FastAPI, routes: Iterable[BaseRoute]) -> Mapping[tuple[str, str], ASGIApp]:
    """(method, path) -> an application that answers without a search through the routes."""
    return {
        (method, route.path): _application(app, route)
        for route in routes
        if isinstance(route, DirectRoute)
        for method in route.methods or ()
    }


def _application(app: FastAPI, route: DirectRoute) -> ASGIApp:
    handle = route.get_route_handler()

    async def answer(scope: AsgiScope, receive: Receive, send: Send) -> None:
        scope["app"], scope["route"] = app, route
        response = await handle(Request(scope, receive))
        await response(scope, receive, send)

    return answer
