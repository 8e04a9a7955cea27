"""A proxy on loopback that loses answers: the request is carried out, and its client never hears of it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

BUFFER_BYTES = 65536


@dataclass
class DroppingProxy:
    """Forwards connections; the first answers to requests that begin with a prefix are dropped.

    Attributes:
        url: of the proxy.
        requests: the first lines of all requests, in order.
        dropped: answers that were lost.
    """

    target: tuple[str, int]
    prefix: bytes
    drops: int
    url: str = ""
    requests: list[str] = field(default_factory=list)
    dropped: int = 0

    def serve(self, listener: socket.socket) -> None:
        """Accept connections until the listener is closed."""
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, socket.create_connection(self.target) as upstream:
            while head := client.recv(BUFFER_BYTES):
                self.requests.append(head.partition(b"\r\n")[0].decode())
                upstream.sendall(head)
                self._rest_of_request(client, upstream, head)
                answer = self._answer(upstream)
                if head.startswith(self.prefix) and self.dropped < self.drops:
                    self.dropped += 1
                    return
                client.sendall(answer)

    def _rest_of_request(self, client: socket.socket, upstream: socket.socket, head: bytes) -> None:
        missing = _missing_bytes(head)
        while missing > 0:
            more = client.recv(BUFFER_BYTES)
            upstream.sendall(more)
            missing -= len(more)

    def _answer(self, upstream: socket.socket) -> bytes:
        answer = upstream.recv(BUFFER_BYTES)
        while (missing := _missing_bytes(answer)) > 0:
            answer += upstream.recv(min(missing, BUFFER_BYTES))
        return answer


def _missing_bytes(message: bytes) -> int:
    """How much of a message's body has not come yet, by its Content-Length."""
    head, _, body = message.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value) - len(body)
    return 0


@contextmanager
def dropping_proxy(url: str, prefix: bytes, drops: int = 1) -> Iterator[DroppingProxy]:
    """A proxy in front of a gateway's URL until the block ends."""
    host, _, port = url.removeprefix("http://").partition(":")
    proxy = DroppingProxy((host, int(port)), prefix, drops)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=proxy.serve, args=(listener,))
        thread.start()
        yield proxy
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
