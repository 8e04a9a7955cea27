"""Settings come from a TOML file, then from the environment; a mistake is named."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from neurons.settings import SettingsError, child_environment, load


class Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    directory: Path = Path("hub")


class Role(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    database_url: str
    port: int = 8080
    miners: tuple[str, ...] = ()
    hub: Table = Table()


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "role.toml"
    path.write_text('database_url = "sqlite:///a"\nport = 1\nminers = ["5A"]\n[hub]\ndirectory = "here"\n')
    return path


def test_a_file_gives_every_key(toml: Path) -> None:
    assert load(Role, toml, "TEST_ROLE__") == Role(
        database_url="sqlite:///a", port=1, miners=("5A",), hub=Table(directory=Path("here"))
    )


def test_the_environment_wins_over_the_file(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ROLE__PORT", "9")
    monkeypatch.setenv("TEST_ROLE__HUB__DIRECTORY", "there")
    monkeypatch.setenv("TEST_ROLE__MINERS", '["5B", "5C"]')
    monkeypatch.setenv("TEST_OTHER__PORT", "10")
    loaded = load(Role, toml, "TEST_ROLE__")
    assert (loaded.port, loaded.hub.directory, loaded.miners) == (9, Path("there"), ("5B", "5C"))


def test_without_a_file_the_environment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ROLE__DATABASE_URL", "sqlite:///b")
    assert load(Role, None, "TEST_ROLE__").database_url == "sqlite:///b"


def test_an_unknown_key_is_refused_with_the_file_and_the_key(toml: Path) -> None:
    toml.write_text('database_url = "x"\n[hub]\ndirectroy = "y"\n')
    with pytest.raises(SettingsError) as refusal:
        load(Role, toml, "TEST_ROLE__")
    assert str(refusal.value) == f"{toml}: hub.directroy: unknown key"


def test_an_unknown_variable_is_refused_by_its_name(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ROLE__DATBASE_URL", "x")
    with pytest.raises(SettingsError, match=r"^TEST_ROLE__DATBASE_URL: datbase_url: unknown key$"):
        load(Role, toml, "TEST_ROLE__")


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.toml"
    empty.touch()
    with pytest.raises(SettingsError, match=r"empty.toml: database_url: missing key"):
        load(Role, empty, "TEST_ROLE__")


def test_a_bad_value_is_named_and_not_shown(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ROLE__PORT", "hunter2")
    with pytest.raises(SettingsError) as refusal:
        load(Role, toml, "TEST_ROLE__")
    assert str(refusal.value).startswith("TEST_ROLE__PORT: port: ")
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b"port = ", "not a TOML file"), (b"\xff\xfe", "not a TOML file")],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "broken.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=rf"broken.toml: {reason}"):
        load(Role, path, "TEST_ROLE__")


def test_a_list_that_is_not_json_is_named(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ROLE__MINERS", "[5B")
    with pytest.raises(SettingsError, match=r"^TEST_ROLE__MINERS: not JSON"):
        load(Role, toml, "TEST_ROLE__")


def test_a_variable_below_a_key_that_is_no_table_is_refused(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ROLE__PORT__NUMBER", "1")
    with pytest.raises(SettingsError, match=r"^TEST_ROLE__PORT__NUMBER: port is not a table"):
        load(Role, toml, "TEST_ROLE__")


def test_a_child_sees_our_environment_and_the_additions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_INHERITED", "yes")
    environment = child_environment({"OMP_NUM_THREADS": "1"})
    assert (environment["TEST_INHERITED"], environment["OMP_NUM_THREADS"]) == ("yes", "1")
