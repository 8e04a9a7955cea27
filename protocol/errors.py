"""Errors of the protocol, split by whose fault they are."""


class LocalProtocolError(Exception):
    """Our own code broke a rule of the protocol: a bug to mend, never a reason to refuse a peer."""


class RemoteProtocolError(Exception):
    """A peer broke a rule of the protocol.

    Attributes:
        code: stable machine-readable reason, one of those listed in SPEC.md.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class HubError(Exception):
    """A model repository could not be read."""


class ModelNotFound(HubError):
    """There is no such repository, revision or file."""

    def __init__(self, repo: str, revision: str | None = None) -> None:
        super().__init__(f"{repo}@{revision} was not found" if revision else f"{repo} was not found")
        self.repo = repo
        self.revision = revision


class ModelPrivate(HubError):
    """The repository is private or gated."""

    def __init__(self, repo: str) -> None:
        super().__init__(f"{repo} is private or gated")
        self.repo = repo


class HubUnavailable(HubError):
    """The model hub did not answer; the same call may succeed later."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PeerError(Exception):
    """A call to another role failed."""


class PeerRefused(PeerError):
    """The peer answered with a refusal that the same request would meet again."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


class PeerUnreachable(PeerError):
    """The peer gave no answer, or one that says to try later; retries are spent."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
