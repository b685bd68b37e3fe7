"""`looseleaf serve`: the engine behind OpenAI's protocol."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from looseleaf.cli.command import command
from looseleaf.cli.options import AUTO, SCHEDULING, EngineOptions, OutputOptions
from looseleaf.errors import ConfigurationError

if TYPE_CHECKING:
    from looseleaf.cli.first_question import FirstQuestion
    from looseleaf.server.settings import ServerSettings

SERVER, ACCESS, LIMITS, OBSERVING = "Server", "Access", "Limits", "Logs, metrics, traces"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that others can reach needs keys.", rich_help_panel=SERVER)
    ] = "127.0.0.1"
    port: Annotated[
        int, typer.Option(help="0: any that is free; it is printed.", min=0, max=65535, rich_help_panel=SERVER)
    ] = 8000
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="What clients call the model. May be repeated. Default: as it was given.",
            rich_help_panel=SERVER,
        ),
    ] = None
    ask: Annotated[
        str | None,
        typer.Option(
            metavar="QUESTION",
            help="Once ready, ask this over HTTP and print the answer. Then the server stays until Ctrl-C; without a "
            "terminal, or if the answer fails, it stops.",
            rich_help_panel=SERVER,
        ),
    ] = None
    drain_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds for requests in progress to end after SIGTERM or Ctrl-C. A second signal ends them at once.",
            min=0,
            rich_help_panel=SERVER,
        ),
    ] = 30.0
    max_crashes: Annotated[
        int,
        typer.Option(
            help="Times that a request may end the engine's process before it is given up.",
            min=1,
            rich_help_panel=SERVER,
        ),
    ] = 3
    audit_interval: Annotated[
        float,
        typer.Option(
            help="Seconds between audits of the KV cache's books; one that fails ends the engine's process, and "
            "another one goes on. 0: none.",
            min=0,
            rich_help_panel=SERVER,
        ),
    ] = 60.0
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            envvar="LOOSELEAF_API_KEY",
            help="Key that requests must have. May be repeated. Others can see the command line: better set the "
            "variable, or use a file.",
            rich_help_panel=ACCESS,
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keys, and the tenants that they belong to with their limits: .toml, or .json of the same form; read "
            "again on SIGHUP.",
            rich_help_panel=ACCESS,
        ),
    ] = None
    allow_unauthenticated: Annotated[
        bool,
        typer.Option(
            "--allow-unauthenticated",
            help="Let anyone in who can connect, by whatever name.",
            rich_help_panel=ACCESS,
        ),
    ] = False
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name by which clients may call this server when no key is needed; * for any. May be repeated. "
            "Default: only this machine's, so that no web page gets at it.",
            rich_help_panel=ACCESS,
        ),
    ] = None
    max_queue: Annotated[
        int,
        typer.Option(
            help="Requests that may wait beside those that run; more are refused with 429.",
            min=0,
            rich_help_panel=LIMITS,
        ),
    ] = 2048
    request_timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which an answer is ended. A client may ask for fewer: header X-Request-Timeout.",
            min=0.001,
            rich_help_panel=LIMITS,
        ),
    ] = None
    max_body_bytes: Annotated[int, typer.Option(help="Longest body of a request.", min=1, rich_help_panel=LIMITS)] = (
        4 << 20
    )
    body_timeout: Annotated[
        float, typer.Option(help="Seconds for a body to arrive.", min=0.001, rich_help_panel=LIMITS)
    ] = 30.0
    max_connections: Annotated[int, typer.Option(help="Most at once.", min=1, rich_help_panel=LIMITS)] = 4096
    max_header_bytes: Annotated[
        int, typer.Option(help="Longest headers of a request.", min=256, rich_help_panel=LIMITS)
    ] = 64 << 10
    header_timeout: Annotated[
        float, typer.Option(help="Seconds for headers to arrive.", min=0.001, rich_help_panel=LIMITS)
    ] = 10.0
    write_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds after which a connection is ended whose client takes nothing of what is sent to it.",
            min=0.001,
            rich_help_panel=LIMITS,
        ),
    ] = 60.0
    metrics_prefix: Annotated[
        Literal["vllm", "looseleaf"],
        typer.Option(help="How /metrics names what vLLM has too.", rich_help_panel=OBSERVING),
    ] = "vllm"
    log_format: Annotated[
        Literal["text", "json"],
        typer.Option(help="Of the log on stderr, the engine's lines too.", rich_help_panel=OBSERVING),
    ] = "text"
    log_requests: Annotated[
        bool,
        typer.Option(
            "--log-requests/--no-log-requests",
            help="A line for each request that is over, with its id, tenant, sizes and times.",
            rich_help_panel=OBSERVING,
        ),
    ] = True
    log_prompts: Annotated[
        bool,
        typer.Option("--log-prompts", help="In it also the prompt's token ids.", rich_help_panel=OBSERVING),
    ] = False
    otlp_traces_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send OpenTelemetry traces of requests there, such as http://127.0.0.1:4318/v1/traces.",
            rich_help_panel=OBSERVING,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ServedEngineOptions(EngineOptions):
    scheduling_policy: Annotated[
        str,
        typer.Option(
            help="Who goes first: fcfs (first come first served), priority (requests name theirs), or fair (tenants "
            "get shares by their weights). auto: fair where several tenants have keys, else fcfs.",
            rich_help_panel=SCHEDULING,
        ),
    ] = AUTO


def register(app: typer.Typer) -> None:
    command(app, "serve", omit=("json",))(serve)


def serve(
    server: ServerOptions,
    engine: ServedEngineOptions,
    output: OutputOptions,
    name: Annotated[str | None, typer.Argument(metavar="MODEL", help="As --model.", show_default=False)] = None,
) -> None:
    """Serve a model to OpenAI clients, until SIGTERM or Ctrl-C.

    Its address is printed on stderr once it answers. On 127.0.0.1 no key is
    needed; other addresses need [bold]--api-key-file[/], [bold]--api-key[/] or [bold]--allow-unauthenticated[/].
    """
    from looseleaf.server.serving import serve as run

    engine = replace(engine, model=name or engine.model)
    question = _question(server)

    def ready(url: str) -> None:
        with suppress(OSError):  # a full disk keeps no server from its work
            sys.stderr.write(f"Ready: {url}/v1\n")  # in one piece: the engine writes there too
        sys.stderr.flush()
        if question is not None:
            question.ask(url)

    run(server_settings(server, engine, quiet=output.quiet), ready)
    if question is not None:
        question.check()


def _question(server: ServerOptions) -> FirstQuestion | None:
    if server.ask is None:
        return None
    if server.api_key_file is not None and not server.api_key:
        raise ConfigurationError("There is no key to ask with.", hint="Give --api-key beside --api-key-file.")
    from looseleaf.cli.first_question import FirstQuestion, someone_watches

    return FirstQuestion(server.ask, server.api_key[0] if server.api_key else None, stay=someone_watches())


def server_settings(server: ServerOptions, engine: EngineOptions, *, quiet: bool = False) -> ServerSettings:
    """Imports neither HTTP nor what computes: that is for later, while the engine starts."""
    from looseleaf.server.engine_settings import EngineSettings
    from looseleaf.server.settings import AdmissionSettings, ConnectionLimits, ServerSettings

    return ServerSettings(
        engine=EngineSettings(
            model=engine.model,
            config=engine.settings(),
            threads=engine.threads,
            audit_interval=server.audit_interval,
        ),
        log_level="WARNING" if quiet else "INFO",
        log_format=server.log_format,
        log_requests=server.log_requests and not quiet,
        log_prompts=server.log_prompts,
        otlp_traces_endpoint=server.otlp_traces_endpoint,
        allowed_hosts=tuple(server.allowed_host or ()),
        served_model_names=tuple(server.served_model_name or ()),
        host=server.host,
        port=server.port,
        api_keys=tuple(server.api_key or ()),
        api_key_file=server.api_key_file,
        allow_unauthenticated=server.allow_unauthenticated,
        max_queue=server.max_queue,
        max_crashes=server.max_crashes,
        metrics_prefix=server.metrics_prefix,
        drain_timeout=server.drain_timeout,
        admission=AdmissionSettings(
            request_timeout=server.request_timeout,
            max_body_bytes=server.max_body_bytes,
            body_timeout=server.body_timeout,
        ),
        connections=ConnectionLimits(
            max_connections=server.max_connections,
            max_header_bytes=server.max_header_bytes,
            header_timeout=server.header_timeout,
            write_timeout=server.write_timeout,
        ),
    )
