"""The published description: security schemes and problem details on every operation."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from evertally.accountants.budget.scopes import STATEMENT
from evertally.accountants.budget.service.answers import ProblemOut
from evertally.accountants.budget.service.problems import CODES, MEDIA_TYPE

__all__ = ["publish"]

_DESCRIPTION: Final = (
    "Admits or refuses streams, training runs and releases under the caps of privacy scopes. "
    f"{STATEMENT} Every refusal is a problem (RFC 9457) with a stable `code`."
)
_ALWAYS: Final = (400, 401, 404, 405, 408, 413, 422, 429, 503)
_ON_API: Final = (403, 409, 415)


def publish(app: FastAPI, version: str) -> None:
    """Make `app.openapi()` return the full description, built once."""

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(app, version)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]  # the framework's documented extension point


def _described(app: FastAPI, version: str) -> dict[str, Any]:
    schema = get_openapi(
        title="evertally budget service", version=version, description=_DESCRIPTION, routes=app.routes
    )
    components = schema.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = ProblemOut.model_json_schema()
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "From `evertally token create`."},
        "certificate": {"type": "mutualTLS", "description": "A client certificate whose name is mapped."},
    }
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            _describe(operation, api=path.startswith("/v1"))
    return schema


def _describe(operation: dict[str, Any], *, api: bool) -> None:
    statuses = (*_ALWAYS, *_ON_API) if api else _ALWAYS
    if api:
        operation["security"] = [{"bearer": []}, {"certificate": []}]
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for status in sorted(statuses):
        codes = [code for code, (of_code, _) in CODES.items() if of_code == status]
        operation["responses"][str(status)] = {"description": " or ".join(codes), "content": content}
