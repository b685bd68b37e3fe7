"""Grammars are first tried in a process of their own, which dies where one costs too much.

llguidance bounds much of its work but not all: a few intersected patterns, or a `multipleOf` with a large number, keep
it busy for minutes, and a call into it cannot be interrupted. So a small helper process compiles a new grammar for an
alphabet of bytes and follows it along a few random texts, under limits on processor time and memory that the kernel
enforces. What passes is compiled again where it is used.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLTokenizer

CPU_SECONDS = 0.5
"""For one grammar, of the helper's own processor time."""
MEMORY = 2 * 2**30
PATIENCE_SECONDS = 30.0
"""Backstop where the helper gets no processor time, or does not start."""
WALKS, WALK_LENGTH = 3, 200
_END = 256


class GrammarTrial:
    """The helper process; started when first needed, and again after it died. Threads may share one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()
        atexit.register(self.close)

    def run(self, text: str) -> str:
        """What is wrong with a grammar (as llguidance reads it); empty if it can be followed."""
        with self._lock:
            try:
                answer = self._ask(json.dumps(text).encode() + b"\n")
            except OSError as error:
                answer = b""
                reason = f"the process that tries grammars failed: {error}"
            else:
                reason = "compiling or following it takes too much time or memory"
            if answer.endswith(b"\n"):
                return str(json.loads(answer))
            self.close()
            return reason

    def close(self) -> None:
        """End the helper, if it is this process's."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _ask(self, line: bytes) -> bytes:
        process = self._process
        if process is None or self._owner != os.getpid() or process.poll() is not None:
            self.close()
            self._owner = os.getpid()
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt at the terminal is not for it
            )
        if process.stdin is None or process.stdout is None:
            return b""
        process.stdin.write(line)
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_SECONDS)
        return process.stdout.readline() if ready else b""


def try_grammar(text: str, alphabet: LLTokenizer) -> str:
    """In the helper: what goes wrong when the grammar is compiled and followed; empty if nothing does."""
    from llguidance import LLMatcher

    from looseleaf.engine.grammar_limits import parser_limits

    start = LLMatcher(alphabet, text, log_level=0, limits=parser_limits())
    if start.is_error():
        return start.get_error()
    for seed in range(WALKS):
        matcher, generator = start.deep_copy(), random.Random(seed)
        for step in range(WALK_LENGTH):
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            if matcher.is_error():
                return matcher.get_error()
            allowed = [byte for byte in range(_END) if mask >> byte & 1]
            if not allowed:
                if step == 0 and not matcher.is_accepting():
                    return "no output satisfies it"
                break
            if not matcher.consume_token(generator.choice(allowed)):
                return matcher.get_error()
    return ""


class _Bytes:
    """An alphabet of single bytes, as llguidance wants a vocabulary."""

    tokens = (*(bytes([byte]) for byte in range(_END)), b"<end>")
    special_token_ids = (_END,)
    eos_token_id = _END
    bos_token_id = None

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def main() -> None:
    """A grammar a line as JSON, an answer a line."""
    from llguidance import LLTokenizer, TokenizerWrapper

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    alphabet = LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=_END)
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process
        sys.stdout.write(json.dumps(try_grammar(json.loads(line), alphabet)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
