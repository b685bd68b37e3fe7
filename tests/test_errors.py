"""Every typed error carries what it says through pickle and copy, whatever its constructor asks for."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_type_hints

import pytest

import looseleaf
from looseleaf.errors import LooseleafError, RequestTooLarge

SAMPLES: dict[Any, Any] = {
    str: "what happened",
    int: 7,
    list[str]: ["one", "two"],
    Iterable[str]: ["one", "two"],
    object: -0.5,
    float: 2.5,
    Mapping[str, Any] | None: {"limit": 3},
    Mapping[str, str] | None: {"Retry-After": "1"},
    str | None: "top_k",
    int | None: 3,
}
"""An argument for each annotation of a constructor."""


def subclasses(kind: type[LooseleafError]) -> Iterator[type[LooseleafError]]:
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


def every_error() -> list[type[LooseleafError]]:
    for module in pkgutil.walk_packages(looseleaf.__path__, "looseleaf."):
        if not module.name.endswith(("__main__", "._native")):  # neither is a module to import
            importlib.import_module(module.name)
    return sorted({LooseleafError, *subclasses(LooseleafError)}, key=lambda kind: kind.__qualname__)


def an_example_of(kind: type[LooseleafError]) -> LooseleafError:
    hints = get_type_hints(kind.__init__)
    positional, named = [], {}
    for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = SAMPLES[hints[name]]
        else:
            positional.append(SAMPLES[hints[name]])
    return kind(*positional, **named)


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__qualname__)
def test_an_error_survives_pickle_and_copy(kind: type[LooseleafError]) -> None:
    error = an_example_of(kind)
    error.add_note("a note")
    for again in (*(pickle.loads(pickle.dumps(error, version)) for version in range(6)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error) != ""
        assert again.args == error.args
        assert vars(again) == vars(error)


def test_the_walk_finds_the_errors_of_every_layer() -> None:
    layers = {kind.__module__.split(".")[1] for kind in every_error()}
    assert {"errors", "memory", "scheduler", "models", "engine"} <= layers
    assert vars(an_example_of(RequestTooLarge)).keys() == {"message", "hint", "needed", "limit"}
