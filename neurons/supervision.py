"""Child processes that are started again when they die, and all ended in the end."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neurons.settings import child_environment

logger = logging.getLogger(__name__)

UNUSABLE = 2
"""Exit status of a program that would fail again: its settings or keys are wrong."""

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
_SETTLED_SECONDS = 10.0
_GRACE_SECONDS = 20.0
# Several processes share one machine: one thread each, or they fight for the cores.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


class ChildUnusable(Exception):
    """A child ended in a way that starting it again cannot mend."""


@dataclass(frozen=True)
class Program:
    """A role to run as `python -m neurons.cli arguments…`.

    Attributes:
        name: what to call it in pids and logs.
        log_file: takes its standard output and standard error, appended.
        ready_file: appears when the role can do its work.
    """

    name: str
    arguments: tuple[str, ...]
    log_file: Path
    ready_file: Path


class Supervisor:
    """Runs programs in stages: all start at once; the last stage is ended first.

    Args:
        stages: what runs; a later stage may depend on an earlier one.
        pids_file: is kept up to date with a JSON object from name to process id.
    """

    def __init__(self, stages: Sequence[Sequence[Program]], pids_file: Path) -> None:
        self._stages = stages
        self._pids_file = pids_file
        self._pids: dict[str, int] = {}

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of what runs now, by name."""
        return dict(self._pids)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep every program running until stop is set, then end them all.

        Raises:
            ExceptionGroup: of ChildUnusable, when a child cannot run; the others are ended.
        """
        stops = [asyncio.Event() for _ in self._stages]
        async with asyncio.TaskGroup() as group:
            stages = [
                [group.create_task(self._keep(program, stage_stop)) for program in programs]
                for programs, stage_stop in zip(self._stages, stops, strict=True)
            ]
            await stop.wait()
            for stage_stop, tasks in reversed(list(zip(stops, stages, strict=True))):
                stage_stop.set()
                await asyncio.gather(*tasks)

    async def _keep(self, program: Program, stop: asyncio.Event) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while not stop.is_set():
            started_at = time.monotonic()
            status = await self._run_once(program, stop)
            if stop.is_set():
                return
            if status == UNUSABLE:
                raise ChildUnusable(f"{program.name} cannot run; see {program.log_file}")
            if time.monotonic() - started_at > _SETTLED_SECONDS:
                pause_seconds = _FIRST_PAUSE_SECONDS
            logger.warning(
                "A process died and will be started again.",
                extra={"action": "restart", "program": program.name, "status": status},
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause_seconds)
            pause_seconds = min(pause_seconds * 2, _LONGEST_PAUSE_SECONDS)

    async def _run_once(self, program: Program, stop: asyncio.Event) -> int:
        """Run a program until it ends by itself or stop is set; gives its exit status."""
        program.ready_file.unlink(missing_ok=True)
        process = await self._start(program)
        exited = asyncio.create_task(process.wait())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({exited, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                process.send_signal(signal.SIGTERM)
                await asyncio.wait({exited}, timeout=_GRACE_SECONDS)
        finally:
            # Whatever the child started itself shares its process group, and must not outlive it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            stopped.cancel()
            self._forget(program)
        return await exited

    async def _start(self, program: Program) -> asyncio.subprocess.Process:
        arguments = ("-m", "neurons.cli", *program.arguments, "--ready-file", str(program.ready_file))
        with program.log_file.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                "--end-with-parent",
                str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=child_environment(_ENVIRONMENT),
                start_new_session=True,
            )
        self._pids[program.name] = process.pid
        self._write_pids()
        return process

    def _forget(self, program: Program) -> None:
        del self._pids[program.name]
        self._write_pids()

    def _write_pids(self) -> None:
        unfinished = self._pids_file.with_suffix(".tmp")
        unfinished.write_text(json.dumps(self._pids), encoding="utf-8")
        unfinished.replace(self._pids_file)
