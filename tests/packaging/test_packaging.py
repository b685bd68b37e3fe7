"""What users install: the sdist, a wheel built from it, and the wheel of a machine without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("scikit_build_core", reason="the build backend is not installed here")
REPOSITORY = Path(__file__).parents[2]

# The editable install's finder would answer before the folder under test does.
SMOKE = """
    import sys, warnings
    sys.meta_path = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
    sys.path.insert(0, sys.argv[1])
    import torch, looseleaf, looseleaf.kernels.native as native
    assert looseleaf.__file__.startswith(sys.argv[1]), looseleaf.__file__
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache = torch.arange(6.0).view(1, 3, 2)
        native.copy_blocks(cache, torch.tensor([2], dtype=torch.int32), torch.tensor([0], dtype=torch.int32))
        assert cache[0, 0].tolist() == [4.0, 5.0]
        assert "emulated" not in native.cpu_features()
        print(native.is_available(), len(native.cpu_features()), [str(warning.message) for warning in caught])
"""


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    code = f"import scikit_build_core.build as b; b.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", code, cwd=REPOSITORY)
    return next(folder.glob("looseleaf-*.tar.gz"))


@pytest.fixture
def source(sdist: Path, tmp_path: Path) -> Path:
    """The sdist, unpacked afresh: CMake remembers the compiler of an earlier build."""
    with tarfile.open(sdist) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / sdist.name.removesuffix(".tar.gz")


def wheel(source: Path, out: Path, **environment: str) -> tuple[Path, str]:
    pip = (sys.executable, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps", "-w", str(out), ".")
    said = run(*pip, cwd=source, **environment)
    return next(out.glob("*.whl")), said


def smoke(built: Path, target: Path) -> str:
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(target),
        str(built),
        cwd=target.parent,
    )
    return run(sys.executable, "-c", textwrap.dedent(SMOKE), str(target), cwd=target.parent)


def test_the_sdist_holds_what_a_build_needs_and_no_more(source: Path) -> None:
    top = {path.name for path in source.iterdir()}
    assert {"pyproject.toml", "CMakeLists.txt", "csrc", "src", "LICENSE", "README.md"} <= top
    assert not top & {"tests", "benchmarks", "docs", ".ci", "build"}


def test_a_wheel_from_the_sdist_brings_the_extension(source: Path, tmp_path: Path) -> None:
    built, said = wheel(source, tmp_path)
    if "WITHOUT its native extension" in said:
        pytest.skip("this machine has no C++ compiler")
    assert "-py3-none-" in built.name  # any Python, any torch of the stable ABI
    assert "looseleaf/kernels/_native.so" in zipfile.ZipFile(built).namelist()
    available, features, warned = smoke(built, tmp_path / "installed").split(maxsplit=2)
    assert (available, warned.strip()) == ("True", "[]")
    assert int(features) >= 1


def test_without_a_compiler_the_wheel_is_pure_and_says_so(source: Path, tmp_path: Path) -> None:
    built, said = wheel(source, tmp_path, CXX="/nonexistent/compiler")
    assert "WITHOUT its native extension" in said
    assert built.name.endswith("-py3-none-any.whl")
    available, features, warned = smoke(built, tmp_path / "installed").split(maxsplit=2)
    assert (available, features) == ("False", "0")
    assert "native extension is missing" in warned


@pytest.mark.parametrize("option", ["LOOSELEAF_EMULATE", "LOOSELEAF_SANITIZE"])
def test_a_build_for_tests_cannot_become_a_package(option: str, tmp_path: Path) -> None:
    cmake = pytest.importorskip("cmake", reason="CMake is not installed here")
    command = [
        f"{cmake.CMAKE_BIN_DIR}/cmake",
        "-S",
        str(REPOSITORY),
        "-B",
        str(tmp_path),
        "-DSKBUILD=2",
        f"-D{option}=ON",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode != 0
    assert "only tests load" in " ".join(done.stderr.split())
