"""What /openapi.json promises, tried with generated requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from api_server import Server
from hypothesis import HealthCheck
from hypothesis import settings as examples
from schemathesis.specs.openapi.checks import positive_data_acceptance

from belljar.frontends.api.openapi import SCHEMA

from .talk import Talk

schema = schemathesis.openapi.from_dict(json.loads(json.dumps(SCHEMA)))


@pytest.fixture(autouse=True)
def no_sessions_left(server: Server) -> Iterator[None]:
    """Every valid request to open a session opens one."""
    yield
    Talk(server).close_all()


def test_schema_is_served(server: Server) -> None:
    assert server.ask("GET", "/openapi.json").body == json.loads(json.dumps(SCHEMA))


@schema.parametrize()
@examples(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_answers_are_as_promised(case: Any, server: Server) -> None:
    """No 5xx, no status and no body that is not in the schema, nothing invalid accepted.

    That everything valid is accepted cannot be asked: no schema says which languages a server has.
    """
    url = f"http://{server.host}"
    # The first session waits for a zygote to be warm, which takes a busy machine longer than schemathesis waits.
    case.call_and_validate(base_url=url, excluded_checks=[positive_data_acceptance], timeout=60)
