"""`looseleaf show-memory`: a small run whose pool and block tables are drawn in the terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from looseleaf.cli.command import command
from looseleaf.cli.consoles import note, stdout, write
from looseleaf.cli.options import MEMORY, SAMPLING, EngineOptions, OutputOptions
from looseleaf.cli.prompt_input import GivenPrompt, as_chat
from looseleaf.errors import InvalidRequest

if TYPE_CHECKING:
    from looseleaf.cli.memory_snapshot import MemorySnapshot
    from looseleaf.engine.config import EngineConfig
    from looseleaf.engine.engine import Engine

STORY = "Once upon a time, in a small village by the sea, there lived a clockmaker who never slept, and every night she"
MAX_DELAY = 60
SYSTEM = (
    "You are the guide of a small museum of clocks by the sea. Answer in one short and friendly sentence, "
    "and when a question is about time, invite the visitor to the tower."
)
QUESTIONS = ("What is the capital of France?", "What is the capital of Italy?")


def register(app: typer.Typer) -> None:
    command(app, "show-memory", omit=("kv_cache_memory",))(show_memory)


@dataclass(frozen=True, slots=True)
class Watched:
    """A request of the run."""

    title: str
    prompt: GivenPrompt
    num_samples: int


def show_memory(
    engine: EngineOptions,
    output: OutputOptions,
    steps: Annotated[
        str, typer.Option(metavar="N,N,…", help="Steps after which the pool is drawn, as long as something runs.")
    ] = "1,2,24",
    watch: Annotated[bool, typer.Option("--watch", help="Draw every step in place, as an animation.")] = False,
    delay: Annotated[float, typer.Option(help="Least seconds between two frames of --watch, 0 to 60.")] = 0.1,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt", "-p", help="Text to continue --n times, instead of the built-in run; may be repeated."
        ),
    ] = None,
    n: Annotated[
        int,
        typer.Option("--n", "-n", help="Samples of each text; they share its blocks.", rich_help_panel=SAMPLING),
    ] = 4,
    beams: Annotated[
        bool,
        typer.Option("--beams", help="Make them the --n beams of one search instead.", rich_help_panel=SAMPLING),
    ] = False,
    max_tokens: Annotated[int, typer.Option(help="Tokens that each sequence may add.", rich_help_panel=SAMPLING)] = 64,
    blocks: Annotated[int, typer.Option(help="Size of the pool.", min=1, rich_help_panel=MEMORY)] = 48,
) -> None:
    """Draw who holds which block while a few requests run.

    The built-in run asks for --n samples of one text, which share the blocks of their prompt until each writes its
    own words, beside two chats with one system prompt, which is computed and held once. After step 1 the prompts are
    computed and shared; in step 2 each sample but the last copies the partly filled block before it writes; then they
    grow apart.

        looseleaf show-memory --steps 1,2,40

        looseleaf show-memory --allocator contiguous-max --max-model-len 128

        looseleaf show-memory --watch
    """
    config = engine.config()
    wanted = read_steps(steps)
    if watch and output.json:
        raise InvalidRequest("--watch draws for a person and --json prints for a program.", hint="Choose one.")
    if not 0 <= delay <= MAX_DELAY:
        raise InvalidRequest(f"--delay is {delay:g} but must be 0 to {MAX_DELAY} seconds.")
    engine.use_threads()

    from looseleaf.cli.memory_drawing import draw, legend

    loaded = load_small_engine(engine.model, config, blocks)
    watched = [Watched(each, each, n) for each in prompt] if prompt else built_in_run(loaded, n)
    frames = run(loaded, watched, max_tokens, beams=beams)
    if watch:
        with Live(console=stdout(), auto_refresh=False) as live:
            for frame in frames:
                live.update(draw(frame), refresh=True)
                time.sleep(delay)
        return
    chosen = list(_chosen(frames, wanted))
    if output.json:
        write(json.dumps([asdict(frame) for frame in chosen], indent=2) + "\n")
        return
    console = stdout()
    console.print(legend(config.block_size), soft_wrap=True)
    for frame in chosen:
        console.print()
        console.print(draw(frame), soft_wrap=True)
    if len(chosen) < len(wanted):
        note(f"The run was over before step {wanted[len(chosen)]}.")


def load_small_engine(model: str, config: EngineConfig, blocks: int) -> Engine:
    """The engine of `config` with a pool of exactly `blocks` blocks."""
    from looseleaf.engine.kv_pool import bytes_of_block
    from looseleaf.engine.llm import load_engine
    from looseleaf.models.loader import load_config
    from looseleaf.models.store import resolve_model

    path = resolve_model(model).path
    slots = blocks * config.block_size
    memory = blocks * bytes_of_block(load_config(path), config)
    longest = None if config.max_model_len is None else min(config.max_model_len, slots)
    return load_engine(path, replace(config, kv_cache_memory=memory, max_model_len=longest))


def read_steps(text: str) -> list[int]:
    """ "1,2,24" → [1, 2, 24], in order."""
    try:
        steps = sorted({int(each) for each in text.split(",")})
    except ValueError:
        steps = []
    if not steps or steps[0] < 1:
        raise InvalidRequest(f"--steps {text!r} is no list of steps.", hint="Write for example 1,2,24.")
    return steps


def built_in_run(engine: Engine, num_samples: int) -> list[Watched]:
    has_template = len(engine.tokenizer.chat_templates) > 0
    asked: Sequence[GivenPrompt] = [as_chat(each, SYSTEM) for each in QUESTIONS] if has_template else QUESTIONS
    chats = [Watched(title, each, 1) for title, each in zip(QUESTIONS, asked, strict=True)]
    return [Watched(STORY, STORY, num_samples), *chats]


def run(
    engine: Engine, watched: Sequence[Watched], max_tokens: int, *, beams: bool = False
) -> Iterator[MemorySnapshot]:
    """A snapshot after every step, as long as a sequence holds blocks."""
    from looseleaf.cli.memory_snapshot import Letters, take_snapshot
    from looseleaf.engine.sampling_params import SamplingParams

    letters, titles = Letters(), {}
    requests = []
    for index, each in enumerate(watched):
        width = each.num_samples if beams and each.num_samples > 1 else None
        params = SamplingParams(n=each.num_samples, beam_width=width, max_tokens=max_tokens, ignore_eos=True)
        read = engine.read_prompt(each.prompt)
        engine.check(f"prompts[{index}]", read, params)
        requests.append((each, read, params))
    for each, read, params in requests:
        request_id = engine.add_request(read, params)
        titles[request_id] = each.title
        letters.register(request_id, each.num_samples)
    step = 0
    while engine.has_unfinished():
        engine.step()
        step += 1
        if engine.scheduler.num_running:
            yield take_snapshot(engine, letters, titles, step)


def _chosen(frames: Iterator[MemorySnapshot], steps: Sequence[int]) -> Iterator[MemorySnapshot]:
    for frame in frames:
        if frame.step in steps:
            yield frame
        if frame.step >= steps[-1]:
            return
