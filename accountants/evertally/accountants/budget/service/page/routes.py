"""Routes of the page: overview, one scope, one stream, login and logout."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Query, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, RedirectResponse, Response

from evertally.accountants.budget.scopes import STATEMENT
from evertally.accountants.budget.service.api import State
from evertally.accountants.budget.service.grants import Grant, Principal, authorize
from evertally.accountants.budget.service.local import check_local
from evertally.accountants.budget.service.page.sessions import COOKIE, SESSION_S, Sessions
from evertally.accountants.budget.service.page.views import charge_views, scope_view, stream_view
from evertally.accountants.budget.service.problems import Problem, Refusal
from evertally.accountants.budget.service.settings import ServiceSettings
from evertally.accountants.budget.service.state import ServiceState
from evertally.errors import InvalidParameter

__all__ = ["page_router"]

_HERE: Final = Path(__file__).parent
_STATIC: Final = {"style.css": "text/css", "icon.svg": "image/svg+xml"}
_LOCAL: Final = Principal("local", (Grant.parse("scope:*=read"), Grant.parse("stream:*=read")))
_KEYS_ON_OVERVIEW: Final = 6
_KEYS_ON_PAGE: Final = 60
_CHARGES_ON_PAGE: Final = 25
_LAST: Final = 2**62


class _Anonymous(Exception):
    """No session: the browser is sent to the login."""


class _Page:
    """Who looks, and how a template becomes an answer."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self.sessions = Sessions()
        self.files = {name: (_HERE / "static" / name).read_bytes() for name in _STATIC}
        digest = hashlib.sha256(self.files["style.css"]).hexdigest()[:12]
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(statement=STATEMENT, style_version=digest)

    async def reader(self, request: Request, state: ServiceState) -> Principal:
        """The principal behind a request for the page. Raises _Anonymous where a login is needed."""
        if self._settings.client_ca:
            return await state.access.of_request(request.scope)
        if self._settings.page == "loopback":
            check_local(request)
            return _LOCAL
        token_id = self.sessions.token_id(request.cookies.get(COOKIE, ""))
        principal = None if token_id is None else await state.access.of_session(token_id)
        if principal is None:
            raise _Anonymous
        return principal

    @property
    def by_login(self) -> bool:
        """True where people log in with a token."""
        return self._settings.page == "login" and not self._settings.client_ca

    @property
    def secure(self) -> bool:
        """True where browsers come by HTTPS, directly or through a proxy."""
        return bool(self._settings.tls_cert) or self._settings.plain_http

    def html(self, template: str, reader: Principal | None, status: int = 200, **values: Any) -> HTMLResponse:
        """A rendered template."""
        name = reader.name if reader is not None and self.by_login else ""
        return HTMLResponse(self._templates.get_template(template).render(reader=name, **values), status)


def page_router(settings: ServiceSettings) -> APIRouter:
    """The page's routes under one configuration."""
    page, router = _Page(settings), APIRouter(include_in_schema=False)

    @router.get("/")
    async def overview(request: Request, state: State) -> Response:
        try:
            reader = await page.reader(request, state)
        except _Anonymous:
            return RedirectResponse("/login", 303)
        scopes, streams = await state.workers.run(lambda: _overview(state, reader))
        return page.html("overview.html", reader, scopes=scopes, streams=streams)

    @router.get("/scopes/{name:path}")
    async def scope(
        name: str, request: Request, state: State, before: Annotated[int, Query(ge=1, le=_LAST)] = _LAST
    ) -> Response:
        try:
            reader = await page.reader(request, state)
        except _Anonymous:
            return RedirectResponse("/login", 303)
        authorize(reader, "scope", name, "read")
        view, charges = await state.workers.run(lambda: _scope(state, name, before))
        older = charges[-1].seq if charges and charges[-1].seq > 1 else 0
        return page.html(
            "scope.html", reader, view=view, charges=charges, older=older, newest=before == _LAST
        )

    @router.get("/streams/{name:path}")
    async def stream(
        name: str, request: Request, state: State, first: Annotated[int, Query(ge=0, le=10**6)] = 0
    ) -> Response:
        try:
            reader = await page.reader(request, state)
        except _Anonymous:
            return RedirectResponse("/login", 303)
        authorize(reader, "stream", name, "read")
        view = await state.workers.run(lambda: _stream(state, reader, name, first))
        more = first + _KEYS_ON_PAGE if first + _KEYS_ON_PAGE < view.keys_count else 0
        return page.html("stream.html", reader, view=view, first=first, more=more, step=_KEYS_ON_PAGE)

    @router.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in _STATIC:
            raise Refusal(Problem("not_found", "there is no such resource, or none that you may see"))
        return Response(
            page.files[name], media_type=_STATIC[name], headers={"Cache-Control": "public, max-age=86400"}
        )

    if page.by_login:
        _add_login(router, page)
    return router


def _add_login(router: APIRouter, page: _Page) -> None:
    @router.get("/login")
    async def login_form() -> Response:
        return page.html("login.html", None, failed=False)

    @router.post("/login")
    async def login(request: Request, state: State) -> Response:
        _same_origin(request)
        token = parse_qs((await request.body()).decode("latin-1")).get("token", [""])[0].strip()
        known = await state.access.of_login(token)
        if known is None:
            return page.html("login.html", None, 401, failed=True)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            COOKIE,
            page.sessions.open(known[0]),
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=page.secure,
        )
        return answer

    @router.post("/logout")
    async def logout(request: Request) -> Response:
        _same_origin(request)
        page.sessions.close(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=page.secure)
        return answer


def _same_origin(request: Request) -> None:
    """Refuse forms that another site has sent."""
    origin = request.headers.get("origin", "")
    if origin and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise Refusal(Problem("forbidden", "the form was sent by another site", "origin"))


def _overview(state: ServiceState, reader: Principal) -> tuple[list[Any], list[Any]]:
    scopes = [
        scope_view(status)
        for status in state.ledger.scopes()
        if reader.allows("scope", status.scope.name, "read")
    ]
    streams = [
        stream_view(
            state.ledger, opened, 0, _KEYS_ON_OVERVIEW, scope_visible=reader.sees("scope", opened.scope)
        )
        for opened in state.ledger.streams()
        if reader.allows("stream", opened.name, "read")
    ]
    return scopes, streams


def _scope(state: ServiceState, name: str, before: int) -> tuple[Any, list[Any]]:
    status = state.ledger.scope_status(name)
    return scope_view(status), charge_views(state.ledger, status, before, _CHARGES_ON_PAGE)


def _stream(state: ServiceState, reader: Principal, name: str, first: int) -> Any:
    opened = state.ledger.find_stream(name)
    if opened is None:
        raise InvalidParameter("scope", name[:64], "a stream in this ledger")
    visible = reader.sees("scope", opened.scope)
    return stream_view(state.ledger, opened, first, _KEYS_ON_PAGE, scope_visible=visible)
