"""What a plan says: how much fits, for whom, and what would have to change where it does not."""

from __future__ import annotations

from dataclasses import dataclass

from looseleaf.plan.capacity import Capacity
from looseleaf.plan.changes import Change, changes_that_fit
from looseleaf.plan.derivation import Term
from looseleaf.plan.hardware import GIB, format_size
from looseleaf.plan.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Answers:
    terms: tuple[Term, ...]
    changes: tuple[Change, ...]
    """Empty where it fits."""


def answers(capacity: Capacity, lengths: Lengths | None = None) -> Answers:
    terms = [*_pool_terms(capacity), *_length_terms(capacity, lengths)]
    if lengths is not None:
        terms += _sharing_terms(capacity, lengths)
    changes = () if capacity.fits else tuple(changes_that_fit(capacity))
    return Answers(tuple(terms), changes)


def _pool_terms(capacity: Capacity) -> list[Term]:
    layout = capacity.layout
    how = f"{capacity.num_blocks:,} blocks of {layout.block_size}"
    if not layout.uniform:
        how = f"in requests of {capacity.max_model_len:,}: layers keep differently, so it depends on the length"
    concurrency = capacity.concurrency(capacity.max_model_len)
    verdict = "" if capacity.fits else ": less than one, REFUSED"
    return [
        Term("tokens that fit", f"{capacity.tokens:,}", how, capacity.tokens, "tokens"),
        Term(
            "at the maximum length",
            f"{concurrency:,.2f}×",
            f"requests of {capacity.max_model_len:,} tokens at once{verdict}",
            concurrency,
            "requests",
        ),
        Term(
            "longest context",
            f"{capacity.longest_context:,}",
            f"tokens fit, alone in the pool; the model knows {capacity.shape.max_len:,}",
            capacity.longest_context,
            "tokens",
        ),
        _per_request(capacity, capacity.max_model_len, "at the maximum length"),
    ]


def _per_request(capacity: Capacity, length: float, when: str) -> Term:
    ranks = capacity.settings.tensor_parallel_size
    nbytes = capacity.layout.request_bytes(round(length))
    text = f"{nbytes / GIB:,.3f} GiB" if nbytes >= GIB / 1000 else format_size(nbytes)
    each = f", on each of {ranks} devices" if ranks > 1 else ""
    return Term("each request more", text, f"{when}{each}", nbytes, "bytes")


def _length_terms(capacity: Capacity, lengths: Lengths | None) -> list[Term]:
    if lengths is None:
        return []
    seats = capacity.settings.max_num_seqs
    at_end, on_average = capacity.concurrency(lengths.at_end), capacity.concurrency(lengths.on_average)

    def bound(count: float) -> str:
        return f"; but {seats} seats (max_num_seqs)" if count > seats else ""

    terms = [
        Term(
            "at your lengths",
            f"{on_average:,.1f}×",
            f"at once on average: {lengths.on_average:,.0f} tokens, prompt + half the answer{bound(on_average)}",
            on_average,
            "requests",
        ),
        Term(
            "all at their ends",
            f"{at_end:,.1f}×",
            f"at once without any preemption: {lengths.at_end:,.0f} tokens each{bound(at_end)}",
            at_end,
            "requests",
        ),
        _per_request(capacity, lengths.at_end, f"of {lengths.at_end:,.0f} tokens"),
    ]
    running = max(min(int(on_average), seats), 1)
    if lengths.longest > capacity.max_model_len:
        how = f"tokens, beyond the maximum length of {capacity.max_model_len:,}: REFUSED when it comes"
        terms.append(Term("your longest request", f"{lengths.longest:,}", how, lengths.longest, "tokens"))
    seconds = capacity.step_seconds(running, lengths.on_average)
    if seconds is not None and capacity.fits:
        how = f"of {running:,} sequences, at the published bandwidth: weights and contexts read once"
        terms.append(Term("a decode step, at least", f"{seconds * 1e3:,.2f} ms", how, seconds, "seconds"))
    return terms


def _sharing_terms(capacity: Capacity, lengths: Lengths) -> list[Term]:
    unit, prompt = capacity.shareable_unit, round(lengths.prompt)
    most = capacity.most_shareable(prompt)
    if unit == capacity.layout.block_size:
        why = "a block"
    elif capacity.settings.shareable_unit is not None:
        why = "as given"
    else:
        why = "where state and tokens take the same"
    text = f"{most / prompt:.1%}" if most else "none"
    how = f"of a prompt of {prompt:,}: whole units of {unit:,} ({why}), never the last token"
    return [Term("prefix hits at most", text, how, most / prompt, "share")]
