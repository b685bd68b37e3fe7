"""What the server is told when it starts. Importing this costs next to nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from looseleaf.server.engine_settings import EngineSettings
from looseleaf.server.log_format import LogFormat
from looseleaf.server.log_stream import LogSink, LostRecords

if TYPE_CHECKING:
    from starlette.requests import Request

    from looseleaf.server.tracing import TraceExport

Prefix = Literal["vllm", "looseleaf"]


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    request_timeout: float | None = None
    """Seconds from the request's headers to the end of its answer."""
    max_body_bytes: int = 4 << 20
    body_timeout: float = 30.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    max_connections: int = 4096
    max_header_bytes: int = 64 << 10
    """Of a request's first line and headers together."""
    header_timeout: float = 10.0
    """Seconds from the beginning of a connection, or of a later request, to the end of its headers; and for the rest
    of a body, when its answer has been given early."""
    write_timeout: float = 60.0
    """Seconds that a client may take nothing of what is sent to it."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    engine: EngineSettings
    served_model_names: tuple[str, ...] = ()
    """Empty: the model's name as it was given."""
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    api_key_file: Path | None = None
    allow_unauthenticated: bool = False
    allowed_hosts: tuple[str, ...] = ()
    """Names that clients may ask for, beside this machine's own; matters where no key is needed."""
    max_queue: int = 2048
    max_crashes: int = 3
    drain_timeout: float = 30.0
    """Seconds that requests in progress have to end when the server is told to stop."""
    metrics_prefix: Prefix = "vllm"
    log_format: LogFormat = "text"
    log_level: str = "INFO"
    log_requests: bool = True
    log_prompts: bool = False
    otlp_traces_endpoint: str | None = None
    """Where spans of requests go; None: there are none."""
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)


@dataclass(frozen=True, slots=True)
class Observation:
    """Where what is seen of the server goes, beside its metrics."""

    log: LogSink | None = None
    """None: stderr."""
    lost_records: LostRecords = field(default_factory=LostRecords)
    """Of the log."""
    traces: TraceExport | None = None


@dataclass(frozen=True, slots=True)
class FrontSettings:
    served_model_names: tuple[str, ...]
    """At least one; answers carry the one that was asked for."""
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix time that `/v1/models` gives."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as far as the engine must know. A client chooses none of it."""

    tenant: str = ""
    weight: float = 1.0
    cache_salt: str = ""


def anonymous(_request: Request) -> Caller:
    """Where nobody says who he is, all are one."""
    return Caller()
