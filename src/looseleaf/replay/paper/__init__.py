"""Figures of the PagedAttention paper, remade from lengths and allocators, with the published values beside ours.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023.
"""

from looseleaf.replay.paper.figures import Row, remake

__all__ = ["Row", "remake"]
