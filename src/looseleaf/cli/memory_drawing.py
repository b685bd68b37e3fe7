"""A pool of blocks drawn in 80 columns. Letters and bars carry the meaning; colour only repeats it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise

from rich.text import Text

from looseleaf.cli.memory_snapshot import LETTERS, HeldSequence, MemorySnapshot

WIDTH = 80
PER_ROW, CELL = 12, 6
PALETTE = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta", "bright_green")
BARS = "░▁▂▃▄▅▆▇█"
"""A block that is held but has no token yet, then by eighths."""
KINDS = (
    ("token_states", "tokens", "█"),
    ("reserved", "reserved", "▒"),
    ("internal_fragmentation", "internal fragmentation", "░"),
    ("free", "free", "·"),
)


def draw(snapshot: MemorySnapshot) -> Text:
    """Pool, block tables and accounts; lines of at most `WIDTH` columns."""
    lines = [_title(snapshot), *_pool(snapshot), Text(), *_tables(snapshot), Text(), *_accounts(snapshot)]
    return Text("\n").join(lines)


def legend(block_size: int) -> Text:
    """How to read a drawing."""
    return Text(
        f"A█  a block of sequence A, its {block_size} slots full; lower bars: partly filled, ░ not begun\n"
        "A█×4  shared by four sequences (A is the first)\n"
        "·  free;  ○  free, what it holds kept for whoever begins alike",
        style="dim",
    )


def _title(snapshot: MemorySnapshot) -> Text:
    waiting = f", {snapshot.num_waiting} waiting" if snapshot.num_waiting else ""
    heading = (
        f"After step {snapshot.step}: {snapshot.num_blocks} blocks × {snapshot.block_size} slots, "
        f"{snapshot.allocator}, {len(snapshot.sequences)} sequences{waiting}"
    )
    return Text(heading, style="bold")


def _pool(snapshot: MemorySnapshot) -> Iterator[Text]:
    """Rows of cells in physical order; several rows of free blocks take one line."""
    label = len(str(snapshot.num_blocks))
    starts = range(0, snapshot.num_blocks, PER_ROW)
    rows = (range(start, min(start + PER_ROW, snapshot.num_blocks)) for start in starts)
    used = snapshot.holders.keys() | snapshot.cached
    for is_free, group in groupby(rows, key=lambda row: used.isdisjoint(row)):
        first, *others = group
        if is_free and others:
            yield Text(f"{first[0]:>{label}}  … to {others[-1][-1]}: all free", style="dim")
            continue
        for row in (first, *others):
            line = Text(f"{row[0]:>{label}}  ")
            for block in row:
                line.append_text(_cell(snapshot, block))
            line.rstrip()
            yield line


def _cell(snapshot: MemorySnapshot, block: int) -> Text:
    holders = snapshot.holders.get(block)
    if not holders:
        return Text(("○" if block in snapshot.cached else "·").ljust(CELL), style="dim")
    text = holders[0].letter + _bar(snapshot, block) + _times(holders)
    return Text(text.ljust(CELL), style=_style(holders))


def _bar(snapshot: MemorySnapshot, block: int) -> str:
    return BARS[-(-snapshot.filled(block) * 8 // snapshot.block_size)]


def _times(holders: list[HeldSequence]) -> str:
    return f"×{len(holders)}" if len(holders) > 1 else ""


def _style(holders: list[HeldSequence]) -> str:
    return "bold reverse" if len(holders) > 1 else PALETTE[LETTERS.index(holders[0].letter) % len(PALETTE)]


def _tables(snapshot: MemorySnapshot) -> Iterator[Text]:
    """A block table per sequence, shared blocks with their number of holders; and what the prefix cache had of it."""
    yield Text("   tokens  block table", style="bold")
    for sequence in snapshot.sequences:
        style = _style([sequence])
        line = Text(f"{sequence.letter}  {sequence.cached_tokens:>6} ", style=style)
        indent = len(line)
        for block in sequence.blocks:
            holders = snapshot.holders[block]
            entry = f" {block}{_times(holders)}"
            if len(line) + len(entry) > WIDTH:
                yield line
                line = Text(" " * indent)
            line.append(entry, style="bold" if len(holders) > 1 else style)
        found = f"  {sequence.found_tokens} found," if sequence.found_tokens else " "
        line.append(_shortened(f"{found} {sequence.title}", WIDTH - len(line)), style="dim")
        yield line


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…" if width > 1 else ""


def _accounts(snapshot: MemorySnapshot) -> Iterator[Text]:
    """The four kinds of slot as a bar and as a sum, and what sharing saved."""
    usage = snapshot.usage
    counts = [getattr(usage, name) for name, _, _ in KINDS]
    columns = zip(KINDS, _apportion(usage.total, counts), strict=True)
    yield Text("".join(glyph * width for (_, _, glyph), width in columns))
    *held, free = (f"{glyph} {count:,} {label}" for count, (_, label, glyph) in zip(counts, KINDS, strict=True))
    in_use = usage.total - usage.free
    yield Text(" + ".join(held))
    share = usage.token_states / max(in_use, 1)
    yield Text(f"+ {free} = {usage.total:,} slots; {share:.1%} of the {in_use:,} in use hold tokens")
    if usage.free > usage.largest_free_run:
        yield Text(f"largest free run: {usage.largest_free_run:,} slots; the rest of the free ones is fragmented")
    if usage.cached:
        yield Text(f"of the free slots {usage.cached:,} keep what can be shared ({len(snapshot.cached)} blocks)")
    if usage.saved_by_sharing:
        blocks = usage.saved_by_sharing // snapshot.block_size
        yield Text(f"saved by sharing: {usage.saved_by_sharing:,} slots ({blocks} blocks)")


def _apportion(total: int, counts: list[int]) -> list[int]:
    """Columns of the bar for each kind; rounding the running sums keeps their total at the width."""
    ends, running = [0], 0
    for count in counts:
        running += count
        ends.append(round(running * WIDTH / total))
    return [end - start for start, end in pairwise(ends)]
