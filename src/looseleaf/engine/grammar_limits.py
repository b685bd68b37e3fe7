"""What following a grammar may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLParserLimits


def parser_limits() -> LLParserLimits:
    """llguidance counts its work in steps of about 20 ns: some 20 ms to compile, as much for one token; at most some
    20 MB of lexer states. Not all of its work is counted: hence `grammar_trial`."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=10_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )
