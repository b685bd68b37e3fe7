"""Each metric that the dashboard asks for exists, under either naming."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from looseleaf.server.metrics import PREFIXES, Prefix, ServerMetrics
from server.test_metrics import ScriptedEngine

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "looseleaf.json"


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_dashboard_asks_for_what_there_is(prefix: Prefix) -> None:
    text = ServerMetrics(ScriptedEngine(), "tiny", prefix=prefix).exposition()[0].decode()
    shown = {line.split("{")[0] for line in text.splitlines() if not line.startswith("#")}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"([a-z0-9_:]+){model_name", target["expr"].replace("${prefix}", PREFIXES[prefix]))
    }
    assert len(asked) > len(panels)
    assert asked <= shown
