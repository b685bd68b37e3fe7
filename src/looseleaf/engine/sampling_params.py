"""How one request's tokens are chosen, and when it stops."""

from __future__ import annotations

import difflib
import functools
import inspect
import numbers
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from looseleaf.engine.beam_params import MAX_LENGTH_PENALTY, check_beam_params
from looseleaf.engine.sampling_errors import InvalidParameter, UnknownParameter
from looseleaf.engine.structured import check_structured
from looseleaf.errors import InvalidRequest

T = TypeVar("T")

GREEDY_TEMPERATURE = 1e-5
"""Below this a temperature means greedy: the second most likely token would practically never be drawn."""


class _DefaultCount(int):
    """A count that nobody asked for: it yields to what fits, where one that was asked for is refused."""


DEFAULT_MAX_TOKENS = _DefaultCount(256)
"""Not vLLM's 16, which cuts nearly every answer short; not unlimited, which lets a model that never ends its answer
hold memory for its whole context. Most answers end by themselves within 256."""

MAX_COUNT = 2**31 - 1
MAX_SAMPLES = 16_384
MAX_STOP_STRINGS = 32
MAX_STOP_LENGTH = 256
MAX_SEED = 2**64 - 1
_TOKEN_ID = re.compile("[0-9]{1,10}")


def _reject_unknown_names(cls: type[T]) -> type[T]:
    """Make the keyword constructor answer an unknown name as `parse` does, rather than with a bare TypeError."""
    construct: Any = cls.__dict__["__init__"]
    known = list(inspect.get_annotations(cls))

    @functools.wraps(construct)
    def init(self: object, *args: object, **kwargs: object) -> None:
        for name in kwargs:
            if name not in known:
                raise UnknownParameter(name, next(iter(difflib.get_close_matches(name, known, n=1)), None))
        construct(self, *args, **kwargs)

    type.__setattr__(cls, "__init__", init)
    return cls


@_reject_unknown_names
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of a request; the names and meanings are vLLM's, so requests can be moved over.

    Checked when constructed: raises InvalidParameter (name, value, allowed range) or UnknownParameter.

    Order of operations for one token: logit_bias, min_tokens, the three penalties, structured, temperature, min_p,
    top_k, top_p, draw. Reported logprobs are those of the model's own logits, before any of it.
    """

    n: int = 1
    """Samples returned for the prompt."""
    best_of: int | None = None
    """Samples generated, of which the `n` with the highest cumulative logprob are returned. None: `n`."""
    beam_width: int | None = None
    """Beam search with this many beams, of which the `n` best outputs are returned; nothing is drawn. Bias and
    penalties apply to log-probabilities. 1 is greedy. None: no beams."""
    length_penalty: float = 1.0
    """Beams: outputs are compared by log-probability / length ** length_penalty, -10 to 10; above 0 favours long
    ones."""
    early_stopping: bool | Literal["never"] = False
    """Beams: stop at `beam_width` outputs (True); when no better one is likely (False); or possible ("never")."""
    temperature: float = 1.0
    """0 (or anything below 1e-5) is greedy; at most 100."""
    top_k: int = 0
    """Keep the k most likely tokens, and any as likely as the k-th. 0 or -1: all."""
    top_p: float = 1.0
    """Keep the fewest most likely tokens whose probabilities reach this sum (Holtzman et al., 2020)."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the most likely one (Nguyen et al., 2024)."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output (Keskar et al., 2019)."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token that is in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time that it is in the output."""
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of these token ids; -100 to 100."""
    stop: Sequence[str] = ()
    """Strings (or one string) that end the output. Kept as a tuple."""
    stop_token_ids: Sequence[int] = ()
    """Token ids that end the output, besides the model's end-of-sequence ids. Kept as a tuple."""
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    """Tokens that must come before anything but a length limit may end the output."""
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    """Most tokens of the output. None: as many as fit. A number that cannot fit is refused; only the default
    gives way to what fits."""
    ignore_eos: bool = False
    logprobs: int | None = None
    """Report each output token's logprob and those of this many most likely tokens. 0: only its own."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    seed: int | None = None
    """A request with the same seed gets the same tokens, whatever else runs. None: one derived from the
    engine's seed and the request's place in the order of arrival."""
    skip_special_tokens: bool = True
    detokenize: bool = True
    """False: token ids alone, no text. Stop strings need text."""
    structured: Mapping[str, Any] | None = None
    """What the output must be: one of {"json_schema": schema}, {"json_object": True}, {"regex": pattern},
    {"choice": strings} and {"grammar": Lark grammar}; see `looseleaf.engine.structured`. The output ends when it is
    complete, and cannot end before, except by a stop or a limit."""

    def __post_init__(self) -> None:
        _integer(self, "n", 1, MAX_SAMPLES)
        _integer(self, "best_of", 1, MAX_SAMPLES, optional=True)
        _integer(self, "beam_width", 1, MAX_SAMPLES, optional=True)
        _real(self, "length_penalty", -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise InvalidParameter("early_stopping", self.early_stopping, "True, False or 'never'")
        _real(self, "temperature", 0, 100)
        _integer(self, "top_k", -1, MAX_COUNT)
        _real(self, "top_p", 0, 1, above=True, hint="For the most likely token only, set temperature=0.")
        _real(self, "min_p", 0, 1)
        _real(self, "repetition_penalty", 0, 100, above=True)
        _real(self, "presence_penalty", -2, 2)
        _real(self, "frequency_penalty", -2, 2)
        self._normalise_logit_bias()
        self._normalise_stop()
        self._normalise_stop_token_ids()
        _boolean(self, "include_stop_str_in_output")
        _integer(self, "min_tokens", 0, MAX_COUNT)
        _integer(self, "max_tokens", 1, MAX_COUNT, optional=True)
        _boolean(self, "ignore_eos")
        _integer(self, "logprobs", 0, MAX_COUNT, optional=True)
        _integer(self, "prompt_logprobs", 0, MAX_COUNT, optional=True)
        _integer(self, "seed", -(2**63), MAX_SEED, optional=True)
        _boolean(self, "skip_special_tokens")
        _boolean(self, "detokenize")
        if self.stop and not self.detokenize:
            raise InvalidParameter("detokenize", False, "True where stop strings are given")
        if self.best_of is not None and self.best_of < self.n:
            raise InvalidParameter("best_of", self.best_of, f"at least n, which is {self.n}")
        if self.max_tokens is not None and not self.max_tokens_is_default and self.min_tokens > self.max_tokens:
            raise InvalidParameter("min_tokens", self.min_tokens, f"at most max_tokens, which is {self.max_tokens}")
        check_structured(self)
        check_beam_params(self)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> SamplingParams:
        """From a mapping (decoded JSON, say). Raises UnknownParameter or InvalidParameter."""
        return cls(**values)

    def validate_for(self, vocab_size: int) -> None:
        """Check what depends on the model. Raises InvalidParameter."""
        for name in ("logit_bias", "stop_token_ids"):
            for token_id in getattr(self, name) or ():
                if token_id >= vocab_size:
                    raise InvalidParameter(name, token_id, f"made of token ids below the vocabulary's {vocab_size}")
        for name in ("logprobs", "prompt_logprobs"):
            if (getattr(self, name) or 0) > vocab_size:
                raise InvalidParameter(name, getattr(self, name), f"at most the vocabulary's size, {vocab_size}")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def num_samples(self) -> int:
        """Samples to generate: `beam_width`, `best_of`, or `n`."""
        if self.beam_width is not None:
            return self.beam_width
        return self.n if self.best_of is None else self.best_of

    @property
    def max_tokens_is_default(self) -> bool:
        return isinstance(self.max_tokens, _DefaultCount)

    def most_tokens(self, room: int) -> int:
        """Tokens that a sample may have where `room` tokens fit beside the prompt; beyond `room` if asked for more."""
        room = max(room, 1)
        if self.max_tokens is None:
            return room
        return min(max(self.max_tokens, self.min_tokens), room) if self.max_tokens_is_default else self.max_tokens

    @property
    def penalised(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def needs_logprobs(self) -> bool:
        """Whether the sampled tokens' logprobs are reported, or needed to rank the samples."""
        return self.logprobs is not None or self.beam_width is not None or self.num_samples > self.n

    def _normalise_logit_bias(self) -> None:
        given: Any = self.logit_bias
        if given is None:
            return
        allowed = "a mapping of token ids to finite numbers from -100 to 100"
        if not isinstance(given, Mapping):
            raise InvalidParameter("logit_bias", given, allowed)
        biases: dict[int, float] = {}
        for key, bias in given.items():
            # JSON has no integer keys: the OpenAI protocol writes {"50256": -100}.
            token_id = int(key) if isinstance(key, str) and _TOKEN_ID.fullmatch(key) else key
            if not is_integer(token_id) or token_id < 0 or not _is_real(bias) or not -100 <= bias <= 100:
                raise InvalidParameter("logit_bias", {key: bias}, allowed)
            biases[int(token_id)] = float(bias)
        object.__setattr__(self, "logit_bias", biases or None)

    def _normalise_stop(self) -> None:
        stop = _listed(self.stop, str)
        allowed = f"a string or up to {MAX_STOP_STRINGS} strings, each of 1 to {MAX_STOP_LENGTH} characters"
        if stop is None or len(stop) > MAX_STOP_STRINGS:
            raise InvalidParameter("stop", self.stop, allowed)
        for string in stop:
            if not isinstance(string, str) or not 1 <= len(string) <= MAX_STOP_LENGTH:
                raise InvalidParameter("stop", string, allowed, hint="Leave stop out to stop at no string.")
        object.__setattr__(self, "stop", stop)

    def _normalise_stop_token_ids(self) -> None:
        token_ids = _listed(self.stop_token_ids, numbers.Integral)
        allowed = "a sequence of token ids"
        if token_ids is None:
            raise InvalidParameter("stop_token_ids", self.stop_token_ids, allowed)
        for token_id in token_ids:
            if not is_integer(token_id) or token_id < 0:
                raise InvalidParameter("stop_token_ids", token_id, allowed)
        object.__setattr__(self, "stop_token_ids", tuple(int(token_id) for token_id in token_ids))


def as_params(params: SamplingParams | Mapping[str, Any] | None) -> SamplingParams:
    """Parameters, a mapping of them, or None for the defaults. Raises `InvalidRequest` for anything else."""
    if params is None:
        return SamplingParams()
    if isinstance(params, SamplingParams):
        return params
    if isinstance(params, Mapping):
        return SamplingParams.parse(params)
    raise InvalidRequest(
        f"Sampling parameters of type {type(params).__name__} are not understood.",
        hint="Pass SamplingParams or a mapping.",
    )


def is_integer(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    return isinstance(value, numbers.Real | int) and not isinstance(value, bool)


def _listed(value: object, item: type) -> tuple[Any, ...] | None:
    """`value` as a tuple: () for None, itself alone if it is one `item`; None if it is no sequence at all."""
    if value is None:
        return ()
    if isinstance(value, item):
        return (value,)
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return tuple(value)
    return None


def _integer(params: SamplingParams, name: str, low: int, high: int, *, optional: bool = False) -> None:
    value = getattr(params, name)
    if value is None and optional:
        return
    if not is_integer(value) or not low <= value <= high:
        raise InvalidParameter(name, value, f"an integer from {low} to {high}" + (" or None" if optional else ""))
    if not isinstance(value, _DefaultCount):
        object.__setattr__(params, name, int(value))


def _real(params: SamplingParams, name: str, low: float, high: float, *, above: bool = False, hint: str = "") -> None:
    value = getattr(params, name)
    # No range reaches infinity and a NaN is in none.
    if not _is_real(value) or not low <= value <= high or (above and value == low):
        allowed = f"a number above {low} and at most {high}" if above else f"a number from {low} to {high}"
        raise InvalidParameter(name, value, allowed, hint=hint)
    object.__setattr__(params, name, float(value))


def _boolean(params: SamplingParams, name: str) -> None:
    value = getattr(params, name)
    if not isinstance(value, bool):
        raise InvalidParameter(name, value, "True or False")
