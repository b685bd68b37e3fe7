"""The report: one file, whole and quiet, also on a phone and whatever names are in it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from looseleaf.replay.goodput import Slo
from looseleaf.replay.matrix import Cell, run_matrix
from looseleaf.replay.report import Comparison, as_document, render
from looseleaf.replay.settings import combinations
from looseleaf.replay.sources import TraceSource
from looseleaf.replay.store import ResultStore
from small_sweep import SHORT, PlainCost

CHROMIUM = Path("/usr/bin/chromium")
NAME = '</script><b>&"x'
SOURCE = TraceSource("n=40,arrivals=poisson:40,prompt=uniform:20-60,output=uniform:10-40,tenants=a:3|b:1,seed=5")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    settings = combinations(SHORT, {"allocator": ["contiguous-max", "paged"], "block_size": [1, 16]})
    store = ResultStore(tmp_path_factory.mktemp("results"))
    cells = run_matrix(SOURCE, settings, PlainCost(), store, processes=1)
    cells.append(Cell(settings[0], refusal="it made no sense"))
    return Comparison(cells, NAME, ["what was replayed"], ["something to know"], Slo(ttft=0.5, tpot=0.1))


def test_the_document_is_plain_and_complete(comparison: Comparison) -> None:
    document = as_document(comparison)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    done = [cell for cell in document["cells"] if "refused" not in cell]
    assert len(done) == 4
    assert document["cells"][-1]["refused"] == "it made no sense"
    for cell in done:
        assert sum(cell["split"].values()) == pytest.approx(1)
        assert sum(cell["bound"].values()) == pytest.approx(1)
        assert len(cell["quantiles"]["ttft"]) == len(document["quantiles"])
        assert cell["quantiles"]["e2e"] == sorted(cell["quantiles"]["e2e"])
        assert len({len(column) for column in (*cell["timeline"].values(), *cell["waits"].values())}) == 1
        assert [sum(shares) for shares in zip(*cell["waits"].values(), strict=True)] == pytest.approx(
            [1] * len(cell["timeline"]["time"]), abs=1e-4
        )
        assert [tenant[0] for tenant in cell["tenants"]] == ["a", "b"]
    for figure in document["figures"]:
        assert len(figure["shown"]) == 4
        assert all(0 <= place < 4 for place in figure["best"])
    titles = [figure["title"] for figure in document["figures"]]
    assert len(set(titles)) == len(titles)
    assert "requests within the targets" in titles


def test_the_page_is_one_file(comparison: Comparison) -> None:
    page = render(as_document(comparison))
    assert page == render(as_document(comparison))
    assert len(page) < 3_000_000
    assert not re.search(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=""", page)
    assert "{{" not in page.split('id="plotly"')[0].split('id="document"')[0]
    data = re.search(r'id="document">(.*?)</script>', page, re.S)
    assert data is not None
    assert json.loads(data[1])["title"] == NAME


@pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no Chromium here")
def test_in_a_browser(comparison: Comparison, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = tmp_path / "report.html"
    path.write_text(render(as_document(comparison)), encoding="utf-8")
    trouble: list[str] = []

    def asked(request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            trouble.append(f"loads {request.url}")

    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        for width in (390, 1280):
            page = browser.new_page(viewport={"width": width, "height": 844})
            page.on("console", lambda message: trouble.append(message.text))
            page.on("pageerror", lambda error: trouble.append(str(error)))
            page.on("request", asked)
            page.goto(path.as_uri())
            page.wait_for_selector("body[data-drawn=yes]", timeout=120_000)
            assert page.inner_text("h1") == page.title() == NAME
            assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page is wider than the screen"
            assert page.locator("svg.main-svg").count() >= 5
            assert page.locator("#cells tbody tr").count() == len(as_document(comparison)["figures"])
            page.get_by_role("button", name="end to end").click()
            page.select_option("#cell-choice", "0")
            assert page.locator("#tenants tbody tr").count() == 2
            assert page.locator("#warnings li").all_inner_texts()[0] == "something to know"
        browser.close()
    assert trouble == []
