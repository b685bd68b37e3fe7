"""Step costs that were measured before, read from files."""

from __future__ import annotations

import json
from pathlib import Path

from looseleaf.errors import ConfigurationError
from looseleaf.replay.calibrated import KIND, Calibrated, StepParameters
from looseleaf.replay.cost import StepCost
from looseleaf.replay.step_table import read_step_table


def load_cost(path: str | Path) -> StepCost:
    """What `looseleaf calibrate` wrote (JSON), or a table of step times (`.csv`, see `read_step_table`).

    Raises `ConfigurationError` for a file that is neither, or is not there.
    """
    path = Path(path)
    try:
        if path.suffix.lower() == ".csv":
            return read_step_table(path)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The step times in {path} cannot be read: {error}.") from error
    try:
        about = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{path} is no JSON: {error}.", hint="Make one with `looseleaf calibrate`; a table must end in .csv."
        ) from error
    if not isinstance(about, dict) or about.get("kind") != KIND or not isinstance(about.get("parameters"), dict):
        raise ConfigurationError(f"{path} holds no step times.", hint="Make it with `looseleaf calibrate --out FILE`.")
    parameters = about.pop("parameters")
    try:
        values = StepParameters(**parameters)
    except TypeError as error:
        names = ", ".join(StepParameters.__dataclass_fields__)
        raise ConfigurationError(
            f"The parameters in {path} are {', '.join(parameters)}.", hint=f"There must be {names}."
        ) from error
    del about["kind"]
    return Calibrated(values, about)
