"""`looseleaf chat`: a conversation that streams; Ctrl-C stops the answer, not the chat."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from looseleaf.cli.command import command, report
from looseleaf.cli.consoles import note, write
from looseleaf.cli.interrupt import Interrupt
from looseleaf.cli.options import EngineOptions, OutputOptions, SamplingOptions
from looseleaf.errors import LooseleafError

if TYPE_CHECKING:
    from looseleaf.cli.conversation import Conversation

NOT_FOR_CHATS = (
    "n",
    "best_of",
    "beam_width",
    "length_penalty",
    "early_stopping",
    "logprobs",
    "prompt_logprobs",
    "json",
)
COMMANDS = "/reset forgets the conversation, /help says this, /exit or Ctrl-D leaves. Ctrl-C stops an answer."


def register(app: typer.Typer) -> None:
    command(app, "chat", omit=NOT_FOR_CHATS)(chat)


def chat(
    sampling: SamplingOptions,
    engine: EngineOptions,
    output: OutputOptions,  # noqa: ARG001  (--quiet and --debug are seen to before)
    system: Annotated[str | None, typer.Option(help="System message that begins the conversation.")] = None,
    adapter: Annotated[str | None, typer.Option(metavar="NAME", help="Answer with this one of --lora.")] = None,
) -> None:
    """Talk with a model, which remembers the conversation as far as its context reaches.

    [bold]Ctrl-C[/] stops an answer and keeps what was said; [bold]/exit[/], [bold]Ctrl-D[/] or Ctrl-C twice at the
    prompt leave; [bold]/reset[/] forgets the conversation. Answers go to stdout, all else to stderr, so questions can
    be piped in, one a line.
    """
    params = sampling.params()
    config = engine.config()
    engine.use_threads()

    from looseleaf.cli.conversation import Conversation
    from looseleaf.engine.llm import load_engine

    loaded = load_engine(engine.model, config)
    loaded.tokenizer.chat_templates.choose(with_tools=False)  # raises at once if the model has none
    conversation = Conversation(loaded, params, system, adapter)
    note(COMMANDS)
    for line in typed_lines() if sys.stdin.isatty() else piped_lines():
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
            note("The conversation is forgotten.")
        elif line.startswith("/") and " " not in line:
            note(COMMANDS if line == "/help" else f"There is no command {line}. {COMMANDS}")
        elif line:
            answer(conversation, line)


def typed_lines() -> Iterator[str]:
    """What the user types, until Ctrl-D or Ctrl-C twice in a row."""
    with suppress(ImportError):
        import readline  # noqa: F401  (gives input() its line editing and history)
    prompt = "> " if sys.stdout.isatty() else ""
    interrupted = False
    while True:
        if not prompt:  # input() would write it among the answers
            sys.stderr.write("> ")
            sys.stderr.flush()
        try:
            line = input(prompt).strip()
        except EOFError:
            sys.stderr.write("\n")
            return
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            if interrupted:
                return
            interrupted = True
            note("Press Ctrl-C again to leave, or go on.")
            continue
        except UnicodeDecodeError as error:
            report(f"What was typed is no UTF-8 text: {error.reason}.", "")
            continue
        interrupted = False
        yield line


def piped_lines() -> Iterator[str]:
    """The lines of standard input, those that are no text passed over and reported."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode("utf-8-sig").strip()
        except UnicodeDecodeError as error:
            report(f"Line {number} of standard input is no UTF-8 text: byte {error.start} is wrong.", "")


def answer(conversation: Conversation, question: str) -> None:
    """Stream one answer, then say what it cost. What is wrong with the question is told, and the chat goes on."""
    try:
        with Interrupt() as interrupt:
            pieces = conversation.ask(question)
            if dropped := conversation.cost.dropped_turns:
                note(f"The context is full: the oldest {dropped} of the earlier questions and answers were forgotten.")
            with closing(pieces):
                for piece in pieces:
                    write(piece)
                    if interrupt.requested:
                        break
    except LooseleafError as error:
        report(error.message, error.hint)
        return
    write("\n")
    cost = conversation.cost
    if cost.failure is not None:
        report(f"The answer failed: {cost.failure}", "Ask again, or /reset and ask something else.")
    stopped, speed = "stopped; " if interrupt.requested else "", ""
    if cost.output_tokens:
        speed = f", {cost.tokens_per_second:.1f}/s, the first after {cost.first_token_seconds:.2f} s"
    note(
        f"{stopped}{cost.output_tokens} tokens{speed}; up to {cost.peak_blocks} of {cost.num_blocks:,} blocks, "
        f"context {cost.prompt_tokens + cost.output_tokens:,} of {cost.context:,} tokens."
    )
