"""Every figure of the README, one after the other; about half an hour on two cores. Keep the machine quiet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ALLOCATORS = ("paged", "contiguous-max", "contiguous-pow2", "contiguous-oracle")
COMMANDS: dict[str, list[str]] = {
    "Memory manager": [sys.executable, "bench_memory.py"],
    "Sampler": [sys.executable, "bench_sampler.py"],
    "Memory footprint": [sys.executable, "bench_footprint.py"],
    "The same bytes under four allocators": [
        str(Path(sys.executable).with_name("looseleaf")),
        *("bench", "workload.json", "--test", "T3", "--runs", "1"),
        *("--kv-cache-memory", "384MiB", "--max-model-len", "2048"),
        *(word for allocator in ALLOCATORS for word in ("--allocator", allocator)),
    ],
    "Beside transformers' continuous batching": [sys.executable, "side_by_side.py", "--requests", "16"],
}


def main() -> None:
    failed = []
    for title, command in COMMANDS.items():
        print(f"\n== {title}\n", flush=True)
        if subprocess.run(command, cwd=HERE, check=False).returncode:
            failed.append(title)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
