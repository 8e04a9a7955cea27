"""What describes the API to its readers: the OpenAPI document, and a page made from it."""

import json
from importlib import resources
from typing import Any

import jinja2
from aiohttp import web

from gateway.core.jsonl import MAX_LINES
from gateway.core.line_fields import IGNORED, NEUTRAL
from gateway.http.codes import CODES
from gateway.http.openai_routes import PREFIX, ROUTES
from gateway.http.openapi import document
from protocol.models import ARCHITECTURES
from protocol.sampling import Sampling

DOCUMENT_PATH = f"{PREFIX}/openapi.json"
PAGE_PATH = "/docs"
# Nothing of the page comes from, or goes to, anywhere else.
CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"


class Documents:
    """The document and the page; both are made once, when the application is."""

    def __init__(self) -> None:
        self._document = document(ROUTES)
        self._page = _page(self._document)

    async def get_document(self, _request: web.Request) -> web.Response:
        """The OpenAPI document."""
        return web.json_response(self._document)

    async def get_page(self, _request: web.Request) -> web.Response:
        """The page."""
        headers = {"Content-Security-Policy": CONTENT_SECURITY_POLICY}
        return web.Response(text=self._page, content_type="text/html", headers=headers)


def _page(openapi: dict[str, Any]) -> str:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    source = (resources.files("gateway.http") / "docs.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        openapi=openapi,
        document_path=DOCUMENT_PATH,
        codes=CODES,
        sampling=Sampling.model_json_schema()["properties"],
        neutral={name: [json.dumps(value) for value in values] for name, values in NEUTRAL.items()},
        ignored=sorted(IGNORED),
        architectures=list(ARCHITECTURES),
        max_lines=MAX_LINES,
    )
