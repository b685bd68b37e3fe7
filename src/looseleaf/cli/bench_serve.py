"""`looseleaf bench serve`: load on a running server, and what its clients see of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from looseleaf.cli.command import UNEXPECTED, command
from looseleaf.cli.consoles import counted, note, stderr, warn, write
from looseleaf.cli.load_figures import judge, print_figures
from looseleaf.cli.options import OutputOptions
from looseleaf.errors import InvalidRequest, LooseleafError

if TYPE_CHECKING:
    from looseleaf.load.driver import Asking, LoadRun
    from looseleaf.load.http_client import HttpClient
    from looseleaf.load.work import LoadRequest

SERVER, WORK, LOAD = "Server", "Work", "Load"
DEFAULT_URL = "http://127.0.0.1:8000"


def register(app: typer.Typer) -> None:
    command(app, "serve")(bench_serve)


def bench_serve(
    output: OutputOptions,
    url: Annotated[str, typer.Argument(metavar="URL", help="Of the server, without /v1.")] = (DEFAULT_URL),
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Default: the server's first.", rich_help_panel=SERVER)
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", envvar="LOOSELEAF_API_KEY", help="Better set the variable.", rich_help_panel=SERVER
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask /v1/chat/completions, with words.", rich_help_panel=SERVER)
    ] = False,
    as_words: Annotated[
        bool,
        typer.Option("--words", help="Prompts of words, not of token ids, for other servers.", rich_help_panel=SERVER),
    ] = False,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos/--no-ignore-eos",
            help="Have every answer as long as asked for; some servers do not know it.",
            rich_help_panel=SERVER,
        ),
    ] = True,
    temperature: Annotated[float, typer.Option(help="Of all requests.", rich_help_panel=SERVER)] = 0.0,
    timeout: Annotated[float, typer.Option(help="Seconds for one answer.", min=0.001, rich_help_panel=SERVER)] = 600.0,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines (.jsonl, .jsonl.gz) with timestamp in ms, input_length, output_length, and hash_ids where "
            "prompts begin alike.",
            rich_help_panel=WORK,
        ),
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option(help="A file as [bold]looseleaf bench[/] reads, of which --test is run.", rich_help_panel=WORK),
    ] = None,
    test: Annotated[str, typer.Option(help="With --workload.", rich_help_panel=WORK)] = "T3",
    draw: Annotated[int, typer.Option(help="Which draw of the test.", min=0, rich_help_panel=WORK)] = 0,
    input_len: Annotated[
        str,
        typer.Option(
            "--input-len", "--random-input-len", metavar="N|LOW-HIGH", help="Random prompts.", rich_help_panel=WORK
        ),
    ] = "128",
    output_len: Annotated[
        str,
        typer.Option(
            "--output-len", "--random-output-len", metavar="N|LOW-HIGH", help="Their answers.", rich_help_panel=WORK
        ),
    ] = "64",
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests",
            "--num-prompts",
            help="How many. Default: all of the file, or 64.",
            min=1,
            rich_help_panel=WORK,
        ),
    ] = None,
    longest: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Leave out requests of more tokens, prompt and answer.", min=2, rich_help_panel=WORK
        ),
    ] = None,
    token_ids: Annotated[
        str | None,
        typer.Option(metavar="LOW-HIGH", help="Token ids to draw from. Default: 1000-19999.", rich_help_panel=WORK),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of prompts, lengths and times.", min=0, rich_help_panel=WORK)] = 0,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            "--request-rate",
            help="Requests per second, at random times (Poisson). Default: a trace's own times; else all at once.",
            min=1e-6,
            rich_help_panel=LOAD,
        ),
    ] = None,
    burstiness: Annotated[
        float,
        typer.Option(
            help="With --rate: below 1 burstier than Poisson, above more even.", min=0.01, rich_help_panel=LOAD
        ),
    ] = 1.0,
    speed_up: Annotated[
        float, typer.Option(help="Run a trace's own times this much faster.", min=1e-6, rich_help_panel=LOAD)
    ] = 1.0,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "--max-concurrency",
            help="Requests in progress: always so many; with --rate or --trace-times at most so many.",
            min=1,
            rich_help_panel=LOAD,
        ),
    ] = None,
    trace_times: Annotated[
        bool,
        typer.Option("--trace-times", help="Keep a trace's own times beside --concurrency.", rich_help_panel=LOAD),
    ] = False,
    warm_up: Annotated[
        int,
        typer.Option(
            "--warm-up", "--num-warmups", help="Requests before, which do not count.", min=0, rich_help_panel=LOAD
        ),
    ] = 4,
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="Latencies of a good answer, such as ttft=2s,itl=100ms: goodput is how many per second were. Known "
            "are ttft, itl (the mean over an answer, also tpot) and e2e.",
            rich_help_panel=LOAD,
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the figures and every request's times as JSON, as vLLM's --save-detailed does.",
            rich_help_panel=LOAD,
        ),
    ] = None,
) -> None:
    """Drive a running OpenAI-compatible server, and print what its clients see.

        looseleaf bench serve --concurrency 16 --requests 200

        looseleaf bench serve http://127.0.0.1:8000 --trace trace.jsonl.gz --speed-up 4 --slo ttft=2s,itl=100ms

    Answers are streamed. A latency counts from when its request was due, also if it was sent late: because the client
    was busy, which is shown, or because --concurrency was reached.
    """
    from looseleaf.load.arrivals import arrivals
    from looseleaf.load.driver import CHAT, COMPLETIONS, Asking
    from looseleaf.load.figures import Target, details, summary
    from looseleaf.load.http_client import HttpClient
    from looseleaf.load.work import Lengths, RandomTokens, random_work, trace_work, workload_work

    target = None if slo is None else Target.parse(slo)
    ids = Lengths.parse(token_ids or "1000-19999")
    tokens = RandomTokens(seed, (ids.low, ids.high + 1))
    if trace is not None and workload is not None:
        raise InvalidRequest("--trace and --workload are two kinds of work.", hint="Give one of them.")
    if trace is not None:
        work = trace_work(trace, tokens, requests)
    elif workload is not None:
        work = workload_work(_draw(workload, test, draw)[:requests])
    else:
        work = random_work(requests or 64, Lengths.parse(input_len), Lengths.parse(output_len), seed, tokens)
    work = _shorter(work, longest)
    warm_ups = [replace(each, prompt=tokens.fresh(len(each.prompt)), n=1) for each in work[:warm_up]]
    own_times = rate is not None or concurrency is None or trace_times
    due = arrivals(work, rate=rate, burstiness=burstiness, speed_up=speed_up, seed=seed) if own_times else None
    asking = Asking(
        model or "",
        CHAT if chat else COMPLETIONS,
        as_words,
        ignore_eos=ignore_eos,
        temperature=temperature,
        timeout=timeout,
    )
    client = HttpClient(url, key=api_key)
    asking, run = _drive(client, asking, warm_ups, work, due, concurrency, shown=not output.quiet)
    figures: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "backend": "openai-chat" if chat else "openai",
        "base_url": client.url,
        "model_id": asking.model,
        "num_prompts": len(work),
        "request_rate": rate or (len(due) / due[-1] if due and due[-1] > 0 else "inf"),
        "burstiness": burstiness,
        "max_concurrency": concurrency,
        "seed": seed,
        "slo": slo,
        **summary(run, target),
    }
    if save is not None:
        _save(save, figures | details(run))
    if output.json:
        write(json.dumps(figures, indent=2) + "\n")
    else:
        print_figures(figures, "at their times" if due is not None else f"{concurrency} at once")
    judge(figures)
    if not figures["completed"]:
        raise typer.Exit(UNEXPECTED)


def _draw(path: Path, test: str, number: int) -> Any:
    from looseleaf.engine.workload_file import load_workload

    draws = load_workload(path).draws(test)
    if number >= len(draws):
        raise InvalidRequest(f"{test} has {len(draws)} draws; there is no {number}.", hint="They count from 0.")
    return draws[number]


def _shorter(work: list[LoadRequest], longest: int | None) -> list[LoadRequest]:
    """Raises `InvalidRequest` if nothing is left."""
    if longest is None:
        return work
    kept = [each for each in work if len(each.prompt) + each.output_tokens <= longest]
    if len(kept) < len(work):
        note(f"Left out {counted(len(work) - len(kept), 'request')} of more than {longest:,} tokens.")
    if not kept:
        raise InvalidRequest(f"All requests have more than {longest:,} tokens.")
    return kept


def _drive(
    client: HttpClient,
    asking: Asking,
    warm_ups: list[LoadRequest],
    work: list[LoadRequest],
    due: list[float] | None,
    concurrency: int | None,
    *,
    shown: bool,
) -> tuple[Asking, LoadRun]:
    import uvloop

    from looseleaf.load.driver import closed_loop, open_loop

    async def drive(advance: Callable[[], None]) -> tuple[Asking, LoadRun]:
        named = asking if asking.model else replace(asking, model=await first_model(client))
        if warm_ups:
            warmed = await closed_loop(client, named, warm_ups, concurrency or len(warm_ups))
            if failure := next((answer.failure for answer in warmed.answers if answer.failure), None):
                warn(f"A request of the warm-up failed: {failure}.")
        if due is not None:
            run = await open_loop(client, named, work, due, concurrency=concurrency, on_end=advance)
        else:
            assert concurrency is not None
            run = await closed_loop(client, named, work, concurrency, on_end=advance)
        client.close()
        return named, run

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Two a second: drawing takes time from what is measured.
    with Progress(*columns, console=stderr(), transient=True, refresh_per_second=2, disable=not shown) as progress:
        task = progress.add_task("Requests", total=len(work))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(drive(lambda: progress.advance(task)))


class NoServer(LooseleafError):
    """Nothing that speaks OpenAI's protocol answers there."""


async def first_model(client: HttpClient) -> str:
    """The first of those that the server lists. Raises `NoServer`."""
    try:
        status, body = await client.get("/v1/models")
        if status == 200:
            return str(json.loads(body)["data"][0]["id"])
    except (OSError, TimeoutError) as error:
        raise NoServer(f"No server answers at {client.url}: {error}.", hint="Start one: looseleaf serve") from error
    except (ValueError, LookupError, TypeError) as error:
        raise NoServer(f"{client.url}/v1/models lists no model.", hint="Give --model.") from error
    hint = "Give --api-key." if status in (401, 403) else "Give --model."
    raise NoServer(f"{client.url}/v1/models answered {status}.", hint=hint)


def _save(path: Path, figures: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(figures) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}.") from error
