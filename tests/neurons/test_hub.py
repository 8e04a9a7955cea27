"""Model hubs: a local folder, and the Hugging Face hub behind a stand-in for its client."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from huggingface_hub import errors

from neurons.hub import HuggingFaceHub, LocalHub, open_hub
from protocol.errors import HubUnavailable, ModelNotFound, ModelPrivate
from protocol.models import RepositoryFile

MODELS = Path(__file__).parent.parent / "models"
DEMO = "tiny/qwen3-demo"
COMMIT = "a" * 40


async def test_a_local_repository_is_read_as_the_real_hub_is() -> None:
    hub = LocalHub(MODELS)
    commit = await hub.resolve_main(DEMO)
    names = {file.name for file in await hub.list_files(DEMO, commit)}
    assert {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"} <= names
    assert b"Qwen3ForCausalLM" in await hub.read_file(DEMO, commit, "config.json")
    assert (await hub.snapshot(DEMO, commit) / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("repo", "revision", "name"),
    [
        ("no/body", COMMIT, "config.json"),
        (DEMO, COMMIT, "config.json"),
        (DEMO, "main", "config.json"),
        ("../models/tiny", COMMIT, "config.json"),
        (DEMO, None, "nothing.json"),
        (DEMO, None, "../../refs/main"),
        (DEMO, None, "/etc/hostname"),
        (DEMO, None, ""),
    ],
)
async def test_what_is_not_in_a_local_hub_is_not_found(repo: str, revision: str | None, name: str) -> None:
    hub = LocalHub(MODELS)
    commit = revision or await hub.resolve_main(DEMO)
    with pytest.raises(ModelNotFound):
        await hub.read_file(repo, commit, name)


class Client:
    """Stands in for huggingface_hub's HfApi."""

    def __init__(self, folder: Path, failure: Exception | None = None, **info: Any) -> None:
        self._folder = folder
        self._failure = failure
        self._info = info
        self.patterns: list[str] = []

    def model_info(self, _repo: str, **_options: Any) -> SimpleNamespace:
        if self._failure is not None:
            raise self._failure
        files = [SimpleNamespace(rfilename="config.json", size=2), SimpleNamespace(rfilename="a.bin", size=None)]
        return SimpleNamespace(**{"sha": COMMIT, "private": False, "gated": False, "siblings": files, **self._info})

    def hf_hub_download(self, _repo: str, name: str, **_options: Any) -> str:
        if self._failure is not None:
            raise self._failure
        path = self._folder / name
        path.write_bytes(b"{}")
        return str(path)

    def snapshot_download(self, _repo: str, *, allow_patterns: list[str], **_options: Any) -> str:
        self.patterns = allow_patterns
        return str(self._folder)


async def test_a_public_repository_is_read_at_its_commit(tmp_path: Path) -> None:
    hub = HuggingFaceHub(tmp_path, 1.0, Client(tmp_path))
    assert await hub.resolve_main("a/b") == COMMIT
    assert await hub.list_files("a/b", COMMIT) == (RepositoryFile("config.json", 2), RepositoryFile("a.bin", 0))
    assert await hub.read_file("a/b", COMMIT, "config.json") == b"{}"


async def test_only_safetensors_and_configuration_are_downloaded(tmp_path: Path) -> None:
    client = Client(tmp_path)
    assert await HuggingFaceHub(tmp_path, 1.0, client).snapshot("a/b", COMMIT) == tmp_path
    assert "*.safetensors" in client.patterns
    assert not {"*.bin", "*.pt", "*.py", "*"} & set(client.patterns)


@pytest.mark.parametrize("info", [{"private": True}, {"gated": "auto"}, {"gated": "manual"}])
async def test_a_private_or_gated_repository_is_refused(tmp_path: Path, info: dict[str, Any]) -> None:
    with pytest.raises(ModelPrivate):
        await HuggingFaceHub(tmp_path, 1.0, Client(tmp_path, **info)).resolve_main("a/b")


def answered(kind: type[Exception], status: int) -> Exception:
    request = httpx2.Request("GET", "http://127.0.0.1")
    return kind("failed", response=httpx2.Response(status, request=request))


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (answered(errors.GatedRepoError, 403), ModelPrivate),
        (answered(errors.RepositoryNotFoundError, 404), ModelNotFound),
        (answered(errors.RevisionNotFoundError, 404), ModelNotFound),
        (answered(errors.HfHubHTTPError, 503), HubUnavailable),
        (ConnectionError("no route"), HubUnavailable),
        (TimeoutError("slow"), HubUnavailable),
        (httpx2.ConnectError("no route"), HubUnavailable),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
async def test_the_clients_errors_get_our_names(tmp_path: Path, failure: Exception, error: type[Exception]) -> None:
    hub = HuggingFaceHub(tmp_path, 1.0, Client(tmp_path, failure))
    with pytest.raises(error):
        await hub.list_files("a/b", COMMIT)


async def test_the_settings_choose_the_hub(tmp_path: Path) -> None:
    assert isinstance(open_hub(MODELS, None), LocalHub)
    assert isinstance(open_hub(None, tmp_path), HuggingFaceHub)
