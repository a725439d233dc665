"""The Grafana dashboard asks for nothing that /metrics does not have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import Server


@pytest.fixture(scope="module")
def dashboard(repository: Path) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((repository / "deploy" / "grafana" / "belljar.json").read_text("utf-8"))
    return tree


@pytest.fixture
def exposed(server: Server) -> str:
    """The metrics of a server to which everything that is counted has happened."""
    server.execute("print(1)")
    server.execute("1/0")
    server.ask("GET", "/nope")
    session = server.ask("POST", "/v1/sessions", {}).body["id"]
    server.ask("POST", f"/v1/sessions/{session}/execute", {"code": "1 + 1"})
    server.ask("DELETE", f"/v1/sessions/{session}")
    return server.ask("GET", "/metrics").content.decode()


def _panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


def _expressions(dashboard: dict[str, Any]) -> list[str]:
    asked = [target["expr"] for panel in _panels(dashboard) for target in panel.get("targets", ())]
    variables = dashboard["templating"]["list"]
    return asked + [each["query"] if isinstance(each["query"], str) else each["query"]["query"] for each in variables]


def test_every_metric_is_exposed(dashboard: dict[str, Any], exposed: str) -> None:
    wanted = {name for each in _expressions(dashboard) for name in re.findall(r"\b(?:belljar|process)_\w+", each)}
    there = set(re.findall(r"^(\w+)", exposed, re.M))
    assert len(wanted) > 10
    assert wanted <= there


def test_every_label_is_exposed(dashboard: dict[str, Any], exposed: str) -> None:
    """`instance` is Prometheus' own."""
    for expression in _expressions(dashboard):
        metric = re.search(r"\b(?:belljar|process)_\w+", expression)
        grouped = re.search(r"by \(([^)]*)\)", expression)
        if metric is None or grouped is None:
            continue
        samples = re.findall(rf"^{metric[0]}{{([^}}]*)}}", exposed, re.M)
        labels = {label for sample in samples for label in re.findall(r'(\w+)="', sample)}
        assert set(re.split(r",\s*", grouped[1])) - {"instance"} <= labels, expression


def test_panels_are_whole_and_do_not_overlap(dashboard: dict[str, Any]) -> None:
    panels = list(_panels(dashboard))
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {dashboard["uid"], dashboard["title"]} - {""}
    places: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"], panel["id"]
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not places & cells, panel["title"]
        places |= cells
        if panel["type"] != "row":
            assert [target["refId"] for target in panel["targets"]], panel["title"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]), panel["title"]


def test_variables_are_defined(dashboard: dict[str, Any]) -> None:
    defined = {each["name"] for each in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) - {"__rate_interval", "__interval", "__all"}
    assert used <= defined
