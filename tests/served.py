"""A gateway in a thread of its own, for clients that are programs or block: curl, Node, the synchronous client."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from customer import World, five_tokens, running_world

START_SECONDS = 60
Result = TypeVar("Result")


@dataclass(frozen=True)
class Served:
    """A running gateway with the loop that it runs in."""

    world: World
    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine beside the gateway and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(START_SECONDS)


@contextmanager
def served(folder: Path, **settings: Any) -> Iterator[Served]:
    """A gateway that answers until the block ends; its miners work whenever there is something to do.

    Its clock stands still, so an order without a seed waits for its beacon round and is left alone.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    running = _working_world(folder, settings)
    try:
        world = asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(START_SECONDS)
        try:
            yield Served(world, loop)
        finally:
            asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result(START_SECONDS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@asynccontextmanager
async def _working_world(folder: Path, settings: dict[str, Any]) -> AsyncIterator[World]:
    async with running_world(folder, **settings) as world:
        working = asyncio.create_task(_work(world))
        try:
            yield world
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def _work(world: World) -> None:
    while True:
        await world.finish(five_tokens)
        await asyncio.sleep(0.05)
