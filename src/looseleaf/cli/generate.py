"""`looseleaf generate`: many prompts at once through one paged pool."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from looseleaf.cli.command import command
from looseleaf.cli.consoles import counted, note, stdout, write
from looseleaf.cli.failed_answers import exit_if_any_failed
from looseleaf.cli.options import OUTPUT, EngineOptions, OutputOptions, SamplingOptions
from looseleaf.cli.prompt_input import GivenPrompt, as_chat, gather_prompts

if TYPE_CHECKING:
    from looseleaf.engine.outputs import RequestOutput
    from looseleaf.engine.workload import WorkloadRun
    from looseleaf.models.tokenizer import Tokenizer

PROMPT = "Prompt"
TITLE_LENGTH = 72


def register(app: typer.Typer) -> None:
    command(app, "generate")(generate)


def generate(
    sampling: SamplingOptions,
    engine: EngineOptions,
    output: OutputOptions,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="May be repeated.", rich_help_panel=PROMPT)
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            "-f",
            help='One prompt a line, or JSON Lines: {"prompt": "text"}, {"prompt": \\[token ids]}, {"messages": […]}. '
            "-: standard input.",
            rich_help_panel=PROMPT,
        ),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Ask the model (through its chat template), or let it continue the text as it is. "
            "Default: ask, if the model has a template.",
            rich_help_panel=PROMPT,
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(help="System message for prompts that are asked.", rich_help_panel=PROMPT),
    ] = None,
    adapter: Annotated[
        str | None, typer.Option(metavar="NAME", help="Answer with this one of --lora.", rich_help_panel=PROMPT)
    ] = None,
    explain_cache: Annotated[
        bool,
        typer.Option(
            "--explain-cache",
            help="Say of each prompt what the prefix cache had of it, and where it parts from the most similar one.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
) -> None:
    """Answer prompts, all at once.

    Each prompt is a question to the model's chat template; with [bold]--raw[/] the model continues it instead:

        looseleaf generate -t 0 --prompt "What is the capital of France?"

        looseleaf generate --raw --prompt "Once upon a time," --n 3

        looseleaf generate --file prompts.txt --json > answers.jsonl

    Answers go to stdout in the order of the prompts; a summary of speed and memory goes to stderr.
    """
    params = sampling.params()
    config = engine.config()
    prompts = gather_prompts(prompt or (), file)
    engine.use_threads()

    from looseleaf.engine.generation_request import GenerationRequest
    from looseleaf.engine.llm import load_engine, progress_bar
    from looseleaf.engine.workload import run_workload

    loaded = load_engine(engine.model, config)
    asked = _asked(prompts, loaded.tokenizer, chat, system)
    show: Show
    if output.json:
        show = show_json
    elif len(asked) == params.n == 1:
        show = show_text
    else:
        show = partial(show_titled, prompts)
    printer = OrderedPrinter(show)
    with closing(printer), progress_bar("Generating", len(asked), shown=not output.quiet) as advance:

        def on_finished(index: int, result: RequestOutput) -> None:
            advance()
            printer.add(index, result)

        requests = [GenerationRequest(each, params, adapter) for each in asked]
        run = run_workload(loaded, requests, on_finished=on_finished)
    if explain_cache:
        for index, result in enumerate(run.outputs, 1):
            note(f"[{index}] {cache_explanation(result, loaded.tokenizer)}")
    for line in summary(run):
        note(line)
    exit_if_any_failed([run])


def _asked(
    prompts: list[GivenPrompt], tokenizer: Tokenizer, chat: bool | None, system: str | None
) -> list[GivenPrompt]:
    if chat is None:
        chat = len(tokenizer.chat_templates) > 0
    return [as_chat(each, system) for each in prompts] if chat else prompts


Show = Callable[[int, "RequestOutput"], None]


class OrderedPrinter:
    """Prints results in the order of the prompts: into a pipe as soon as the order allows, on a terminal (where
    the progress bar is) once closed, which is also when an interrupted run shows what it has."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._waiting: dict[int, RequestOutput] = {}
        self._next = 0
        self._at_once = not sys.stdout.isatty()

    def add(self, index: int, result: RequestOutput) -> None:
        self._waiting[index] = result
        while self._at_once and self._next in self._waiting:
            self._show(self._next, self._waiting.pop(self._next))
            self._next += 1

    def close(self) -> None:
        for index in sorted(self._waiting):
            self._show(index, self._waiting.pop(index))


def show_text(_index: int, result: RequestOutput) -> None:
    """The one answer and nothing else."""
    write(result.outputs[0].text + "\n")


def show_titled(prompts: list[GivenPrompt], index: int, result: RequestOutput) -> None:
    """An answer, or several numbered ones, under its prompt."""
    console = stdout()
    console.print(Text(f"[{index + 1}] {title(prompts[index])}", style="bold"), soft_wrap=True)
    for output in result.outputs:
        if len(result.outputs) > 1:
            console.print(Text(f"({output.index + 1})", style="dim"), end=" ")
        console.print(Text(output.text.strip()), soft_wrap=True)
    console.print()
    sys.stdout.flush()


def show_json(index: int, result: RequestOutput) -> None:
    """One line of JSON."""
    times = result.metrics
    line: dict[str, Any] = {
        "index": index,
        "prompt": result.prompt,
        "prompt_token_ids": result.prompt_token_ids,
        "num_cached_tokens": result.num_cached_tokens,
        "outputs": [asdict(output) for output in result.outputs],
    }
    if result.prompt_logprobs is not None:
        line["prompt_logprobs"] = result.prompt_logprobs
    if times is not None and times.first_token_time is not None and times.finished_time is not None:
        line["metrics"] = {
            "first_token_seconds": times.first_token_time - times.arrival_time,
            "seconds": times.finished_time - times.arrival_time,
        }
    write(json.dumps(line, ensure_ascii=False) + "\n")


def cache_explanation(result: RequestOutput, tokenizer: Tokenizer) -> str:
    """What the prefix cache had of a prompt, and why not more."""
    from looseleaf.engine.prefix_caching import explain_divergence

    length = len(result.prompt_token_ids)
    found = f"{result.num_cached_tokens:,} of {counted(length, 'prompt token')} from the cache."
    if result.num_cached_tokens == length - 1 and length > 1:
        return f"{found} All that can be: the last one is always computed."
    return f"{found} {explain_divergence(result, tokenizer) or 'No cached prompt goes on differently there.'}"


def title(prompt: GivenPrompt) -> str:
    """A prompt in one line."""
    if isinstance(prompt, str):
        text = prompt
    elif isinstance(prompt[0], dict):
        text = str(prompt[-1].get("content"))
    else:
        text = f"{len(prompt)} token ids"
    line = " ".join(text.split())
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1] + "…"


def summary(run: WorkloadRun) -> list[str]:
    """Speed, memory and what went short, a line each."""
    pool, first = run.pool, run.median_first_token_seconds
    lines = [
        f"{counted(len(run.outputs), 'request')}: {run.prompt_tokens:,} prompt and {run.output_tokens:,} output tokens "
        f"in {run.seconds:.1f} s = {run.output_tokens_per_second:.1f} output tokens/s"
        + (f"; first token after {first:.2f} s (median)." if first is not None else "."),
        f"KV cache: up to {counted(pool.peak_sequences, 'sequence')} at once in {pool.peak_blocks:,} of "
        f"{pool.num_blocks:,} blocks; {pool.held_slots_with_tokens:.1%} of their slots held tokens (waste "
        f"{1 - pool.held_slots_with_tokens:.1%}); {counted(run.preemptions, 'preemption')}"
        + (f"; sharing saved up to {pool.peak_saved_slots:,} slots." if pool.peak_saved_slots else "."),
    ]
    finished = [output for result in run.outputs for output in result.outputs]
    if run.cached_prompt_tokens:
        share = run.cached_prompt_tokens / run.prompt_tokens
        lines.append(f"Prefix cache: {run.cached_prompt_tokens:,} of the prompt tokens were in it ({share:.1%}).")
    if cut := sum(output.finish_reason == "length" for output in finished):
        lines.append(f"{counted(cut, 'answer')} of {len(finished)} ended at --max-tokens.")
    return lines
