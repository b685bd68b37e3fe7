"""The server of the fault suite, and what it says about itself."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import psutil

from server.faults.raw_http import ask
from server.server_process import Server

_LIMITS = (
    *("--max-num-seqs", "8", "--max-queue", "64", "--max-num-batched-tokens", "64"),
    *("--header-timeout", "1", "--body-timeout", "2", "--write-timeout", "2", "--drain-timeout", "60"),
    *("--audit-interval", "1"),
)
_SECONDS = 60


class FaultyServer(Server):
    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder, *_LIMITS, *options)
        self.front = psutil.Process(self.process.pid)

    @property
    def front_bytes(self) -> int:
        """Memory of the front."""
        return int(self.front.memory_info().rss)

    def engine(self) -> psutil.Process | None:
        """Its process, unless there is none at the moment."""
        for child in self.front.children():
            try:
                if "looseleaf.server.engine_process" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                    return child
            except psutil.NoSuchProcess:
                continue
        return None

    def connections(self) -> int:
        return sum(each.status == psutil.CONN_ESTABLISHED for each in self.front.net_connections("tcp"))

    async def metrics(self) -> dict[str, float]:
        text = (await ask(self.url, "/metrics", method="GET")).body.decode()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of all series of this name and these labels."""
        return sum(
            value
            for series, value in (await self.metrics()).items()
            if re.match(rf"{name}(\{{|$)", series) and all(f'{key}="{text}"' in series for key, text in labels.items())
        )

    async def wait_until_ready(self) -> None:
        async with asyncio.timeout(_SECONDS):
            while (await ask(self.url, "/health/ready", method="GET")).status != 200:
                await asyncio.sleep(0.01)

    async def settle(self) -> None:
        """Until nothing is in flight: every block is free again, and an audit from now on finds the books right."""
        await self.wait_until_ready()
        audits = await self.metric("looseleaf_memory_audits_total", result="clean")
        assert (await ask(self.url, "/v1/completions", {"prompt": [1], "max_tokens": 2})).status == 200
        async with asyncio.timeout(_SECONDS):
            while (
                await self.metric("vllm:num_requests_running")
                or await self.metric("vllm:num_requests_waiting")
                or await self.metric("looseleaf_kv_blocks", state="active")
                or await self.metric("looseleaf_memory_audits_total", result="clean") <= audits
            ):
                await asyncio.sleep(0.05)
        assert await self.metric("looseleaf_memory_audits_total", result="failed") == 0
        slots = await self.metric("looseleaf_kv_token_slots", state="free")
        assert slots == await self.metric("looseleaf_kv_token_slots")
