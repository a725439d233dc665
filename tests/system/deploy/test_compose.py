"""The compose files and the files they mount, checked with a real Compose."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import yaml
from container_engines import needs

from belljar.backends.container import launch_config
from belljar.settings import load

DOCKER = Path(__file__).resolve().parents[3] / "deploy" / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())


def test_every_mounted_file_exists() -> None:
    for name, service in COMPOSE["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).exists(), f"{name} mounts {source}"
            else:
                assert source in COMPOSE["volumes"]


def test_compose_accepts_the_file(tmp_path: Path) -> None:
    """Debian's Compose, which predates project names; everything else must pass its schema."""
    needs("docker-compose")
    shutil.copytree(DOCKER, tmp_path / "deploy" / "docker", ignore=shutil.ignore_patterns("wheels"))
    file = tmp_path / "deploy" / "docker" / "compose.yaml"
    file.write_text(file.read_text().replace("\nname: belljar\n", "\n"))
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path), "DOMAIN": "code.example"}
    command = ["docker-compose", "--file", file.name, "--profile", "production", "config"]

    def compose(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=file.parent, env={**environ, **more}, capture_output=True, text=True, check=False
        )

    assert "set a key" in compose().stderr
    ended = compose(BELLJAR_SERVER_API_KEY="k" * 16)
    assert ended.returncode == 0, ended.stderr
    services = yaml.safe_load(ended.stdout)["services"]
    assert services.keys() == COMPOSE["services"].keys()
    assert "code.example" in services["belljar"]["environment"]["BELLJAR_SERVER_ALLOWED_HOSTS"]


def test_with_cgroups_no_layer_is_waived_and_nothing_else_changes(tmp_path: Path) -> None:
    """The second file merged over the first as Compose does; not tested with Docker 28 itself."""
    needs("docker-compose")
    shutil.copytree(DOCKER, tmp_path / "docker", ignore=shutil.ignore_patterns("wheels"))
    file = tmp_path / "docker" / "compose.yaml"
    file.write_text(file.read_text().replace("\nname: belljar\n", "\n"))
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "BELLJAR_SERVER_API_KEY": "k" * 16, "BELLJAR_UID": "0"}
    command = ["docker-compose", "--file", file.name, "--file", "compose.cgroups.yaml", "config"]
    ended = subprocess.run(command, cwd=file.parent, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    joined = yaml.safe_load(ended.stdout)["services"]["belljar"]
    assert joined["environment"]["BELLJAR_JAIL_WITHOUT_WALLS"] == ""
    assert load(environ={"BELLJAR_JAIL_WITHOUT_WALLS": ""}).jail.without_walls == ()
    assert joined["cap_drop"] == ["ALL"]
    assert sorted(joined["cap_add"]) == ["KILL", "SETGID", "SETUID", "SYS_ADMIN"]
    options = {*COMPOSE["services"]["belljar"]["security_opt"], "writable-cgroups=true"}
    assert {each.replace(":", "=") for each in joined["security_opt"]} == {each.replace(":", "=") for each in options}
    assert "/run/belljar:uid=0,gid=0,mode=0700" in joined["tmpfs"]
    assert not joined.get("privileged")


def test_belljar_alone_needs_no_profile_and_is_not_exposed() -> None:
    alone = COMPOSE["services"]["belljar"]
    assert "profiles" not in alone
    assert alone["cap_drop"] == ["ALL"]
    assert alone["read_only"] is True
    assert not alone.get("privileged")
    assert "no-new-privileges:true" in alone["security_opt"]
    assert all(port.startswith("127.0.0.1:") for port in alone["ports"])


def test_production_has_tls_metrics_and_the_dashboard() -> None:
    production = {name for name, each in COMPOSE["services"].items() if each.get("profiles") == ["production"]}
    assert production == {"proxy", "prometheus", "grafana"}
    mounted = COMPOSE["services"]["grafana"]["volumes"]
    assert any(volume.startswith("../grafana:") for volume in mounted)
    assert (DOCKER.parent / "grafana" / "belljar.json").exists()
    (job,) = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["belljar:8000"]}]


def test_the_seccomp_profile_is_the_one_that_the_container_back_end_uses() -> None:
    """To update it: python -m belljar.backends.container.launch_config > deploy/docker/seccomp.json."""
    assert json.loads((DOCKER / "seccomp.json").read_text()) == launch_config.seccomp_profile()
