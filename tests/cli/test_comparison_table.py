"""The table of a comparison fits an ordinary terminal, and says the same however it is turned."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from looseleaf.cli.comparison_table import comparison_tables
from looseleaf.replay.goodput import Slo
from looseleaf.replay.matrix import run_matrix
from looseleaf.replay.report import Comparison
from looseleaf.replay.settings import default_comparison
from looseleaf.replay.store import ResultStore
from looseleaf.replay.table import DIGITS, MEMORY, Figure, service
from small_sweep import SHARING, SHORT, PlainCost


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    store = ResultStore(tmp_path_factory.mktemp("results"))
    cells = run_matrix(SHARING, default_comparison(SHORT, shares=True), PlainCost(), store, processes=1)
    return Comparison(cells, "", [], [], Slo(ttft=0.5))


def printed(comparison: Comparison, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    tables = comparison_tables(comparison, width)
    for table in tables:
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 200])
def test_nothing_is_cut_off(comparison: Comparison, width: int) -> None:
    lines = printed(comparison, width)
    assert "…" not in "".join(lines)
    tables = 1 if width >= 130 else 2
    names = [line for line in lines if line.startswith(("paged", "contiguous-"))]
    assert len(names) == tables * len(comparison.cells)
    assert len(lines) == tables * (len(comparison.cells) + 2)


def test_few_cells_show_every_figure(comparison: Comparison) -> None:
    few = Comparison(comparison.cells[:2], "", [], [], comparison.slo)
    text = "\n".join(printed(few, 80))
    for figure in (*MEMORY, *service(comparison.slo)):
        assert figure.title in text


def test_figures_are_told_apart(comparison: Comparison) -> None:
    every = (*MEMORY, *service(comparison.slo))
    assert len({figure.title for figure in every}) == len(every)
    narrow = [figure.short for figure in every if figure.short]
    assert len(set(narrow)) == len(narrow)


def test_the_best_is_found_as_it_is_shown(comparison: Comparison) -> None:
    outcomes = [cell.outcome for cell in comparison.cells[:3] if cell.outcome is not None]
    values = iter([1.001, 1.002, 5.0] * 4)
    made_up = {id(outcome): next(values) for outcome in outcomes}
    figure = Figure("", "", lambda outcome: made_up[id(outcome)], ".1f", "lower")
    assert figure.best(outcomes) == {0, 1}
    assert Figure("", "", lambda outcome: made_up[id(outcome)], ".1f").best(outcomes) == set()
    assert Figure("", "", lambda _: 3.0, ".1f", "lower").best(outcomes) == set()
    assert Figure("", "", lambda _: None, ".1f", "lower").show(outcomes[0]) == "–"
    assert Figure("", "", lambda _: 12345.6, DIGITS).show(outcomes[0]) == "12,346"
    assert Figure("", "", lambda _: 0.0123456, DIGITS).show(outcomes[0]) == "0.0123"
