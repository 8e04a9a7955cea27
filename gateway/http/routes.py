"""A route, described once: by its handler's signature.

A handler takes the request and, where it has them, a query, headers and a body, each annotated with its model, and
its return annotation is the answer's model. Serving and the OpenAPI document both read that.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from aiohttp import web
from pydantic import BaseModel

from gateway.http.bodies import Body, Headers, Input, Query, headers_of, once_each, read_json, validate

Handler = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class Contract:
    """What a handler reads and answers; None for what it does not have.

    Attributes:
        answer: None when the answer is bytes.
    """

    query: type[Query] | None
    headers: type[Headers] | None
    body: type[Body] | None
    answer: type[BaseModel] | None


@dataclass(frozen=True)
class Route:
    """A route of the customers' API.

    Attributes:
        path: with {names} in braces.
        handler: see the module.
        refusals: the error codes that it may answer with, besides those that its input and its being a route imply.
        form: the fields of a multipart form that the handler reads by itself.
    """

    method: str
    path: str
    handler: Handler
    refusals: tuple[str, ...] = ()
    form: type[Input] | None = None

    @property
    def contract(self) -> Contract:
        """What the handler's signature says."""
        hints = get_type_hints(self.handler)
        answer = hints["return"]
        return Contract(
            query=hints.get("query"),
            headers=hints.get("headers"),
            body=hints.get("body"),
            answer=answer if isinstance(answer, type) and issubclass(answer, BaseModel) else None,
        )

    @property
    def summary(self) -> str:
        """The first sentence of the handler's documentation."""
        return (inspect.getdoc(self.handler) or "").partition("\n")[0].rstrip(".")


class Endpoint:
    """A route as aiohttp serves it."""

    def __init__(self, route: Route) -> None:
        self._handler = route.handler
        self._contract = route.contract

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Read what the handler takes, call it, and write what it answers.

        Raises:
            InvalidRequest: for input that its models refuse.
        """
        contract = self._contract
        given: dict[str, Input] = {}
        if contract.query is not None:
            given["query"] = validate(contract.query, once_each(request.query, contract.query))
        if contract.headers is not None:
            given["headers"] = headers_of(request, contract.headers)
        if contract.body is not None:
            given["body"] = validate(contract.body, await read_json(request))
        answer: BaseModel | web.StreamResponse = await self._handler(request, **given)
        if isinstance(answer, web.StreamResponse):
            return answer
        return web.Response(text=answer.model_dump_json(), content_type="application/json")
