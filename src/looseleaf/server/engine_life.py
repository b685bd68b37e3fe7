"""One life of the engine's process, as the front sees it: start, messages both ways, and its end."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import msgspec
import zmq

from looseleaf.server import early_engine
from looseleaf.server.engine_settings import EngineSettings, commands_address, messages_address
from looseleaf.server.interface import Command, EngineMessage
from looseleaf.server.step_ledger import read_ledger

_LEDGER = "ledger"
_LAST_WORDS_MILLISECONDS = 500


class EngineLife:
    """A process, and two sockets in a folder that only this user can open. Everything happens on one event loop."""

    command: tuple[str, ...] = early_engine.COMMAND
    """What is started, with the folder as its argument."""

    def __init__(self, settings: EngineSettings, on_message: Callable[[EngineMessage], None]) -> None:
        """Starts it. `on_message` is called for each message, from the running loop."""
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._folder = Path(tempfile.mkdtemp(prefix="looseleaf-"))
        self._decoder: msgspec.msgpack.Decoder[EngineMessage] = msgspec.msgpack.Decoder(EngineMessage)
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.Context()
        self._commands = self._context.socket(zmq.PUSH)
        self._messages = self._context.socket(zmq.PULL)
        for socket in (self._commands, self._messages):
            socket.set_hwm(0)
        self._commands.linger = 0
        self._messages.bind(messages_address(self._folder))
        self._commands.connect(commands_address(self._folder))
        self._reads_from = int(self._messages.getsockopt(zmq.FD))
        self._heard = False
        self._loop.add_reader(self._reads_from, self._receive)
        msgspec.structs.replace(settings, parent=os.getpid()).write(self._folder)
        # A session of its own: what the terminal sends to the front (Ctrl-C) is the front's to decide about.
        self._process = early_engine.take(self._folder) or subprocess.Popen(
            [*self.command, str(self._folder)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if _has_file(sys.stderr) else subprocess.DEVNULL,
            start_new_session=True,
        )
        threading.Thread(target=self._watch, name="engine-watch", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: Command) -> None:
        """Never blocks."""
        self._commands.send(self._encoder.encode(command), zmq.NOBLOCK)

    async def ended(self) -> int:
        """Wait for the process to end; its exit status (negative: the signal). What it had sent has been told."""
        status: int = await asyncio.shield(self._ended)
        # A process that could not start says why; the message may come later than the news of its end.
        while self._receive_one(_LAST_WORDS_MILLISECONDS if status > 0 and not self._heard else 0):
            pass
        return status

    def working_on(self) -> dict[str, int]:
        """After its end: the requests that it was working on, and how far each had come."""
        return read_ledger(self._folder / _LEDGER)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """After its end."""
        self._loop.remove_reader(self._reads_from)
        self._commands.close(0)
        self._messages.close(0)
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self) -> None:
        status = self._process.wait()
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._note_end, status)

    def _note_end(self, status: int) -> None:
        if not self._ended.done():
            self._ended.set_result(status)

    def _receive(self) -> None:
        # The descriptor tells of a change only: everything must be read.
        while self._receive_one(0):
            pass

    def _receive_one(self, milliseconds: int) -> bool:
        if milliseconds and not self._messages.poll(milliseconds):
            return False
        try:
            message = self._messages.recv(zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._heard = True
        self._on_message(self._decoder.decode(message))
        return True


def _has_file(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False
