"""The front over a real socket, with an engine in the same process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import openai
import uvicorn

from looseleaf.engine.engine import Engine
from looseleaf.server.app import create_app
from looseleaf.server.connection import limited_connection
from looseleaf.server.settings import ConnectionLimits, FrontSettings
from server.local_client import LocalClient
from tiny_model import tiny_engine, tiny_model

MODEL = "tiny"


@dataclass(frozen=True)
class Served:
    url: str
    client: LocalClient
    engine: Engine

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=30)

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30)


@contextmanager
def served(engine: Engine | None = None) -> Iterator[Served]:
    engine = engine or tiny_engine(
        tiny_model(max_position_embeddings=2048), num_blocks=1024, max_model_len=2048, max_num_seqs=16
    )
    client = LocalClient(engine)
    app = create_app(client, engine.tokenizer, FrontSettings((MODEL, "tiny-alias"), created=1))
    http = limited_connection(ConnectionLimits())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off", ws="none", http=http))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Served(f"http://127.0.0.1:{port}", client, engine)
    finally:
        server.should_exit = True
        thread.join(10)
        client.close()
