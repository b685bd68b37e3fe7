"""The engine's process: one loop that takes commands, steps, and says what came of it.

Started by the front as `python -m looseleaf.server.engine_process FOLDER`, or before the front knows what it wants, and
then told the folder on stdin (see `early_engine`); it ends when the front does. An error in a
step ends it too: the front starts another one, and what was in flight goes on.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from looseleaf.errors import LooseleafError
from looseleaf.server.engine_settings import EngineSettings, commands_address, messages_address
from looseleaf.server.interface import (
    AbortRequest,
    Command,
    EndSample,
    EngineMessage,
    GenerateRequest,
    Ready,
    RequestRefused,
    StartFailed,
    Updates,
)
from looseleaf.server.lean_torch import defer_compiler_parts
from looseleaf.server.log_format import logs_written
from looseleaf.server.log_stream import LostRecords
from looseleaf.server.step_ledger import StepLedger

if TYPE_CHECKING:
    from looseleaf.engine.engine import Engine
    from looseleaf.scheduler.interface import StepPlan

CRASH_VARIABLE = "LOOSELEAF_TEST_CRASH_ON"
"""For tests: the process kills itself when it comes to work on a request whose id contains the variable's value."""
LEDGER = "ledger"
_PR_SET_PDEATHSIG = 1
_IDLE_MILLISECONDS = 1000

logger = logging.getLogger("looseleaf.server.engine")  # this module may be __main__


class Channel:
    """The engine's end of both sockets. Sending never blocks: what the front has not read waits in its memory."""

    def __init__(self, folder: Path) -> None:
        self._context = zmq.Context()
        self._commands = self._context.socket(zmq.PULL)
        self._messages = self._context.socket(zmq.PUSH)
        for socket in (self._commands, self._messages):
            socket.set_hwm(0)
        self._messages.linger = 1000
        self._commands.bind(commands_address(folder))
        self._messages.connect(messages_address(folder))
        self._decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: EngineMessage) -> None:
        self._messages.send(self._encoder.encode(message))

    def commands(self, *, wait: bool) -> Iterator[Command]:
        """What has arrived; if nothing has, `wait` for it, a second at most."""
        if wait:
            self._commands.poll(_IDLE_MILLISECONDS)
        while True:
            try:
                yield self._decoder.decode(self._commands.recv(zmq.NOBLOCK))
            except zmq.Again:
                return

    def close(self) -> None:
        self._commands.close(0)
        self._messages.close()
        self._context.term()


class EngineLoop:
    def __init__(
        self, engine: Engine, channel: Channel, ledger: StepLedger, parent: int = 0, audit_interval: float = 0.0
    ) -> None:
        from looseleaf.server.engine_events import EventMaker
        from looseleaf.server.engine_meter import EngineMeter

        self._engine = engine
        self._channel = channel
        self._ledger = ledger
        self._parent = parent
        self._audit_interval = audit_interval
        self._audited_at, self._audited_step = time.monotonic(), 0
        self._crash_on = os.environ.get(CRASH_VARIABLE)
        self._events = EventMaker(engine)
        self._meter = EngineMeter(engine)
        engine.on_plan = self._planned

    def run(self) -> None:
        """Until the front says so, or is gone. Raises `AuditError`: nothing more may be served from this memory."""
        engine = self._engine
        while True:
            had_work = engine.has_unfinished()
            heard = False
            for command in self._channel.commands(wait=not had_work):
                heard = True
                if not self._carry_out(command):
                    return
            if engine.has_unfinished():
                self._step()
            elif self._parent and os.getppid() != self._parent:
                return
            if self._audit_interval and self._is_audit_due(resting=not (had_work or heard)):
                self._audit()

    def _is_audit_due(self, *, resting: bool) -> bool:
        """Now and then while it works, and once when it has come to rest."""
        if resting:
            return self._audited_step != self._meter.num_steps
        return time.monotonic() - self._audited_at >= self._audit_interval

    def _audit(self) -> None:
        from looseleaf.memory.errors import AuditError

        try:
            self._engine.memory.audit()
        except AuditError as error:
            logger.critical("%s", error)
            self._meter.audited(clean=False)
            raise
        else:
            self._meter.audited(clean=True)
        finally:
            self._audited_at, self._audited_step = time.monotonic(), self._meter.num_steps
            self._channel.send(Updates([], self._meter.stats()))

    def _step(self) -> None:
        self._meter.begin()
        deltas = self._engine.step()
        self._ledger.end()
        self._meter.ran(sum(len(delta.token_ids) for delta in deltas))
        began = time.perf_counter()
        events, stats = self._events.events(deltas), self._meter.due_stats()
        if events or stats is not None:
            self._channel.send(Updates(events, stats))
        self._meter.sent(time.perf_counter() - began)

    def _planned(self, plan: StepPlan) -> None:
        requests = dict.fromkeys(sequence.request for sequence in plan.sequences)
        places = {request.request_id: request.num_live_tokens for request in requests}
        self._ledger.begin(places)
        if self._crash_on and any(self._crash_on in request_id for request_id in places):
            os.kill(os.getpid(), signal.SIGUSR1)  # no kill from outside, and no core dump
        self._events.planned(plan)
        self._meter.planned(plan)

    def _carry_out(self, command: Command) -> bool:
        """False: it was the last."""
        if isinstance(command, GenerateRequest):
            self._add(command)
        elif isinstance(command, AbortRequest):
            self._engine.abort(command.request_id)
            self._events.aborted(command.request_id)
        elif isinstance(command, EndSample):
            self._end_sample(command)
        else:
            return False
        if not self._engine.has_unfinished():  # no step will say so
            self._channel.send(Updates([], self._meter.stats()))
        return True

    def _add(self, command: GenerateRequest) -> None:
        from looseleaf.engine.prompts import TokenPrompt
        from looseleaf.engine.sampling_params import SamplingParams

        request_id = command.request_id
        try:
            with self._ledger.adding(request_id):
                params = SamplingParams.parse(command.params)
                prompt: TokenPrompt = self._engine.read_prompt(command.prompt_token_ids)
                self._engine.add_request(
                    prompt,
                    params,
                    adapter=command.adapter,
                    request_id=request_id,
                    cache_salt=command.cache_salt,
                    priority=command.priority,
                    tenant=command.tenant,
                    weight=command.weight,
                    known=command.known,
                    ended=command.ended,
                )
        except LooseleafError as error:
            self._ledger.end()
            self._channel.send(refusal(request_id, error))
        else:
            self._events.added(request_id, params)

    def _end_sample(self, command: EndSample) -> None:
        try:
            deltas = self._engine.end_sample(command.request_id, command.index)
        except LooseleafError as error:
            logger.warning("%s", error)
        else:
            if events := self._events.events(deltas):
                self._channel.send(Updates(events))


def refusal(request_id: str, error: LooseleafError) -> RequestRefused:
    """A typed error as a message."""
    details = {
        name: value
        for name, value in vars(error).items()
        if name not in ("message", "hint") and isinstance(value, str | int | float)
    }
    return RequestRefused(request_id, type(error).__name__, error.message, error.hint, details)


def main() -> int:
    gc.disable()  # what starts a process stays: looking for garbage in it took a fifth of the time
    for ignored in (signal.SIGINT, signal.SIGTERM):  # the front ends this process, after what runs has ended
        signal.signal(ignored, signal.SIG_IGN)
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
    else:
        _end_with_parent()
        with suppress(Exception):  # what cannot be imported is told when it is needed
            _import_engine()
        told = sys.stdin.readline().removesuffix("\n")
        if not told:
            return 0  # nobody needs it
        folder = Path(told)
    settings = EngineSettings.read(folder)
    if settings.parent:
        # Before anything that takes long. A front that ended even sooner is noticed by its id.
        _end_with_parent()
        if os.getppid() != settings.parent:
            return 1
    logs = logs_written(
        sys.stderr, format=settings.log_format, source="engine", level=settings.log_level, on_loss=LostRecords().note
    )
    with logs, StepLedger(folder / LEDGER) as ledger:
        channel = Channel(folder)
        try:
            engine, path = _load(settings)
        except Exception as error:
            expected = isinstance(error, LooseleafError)
            if not expected:
                logger.exception("The engine cannot start")
            message, hint = (error.message, error.hint) if isinstance(error, LooseleafError) else (repr(error), "")
            channel.send(StartFailed(type(error).__name__, message, hint))
            channel.close()
            return 1
        from looseleaf.server.engine_meter import describe

        channel.send(Ready(describe(engine, path)))
        gc.freeze()  # no collection needs to look at it later, either
        gc.enable()
        try:
            EngineLoop(engine, channel, ledger, settings.parent, settings.audit_interval).run()
        except Exception:
            logger.exception("The engine ends")
            return 1
        finally:
            channel.close()
    return 0


def _end_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _import_engine() -> None:
    defer_compiler_parts()
    import looseleaf.engine.llm
    import looseleaf.server.engine_events
    import looseleaf.server.engine_meter  # noqa: F401


def _load(settings: EngineSettings) -> tuple[Engine, str]:
    _import_engine()
    from looseleaf.engine.config import EngineConfig
    from looseleaf.engine.llm import load_engine
    from looseleaf.kernels.threads import use_threads
    from looseleaf.models.store import resolve_model

    config = EngineConfig.parse(settings.config)
    use_threads(settings.threads)
    path = str(resolve_model(settings.model).path)
    return load_engine(path, config, wait_for_memory=False), path


if __name__ == "__main__":
    sys.exit(main())
