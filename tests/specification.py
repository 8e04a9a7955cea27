"""Which row of the specification a test covers: @row(table, name), as tests/conformance/specification.toml has them."""

import ast
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS_FILE = TESTS / "conformance" / "specification.toml"
Row = tuple[str, str]


def row(table: str, name: str) -> pytest.MarkDecorator:
    """Marks a test as the one, or one of those, that show a row."""
    return pytest.mark.row(table, name)


def rows() -> Mapping[Row, str]:
    """Every row's rule, in the order of the file."""
    tables = tomllib.loads(ROWS_FILE.read_text(encoding="utf-8"))
    return {(table, name): rule for table, found in tables.items() for name, rule in found.items()}


def covering() -> Iterator[tuple[Row, str]]:
    """Each row that a test names, with the test: read from the sources, so that nothing has to run."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "row":
                        table, name = (ast.literal_eval(argument) for argument in decorator.args)
                        yield (table, name), f"{path.relative_to(TESTS.parent)}::{node.name}"
