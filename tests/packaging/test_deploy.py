"""What the deployment files start exists, with the options that they give it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from looseleaf.cli.main import make_app

DEPLOY = Path(__file__).parents[2] / "deploy"


def of_systemd() -> list[str]:
    line = next(
        line for line in (DEPLOY / "looseleaf.service").read_text().splitlines() if line.startswith("ExecStart=")
    )
    return shlex.split(line.partition("=")[2])[1:]


def of_docker() -> list[str]:
    text = (DEPLOY / "Dockerfile").read_text()
    entry, command = (
        json.loads(re.findall(rf"^{word} (\[.*\])$", text, re.MULTILINE)[-1]) for word in ("ENTRYPOINT", "CMD")
    )
    return [*entry[1:], *command]


def container() -> dict[str, Any]:
    deployment = next(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return found


def of_kubernetes() -> list[str]:
    return ["serve", *container()["args"]]


@pytest.mark.parametrize("arguments", [of_systemd, of_docker, of_kubernetes])
def test_the_command_lines_are_understood(arguments: Any) -> None:
    serve, *options = arguments()
    assert serve == "serve"
    command: Any = typer.main.get_command(make_app())
    context = command.commands["serve"].make_context("serve", list(options))
    assert context.params["host"] == "0.0.0.0"
    assert context.params["api_key_file"] is not None


def test_yaml() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    service = compose["services"]["looseleaf"]
    assert set(service["secrets"]) <= set(compose["secrets"])
    assert {each.split(":")[0] for each in service["volumes"]} <= set(compose["volumes"])
    deployment, exposed = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]
    assert exposed["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert {mount["name"] for mount in container()["volumeMounts"]} == {v["name"] for v in pod["spec"]["volumes"]}
    keys = container()["volumeMounts"][-1]["mountPath"]
    assert f"--api-key-file={keys}/api-keys" in container()["args"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_the_unit_is_valid(tmp_path: Path) -> None:
    text = (DEPLOY / "looseleaf.service").read_text().replace("/opt/looseleaf/bin/looseleaf", "/bin/true")
    (tmp_path / "looseleaf.service").write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "looseleaf.service")], capture_output=True, text=True, check=False
    )
    assert "looseleaf.service" not in checked.stderr
