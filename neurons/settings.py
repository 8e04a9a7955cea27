"""Deployment settings: the only reader of the environment and of TOML files.

A role's settings are one frozen pydantic model. Its values come from a TOML file, then from the environment, where
PREFIX + KEY names a key and two underscores descend into a table: RELIQUARY_GATEWAY__HUB__DIRECTORY is `directory`
in the table `hub`. Whatever the model does not know is refused. Secrets are paths to files, never values.
"""

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

SettingsModel = TypeVar("SettingsModel", bound=BaseModel)


class SettingsError(Exception):
    """The settings cannot be used; the message names the file or variable and the key."""


def load(role_model: type[SettingsModel], path: Path | None, prefix: str) -> SettingsModel:
    """The settings of one role.

    Args:
        role_model: the pydantic model that says which keys there are.
        path: a TOML file, or None to take everything from the environment.
        prefix: how the role's environment variables begin, e.g. "RELIQUARY_GATEWAY__".

    Raises:
        SettingsError: for a file that cannot be read, a key that is not known or missing, or a value out of range.
    """
    values = _read_toml(path) if path is not None else {}
    variables = _merge_environment(values, prefix)
    try:
        return role_model.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_describe(error, path, variables)) from error


def child_environment(additions: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with the additions, for a process that it starts."""
    return {**os.environ, **additions}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise SettingsError(f"{path}: not a TOML file: {error}") from error


def _merge_environment(values: dict[str, Any], prefix: str) -> dict[tuple[str, ...], str]:
    """Lay the environment over values; gives the variable that each key came from."""
    variables = {}
    for name in sorted(os.environ):
        if not name.startswith(prefix):
            continue
        keys = tuple(name.removeprefix(prefix).lower().split("__"))
        table = values
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise SettingsError(f"{name}: {key} is not a table")
        table[keys[-1]] = _parse_variable(name, os.environ[name])
        variables[keys] = name
    return variables


def _parse_variable(name: str, text: str) -> Any:
    """Lists and tables are written as JSON; everything else is text, which the model turns into its own type."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{name}: not JSON: {error}") from error


def _describe(error: ValidationError, path: Path | None, variables: Mapping[tuple[str, ...], str]) -> str:
    """One line for each fault, without the value: it may be one that nobody should read in a log."""
    lines = []
    for fault in error.errors(include_input=False, include_url=False):
        keys = tuple(str(key) for key in fault["loc"])
        source = next((variables[keys[:depth]] for depth in range(len(keys), 0, -1) if keys[:depth] in variables), path)
        what = {"extra_forbidden": "unknown key", "missing": "missing key"}.get(fault["type"], fault["msg"])
        lines.append(f"{source or 'environment'}: {'.'.join(keys) or 'settings'}: {what}")
    return "\n".join(lines)
