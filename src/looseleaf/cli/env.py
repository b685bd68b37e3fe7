"""`looseleaf env`: the machine as Looseleaf sees it, and how fast it is."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from looseleaf import __version__
from looseleaf.cli.command import command
from looseleaf.cli.consoles import stdout, write
from looseleaf.cli.options import OutputOptions

if TYPE_CHECKING:
    from looseleaf.kernels.machine import MatmulSpeed, ReadSpeed
    from looseleaf.kernels.processors import Cache, Cores
    from looseleaf.kernels.system_memory import SystemMemory

PACKAGES = ("torch", "numpy", "gguf", "tokenizers", "safetensors")


@dataclass(frozen=True, slots=True)
class Kernels:
    """Which kernels run, and why these."""

    extension: bool
    compiler: str
    isa: str | None
    available_isas: list[str]
    chosen_by: str
    features: list[str]
    emulated: bool
    auto_dtype: str


@dataclass(frozen=True, slots=True)
class Environment:
    versions: dict[str, str]
    processor: str
    cores: Cores
    threads: int
    openmp: dict[str, str]
    """The environment variables that say how threads wait for one another, as far as they are set."""
    caches: list[Cache]
    numa_nodes: dict[int, list[int]]
    numa_nodes_used: list[int]
    memory: SystemMemory
    kernels: Kernels
    reads: list[ReadSpeed]
    matmuls: list[MatmulSpeed]


def register(app: typer.Typer) -> None:
    command(app, "env")(env)


def env(
    output: OutputOptions,
    threads: Annotated[
        int | None, typer.Option(help="Threads to measure with. Default: those that a model would run on.", min=1)
    ] = None,
    speed: Annotated[
        bool, typer.Option("--speed/--no-speed", help="Measure memory and arithmetic, about a second.")
    ] = True,
) -> None:
    """Show processor, memory, kernels and versions, and measure what the machine can do at best.

    Tokens per second of one stream are at most the bandwidth divided by the bytes of the weights. Put this beside
    any figure that you report.
    """
    from looseleaf.kernels.threads import use_threads

    use_threads(threads)
    found = gather(speed=speed)
    if output.json:
        write(json.dumps(as_json(found), indent=2) + "\n")
        return
    console = stdout()
    for index, (title, rows) in enumerate(sections(found).items()):
        if index:
            console.print()
        console.print(Text(title, style="bold"))
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(min_width=17, no_wrap=True, style="dim")
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(f"  {name}", Text(value))
        console.print(table)


def gather(*, speed: bool) -> Environment:
    import torch

    from looseleaf.kernels import machine
    from looseleaf.kernels.numa import allowed_nodes, node_processors
    from looseleaf.kernels.processors import processor_name, read_caches, read_cores
    from looseleaf.kernels.system_memory import read_system_memory

    kernels = _kernels()  # loads the extension, or says that it is missing
    return Environment(
        versions={"looseleaf": __version__, "python": platform.python_version()}
        | {name: _version(name) for name in PACKAGES},
        processor=processor_name(),
        cores=read_cores(),
        threads=torch.get_num_threads(),
        openmp={
            name: os.environ[name]
            for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
            if name in os.environ
        },
        caches=read_caches(),
        numa_nodes=node_processors(),
        numa_nodes_used=allowed_nodes(),
        memory=read_system_memory(),
        kernels=kernels,
        reads=machine.measure_reads() if speed else [],
        matmuls=machine.measure_matmuls() if speed else [],
    )


def _kernels() -> Kernels:
    from looseleaf.engine.config import EngineConfig
    from looseleaf.kernels import native

    extension = native.is_available()
    asked = os.environ.get(native.ISA_VARIABLE)
    features = native.cpu_features()
    return Kernels(
        extension=extension,
        compiler=native.build_info(),
        isa=native.isa(),
        available_isas=native.available_isas(),
        chosen_by="" if not extension else f"{native.ISA_VARIABLE}={asked}" if asked else "the best of this machine",
        features=features,
        emulated="emulated" in features,
        auto_dtype=str(EngineConfig().torch_dtype).removeprefix("torch."),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def as_json(found: Environment) -> dict[str, Any]:
    plain = asdict(found)
    plain["cores"] |= {"best_threads": found.cores.best, "most_threads": found.cores.most}
    return plain


def sections(found: Environment) -> dict[str, list[tuple[str, str]]]:
    """What a person reads: titles, each with its lines of name and value."""
    shown = {
        "Versions": list(found.versions.items()),
        "Processor": _processor_lines(found),
        "Kernels": _kernel_lines(found.kernels),
        "Memory": _memory_lines(found),
    }
    if found.reads:
        shown["Speed, measured now (best of its runs)"] = _speed_lines(found)
    return shown


def _processor_lines(found: Environment) -> list[tuple[str, str]]:
    cores = found.cores
    usable = f"{_counted(cores.physical, 'core')}, {_counted(cores.logical, 'logical processor')}"
    if cores.logical < cores.machine:
        usable += f" of the machine's {cores.machine}"
    if cores.quota is not None:
        usable += f", quota of {cores.quota:g}"
    threads = f"{found.threads} used"
    if found.threads > cores.most:
        threads += f": MORE THAN CAN RUN AT ONCE, use {cores.best}"
    settings = ", ".join(f"{name}={value}" for name, value in found.openmp.items())
    nodes = (
        f"{_counted(len(found.numa_nodes), 'node')}; used: {', '.join(map(str, found.numa_nodes_used)) or 'unknown'}"
        + ("; the KV cache is spread over them in turns" if len(found.numa_nodes_used) > 1 else "")
        if found.numa_nodes
        else "unknown"
    )
    caches = (f"{each.name} {_size(each.nbytes)} for {each.shared_by}" for each in found.caches)
    return [
        ("name", found.processor),
        ("available", usable),
        ("threads", threads + (f" ({settings})" if settings else "")),
        ("caches", ", ".join(caches) or "unknown"),
        ("NUMA", nodes),
    ]


def _kernel_lines(kernels: Kernels) -> list[tuple[str, str]]:
    if not kernels.extension:
        return [
            ("extension", "MISSING: the slower reference kernels are used (see the warning)"),
            ("dtype auto", kernels.auto_dtype),
        ]
    return [
        ("extension", f"loaded, built by {kernels.compiler}" + (", EMULATED" if kernels.emulated else "")),
        ("instructions", f"{kernels.isa}: {kernels.chosen_by}; can run {', '.join(kernels.available_isas)}"),
        ("processor has", ", ".join(kernels.features)),
        ("dtype auto", kernels.auto_dtype),
    ]


def _memory_lines(found: Environment) -> list[tuple[str, str]]:
    memory = found.memory
    pages = {"always": "used", "madvise": "used where asked for, as the KV cache does", "never": "not used"}
    return [
        ("total", _size(memory.total)),
        ("available", _size(memory.available)),
        ("container", "no limit" if memory.container_limit is None else _size(memory.container_limit)),
        ("lockable", "no limit" if memory.lock_limit is None else _size(memory.lock_limit)),
        ("huge pages", f"{memory.huge_pages}: {pages.get(memory.huge_pages, 'the system does not say')}"),
    ]


def _speed_lines(found: Environment) -> list[tuple[str, str]]:
    reads: dict[str, list[str]] = {}
    for each in found.reads:
        speed = f"{each.bytes_per_second / 1e9:,.1f} GB/s with {_counted(each.threads, 'thread')}"
        reads.setdefault(f"read {each.place}", [f"{_size(each.nbytes)}:"]).append(speed)
    lines = [(name, f"{texts[0]} {', '.join(texts[1:])}") for name, texts in reads.items()]
    for product in found.matmuls:
        rate = f"{product.flops / 1e9:,.1f} GFLOP/s with {_counted(product.threads, 'thread')}"
        lines.append((f"{product.dtype} matmul", rate))
    return lines


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("s" if count != 1 else "")


def _size(nbytes: float) -> str:
    from looseleaf.engine.config import format_bytes

    return format_bytes(nbytes)
