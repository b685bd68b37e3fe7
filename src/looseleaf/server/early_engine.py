"""An engine's process that is started before the command line has been read.

What takes longest of all until a server answers is what the engine's process imports, so that begins first; the front
comes to its settings meanwhile. Whoever starts an engine later takes this process, if there is one.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

COMMAND = (sys.executable, "-m", "looseleaf.server.engine_process")
"""With a folder as argument; without, the process imports what it needs and then reads the folder's name from stdin."""

_early: subprocess.Popen[bytes] | None = None


def begin() -> None:
    """Start it. It ends with this process, and when nobody can take it any more."""
    global _early
    with suppress(OSError, AttributeError, ValueError):  # whoever starts the engine will say so
        _early = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=sys.stderr.fileno(), start_new_session=True)


def take(folder: Path) -> subprocess.Popen[bytes] | None:
    """The process, told its folder; the second time None, as if there was none."""
    global _early
    process, _early = _early, None
    if process is None or process.stdin is None:
        return None
    with suppress(OSError):  # it has ended
        process.stdin.write(f"{folder}\n".encode())
    with suppress(OSError):
        process.stdin.close()
    return process if process.poll() is None else None
