"""Model repositories: a local directory, or the Hugging Face hub (of which this module is the only importer)."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from protocol.errors import HubError, HubUnavailable, ModelNotFound, ModelPrivate
from protocol.models import MAIN, RepositoryFile, is_repo, is_revision

MAX_CONFIGURATION_BYTES = 64 * 1024 * 1024
SNAPSHOT_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
"""What running a model needs; never pickled weights, never code."""

Result = TypeVar("Result")


def _require_names(repo: str, revision: str | None = None, name: str | None = None) -> None:
    """Refuse what is no repository, commit or file name before any path is built from it."""
    bad_name = name is not None and (name.startswith("/") or ".." in name.split("/") or "\\" in name or not name)
    if not is_repo(repo) or (revision is not None and not is_revision(revision)) or bad_name:
        raise ModelNotFound(repo, revision)


class LocalHub:
    """A directory of repositories: ORG/NAME/refs/main names a commit, ORG/NAME/snapshots/COMMIT holds its files."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def resolve_main(self, repo: str) -> str:
        """The commit that main names.

        Raises:
            ModelNotFound: no such repository, or (then it names the revision) no main in it.
        """
        _require_names(repo)
        try:
            commit = (self._root / repo / "refs" / MAIN).read_text(encoding="ascii").strip()
        except OSError:
            raise ModelNotFound(repo, MAIN if (self._root / repo).is_dir() else None) from None
        _require_names(repo, commit)
        return commit

    async def list_files(self, repo: str, revision: str) -> tuple[RepositoryFile, ...]:
        """The files at a commit, by name.

        Raises:
            ModelNotFound: no such repository or commit.
        """
        folder = await self.snapshot(repo, revision)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return tuple(RepositoryFile(path.relative_to(folder).as_posix(), path.stat().st_size) for path in paths)

    async def read_file(self, repo: str, revision: str, name: str) -> bytes:
        """A configuration file.

        Raises:
            ModelNotFound: no such repository, commit or file.
        """
        _require_names(repo, revision, name)
        path = await self.snapshot(repo, revision) / name
        if not path.is_file() or path.stat().st_size > MAX_CONFIGURATION_BYTES:
            raise ModelNotFound(repo, revision)
        return path.read_bytes()

    async def snapshot(self, repo: str, revision: str) -> Path:
        """The folder with everything that running the model needs.

        Raises:
            ModelNotFound: no such repository or commit.
        """
        _require_names(repo, revision)
        folder = self._root / repo / "snapshots" / revision
        if not folder.is_dir():
            raise ModelNotFound(repo, revision)
        return folder


class HuggingFaceHub:
    """Public repositories of the Hugging Face hub, read without a token."""

    def __init__(self, cache: Path, timeout_seconds: float, api: Any = None) -> None:
        """Prepare the client; nothing is fetched yet.

        Args:
            cache: folder for downloads.
            timeout_seconds: of one request for metadata.
            api: stands in for huggingface_hub's HfApi in tests.
        """
        if api is None:
            from huggingface_hub import HfApi  # noqa: PLC0415 - only a node that uses the hub needs the package

            api = HfApi(token=False)
        self._api = api
        self._cache = str(cache)
        self._timeout_seconds = timeout_seconds

    async def resolve_main(self, repo: str) -> str:
        """The commit that main names; HubError's kinds otherwise."""
        _require_names(repo)
        info = await self._call(repo, MAIN, lambda: self._info(repo, MAIN, files=False))
        return str(info.sha)

    async def list_files(self, repo: str, revision: str) -> tuple[RepositoryFile, ...]:
        """The files at a commit; HubError's kinds otherwise."""
        _require_names(repo, revision)
        info = await self._call(repo, revision, lambda: self._info(repo, revision, files=True))
        return tuple(RepositoryFile(file.rfilename, file.size or 0) for file in info.siblings or ())

    async def read_file(self, repo: str, revision: str, name: str) -> bytes:
        """A configuration file; HubError's kinds otherwise."""
        _require_names(repo, revision, name)

        def fetch() -> bytes:
            path = Path(self._api.hf_hub_download(repo, name, revision=revision, cache_dir=self._cache))
            if path.stat().st_size > MAX_CONFIGURATION_BYTES:
                raise ModelNotFound(repo, revision)
            return path.read_bytes()

        return await self._call(repo, revision, fetch)

    async def snapshot(self, repo: str, revision: str) -> Path:
        """Download what running the model needs; its folder."""
        _require_names(repo, revision)
        fetch = self._api.snapshot_download
        options = {"revision": revision, "cache_dir": self._cache, "allow_patterns": SNAPSHOT_PATTERNS}
        return Path(await self._call(repo, revision, lambda: fetch(repo, **options)))

    def _info(self, repo: str, revision: str, *, files: bool) -> Any:
        info = self._api.model_info(repo, revision=revision, files_metadata=files, timeout=self._timeout_seconds)
        if info.private or info.gated:
            raise ModelPrivate(repo)
        return info

    async def _call(self, repo: str, revision: str, work: Callable[[], Result]) -> Result:
        """Run a blocking call in a thread and give its errors our names."""
        import httpx2  # noqa: PLC0415 - the HTTP library that huggingface_hub 2 raises the errors of
        from huggingface_hub import errors  # noqa: PLC0415 - as in __init__

        try:
            return await asyncio.to_thread(work)
        except HubError:
            raise
        except errors.GatedRepoError as error:
            raise ModelPrivate(repo) from error
        except errors.RepositoryNotFoundError as error:
            raise ModelNotFound(repo) from error
        except (errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
            raise ModelNotFound(repo, revision) from error
        except (httpx2.HTTPError, OSError) as error:
            raise HubUnavailable(f"{type(error).__name__}: {error}"[:300]) from error


DEFAULT_CACHE = Path.home() / ".cache" / "reliquary" / "hub"
TIMEOUT_SECONDS = 20.0


def open_hub(directory: Path | None, cache: Path | None) -> LocalHub | HuggingFaceHub:
    """The hub that a role's settings name: a local directory, else the Hugging Face hub with its files in cache."""
    return LocalHub(directory) if directory is not None else HuggingFaceHub(cache or DEFAULT_CACHE, TIMEOUT_SECONDS)
