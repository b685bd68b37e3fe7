"""Sweeps: which cells there are, that they are replayed once, kept at once, and survive an interruption."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from looseleaf.errors import ConfigurationError
from looseleaf.memory import ALLOCATORS
from looseleaf.replay import matrix
from looseleaf.replay.goodput import Slo
from looseleaf.replay.matrix import Cell, run_matrix
from looseleaf.replay.settings import (
    AXES,
    Settings,
    alike_but_for,
    combinations,
    default_comparison,
    label,
    varied_axes,
)
from looseleaf.replay.simulator import replay
from looseleaf.replay.sources import TraceSource
from looseleaf.replay.store import ResultStore
from small_sweep import SHARING, SHORT, SOURCE, PlainCost

COST = PlainCost()


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path / "results")


def figures(cells: Sequence[Cell]) -> list[object]:
    return [None if cell.outcome is None else cell.outcome.figures for cell in cells]


def test_combinations_are_every_one_once() -> None:
    cells = combinations(SHORT, {"block_size": [1, 16], "watermark": [0.0, 0.1]})
    assert [(cell.block_size, cell.watermark) for cell in cells] == [(1, 0.0), (1, 0.1), (16, 0.0), (16, 0.1)]
    assert [cell.num_blocks for cell in cells] == [512, 512, 32, 32]


def test_what_contiguous_memory_ignores_makes_no_cells() -> None:
    varied = {"allocator": ["paged", "contiguous-max"], "prefix_caching": [True, False], "watermark": [0.0, 0.1]}
    cells = combinations(SHORT, varied)
    assert len([cell for cell in cells if cell.allocator == "paged"]) == 4
    (contiguous,) = [cell for cell in cells if cell.allocator != "paged"]
    assert not contiguous.prefix_caching
    axes = varied_axes(cells)
    assert label(contiguous, axes) == "contiguous-max"
    assert label(cells[0], axes) == "paged, cache on, watermark 0"


@pytest.mark.parametrize("shares", [True, False])
def test_the_default_comparison(shares: bool) -> None:
    cells = default_comparison(SHORT, shares=shares)
    assert len(set(cells)) == len(cells)
    assert {cell.allocator for cell in cells} == set(ALLOCATORS)
    assert {cell.block_size for cell in cells if cell.allocator == "paged"} == {1, 16, 128}
    assert {cell.prefix_caching for cell in cells} == ({True, False} if shares else {False})


@pytest.mark.parametrize(
    ("axis", "text", "values"),
    [
        ("block_size", "1,16, 256,16", [1, 16, 256]),
        ("watermark", "0,5%,0.15", [0.0, 0.05, 0.15]),
        ("prefix_caching", "on,off", [True, False]),
        ("allocator", "paged,contiguous-pow2", ["paged", "contiguous-pow2"]),
        ("pool_tokens", "40_000", [40000]),
    ],
)
def test_values_of_an_axis(axis: str, text: str, values: list[object]) -> None:
    assert AXES[axis].values(text) == values


@pytest.mark.parametrize(
    ("axis", "text"), [("block_size", "a"), ("prefix_caching", "yes"), ("allocator", "slab"), ("watermark", "")]
)
def test_values_that_are_none(axis: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=AXES[axis].flag):
        AXES[axis].values(text)


def test_groups_along_an_axis() -> None:
    cells = combinations(SHORT, {"block_size": [1, 16], "watermark": [0.0, 0.1]})
    assert list(alike_but_for(cells, AXES["block_size"])) == [[0, 2], [1, 3]]
    assert list(alike_but_for(cells, AXES["watermark"])) == [[0, 1], [2, 3]]
    assert list(alike_but_for(cells, AXES["allocator"])) == []


def test_a_cell_says_what_the_replay_says(store: ResultStore) -> None:
    (cell,) = run_matrix(SHARING, [SHORT], COST, store)
    result = replay(SHARING.open(), SHORT.config(), COST)
    assert cell.outcome is not None
    assert cell.outcome.figures == json.loads(json.dumps(result.to_json()))
    assert cell.outcome.requests.equals(result.requests)
    assert cell.outcome.timeline.equals(result.timeline)
    assert sum(cell.outcome.bound.values()) == pytest.approx(1)


def test_two_processes_give_what_one_gives(store: ResultStore, tmp_path: Path) -> None:
    cells = combinations(SHORT, {"block_size": [1, 16], "allocator": ["paged", "contiguous-oracle"]})
    alone = run_matrix(SHARING, cells, COST, store, processes=1)
    shares: list[list[float]] = []
    other = ResultStore(tmp_path / "other")
    together = run_matrix(SHARING, cells, COST, other, processes=2, progress=lambda done: shares.append(list(done)))
    assert figures(together) == figures(alone)
    assert None not in figures(together)
    assert shares[-1] == [1.0] * 4


def test_what_is_kept_is_not_replayed(store: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_matrix(SOURCE, [SHORT], COST, store)
    replayed: list[object] = []
    monkeypatch.setattr(matrix, "replay", lambda *args, **kw: replayed.append(args) or replay(*args, **kw))
    again = run_matrix(SOURCE, [SHORT], COST, store)
    assert again[0].kept
    assert not first[0].kept
    assert figures(again) == figures(first)
    assert not replayed
    run_matrix(SOURCE, [SHORT], COST, store, fresh=True)
    assert len(replayed) == 1


def test_whatever_matters_makes_another_cell(store: ResultStore, tmp_path: Path) -> None:
    identity = SOURCE.identity()
    keys = {
        store.key(identity, SHORT, COST),
        store.key(identity, replace(SHORT, watermark=0.2), COST),
        store.key(identity, SHORT, PlainCost(0.02)),
        store.key(TraceSource("n=40,prompt=5,output=5").identity(), SHORT, COST),
        store.key(replace(SOURCE, arrivals="all").identity(), SHORT, COST),
    }
    assert len(keys) == 5
    # A file is known by what is in it.
    line = '{"timestamp": 0, "input_length": 5, "output_length": 5}\n'
    one, two, other = (tmp_path / name for name in ("one.jsonl", "two.jsonl", "other.jsonl"))
    for path, text in ((one, line), (two, line), (other, line + line)):
        path.write_text(text)
    digests = [store.key(TraceSource(str(path)).identity(), SHORT, COST) for path in (one, two, other)]
    assert digests[0] == digests[1] != digests[2]


def test_requests_need_not_be_kept(store: ResultStore) -> None:
    (kept,) = run_matrix(SHARING, [SHORT], COST, store)
    (cell,) = run_matrix(SHARING, [SHORT], COST, store, keep_requests=False)
    assert not cell.kept
    assert cell.outcome is not None
    assert kept.outcome is not None
    assert cell.outcome.totals == kept.outcome.totals
    for name, values in cell.outcome.curves.items():
        exact = kept.outcome.curves[name]
        assert values == sorted(values)
        assert (values[0], values[-1]) == pytest.approx((exact[0], exact[-1]), rel=0.01), name
        assert cell.outcome.latencies[name]["mean"] == pytest.approx(kept.outcome.latencies[name]["mean"]), name
    (tenant,), (other,) = cell.outcome.tenants(None), kept.outcome.tenants(None)
    assert {**tenant, "ttft_p99": 0} == pytest.approx({**other, "ttft_p99": 0})
    with pytest.raises(ConfigurationError, match="kept no requests"):
        cell.outcome.goodput(Slo(ttft=1))


def test_an_interruption_keeps_what_is_finished(store: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = combinations(SHORT, {"block_size": [1, 2, 4, 8]})
    calls = 0

    def interrupted(*args: object, **kw: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return replay(*args, **kw)  # type: ignore[arg-type]

    monkeypatch.setattr(matrix, "replay", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_matrix(SOURCE, cells, COST, store, processes=1)
    monkeypatch.undo()
    assert [cell.kept for cell in run_matrix(SOURCE, cells, COST, store, processes=1)] == [True, True, False, False]


def test_a_damaged_result_is_made_again(store: ResultStore) -> None:
    before = run_matrix(SOURCE, [SHORT], COST, store)
    (place,) = store.folder.iterdir()
    (place / "result.json").write_text("{")
    after = run_matrix(SOURCE, [SHORT], COST, store)
    assert not after[0].kept
    assert figures(after) == figures(before)


def test_a_cell_that_makes_no_sense_is_refused_alone(store: ResultStore) -> None:
    good, bad = run_matrix(SOURCE, [SHORT, replace(SHORT, block_size=1024)], COST, store, processes=1)
    assert good.outcome is not None
    assert bad.outcome is None
    assert "512 tokens holds no block of 1024" in bad.refusal


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be kept"):
        run_matrix(SOURCE, [SHORT], COST, ResultStore(tmp_path / "file"))


def test_settings_become_a_configuration() -> None:
    config = Settings(4096, 512, "contiguous-max", 8, watermark=0.1, scheduling_policy="priority").config()
    assert (config.num_blocks, config.block_size, config.allocator) == (512, 8, "contiguous-max")
    assert (config.scheduler.max_model_len, config.scheduler.watermark, config.scheduler.policy) == (
        512,
        0.1,
        "priority",
    )
