"""What a trace is like, in tables and bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table

from looseleaf.cli.consoles import counted
from looseleaf.replay.describe import Description
from looseleaf.replay.length_counts import LengthSummary
from looseleaf.replay.reuse import WHAT

EIGHTHS = " ▁▂▃▄▅▆▇█"
HEIGHT = 4
"""Lines of a chart."""
LABEL = 14


def draw(trace: Description) -> Iterator[RenderableType]:
    """Paragraphs and tables."""
    origin = trace.origin
    yield f"{trace.name}: {counted(trace.requests, 'request')} in {spoken(trace.duration)}, read as {origin.format}"
    for each in origin.skipped:
        yield f"Left out: {counted(each.count, 'line')}: {each.reason}, the first in line {each.first_line}."
    yield from origin.notes
    yield ""
    yield _lengths(trace)
    yield ""
    if trace.gaps is None:
        yield "Arrivals: all at once"
    else:
        gaps, rate = trace.gaps, (trace.requests - 1) / trace.duration
        yield (
            f"Arrivals: {rate:,.3g} a second, at most {gaps.peak_per_second:,} within one; "
            f"gaps of {gaps.mean:,.3g} s, the longest {gaps.longest:,.3g} s"
        )
        yield f"Burstiness: gap CV {gaps.cv:.2f} (0: a regular flow, 1: a Poisson process)"
    peak = max(bucket.working_set for bucket in trace.buckets)
    yield (
        f"Working set: at most {peak:,} tokens (different prompt tokens of requests that came within the last "
        f"{trace.window:g} s)"
    )
    if trace.num_tenants > 1:
        yield f"Tenants: {trace.num_tenants:,}; by tokens:"
        yield _tenants(trace)
    if trace.sessions is not None:
        found = trace.sessions
        yield f"Sessions: {found.number:,}, of {found.mean_requests:.1f} requests, at most {found.most_requests:,}"
    yield ""
    yield from _reuse(trace)


def draw_plots(trace: Description, width: int) -> Iterator[str]:
    """Charts that fit into so many columns."""
    for name, lengths in (("Prompts", trace.prompt), ("Outputs", trace.output)):
        yield ""
        yield f"{name} by length in tokens"
        most = max(count for _, _, count in lengths.histogram)
        for start, end, count in lengths.histogram:
            bar = _bar(count / most, max(width - 36, 10))
            yield f"{f'{start:,}–{end:,}':>20} {count:>9,} {bar}"
    columns = max(width - LABEL, 16)
    buckets = trace.buckets
    charts: dict[str, list[float]] = {
        "Requests": [b.requests for b in buckets],
        "Prompt tokens": [b.prompt_tokens for b in buckets],
        "Output tokens": [b.output_tokens for b in buckets],
        "Working set": [b.working_set for b in buckets],
    }
    if trace.reuse is not None:
        charts["Found tokens"] = [b.found_tokens for b in buckets]
    merge = -(-len(buckets) // columns)
    for name, values in charts.items():
        pieces = [values[i : i + merge] for i in range(0, len(values), merge)]
        shown = [max(piece) if name == "Working set" else sum(piece) for piece in pieces]
        each = "" if name == "Working set" else f" in {spoken(trace.bucket_seconds * merge)}"
        yield ""
        yield f"{name}{each}, over {spoken(trace.bucket_seconds * len(buckets))}"
        yield from chart(shown)


def chart(values: Sequence[float]) -> Iterator[str]:
    """Columns of up to `HEIGHT` lines, with the largest value beside the top."""
    most = max(values) or 1
    eighths = [max(round(value / most * HEIGHT * 8), 1 if value > 0 else 0) for value in values]
    for line in reversed(range(HEIGHT)):
        label = f"{most:,.0f}" if line == HEIGHT - 1 else "0" if line == 0 else ""
        yield f"{label:>{LABEL - 1}} " + "".join(EIGHTHS[min(max(each - 8 * line, 0), 8)] for each in eighths).rstrip()


def _bar(share: float, width: int) -> str:
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")


def _lengths(trace: Description) -> Table:
    table = Table("tokens", box=None, header_style="bold", pad_edge=False)
    for name in ("mean", "median", "p95", "p99", "least", "most", "total"):
        table.add_column(name, justify="right")
    rows: tuple[tuple[str, LengthSummary], ...] = (("prompt", trace.prompt), ("output", trace.output))
    for name, found in rows:
        values = (found.mean, found.median, found.p95, found.p99, found.least, found.most, found.total)
        table.add_row(name, *(f"{value:,.0f}" for value in values))
    return table


def _tenants(trace: Description) -> Table:
    table = Table("  tenant", box=None, header_style="bold", pad_edge=False)
    for name in ("requests", "prompt tokens", "output tokens"):
        table.add_column(name, justify="right")
    for each in trace.tenants[:8]:
        counts = (each.requests, each.prompt_tokens, each.output_tokens)
        table.add_row(f"  {each.name or '(none)'}", *(f"{count:,}" for count in counts))
    return table


def _reuse(trace: Description) -> Iterator[RenderableType]:
    if trace.reuse is None:
        yield "Reuse: the trace does not tell which prompts begin alike."
        return
    yield f"Reuse, unbounded: {trace.reuse.different_tokens:,} different tokens of {trace.prompt.total:,}. {WHAT}"
    if trace.unit is not None and trace.unit != trace.reuse.block_size:
        yield f"The trace tells what is shared in units of {trace.unit} tokens."
    table = Table("  share", "definition", box=None, header_style="bold", pad_edge=False)
    for rate in trace.reuse.rates:
        table.add_row(f"  {rate.share:7.2%}", rate.definition)
    yield table


def spoken(seconds: float) -> str:
    """3436 → 57 min 16 s."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{days} d" if days else "", f"{hours} h" if hours else "", f"{minutes} min" if minutes else ""]
    return " ".join([*filter(None, parts), *([f"{rest} s"] if rest and not days else [])])
