"""The paper's figures, on fewer requests: the step time that two bars give, and values near the published ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from looseleaf.replay.paper import Row, figures, remake, system
from looseleaf.replay.store import ResultStore


def test_the_pool_is_the_papers() -> None:
    assert system.KV_BYTES_PER_TOKEN == 819_200
    assert 15_700 <= system.POOL_TOKENS <= 15_750
    assert system.POOL_TOKENS // system.MAX_MODEL_LEN == 7


def test_the_step_time_gives_both_bars_back() -> None:
    cost = system.step_time()
    for (prompt, output), rate, batched in (
        (system.SHAREGPT, system.SHAREGPT_RATE, system.SHAREGPT_BATCHED),
        (system.ALPACA, system.ALPACA_RATE, system.ALPACA_BATCHED),
    ):
        step = cost.step + batched * cost.sequence
        step /= 1 - rate * prompt * cost.prompt_token  # the prompts that arrive while a step runs lengthen it
        assert output * step * rate == pytest.approx(batched)
    assert (
        cost.seconds(num_tokens=8, num_seqs=8, num_sampled=8, context_tokens=0, attention_pairs=0)
        == (cost.decode_seconds(num_seqs=8, context_tokens=0, num_steps=1)[0])
    )


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Row]:
    patch = pytest.MonkeyPatch()
    patch.setattr(figures, "SHAREGPT_REQUESTS", 300)
    patch.setattr(figures, "ALPACA_REQUESTS", 1000)
    patch.setattr(figures, "TRANSLATIONS", 300)
    patch.setattr(figures, "BLOCK_SIZES", (16, 256))
    patch.setattr(figures, "ALPACA_SAMPLED", 200)
    patch.setattr(figures, "SHAREGPT_SAMPLED", 20)
    told: list[str] = []
    folder: Path = tmp_path_factory.mktemp("results")
    made = remake(ResultStore(folder), processes=1, told=told.append)
    patch.undo()
    assert len(told) == 12
    return {(row.figure, row.title.rpartition(", ")[2], row.case): row for row in made}


def test_every_figure_is_there(rows: dict[tuple[str, str, str], Row]) -> None:
    assert {figure for figure, _, _ in rows} == {"2", "13a", "13b", "15a", "15b", "16", "18b"}
    for row in rows.values():
        assert row.published
        assert row.ours
        if row.ours == "–":
            assert row.why.startswith("Not remade")


def test_predictions_are_near(rows: dict[tuple[str, str, str], Row]) -> None:
    def ours(*key: str) -> float:
        return float(rows[key[0], key[1], key[2]].ours.split(",")[0])

    assert ours("13a", "ShareGPT", "Orca (Max)") == 7
    assert ours("13b", "Alpaca", "Orca (Max)") == 7
    assert ours("13a", "ShareGPT", "Orca (Pow2)") == pytest.approx(9.81, rel=0.25)
    assert ours("13b", "Alpaca", "Orca (Pow2)") == pytest.approx(43.24, rel=0.25)
    batched = [ours("13a", "ShareGPT", name) for name in figures.ALLOCATORS.values()]
    assert batched == sorted(batched)
    assert ours("2", "the rest", "Orca (Max)") == pytest.approx(20.4, abs=5)
    assert ours("2", "the rest", "vLLM / paged") == pytest.approx(96.3, abs=3)
    saved = [ours("15a", "Alpaca", f"{count} samples") for count in (2, 4, 6)]
    assert saved == sorted(saved)
    assert saved[0] == pytest.approx(6.1, abs=3)
    assert saved[2] == pytest.approx(9.8, abs=4)
    one, five = (ours("16", "over Orca (Oracle)", shots) for shots in ("one example", "five examples"))
    assert 1.3 < one < five
    assert ours("18b", "Alpaca", "blocks of 256") > 1.2
