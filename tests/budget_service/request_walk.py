"""Endless requests that are nearly right, over every route: a seeded walk, cheap enough for a million.

A request is a template whose places hold good values or odd ones, sometimes edited further in its bytes, and
sometimes sent as another principal or as another type of content. Names that the service gave out come back.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from tests.fuzz.mutations import Mutator

__all__ = ["TEMPLATES", "Request", "RequestWalk"]

_ODD: Final = (
    "0", "-1", "1", "NaN", "1e999", "1e-999",
    '"0.5"', '"1e400"', '"1e-400"', '"NaN"', '"Infinity"', "null", "true",
    "[]", "{}", '"\\ud800"', '"\\u0000"', "9" * 40, '"' + "9" * 90 + '"', '"event"', '"health"', '"..//x"',
    "0.5",     "9223372036854775807",
    "9223372036854775808", '"0x10"', '"²"', '"a\\nb"', '[["a"]]', '{"kind":"gaussian"}', '""',
)  # fmt: skip
_ODD_TEXT: Final = (
    "..",
    "%00",
    "%2e%2e",
    "health",
    "x" * 300,
    "²",
    "-1",
    "1e9",
    "",
    "a b",
    "%ff",
    "9" * 30,
    "health?",
)
_CONTENT: Final = (
    "application/json; charset=utf-16",
    "text/plain",
    "application/octet-stream",
    "",
    "multipart/form-data",
)
_GAUSSIAN: Final = '{"kind":"gaussian","sensitivity":%s,"sigma":%s,"releases":%s}'
_COUNTER: Final = '{"kind":"counter","mechanism":%s,"q":%s,"keys":%s,"clip":%s}'
_SELECTION: Final = '{"kind":"key_selection","mechanism":%s,"q":%s,"keys":%s,"threshold":%s,"horizon":%s}'
_WINDOWS: Final = (
    '{"kind":"windows","sensitivity":%s,"sigma":%s,"window":%s,"length_ms":%s,"stride_ms":%s,"firings":%s}'
)
_TRAINING: Final = (
    '{"kind":"training","strategy":{"kind":%s},"participation":{"kind":%s,"batches":%s,"epochs":%s},'
    '"noise_multiplier":%s}'
)
_BLT: Final = (
    '{"kind":"training","strategy":{"kind":"BLT","output_scales":[%s],"buffer_decays":[%s]},'
    '"participation":{"kind":"BallsInBins","batches":%s,"epochs":2},"noise_multiplier":%s}'
)
_HEAD: Final = '{"scope":%s,"unit":%s,"adjacency":%s,"line":'
_CHARGE_HEAD: Final = (
    '{"scope":"health","unit":"event","adjacency":"add-remove","mode":%s,"ttl_ms":%s,"line":'
)
_GOOD_HEAD: Final = ('"health"', '"event"', '"add-remove"')
_GOOD_GAUSSIAN: Final = ("1", '"1000"', "1")
_GOOD_TRAINING: Final = ('"Identity"', '"BallsInBins"', "4", "2", '"50"')


@dataclass(frozen=True, slots=True)
class Template:
    """A route, the body's text with `%s` places, and good values for them; `{}` in the path is a name."""

    method: str
    path: str
    body: str = ""
    good: tuple[str, ...] = ()


TEMPLATES: Final = (
    Template("POST", "/v1/quote", _HEAD + _GAUSSIAN + "}", (*_GOOD_HEAD, *_GOOD_GAUSSIAN)),
    Template(
        "POST", "/v1/quote", _HEAD + _COUNTER + "}", (*_GOOD_HEAD, '"rational:W32"', "64000", "10", "1")
    ),
    Template(
        "POST", "/v1/quote", _HEAD + _SELECTION + "}",
        (*_GOOD_HEAD, '"rational:W32"', "64000", "10", "900000", "1024"),
    ),
    Template("POST", "/v1/charges", _CHARGE_HEAD + _GAUSSIAN + "}", ('"reserve"', "60000", *_GOOD_GAUSSIAN)),
    Template("POST", "/v1/charges", _CHARGE_HEAD + _GAUSSIAN + "}", ('"commit"', "60000", *_GOOD_GAUSSIAN)),
    Template(
        "POST", "/v1/charges", _CHARGE_HEAD + _COUNTER + "}",
        ('"reserve"', "1000", '"rational:W32"', "6400000", "1", "1"),
    ),
    Template(
        "POST", "/v1/charges", _CHARGE_HEAD + _WINDOWS + "}",
        ('"commit"', "1000", "1", '"1000"', '"tumbling"', "60000", "60000", "1"),
    ),
    Template(
        "POST", "/v1/charges",
        '{"scope":"health","unit":"event","adjacency":"add-remove","group":%s,"members":[%s],"line":'
        + _GAUSSIAN + "}",
        ('"north"', '"a"', *_GOOD_GAUSSIAN),
    ),
    Template(
        "POST", "/v1/charges", _CHARGE_HEAD + _BLT + "}", ('"reserve"', "1000", "0.1", "0.5", "4", '"50"')
    ),
    Template("GET", "/v1/charges?scope={}&after_seq={}&limit={}"),
    Template("GET", "/v1/scopes"),
    Template(
        "POST", "/v1/scopes",
        '{"name":%s,"unit":%s,"adjacency":%s,"epsilon_cap":%s,"delta_cap":%s,"filter":%s,"order":%s,"disjoint":[%s]}',
        ('"other"', '"event"', '"add-remove"', '"2"', '"0.000001"', '"gaussian"', "null", '"a","b"'),
    ),
    Template("GET", "/v1/scopes/{}"),
    Template("POST", "/v1/charges/{}/commit"),
    Template("POST", "/v1/charges/{}/expire"),
    Template(
        "POST", "/v1/calibrate",
        '{"scope":%s,"units":%s,"line":{"kind":"gaussian","sensitivity":%s,"releases":%s}}',
        ('"health"', "1000000", "1", "3"),
    ),
    Template(
        "POST", "/v1/calibrate",
        '{"scope":%s,"units":%s,"line":{"kind":"counter","mechanism":%s,"keys":%s,"clip":%s,"slack_horizon":%s}}',
        ('"health"', "1000000", '"rational:W32"', "10", "1", "1024"),
    ),
    Template("GET", "/v1/streams"),
    Template("GET", "/v1/streams/{}"),
    Template(
        "POST", "/v1/leases", _HEAD + _TRAINING + ',"ttl_ms":%s}', (*_GOOD_HEAD, *_GOOD_TRAINING, "60000")
    ),
    Template("GET", "/v1/leases/{}"),
    Template("POST", "/v1/leases/{}/acquire", '{"manifest_digest":%s}', ('""',)),
    Template("POST", "/v1/leases/{}/renew", '{"epoch":%s,"steps_done":%s}', ("1", "1")),
    Template("POST", "/v1/leases/{}/close", '{"epoch":%s}', ("1",)),
    Template("GET", "/"),
    Template("GET", "/healthz"),
    Template("GET", "/readyz"),
    Template("GET", "/metrics"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """One request, ready for `http.client`."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None


class RequestWalk:
    """Endless requests; the same seed and the same answers give the same requests."""

    def __init__(self, tokens: Mapping[str, str], seed: int) -> None:
        self._random = random.Random(seed)
        self._tokens = dict(tokens)
        self._names: deque[str] = deque(["health", "other"], maxlen=32)
        good = [(t.body % t.good).encode() for t in TEMPLATES if t.body]
        self._mutator = Mutator(good, seed, text=True)

    def learn(self, name: str) -> None:
        """A name the service gave out: later paths use it."""
        self._names.append(name)

    def __next__(self) -> Request:
        r = self._random
        template = r.choice(TEMPLATES)
        method = (
            template.method
            if r.random() > 0.02
            else r.choice(("PUT", "DELETE", "PATCH", "HEAD", "GET", "POST"))
        )
        return Request(method, self._target(template), self._headers(), self._body(template))

    def _target(self, template: Template) -> str:
        path = template.path
        while "{}" in path:
            known = self._random.random() < 0.7
            name = self._random.choice(self._names if known else _ODD_TEXT)
            path = path.replace("{}", quote(name, safe="%?"), 1)
        if self._random.random() < 0.02:
            path += self._random.choice(("/", "?", "?x=%00", "//", "?limit=1&limit=2", "/../../v1/scopes"))
        return path

    def _headers(self) -> dict[str, str]:
        r = self._random
        headers = {"Content-Type": r.choice(_CONTENT) if r.random() < 0.03 else "application/json"}
        token = self._tokens["owner"]
        if r.random() < 0.03:
            token = r.choice(("", "x", token[:-1], token + "x", "²", "a" * 5000)).encode().decode("latin-1")
        headers["Authorization"] = f"Bearer {token}"
        if r.random() < 0.2:
            headers["Idempotency-Key"] = r.choice(
                (f"k{r.randrange(50)}", "x" * 300, "", "k 1", "\x7f", "a/b")
            )
        return headers

    def _body(self, template: Template) -> bytes | None:
        if not template.body:
            return None if self._random.random() < 0.95 else b"{}"
        kind = self._random.random()
        if kind < 0.2:
            return next(self._mutator)
        places = [
            value if self._random.random() < 0.75 else self._random.choice(_ODD) for value in template.good
        ]
        return (template.body % tuple(places)).encode()
