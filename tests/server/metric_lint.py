"""What `promtool check metrics` looks at, and what a strict parser does not say."""

from __future__ import annotations

import re
from collections import Counter

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

_NAME = re.compile(r"[a-z_:][a-z0-9_:]*")
_WRONG_UNITS = ("_milliseconds", "_ms", "_minutes", "_kilobytes", "_mb", "_percent")
_RESERVED_ENDS = ("_total", "_sum", "_count", "_bucket", "_info")


def parsed(text: str, openmetrics: str) -> dict[str, Metric]:
    """The families of an exposition, by name. Fails if it is not as the formats want it."""
    strict = {family.name: family for family in parse_openmetrics(openmetrics)}
    families = {family.name: family for family in parse_text(text)}
    _lint_lines(text)
    for family in strict.values():
        _lint(family)
    _same(families, strict)
    return strict


def _lint_lines(text: str) -> None:
    assert text.endswith("\n")
    for kind in ("HELP", "TYPE"):
        named = Counter(line.split(" ", 3)[2] for line in text.splitlines() if line.startswith(f"# {kind} "))
        assert all(count == 1 for count in named.values()), named
    documented = {line.split(" ", 3)[2] for line in text.splitlines() if line.startswith("# HELP ")}
    typed = {line.split(" ", 3)[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert documented == typed
    samples = [line.rsplit(" ", 1)[0] for line in text.splitlines() if line and not line.startswith("#")]
    assert len(samples) == len(set(samples)), "the same series twice"


def _lint(family: Metric) -> None:
    name = family.name
    assert _NAME.fullmatch(name), name
    assert family.documentation.strip(), name
    assert not name.endswith(_WRONG_UNITS), name
    if name != "vllm:cache_config_info" and not name.endswith("cache_config_info") and family.type != "info":
        assert not name.endswith(_RESERVED_ENDS), name
    label_sets = {tuple(sorted(set(sample.labels) - {"le"})) for sample in family.samples}
    assert len(label_sets) <= 1, (name, label_sets)
    if family.type == "counter":
        assert all(sample.value >= 0 for sample in family.samples)
    if family.type == "histogram":
        _lint_histogram(family)


def _lint_histogram(family: Metric) -> None:
    buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
    bounds = [float(sample.labels["le"]) for sample in buckets]
    assert bounds == sorted(set(bounds))
    assert bounds[-1] == float("inf")
    counts = [sample.value for sample in buckets]
    assert counts == sorted(counts)
    (count,) = (sample.value for sample in family.samples if sample.name.endswith("_count"))
    assert count == counts[-1]


def _same(families: dict[str, Metric], strict: dict[str, Metric]) -> None:
    def values(found: dict[str, Metric]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in found.values()
            for sample in family.samples
            if family.name.startswith(("vllm:", "looseleaf_"))
        }

    assert values(families) == values(strict)
