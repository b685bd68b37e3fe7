"""Hit rates of an unbounded prefix cache, by every definition in use: they differ by points."""

from __future__ import annotations

from dataclasses import dataclass

WHAT = (
    "Every earlier prompt of the trace is in the cache, whole and for ever; outputs are not. "
    "Over the whole trace, without a warm-up. An engine always computes the last token of a prompt."
)


@dataclass(frozen=True, slots=True)
class HitRate:
    """A share, and what it is a share of."""

    name: str
    found: int
    of: int
    definition: str

    @property
    def share(self) -> float:
        return self.found / self.of if self.of else 0.0


class ReuseMeter:
    """Counts what prompts have in common with earlier ones."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._prompt_tokens = self._blocks = self._full_blocks = 0
        self._tokens, self._servable = 0, 0
        self._block_tokens, self._servable_blocks = 0, 0
        self._whole_blocks = 0

    def add(self, prompt_tokens: int, common: int) -> None:
        """`common`: tokens from the beginning that an earlier prompt has, too."""
        size = self.block_size
        servable = min(common, prompt_tokens - 1)
        self._prompt_tokens += prompt_tokens
        self._full_blocks += prompt_tokens // size
        self._blocks += -(-prompt_tokens // size)
        self._tokens += common
        self._servable += servable
        self._block_tokens += common // size
        self._servable_blocks += servable // size
        self._whole_blocks += -(-common // size) if common == prompt_tokens else common // size

    def rates(self) -> list[HitRate]:
        """The first is what an engine with full blocks can serve."""
        size, tokens, full = self.block_size, self._prompt_tokens, self._full_blocks
        in_blocks = f"of prompt tokens, in full blocks of {size}"
        return [
            HitRate("tokens_full_blocks", self._servable_blocks * size, tokens, f"{in_blocks}; the last token never"),
            HitRate("tokens_full_blocks_last", self._block_tokens * size, tokens, f"{in_blocks}; the last token, too"),
            HitRate("tokens", self._servable, tokens, "of prompt tokens, also in part of a block; the last never"),
            HitRate("tokens_last", self._tokens, tokens, "of prompt tokens, also in part of a block; the last, too"),
            HitRate("blocks", self._servable_blocks, full, f"of full blocks of {size}; one with the last token never"),
            HitRate("blocks_last", self._block_tokens, full, f"of full blocks of {size}; one with the last token, too"),
            HitRate("blocks_partial", self._whole_blocks, self._blocks, f"of blocks of {size}, partial ones, too"),
        ]
