"""Made-up traces: requests drawn from distributions, by a seed, as many as wanted."""

from __future__ import annotations

from looseleaf.replay.generators.generated import GeneratedTrace
from looseleaf.replay.generators.spec import GeneratorSpec, parse_spec

__all__ = ["GeneratedTrace", "GeneratorSpec", "parse_spec"]
