"""The OpenAPI document and the page made from it, judged by programs that we did not write."""

import ast
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from aiohttp import ClientSession
from customer import World, chat_line, jsonl
from invariants import violations
from served import served
from specification import row

from gateway import errors
from gateway.errors import DatabaseBusy, Refusal
from gateway.http.codes import CODES
from gateway.http.openai_routes import PREFIX, ROUTES
from gateway.http.openapi import refusals_of

SUBNET_FILES = ("audits.py", "dispatch.py", "subnet.py", "native_orders.py")
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,missing_required_header,unsupported_method,"
    "allow_header_conformance,use_after_free,ensure_resource_availability,ignored_auth"
)


async def place(world: World, name: str) -> tuple[str, str]:
    """A file and a batch made from it."""
    async with world.client() as client:
        file = await client.files.create(file=(f"{name}.jsonl", jsonl(chat_line(name))), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    return file.id, batch.id


@row("Clients", "schemathesis")
@pytest.mark.parametrize("ids", ["made up", "of things that exist"])
def test_schemathesis_finds_no_fault_and_no_answer_outside_its_schema(tmp_path: Path, ids: str) -> None:
    with served(tmp_path, max_quotes_per_day=10**6, request_burst=10**6, max_open_orders=10**6) as running:
        if ids != "made up":
            file_id, batch_id = running.run(place(running.world, "q1"))
            names = f'"path.file_id" = "{file_id}"\n"path.batch_id" = "{batch_id}"\n'
            (tmp_path / "schemathesis.toml").write_text(f"[parameters]\n{names}")
        command = [str(Path(sys.executable).with_name("schemathesis")), "run"]
        command += [f"{running.world.openai_url}/openapi.json", "-H", f"Authorization: Bearer {running.world.api_key}"]
        if ids != "made up":  # a fixed id and ids that scenarios pass on do not go together
            command += ["--phases", "coverage,fuzzing"]
        command += ["--checks", CHECKS, "--max-examples", "40", "--seed", "1", "--workers", "1", "--no-color"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stdout[-6000:]
        assert running.run(violations(running.world.services.database)) == []


async def test_every_refusal_that_a_route_names_is_in_the_table_of_codes(sqlite_world: World) -> None:
    async with (
        sqlite_world.session() as http,
        http.get(f"{PREFIX}/openapi.json", headers={"Authorization": ""}) as answer,
    ):
        openapi = await answer.json()
        assert answer.status == 200
    assert openapi["openapi"].startswith("3.1.")
    served_paths = {(route.method.lower(), route.path) for route in ROUTES}
    assert {(method, path) for path, methods in openapi["paths"].items() for method in methods} == served_paths
    assert {code for route in ROUTES for code in route.refusals} <= set(CODES)
    unused = set(CODES) - {code for route in ROUTES for code in refusals_of(route)}
    assert unused == {"unknown_route", "method_not_allowed"}  # of what is no route


def test_every_code_that_the_source_refuses_with_is_in_the_table() -> None:
    """Read from the source: the first argument of every refusal on the customers' side."""
    kinds = {kind.__name__ for kind in (Refusal, *Refusal.__subclasses__(), DatabaseBusy)}
    found = set()
    for path in Path(errors.__file__).parent.rglob("*.py"):
        if path.name in SUBNET_FILES:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    found.add(first.value)
    assert found >= {"mixed_sampling", "rate_limited", "order_refused"}
    assert found <= set(CODES)


class Outside(HTMLParser):
    """Collects what a page would fetch, and its headings."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("href", "src", "action") and value is not None:
                self.links.append(value)
            if name == "id" and value is not None:
                self.ids.add(value)


async def test_the_page_describes_every_route_and_code_and_needs_nothing_from_outside(sqlite_world: World) -> None:
    async with ClientSession() as http, http.get(f"{sqlite_world.url}/docs") as answer:
        page = await answer.text()
        assert answer.status == 200
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    found = Outside()
    found.feed(page)
    assert not found.tags & {"script", "img", "iframe", "link", "object"}
    assert {link for link in found.links if not link.startswith("#")} == {f"{PREFIX}/openapi.json"}
    assert {link.removeprefix("#") for link in found.links if link.startswith("#")} <= found.ids
    assert {f"code-{code}" for code in CODES} | {route.handler.__name__ for route in ROUTES} <= found.ids
