"""How a role's process begins and ends."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

Ready = Callable[[], None]
"""Called once by a role when it can do its work."""

Role = Callable[[asyncio.Event], Awaitable[None]]
"""A role: it runs until the event is set, finishes what it began and returns."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


async def run_until_signal(role: Role) -> None:
    """Run a role until SIGTERM or SIGINT asks it to stop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await role(stop)


def touch_when_ready(path: Path | None) -> Ready:
    """A Ready that makes an empty file at path, for whoever waits for this process; None tells nobody."""
    return _tell_nobody if path is None else path.touch


def end_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies, however it dies (Linux; elsewhere nothing happens).

    Args:
        parent_pid: who the parent was when it started us: if it is gone already, this process ends here.
    """
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        sys.exit(1)


def _tell_nobody() -> None:
    pass
