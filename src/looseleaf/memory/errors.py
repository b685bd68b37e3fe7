"""Typed errors of the memory layer. Whoever raises one has changed nothing."""

from __future__ import annotations

from looseleaf.errors import LooseleafError


class MemoryLayerError(LooseleafError):
    """Root of the memory layer's errors."""


class OutOfBlocks(MemoryLayerError):
    """The transaction needed more blocks than are free. Nothing was allocated."""

    def __init__(self, needed: int, free: int, *, hint: str = "") -> None:
        super().__init__(
            f"{needed} blocks are needed and {free} are free.",
            hint=hint or "Release or preempt a sequence, or give the pool more memory.",
        )
        self.needed = needed
        self.free = free


class RegionFull(OutOfBlocks):
    """A contiguous sequence would outgrow its region, which no release of another sequence can enlarge.

    Attributes: `needed` blocks beyond the region, `free` (always 0: those it could get).
    """

    def __init__(self, needed: int, region: int) -> None:
        super().__init__(needed, 0, hint="Admit sequences with the final_tokens that they will grow to.")
        self.message = f"A sequence needs {needed} blocks more than its region of {region}, which cannot grow."
        self.region = region


class OutOfRows(MemoryLayerError):
    """Every row of the block-table matrix is taken: `max_num_seqs` sequences are alive."""


class UnknownSequence(MemoryLayerError, KeyError):
    """No live sequence has this id: it was never issued, or it has been released."""

    __str__ = LooseleafError.__str__


class DuplicateSequence(MemoryLayerError, ValueError):
    """One batched call names the same sequence twice."""


class UncomputedTokens(MemoryLayerError):
    """A fork was asked for while the sequence has slots that still wait for their keys and values.

    Both sequences would write them, into the same slots.
    """


class InvalidSize(MemoryLayerError, ValueError):
    """A count is negative, zero where it must not be, or beyond what a table row can address."""


class PinTooLarge(MemoryLayerError, ValueError):
    """A pin would keep more of the pool from eviction than pins may: `blocks` asked for, `pinned` already, `limit`."""

    def __init__(self, blocks: int, pinned: int, limit: int) -> None:
        super().__init__(
            f"A pin of {blocks} blocks is refused: {pinned} are pinned and at most {limit} may be.",
            hint="Lift another pin, or raise max_pinned_share.",
        )
        self.blocks = blocks
        self.pinned = pinned
        self.limit = limit


class UnknownPin(MemoryLayerError, KeyError):
    """No pin has this id: it was never set, or it has been lifted or has expired."""

    __str__ = LooseleafError.__str__


class AuditError(MemoryLayerError):
    """`audit()` found that the books do not match the truth; `findings` lists every difference."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__("The memory audit failed: " + "; ".join(findings))
        self.findings = findings
