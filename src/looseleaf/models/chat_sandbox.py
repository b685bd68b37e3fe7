"""A Jinja environment in which a chat template can neither reach out nor run away.

Chat templates come with the weights and are programs of strangers. Jinja's sandbox keeps them from attributes they
must not see, but not from looping for ever or building a string of gigabytes. Here every loop turn, call and filter
is one metered step, every value that an operation makes has a largest size, and operations that multiply sizes are
judged before they run.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """How much one rendering may take."""

    chars: int = 16 * 2**20
    """Largest output, and largest string, list or mapping on the way (characters or items)."""
    steps: int = 1_000_000
    """Loop turns, calls and filters; one that makes a large value counts for more."""
    seconds: float = 10.0


class LimitExceeded(jinja2.TemplateError):
    """The template took more than its limits."""


class RefusedByTemplate(jinja2.TemplateError):
    """The template called `raise_exception`: it does not take these messages."""


class Meter:
    """Counts what one rendering has used."""

    def __init__(self, limits: RenderLimits) -> None:
        self.limits = limits
        self._steps = 0
        self._printed = 0
        self._deadline = time.monotonic() + limits.seconds

    def step(self, cost: int = 1) -> None:
        self._steps += cost
        if self._steps > self.limits.steps:
            raise LimitExceeded(f"it takes more than {self.limits.steps:,} steps")
        if time.monotonic() > self._deadline:
            raise LimitExceeded(f"it takes longer than {self.limits.seconds:g} s")

    def size(self, size: int) -> None:
        if size > self.limits.chars:
            raise LimitExceeded(f"it builds more than {self.limits.chars:,} characters or items")

    def value(self, value: Any) -> Any:
        """Pass on a value that an operation made, if it is small enough."""
        if isinstance(value, Iterator):
            return self.loop(value)
        if isinstance(value, (str, bytes)):
            self.size(len(value))
            self.step(len(value) // _CHARS_PER_STEP)
        elif isinstance(value, (list, tuple, dict)):
            extent = _extent(value, self.limits.chars)
            self.size(extent)
            self.step(extent // _ITEMS_PER_STEP)
        return value

    def loop(self, items: Iterable[Any]) -> Iterator[Any]:
        """Pass on items one by one, each a step, as long as all their texts together are small enough."""
        chars = 0
        for item in items:
            self.step()
            chars += len(item) if isinstance(item, str) else 1
            self.size(chars)
            yield item

    def printed(self, value: Any) -> Any:
        # Inside macros text is printed once for each level, so this sum is only loosely the output's.
        self._printed += len(value) if isinstance(value, str) else 1
        self.size(self._printed // _PRINTING_LEVELS)
        return value


METER: ContextVar[Meter] = ContextVar("chat_template_meter")

_METERED, _SIZED = "metered_loop", "sized_text"
_MULTIPLIERS = frozenset({"replace", "join", "translate", "expandtabs", "indent", "wordwrap"})
_CHARS_PER_STEP, _ITEMS_PER_STEP = 1024, 16
_PRINTING_LEVELS = 8
_UNMETERED_TEXT = 64  # characters; printing more than this between two tags is metered too
_WIDTH_TAKERS = frozenset(
    {"ljust", "rjust", "center", "zfill", "expandtabs", "indent", "wordwrap", "batch", "slice", "round", "tojson"}
)
_LARGEST_WIDTH = 100_000
_LARGEST_INTEGER_BITS = 4096
_MULTIPLIER_SLACK = 16  # the product of all arguments' sizes overstates what most calls make
_WIDE_FIELD = re.compile(r"%[^a-zA-Z%]*\d{6,}|:[^{}]*\d{6,}")
_WIDTH_ARGUMENT = re.compile(r"%[^a-zA-Z%]*\*|\{[^{}]*\{")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Renders what transformers' environment renders, within the limits of the current `METER`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
            finalize=_metered_print,
        )
        self.filters = {name: _bounded_filter(name, function) for name, function in self.filters.items()}
        self.filters |= {"tojson": _tojson, _METERED: _metered_loop, _SIZED: _sized}
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda pattern: datetime.now().strftime(pattern),
            "namespace": _GuardedNamespace,
        }
        del self.globals["lipsum"]  # writes text of any length, and none that a prompt wants

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Metering().visit(super()._parse(source, name, filename))
        return template

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (Jinja's own)
        meter = METER.get()
        meter.step()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, (str, bytes)):
            _refuse_large_call(method.__name__, (owner, *args), kwargs)
        return meter.value(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = METER.get()
        meter.step()
        if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * max(right, 0)
            if bits > _LARGEST_INTEGER_BITS:
                raise LimitExceeded("it computes a number of thousands of digits")
        elif operator == "*":
            sized, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(sized, (str, bytes, list, tuple)) and isinstance(times, int):
                meter.size(len(sized) * max(times, 0))
        elif operator == "%" and isinstance(left, str):
            _refuse_large_call("format", (left, right), {})
        return meter.value(super().call_binop(context, operator, left, right))


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's part for training; it prints as it is."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's declaration)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller: Macro) -> str:
        return str(caller())


class _Metering(NodeTransformer):
    """Wraps loops, concatenations and literals, which Jinja lets no environment intercept."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 (named after Jinja's node)
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _METERED)
        return node

    def _visit_maker(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") == "store" else _filtered(node, _SIZED)

    visit_Concat = visit_List = visit_Tuple = visit_Dict = _visit_maker  # noqa: N815

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Expr:  # noqa: N802
        return _filtered(nodes.Const(node.data), _SIZED) if len(node.data) > _UNMETERED_TEXT else node


class _GuardedNamespace(Namespace):
    """A namespace without attributes that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` stays free as the name of an attribute, as in Jinja
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


@jinja2.pass_context  # a context argument keeps Jinja from printing constants at compile time, unmetered
def _metered_print(_context: Context, value: Any) -> Any:
    meter = METER.get()
    meter.step()
    return meter.printed(meter.value(value))


def _metered_loop(items: Iterable[Any]) -> Iterator[Any]:
    return METER.get().loop(items)


def _sized(value: Any) -> Any:
    return METER.get().value(value)


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # keeps Jinja's mark of the context argument
    def bounded(*args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        meter.step()
        _refuse_large_call(name, args, kwargs)
        return meter.value(function(*args, **kwargs))

    return bounded


def _refuse_large_call(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse a call whose arguments would make it large, before it is."""
    values = [*args, *kwargs.values()]
    if name in ("format", "format_map"):
        if _WIDE_FIELD.search(str(values[0])):
            raise LimitExceeded("it formats a very wide field")
        takes_width = _WIDTH_ARGUMENT.search(str(values[0])) is not None
    else:
        takes_width = name in _WIDTH_TAKERS
    for value in values[1:] if takes_width else ():
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and number > _LARGEST_WIDTH:
                raise LimitExceeded(f"it calls {name} with a width of {number:,} (limit {_LARGEST_WIDTH:,})")
    meter = METER.get()
    texts = [value for value in values if isinstance(value, str)]
    if name == "replace" and len(texts) == 3:
        text, old, new = texts
        meter.size(len(text) + text.count(old) * len(new))
    elif name in _MULTIPLIERS:
        product = 1
        for value in values:
            product *= max(1, value if isinstance(value, int) else _extent(value, meter.limits.chars))
        meter.size(product // _MULTIPLIER_SLACK)


def _extent(value: Any, limit: int) -> int:
    """Characters and items in `value`, counted until they are more than `limit`."""
    extent, waiting = 0, [value]
    while waiting and extent <= limit:
        part = waiting.pop()
        extent += len(part) if isinstance(part, (str, bytes)) else 1
        if isinstance(part, dict):
            waiting.extend((*part.keys(), *part.values()))
        elif isinstance(part, (list, tuple)):
            waiting.extend(part)
    return extent


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: Jinja's own filter escapes for HTML."""
    METER.get().step()
    _refuse_large_call("tojson", (value, indent), {})
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    METER.get().size(len(text))
    return text


def _raise_exception(message: str) -> NoReturn:
    raise RefusedByTemplate(message)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"the namespace attribute {name!r} begins with an underscore")
