"""The compose file and what lies beside it. Compose itself is not installed here."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from belljar.backends.container import flags

DOCKER = Path(__file__).resolve().parents[2] / "deploy" / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())


def test_every_file_that_is_mounted_is_there() -> None:
    for name, service in COMPOSE["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).exists(), f"{name} mounts {source}"
            else:
                assert source in COMPOSE["volumes"]


def test_belljar_alone_needs_no_profile_and_is_shut() -> None:
    alone = COMPOSE["services"]["belljar"]
    assert "profiles" not in alone
    assert alone["cap_drop"] == ["ALL"]
    assert alone["read_only"] is True
    assert not alone.get("privileged")
    assert "no-new-privileges:true" in alone["security_opt"]
    assert all(port.startswith("127.0.0.1:") for port in alone["ports"])


def test_production_has_tls_metrics_and_our_dashboard() -> None:
    production = {name for name, each in COMPOSE["services"].items() if each.get("profiles") == ["production"]}
    assert production == {"proxy", "prometheus", "grafana"}
    mounted = COMPOSE["services"]["grafana"]["volumes"]
    assert any(volume.startswith("../grafana:") for volume in mounted)
    assert (DOCKER.parent / "grafana" / "belljar.json").exists()
    (job,) = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["belljar:8000"]}]


def test_the_seccomp_profile_is_the_one_that_the_container_back_end_uses() -> None:
    """After a change of our policy: python -m belljar.backends.container.flags > deploy/docker/seccomp.json."""
    assert json.loads((DOCKER / "seccomp.json").read_text()) == flags.seccomp_profile()
