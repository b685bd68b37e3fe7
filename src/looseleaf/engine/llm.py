"""`LLM`: a model, an engine, and offline generation in a few lines."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from looseleaf.engine.adapters import load_adapters
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.engine import Engine
from looseleaf.engine.footprint import check_footprint
from looseleaf.engine.generation_request import GenerationRequest, ReadRequest
from looseleaf.engine.kv_pool import size_pool
from looseleaf.engine.outputs import RequestOutput
from looseleaf.engine.prompts import Prompt, split_prompts
from looseleaf.engine.running_request import SampleDelta
from looseleaf.engine.sampling_params import SamplingParams, as_params
from looseleaf.errors import InvalidRequest
from looseleaf.kernels import native
from looseleaf.kernels.cpu import CpuKVCache
from looseleaf.kernels.pool_memory import inspect_memory
from looseleaf.kernels.system_memory import available_memory
from looseleaf.kernels.threads import warn_if_oversubscribed
from looseleaf.models.loader import load_config, load_decoder_and_tokenizer
from looseleaf.models.model_files import files_revision
from looseleaf.models.store import DEFAULT_MODEL, resolve_model
from looseleaf.models.tokenizer import Tokenizer

logger = logging.getLogger("looseleaf")


def load_engine(
    model: str | Path = DEFAULT_MODEL, config: EngineConfig | None = None, *, wait_for_memory: bool = True
) -> Engine:
    """Resolve and load a model, size its KV pool and build the engine. Says in the log what it found.

    `model`: an alias (`smollm2-135m`), a local folder, a .gguf file, or a hub name `org/name`.
    `wait_for_memory`: whether all pages of the pool are to exist when this returns.
    """
    config = config or EngineConfig()
    path = resolve_model(str(model)).path
    started = time.perf_counter()
    dtype = config.torch_dtype
    adapters = load_adapters(config.lora, load_config(path)) if config.lora else {}  # what is wrong is said sooner
    weights, tokenizer = load_decoder_and_tokenizer(path, dtype, config.quantization)
    for name in list(adapters):
        weights.add_adapter(name, adapters.pop(name))
    native.is_available()  # says so, once, if the extension is missing
    warn_if_oversubscribed()
    free = available_memory()
    pool = size_pool(weights.config, config, available=free)
    check_footprint(weights.config, config, pool, free, weights.max_lora_rank)
    revision = files_revision(path)
    engine = Engine(weights, tokenizer, config, pool, model_revision=revision, wait_for_memory=wait_for_memory)
    logger.info(
        "Loaded %s (%s) in %.1f s.", path.name, str(dtype).removeprefix("torch."), time.perf_counter() - started
    )
    if weights.adapters:
        logger.info("LoRA adapters: %s.", ", ".join(weights.adapters))
    logger.info("%s", pool)
    logger.info("%s", prefix_cache_summary(engine))
    if isinstance(engine.kv_cache, CpuKVCache) and (wait_for_memory or config.lock_memory):
        logger.info("KV cache memory: %s.", inspect_memory(engine.kv_cache.storage))
    return engine


def prefix_cache_summary(engine: Engine) -> str:
    """Whether prompts share, and from what length on: the first thing to know when they do not."""
    if engine.prefix_cache_counts() is None:
        return "Prefix cache: off."
    size = engine.pool.block_size
    return (
        f"Prefix cache: on; prompts that begin alike share whole blocks, so the smallest prefix that is shared is "
        f"{size} tokens. What they have in common beyond that is copied; a prompt's last token is always computed."
    )


Params: TypeAlias = SamplingParams | Mapping[str, Any] | None


class LLM:
    """Offline generation: many prompts at once, through one paged pool.

    >>> llm = LLM("smollm2-135m")
    >>> [out.outputs[0].text for out in llm.generate(["Once upon a time", "The sky is"])]

    Keyword arguments are those of `EngineConfig`.
    """

    def __init__(self, model: str | Path = DEFAULT_MODEL, **settings: Any) -> None:
        self.engine = load_engine(model, EngineConfig.parse(settings))
        self._inbox: dict[str, deque[SampleDelta]] = {}
        """What steps have produced and its caller has not fetched, by request: streams may be interleaved."""

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params | Sequence[Params] = None,
        *,
        adapter: str | Sequence[str | None] | None = None,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Run prompts (text, token ids or chat messages; one or many) to their end, in the order given.

        `params`, `adapter`: one for all, or one per prompt. Every prompt is checked before the first runs, so a typed
        error (`InvalidPrompt`, `RequestTooLarge`, …) means that nothing was computed. `progress` draws a bar on stderr.
        """
        requests = self.engine.read_requests(self._pair(prompts, params, adapter))
        results: list[RequestOutput] = []
        with self._running(requests) as request_ids, progress_bar("Generating", len(requests), shown=progress) as bar:
            for request_id in request_ids:
                results += (output for delta in self._follow(request_id, bar) if (output := delta.request_output))
        return results

    def stream(self, prompt: Prompt, params: Params = None, *, adapter: str | None = None) -> Iterator[SampleDelta]:
        """Run one prompt and yield what each step adds. Closing the iterator aborts the request.

        Raises `InvalidRequest` for `best_of` above `n`, and beams: which samples win is not known before the end.
        """
        params = as_params(params)
        if params.beam_width is not None:
            raise InvalidRequest("Beams cannot be streamed: the outputs are not known before the end.")
        if params.num_samples > params.n:
            raise InvalidRequest(
                f"best_of={params.best_of} with n={params.n} cannot be streamed.", hint="Set best_of to n or leave it."
            )
        return self._stream(ReadRequest(self.engine.read_prompt(prompt), params, adapter))

    def chat(
        self, messages: Sequence[Mapping[str, Any]], params: Params = None, *, adapter: str | None = None
    ) -> RequestOutput:
        """Answer one conversation (`[{"role": …, "content": …}, …]`) through the model's chat template."""
        return self.generate([messages], params, adapter=adapter)[0]

    def _pair(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params | Sequence[Params],
        adapter: str | Sequence[str | None] | None,
    ) -> list[GenerationRequest]:
        listed = split_prompts(prompts)
        if params is None or isinstance(params, SamplingParams | Mapping):
            chosen = [as_params(params)] * len(listed)
        else:
            chosen = [as_params(each) for each in params] if isinstance(params, Sequence) else [as_params(params)]
            if len(chosen) != len(listed):
                raise InvalidRequest(
                    f"There are {len(listed)} prompts but {len(chosen)} sampling parameters.",
                    hint="Pass one SamplingParams for all, or one per prompt.",
                )
        adapters = [adapter] * len(listed) if adapter is None or isinstance(adapter, str) else list(adapter)
        if len(adapters) != len(listed):
            raise InvalidRequest(
                f"There are {len(listed)} prompts but {len(adapters)} adapters.",
                hint="Pass one adapter's name for all, or one (or None) per prompt.",
            )
        return [GenerationRequest(*each) for each in zip(listed, chosen, adapters, strict=True)]

    def _stream(self, request: ReadRequest) -> Iterator[SampleDelta]:
        with self._running([request]) as request_ids:
            yield from self._follow(request_ids[0])

    @contextmanager
    def _running(self, requests: list[ReadRequest]) -> Iterator[list[str]]:
        """The requests in the engine, under their ids; what has not ended when the block is left is aborted."""
        request_ids: list[str] = []
        try:
            for prompt, params, adapter in requests:
                request_ids.append(self.engine.add_request(prompt, params, adapter=adapter))
                self._inbox[request_ids[-1]] = deque()
            yield request_ids
        finally:
            for request_id in request_ids:
                self.engine.abort(request_id)
                del self._inbox[request_id]

    def _follow(self, request_id: str, on_finished: Callable[[], None] = lambda: None) -> Iterator[SampleDelta]:
        """Everything a request produces, to its end; steps the engine while there is nothing to fetch."""
        inbox = self._inbox[request_id]
        while True:
            while inbox:
                delta = inbox.popleft()
                yield delta
                if delta.request_output is not None:
                    return
            running = self.engine.is_running(request_id)
            for delta in self.engine.step():
                if delta.request_output is not None:
                    on_finished()
                if delta.request_id in self._inbox:
                    self._inbox[delta.request_id].append(delta)
            if not running and not inbox:
                return  # aborted by someone who was told so instead


@contextmanager
def progress_bar(title: str, total: int, *, shown: bool) -> Iterator[Callable[[], None]]:
    """A bar on stderr, drawn only where somebody looks (a terminal). Yields the function that advances it by one."""
    if not shown or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)
