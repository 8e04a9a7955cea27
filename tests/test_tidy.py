"""House rules that no linter knows."""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
DRAWER_NAMES = {"utils", "util", "helpers", "helper", "common", "shared", "manager", "managers", "misc"}
PRINTING_PLACES = ("scripts/", "neurons/cli.py", "tests/acceptance/walkthrough/")
ENVIRONMENT_NAMES = {"environ", "environb", "getenv", "getenvb", "putenv"}
GENERATED_PLACE = "gateway/db/migrations/versions/"
"""Written by alembic from the schema: one function a migration, however many tables."""
ENVIRONMENT_PLACE = "neurons/settings.py"


@cache
def _tracked_files() -> tuple[str, ...]:
    """What git tracks or would track, as paths from the root."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    return tuple(sorted(name for name in listing.split("\0") if name and (ROOT / name).is_file()))


def _python_files() -> list[str]:
    return [name for name in _tracked_files() if name.endswith(".py")]


@cache
def _tree(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"), filename=name)


def _calls(name: str) -> list[ast.Call]:
    return [node for node in ast.walk(_tree(name)) if isinstance(node, ast.Call)]


def _is_call_of(call: ast.Call, function: str) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == function


def test_the_list_of_files_is_not_empty() -> None:
    assert "tests/test_tidy.py" in _python_files()


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {name: (ROOT / name).read_text(encoding="utf-8").count("\n") for name in _python_files()}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_60_lines() -> None:
    too_long = {
        f"{name}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for name in _python_files()
        if not name.startswith(GENERATED_PLACE)
        for node in ast.walk(_tree(name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert too_long == {}


def test_no_module_is_a_drawer() -> None:
    assert [name for name in _python_files() if DRAWER_NAMES & {*Path(name).parent.parts, Path(name).stem}] == []


def test_no_getattr_hides_a_missing_attribute_behind_a_default() -> None:
    hiding = [
        f"{name}:{call.lineno}"
        for name in _python_files()
        for call in _calls(name)
        if _is_call_of(call, "getattr") and len(call.args) + len(call.keywords) > 2
    ]
    assert hiding == []


def test_only_scripts_and_the_command_line_print() -> None:
    printing = [
        f"{name}:{call.lineno}"
        for name in _python_files()
        if not name.startswith(PRINTING_PLACES)
        for call in _calls(name)
        if _is_call_of(call, "print")
    ]
    assert printing == []


def test_only_the_settings_module_reads_the_environment() -> None:
    reading = [
        f"{name}:{node.lineno}"
        for name in _python_files()
        if name != ENVIRONMENT_PLACE and not name.startswith(("tests/", "scripts/"))
        for node in ast.walk(_tree(name))
        if (isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT_NAMES)
        or (isinstance(node, ast.alias) and node.name in ENVIRONMENT_NAMES)
    ]
    assert reading == []


def test_no_test_patches_what_it_tests() -> None:
    patching = [
        f"{name}:{node.lineno}"
        for name in _python_files()
        if name.startswith("tests/")
        for node in ast.walk(_tree(name))
        if (isinstance(node, ast.Import) and any(alias.name.startswith("unittest.mock") for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module in ("unittest", "unittest.mock", "mock"))
    ]
    assert patching == []


def test_no_test_is_skipped() -> None:
    skipping = [
        f"{name}:{node.lineno}"
        for name in _python_files()
        if name.startswith("tests/") and not name.startswith("tests/gpu/")
        for node in ast.walk(_tree(name))
        if isinstance(node, ast.Attribute) and node.attr in ("skip", "skipif", "xfail", "importorskip")
        if isinstance(node.value, ast.Name | ast.Attribute) and ast.unparse(node.value) in ("pytest", "pytest.mark")
    ]
    assert skipping == []


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md"])
def test_the_files_that_a_document_names_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(re.findall(r"\b(?:scripts|docs|protocol|gateway|miner|validator|neurons|tests)/[\w./-]*\w", text))
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_every_shell_script_is_executable() -> None:
    shell = [name for name in _tracked_files() if (ROOT / name).read_bytes().startswith(b"#!/usr/bin/env bash")]
    assert "scripts/setup" in shell
    assert [name for name in shell if not (ROOT / name).stat().st_mode & 0o100] == []


def test_nothing_is_left_to_be_done_later() -> None:
    marker = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    left = [
        f"{name}:{number}"
        for name in _python_files()
        if name != "tests/test_tidy.py"
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), start=1)
        if marker.search(line)
    ]
    assert left == []
