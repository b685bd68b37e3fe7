"""Requests drawn from the OpenAPI document: no answer fails, and none is other than the document says."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from looseleaf.server.app import create_app
from looseleaf.server.settings import FrontSettings
from server.local_client import LocalClient
from tiny_model import tiny_engine, tiny_model

ENGINE = tiny_engine(tiny_model(), num_blocks=64, max_model_len=24, max_num_seqs=8)
APP = create_app(LocalClient(ENGINE), ENGINE.tokenizer, FrontSettings(("tiny",)))
OPERATIONS = [result.ok() for result in schemathesis.openapi.from_asgi("/openapi.json", APP).get_all_operations()]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.path)
def test_no_answer_fails(operation: Any) -> None:
    @given(operation.as_strategy())
    @settings(
        max_examples=12,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    ask()
