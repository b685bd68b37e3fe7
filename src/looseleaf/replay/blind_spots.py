"""Where a sweep cannot show a difference, because something else is the limit; and what to change to see one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from looseleaf.replay.matrix import Cell
from looseleaf.replay.outcome import Outcome
from looseleaf.replay.settings import AXES, PAGED, Axis, Constraint, alike_but_for

RARELY = 0.02
"""Of the busy time: what binds for less hardly changes a figure."""

CONSTRAINTS: dict[Constraint, str] = {
    "blocks": "blocks",
    "seats": "seats (max_num_seqs)",
    "budget": "the step's token budget",
    "arrivals": "arrivals (nobody waited)",
}


REMEDIES: dict[Constraint, str] = {
    "seats": "raise --max-num-seqs, or lower the pool",
    "budget": "raise --max-num-batched-tokens, or lower the pool",
    "blocks": "raise the pool",
}


def blind_spots(cells: Sequence[Cell], *, shares: bool) -> list[str]:
    """One sentence for each axis, and each group of cells along it, that shows nothing of what it is meant to.

    `shares`: the trace says which prompts begin alike.
    """
    done = [cell for cell in cells if cell.outcome is not None]
    return list(dict.fromkeys(_found(done, shares)))


def _found(cells: Sequence[Cell], shares: bool) -> Iterator[str]:
    settings = [cell.settings for cell in cells]
    for axis in AXES.values():
        groups = list(alike_but_for(settings, axis))
        if not groups:
            continue
        blind = [group for group in groups if _is_blind([cells[place] for place in group], axis)]
        outcomes = [outcome for group in blind for place in group if (outcome := cells[place].outcome)]
        if axis.name == "prefix_caching":
            if not shares:
                yield "prefix cache: the trace does not say which prompts begin alike, so there is nothing to find."
            elif outcomes and len(blind) == len(groups):
                yield "prefix cache: no prompt began like one that was still there."
        elif axis.name == "scheduling_policy" and all(_alike([cells[place] for place in group]) for group in groups):
            yield (
                "policy: every request got the same under each. Requests of one tenant and one priority are served in "
                "their order by all of them."
            )
        elif outcomes:
            where = "" if len(blind) == len(groups) else f" in {len(blind)} of {len(groups)} comparisons"
            yield _sentence(axis, outcomes, where)


def _is_blind(cells: Sequence[Cell], axis: Axis) -> bool:
    outcomes = [cell.outcome for cell in cells if cell.outcome is not None]
    if axis.name == "prefix_caching":
        return not any(outcome.totals["cached_prompt_tokens"] for outcome in outcomes)
    if axis.paged_only and cells[0].settings.allocator != PAGED:
        return False
    if axis.name == "scheduling_policy":
        return not any(_order_matters(cell) for cell in cells)
    return all(outcome.bound[each] <= RARELY for outcome in outcomes for each in axis.acts_on) and not any(
        outcome.totals["preemptions"] for outcome in outcomes if "blocks" in axis.acts_on
    )


def _alike(cells: Sequence[Cell]) -> bool:
    """Every request was served at the same times."""
    first, *others = (cell.outcome for cell in cells)
    return all(first is not None and other is not None and first.curves == other.curves for other in others)


def _order_matters(cell: Cell) -> bool:
    assert cell.outcome is not None
    return cell.outcome.bound["arrivals"] < 1 - RARELY


def _sentence(axis: Axis, outcomes: Sequence[Outcome], where: str) -> str:
    wanted = " or ".join(CONSTRAINTS[each] for each in axis.acts_on)
    limits = {each: max(outcome.bound[each] for outcome in outcomes) for each in REMEDIES if each not in axis.acts_on}
    limit = max(limits, key=lambda each: limits[each], default=None)
    if limit is None or limits[limit] <= RARELY:
        instead = "Requests came no faster than they were served. Try more of them, or a smaller pool"
        instead += "." if "blocks" in axis.acts_on else " or fewer sequences."
    else:
        instead = (
            f"{CONSTRAINTS[limit][0].upper() + CONSTRAINTS[limit][1:]} bound instead, up to {limits[limit]:.0%} of "
        )
        instead += f"the time: {REMEDIES[limit]} to see a difference."
    most = max(outcome.bound[each] for outcome in outcomes for each in axis.acts_on)
    waited = "no request had to wait" if most == 0 else f"requests waited {most:.1%} of the time or less"
    return f"{axis.title}{where}: {waited} for {wanted}, so latency and throughput can hardly differ. {instead}"
