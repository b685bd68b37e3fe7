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


class OutOfRows(MemoryLayerError):
    """Every row of the block-table matrix is taken: `max_num_seqs` sequences are alive."""


class UnknownSequence(MemoryLayerError, KeyError):
    """No live sequence has this id: it was never issued, or it has been released."""

    __str__ = LooseleafError.__str__


class InvalidSize(MemoryLayerError, ValueError):
    """A count is negative, zero where it must not be, or beyond what a table row can address."""


class AuditError(MemoryLayerError):
    """`audit()` found that the books do not match the truth; `findings` lists every difference."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__("The memory audit failed: " + "; ".join(findings))
        self.findings = findings
