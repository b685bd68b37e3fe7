"""`looseleaf show-memory`: what is drawn is what memory's own books say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from looseleaf.cli.memory_drawing import BARS, draw
from looseleaf.cli.show_memory import Watched, run
from looseleaf.engine.engine import Engine
from looseleaf.kernels.factory import make_kv_cache
from looseleaf.kernels.interface import KVCache
from looseleaf.memory.factory import ALLOCATORS
from looseleaf.memory.manager import BlockManager
from tiny_model import tiny_engine, tiny_model

Cli = Callable[..., tuple[int, str, str]]

CELL = re.compile(rf"([A-Za-z])([{BARS}])(?:×(\d+))?|·")


class Cell(NamedTuple):
    letter: str
    eighths: int
    holders: int


def parse_pool(text: str) -> dict[int, Cell]:
    """Held blocks as the drawing shows them."""
    cells: dict[int, Cell] = {}
    for line in text.split("\n\n")[0].splitlines()[1:]:
        start, rest = line.split(maxsplit=1)
        for offset, match in enumerate(CELL.finditer(rest) if "all free" not in rest else ()):
            if match[1]:
                cells[int(start) + offset] = Cell(match[1], BARS.index(match[2]), int(match[3] or 1))
    return cells


def parse_tables(text: str) -> dict[str, tuple[int, list[int]]]:
    """Letter → cached tokens and block table."""
    tables: dict[str, tuple[int, list[int]]] = {}
    letter = ""
    for line in text.split("\n\n")[1].splitlines()[1:]:
        if match := re.match(r"([A-Za-z])  +(\d+)  ?(.*)", line):
            letter = match[1]
            tables[letter] = (int(match[2]), [])
            line = match[3]
        numbers = re.match(r"\s*((?:\d+(?:×\d+)?(?:\s|$))*)", line)
        assert numbers is not None
        tables[letter][1].extend(int(entry.split("×")[0]) for entry in numbers[1].split())
    return tables


def watched() -> list[Watched]:
    return [Watched("story", [7] * 10, 4), Watched("chat", [9] * 13, 1), Watched("long", [8] * 20, 2)]


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_every_frame_draws_the_books(allocator: str) -> None:
    engine = tiny_engine(tiny_model(), num_blocks=128, max_model_len=36, allocator=allocator)
    frames = 0
    for frame in run(engine, watched(), max_tokens=12):
        text = draw(frame).plain
        assert max(map(len, text.splitlines())) <= 80
        usage = engine.memory.usage()
        figures = re.search(r"█ (\d+) .* \+ ▒ (\d+) .* \+ ░ (\d+) .*\n\+ · (\d+) free = (\d+) slots", text)
        assert figures is not None
        *kinds, total = (int(figure) for figure in figures.groups())
        assert kinds == [usage.token_states, usage.reserved, usage.internal_fragmentation, usage.free]
        assert total == sum(kinds) == usage.total
        assert sum(frame.filled(block) for block in frame.holders) == usage.token_states

        running = engine.scheduler.running
        tables = parse_tables(text)
        assert sorted(blocks for _, blocks in tables.values()) == sorted(
            engine.memory.table(sequence.seq_id).tolist() for sequence in running
        )
        assert sorted(tokens for tokens, _ in tables.values()) == sorted(sequence.num_computed for sequence in running)

        cells = parse_pool(text)
        held = {block for _, blocks in tables.values() for block in blocks}
        assert len(cells) * 4 == usage.total - usage.free
        assert cells.keys() == held or (allocator == "contiguous-pow2" and cells.keys() > held)
        assert all(cells[block].eighths == 0 for block in cells.keys() - held)  # what rounding adds to a region
        for block, cell in cells.items():
            if block not in held:
                continue
            owners = [letter for letter, (_, blocks) in tables.items() if block in blocks]
            assert cell.letter == owners[0]
            assert cell.holders == len(owners)
            tokens = max(min(max(t - b.index(block) * 4, 0), 4) for t, b in tables.values() if block in b)
            assert cell.eighths == tokens * 2
        if isinstance(engine.memory, BlockManager):
            counts = engine.memory._pool.refcounts
            assert {b: c.holders for b, c in cells.items()} == {b: int(counts[b]) for b in counts.nonzero()[0]}
            assert (usage.saved_by_sharing > 0) == ("saved by sharing" in text) == ("×" in text.split("\n\n")[0][40:])
        frames += 1
    assert frames == 11


def test_samples_share_their_prompt_until_they_write() -> None:
    engine = tiny_engine(tiny_model(), num_blocks=32)
    first, second, *_ = run(engine, [Watched("story", [7] * 10, 4)], max_tokens=8)
    pools = [parse_pool(draw(frame).plain) for frame in (first, second)]
    assert {block: cell.holders for block, cell in pools[0].items()} == {0: 4, 1: 4, 2: 4}
    assert sorted(cell.holders for cell in pools[1].values()) == [1, 1, 1, 1, 4, 4]
    assert (first.usage.saved_by_sharing, second.usage.saved_by_sharing) == (36, 24)


def test_large_pools_and_many_samples_stay_in_80_columns() -> None:
    engine = tiny_engine(tiny_model(), num_blocks=120_000, max_num_seqs=40)
    frames = list(run(engine, [Watched("a title " * 20, [7] * 60, 40)], max_tokens=10))
    for frame in frames:
        lines = draw(frame).plain.splitlines()
        assert max(map(len, lines)) <= 80
        assert any("all free" in line for line in lines)
        assert len(lines) < 140
    assert parse_pool(draw(frames[0]).plain)[0].holders == 40


def build(cli: Cli, tiny: list[str], *options: object) -> tuple[int, str, str]:
    kept = [*tiny[:4], "--block-size", "4"]
    return cli("show-memory", *kept, *options)


def test_the_command_draws_the_steps_asked_for(cli: Cli, tiny: list[str]) -> None:
    code, output, errors = build(cli, tiny, "--steps", "2,1,9", "--blocks", "192")
    assert code == 0
    assert re.findall(r"After step (\d+): 192 blocks × 4 slots, paged, 6 sequences", output) == ["1", "2", "9"]
    assert "×4" in output
    assert "\x1b" not in output
    assert errors.count("KV cache: ") == errors.count("KV cache: 192 blocks × 4 tokens") == 1


def test_the_pool_is_no_larger_than_what_is_drawn(cli: Cli, tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[int] = []

    def recorded(**sizes: Any) -> KVCache:
        pools.append(sizes["num_blocks"])
        return make_kv_cache(**sizes)

    monkeypatch.setattr("looseleaf.engine.engine.make_kv_cache", recorded)
    assert build(cli, tiny, "--blocks", "20", "--max-model-len", "200", "--prompt", "a", "--max-tokens", "4")[0] == 0
    assert pools == [20]


def test_n_is_the_number_of_samples_of_the_built_in_story_too(cli: Cli, tiny: list[str]) -> None:
    code, output, _ = build(cli, tiny, "--n", "2", "--steps", "1", "--blocks", "96", "--json")
    assert code == 0
    assert len(json.loads(output)[0]["sequences"]) == 2 + 2


def test_json_tells_the_same(cli: Cli, tiny: list[str]) -> None:
    prompts = ["--prompt", "one prompt", "--n", "3", "--max-tokens", "5"]
    code, output, _ = build(cli, tiny, "--json", "--steps", "1,3,99", *prompts)
    assert code == 0
    frames = json.loads(output)
    assert [frame["step"] for frame in frames] == [1, 3]
    assert [sequence["letter"] for sequence in frames[0]["sequences"]] == ["A", "B", "C"]
    tables = [sequence["blocks"] for sequence in frames[0]["sequences"]]
    assert tables[0] == tables[1] == tables[2]
    for frame in frames:
        usage = frame["usage"]
        kinds = ("token_states", "reserved", "internal_fragmentation", "free")
        assert sum(usage[kind] for kind in kinds) == usage["total"] == 48 * 4


def test_the_animation_ends_with_the_last_frame(cli: Cli, tiny: list[str]) -> None:
    code, output, _ = build(cli, tiny, "--watch", "--delay", "0", "--prompt", "abc", "--max-tokens", "4")
    assert code == 0
    assert "After step 3:" in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "x"], "no list of steps"),
        (["--steps", "0"], "no list of steps"),
        (["--steps", ""], "no list of steps"),
        (["--watch", "--json"], "Choose one"),
        (["--watch", "--delay", "nan"], "--delay is nan"),
        (["--watch", "--delay", "inf"], "--delay is inf"),
        (["--watch", "--delay", "-1"], "--delay is -1"),
        (["--blocks", str(10**9)], "free"),
        (["--blocks", "3", "--prompt", "long enough to fail"], "12"),
        (["--prompt", "a", "--n", "99"], "99 samples"),
        (["--prompt", "a", "--n", "60", "--max-num-seqs", "99"], "More than 52 sequences"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options: list[str], message: str, cli: Cli, tiny: list[str]) -> None:
    code, output, errors = build(cli, tiny, *options)
    assert (code, output) == (2, "")
    assert message in errors


def test_engines_are_left_empty_when_a_run_ends() -> None:
    engine: Engine = tiny_engine(tiny_model(), num_blocks=64)
    for _ in run(engine, watched(), max_tokens=3):
        pass
    engine.memory.audit()
    assert engine.memory.num_free_blocks == 64
