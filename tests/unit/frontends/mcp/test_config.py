"""What a server offers, by its settings and environment variables."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from belljar.contract.errors import InvalidSettings
from belljar.frontends.mcp.config import configure
from belljar.settings import load


def _offer(environ: dict[str, str] | None = None, **flags: Any) -> Any:
    named = {name.replace("__", "."): value for name, value in flags.items()}
    return configure(load(environ={}, flags=named), environ or {})


def test_nothing_is_passed_through_unless_named() -> None:
    assert _offer({"A": "1", "B": "2"}).env == {}
    assert _offer({"A": "1", "B": "2"}, mcp__pass_through_env="A,C").env == {"A": "1"}


def test_the_first_image_is_the_default_and_others_are_named() -> None:
    config = _offer(
        backend="container",
        container__image="lab/py:1",
        mcp__python_image="lab/py:1",
        mcp__javascript_image="lab/js:1",
    )
    assert config.environments.get("python", "default") == "default"
    assert config.environments.get("javascript", "default") == "image:lab/js:1"
    assert config.environments.get("ruby", "default") == "default"
    assert config.language == ""


def test_container_image_and_language_apply_to_both_tools() -> None:
    config = _offer({"CONTAINER_IMAGE": "lab/js:1", "CONTAINER_LANGUAGE": "JS"}, backend="container")
    assert (config.language, config.environments.get("javascript", "default")) == ("javascript", "image:lab/js:1")
    assert _offer({"CONTAINER_IMAGE": "lab/js:1"}).language == "", "one without the other means nothing"


@pytest.mark.parametrize(
    ("environ", "flags", "words"),
    [
        pytest.param({}, {"mcp__python_image": "x"}, "backend=container", id="image_without_the_back_end"),
        pytest.param({}, {"mcp__network": True}, "network.offered", id="network_that_is_not_offered"),
        pytest.param({"CONTAINER_IMAGE": "x", "CONTAINER_LANGUAGE": "cobol"}, {}, "CONTAINER_LANGUAGE", id="language"),
        pytest.param({}, {"mcp__pass_through_env": "BELLJAR_SERVER_API_KEY"}, "BELLJAR_", id="key_of_the_server"),
    ],
)
def test_invalid_settings_are_refused(environ: dict[str, str], flags: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        _offer(environ, **flags)


def test_network_access_is_given_if_it_is_offered() -> None:
    assert _offer(mcp__network=True, network__offered=True).network
    assert not _offer(network__offered=True).network


def test_the_name_can_be_changed() -> None:
    settings = load(environ={})
    assert configure(settings, {}, name="other").name == "other"
    assert configure(dataclasses.replace(settings), {}).name == "belljar"
