"""The plan spelled out: one line per term, so that every figure can be checked by hand."""

from __future__ import annotations

from dataclasses import dataclass

from looseleaf.plan.capacity import Capacity
from looseleaf.plan.hardware import format_size
from looseleaf.plan.kv_layout import KVLayout, LayerGroup
from looseleaf.plan.shape import ModelShape
from looseleaf.plan.weights import FORMAT_BITS, PARTS


@dataclass(frozen=True, slots=True)
class Term:
    """One line: what it is, its figure (`amount` in `unit`, for programs; `text` for people), and where it is from."""

    name: str
    text: str
    how: str
    amount: float
    unit: str


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    terms: tuple[Term, ...]


def derivation(capacity: Capacity) -> list[Section]:
    """The whole way from configuration to pool."""
    sections = [
        Section("What one token and one request keep", tuple(_kept_terms(capacity.layout))),
        Section(f"One request of {capacity.max_model_len:,} tokens", tuple(_request_terms(capacity))),
    ]
    ranks = capacity.settings.tensor_parallel_size
    each = f" of each of {ranks} devices" if ranks > 1 else ""
    if capacity.derived:
        sections.append(Section(f"Weights{each}", tuple(_weight_terms(capacity))))
    sections.append(Section(f"Memory{each}", tuple(_memory_terms(capacity))))
    return sections


def _size_term(name: str, nbytes: int, how: str) -> Term:
    return Term(name, format_size(nbytes), how, nbytes, "bytes")


def _bytes_term(name: str, nbytes: int, how: str) -> Term:
    return Term(name, f"{nbytes:,} B", how, nbytes, "bytes")


def layers_of(group: LayerGroup) -> str:
    """ "32 × full attention": how many layers of which kind."""
    kinds = {
        "full": "full attention",
        "window": f"window of {group.limit or 0:,}",
        "chunk": f"chunks of {group.limit or 0:,}",
        "latent": "latent attention",
        "state": "recurrent state",
    }
    return f"{group.layers} × {kinds[group.kind]}"


def _kept_terms(layout: KVLayout) -> list[Term]:
    terms = []
    for group in layout.groups:
        each = group.token_bytes or group.state_bytes
        per = "per request" if group.kind == "state" else "per token"
        terms.append(
            _bytes_term(layers_of(group), group.layers * each, f"{per}: {group.layers} × {each:,} B, {group.formula}")
        )
    bounded = any(group.bounded for group in layout.groups)
    if bounded:
        terms.append(_bytes_term("per token at first", layout.bytes_per_token, "until windows are full: every layer"))
    terms.append(
        _bytes_term(
            "slope per token", layout.slope, "what a longer context adds" + (": not in windows" if bounded else "")
        )
    )
    return terms


def _request_terms(capacity: Capacity) -> list[Term]:
    layout, length = capacity.layout, capacity.max_model_len
    terms = []
    for group in layout.groups:
        if group.kind == "state":
            how = f"{group.layers} × {group.state_bytes:,} B, whatever the length"
        else:
            blocks = layout.blocks(group, length)
            how = f"{group.layers} × {blocks:,} blocks × {layout.block_size} × {group.token_bytes:,} B"
            if group.bounded:
                how += f": {_held_tokens(group, layout, length)}"
        terms.append(_size_term(layers_of(group), layout.group_bytes(group, length), how))
    total = layout.request_bytes(length)
    if len(terms) > 1:
        fixed = layout.fixed_bytes(length)
        terms.append(
            _size_term("together", total, f"fixed part {format_size(fixed)}, slope {layout.slope:,} B per token")
        )
    return terms


def _held_tokens(group: LayerGroup, layout: KVLayout, length: int) -> str:
    assert group.limit is not None
    reach = group.limit + layout.step_tokens - (group.kind == "window")
    if reach >= length:
        return "the whole request, which one step may still see"
    if group.kind == "window":
        return f"window − 1 + {layout.step_tokens:,} of a step, and 1 block for where it begins"
    return f"chunk + {layout.step_tokens:,} of a step"


def _weight_terms(capacity: Capacity) -> list[Term]:
    arithmetic, settings = capacity.arithmetic, capacity.settings
    terms = []
    if settings.weight_memory is not None:
        terms.append(_size_term("as given", capacity.weight_bytes - settings.extra_weights, "--weight-memory"))
    else:
        parameters = arithmetic.parameters
        names = {"small": "norms, biases, routers", "mlp": "feed-forward", "head": "output head"}
        for part in PARTS:
            count = getattr(parameters, part)
            if count:
                form = arithmetic.formats[part]
                how = f"{count:,} × {FORMAT_BITS[form]:g} bits ({form})"
                terms.append(_size_term(names.get(part, part), arithmetic.weight_bytes_by_part[part], how))
    if settings.extra_weights:
        terms.append(_size_term("further parts", settings.extra_weights, "--extra-weights"))
    if len(terms) > 1:
        terms.append(_size_term("together", capacity.weight_bytes, _parameter_count(capacity.shape, capacity)))
    return terms


def _parameter_count(shape: ModelShape, capacity: Capacity) -> str:
    from looseleaf.plan.weights import count_parameters

    if capacity.settings.weight_memory is not None:
        return "the sum"
    whole = count_parameters(shape).total
    return f"{whole:,} parameters" + (" in all ranks" if capacity.settings.tensor_parallel_size > 1 else "")


def _memory_terms(capacity: Capacity) -> list[Term]:
    settings, layout = capacity.settings, capacity.layout
    block = f"{layout.block_size} tokens × {layout.bytes_per_token:,} B"
    if len(layout.groups) > 1 and not layout.uniform:
        block = "one pool for layers that keep differently: a block spans as many layers as the rarest kind has"
    if not capacity.derived:
        given = "--num-blocks" if settings.num_blocks is not None else "--kv-cache-memory"
        return [
            _size_term("one block", layout.block_bytes, block),
            _size_term("pool", capacity.pool_bytes, f"{capacity.num_blocks:,} blocks ({given})"),
        ]
    hardware = settings.hardware
    assert hardware is not None
    assert hardware.memory_bytes is not None
    usable = f"{settings.memory_utilization:.0%} of {format_size(hardware.memory_bytes)} ({hardware.name})"
    reserve = "--reserve" if settings.reserve is not None else "driver and runtime, beyond these terms"
    if settings.reserve is None:
        reserve += ", as seen on an RTX 4090; --reserve sets it" if hardware.kind == "gpu" else "; --reserve sets it"
    left = capacity.left_for_cache
    return [
        _size_term("usable", capacity.usable, usable),
        _size_term("− weights", capacity.weight_bytes, "as above"),
        _size_term("− activations at peak", capacity.activations.nbytes, capacity.activations.formula),
        _size_term("− reserve", capacity.reserve, reserve),
        _size_term("left for the cache", left, "" if left > 0 else "NOTHING: the weights alone do not fit"),
        _size_term("one block", layout.block_bytes, block),
        Term("blocks", f"{capacity.num_blocks:,}", "whole ones", capacity.num_blocks, "blocks"),
    ]
