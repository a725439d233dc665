"""The Kubernetes manifests, rendered by helm and strictly checked against the cluster's schemas."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from server_process import Serve

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
CHART = DEPLOY / "helm" / "belljar"
VERSIONS = ("1.30", "1.33")
KEY = ("--set", "keys.value=0123456789abcdef0123")
#: The fields of agent-sandbox's v1beta1 types.
AGENT_SANDBOX = {
    "SandboxTemplate": {
        *("podTemplate", "volumeClaimTemplates", "service", "networkPolicy", "networkPolicyManagement"),
        *("envVarsInjectionPolicy", "volumeClaimTemplatesPolicy", "generatedSecrets"),
    },
    "SandboxWarmPool": {"replicas", "sandboxTemplateRef", "updateStrategy"},
    "SandboxClaim": {"warmPoolRef", "lifecycle", "additionalPodMetadata", "safeToEvict", "env"},
}


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    assert program, "helm-binary is part of the development tools"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def render(*values: str) -> list[dict[str, Any]]:
    ended = helm("template", "belljar", str(CHART), *values)
    assert ended.returncode == 0, ended.stderr
    return [each for each in yaml.safe_load_all(ended.stdout) if each]


def check(resource: dict[str, Any], version: str) -> None:
    latest = kubernetes_validate.latest_version()
    chosen = version if version in _versions() else latest
    kubernetes_validate.validate(resource, chosen, strict=True)


def _versions() -> list[str]:
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    return [path.name.removeprefix("v").rpartition(".")[0] for path in folder.glob("v*")] if folder.exists() else []


def kinds(resources: list[dict[str, Any]]) -> set[str]:
    return {each["kind"] for each in resources}


def test_the_chart_lints() -> None:
    ended = helm("lint", "--strict", str(CHART), *KEY)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "values",
    [
        pytest.param((), id="usual"),
        pytest.param(("--set", "isolation=root", "--set", "seccomp.type=Unconfined"), id="root"),
        pytest.param(("--set", "isolation=root", "--set", "cgroups=true"), id="root_with_cgroups"),
        pytest.param(("--set", "autoscaling.enabled=true", "--set", "runtimeClassName=kata"), id="scaled"),
        pytest.param(("--set", "networkPolicy.enabled=false", "--set", "service.sessionAffinity=None"), id="open"),
        pytest.param(
            ("--set", "settings.BELLJAR_POOL_MAX_RUNNING=4", "--set", "allowedHosts={a.example}"), id="settings"
        ),
    ],
)
def test_everything_rendered_is_valid(values: tuple[str, ...], version: str) -> None:
    resources = render(*KEY, *values)
    assert kinds(resources) >= {"Deployment", "Service", "Secret", "PodDisruptionBudget"}
    for resource in resources:
        check(resource, version)


def test_the_schemas_are_strict() -> None:
    (deployment,) = [each for each in render(*KEY) if each["kind"] == "Deployment"]
    deployment["spec"]["template"]["spec"]["hostUser"] = False
    with pytest.raises(kubernetes_validate.ValidationError):
        check(deployment, VERSIONS[0])


def test_a_server_without_a_key_is_not_rendered() -> None:
    ended = helm("template", "belljar", str(CHART))
    assert ended.returncode != 0
    assert "needs a key" in ended.stderr


def test_an_unknown_isolation_is_refused() -> None:
    assert "isolation must be" in helm("template", "belljar", str(CHART), *KEY, "--set", "isolation=none").stderr


@pytest.mark.parametrize(
    ("values", "given_up"),
    [
        ((), "uid,cgroup"),
        (("--set", "isolation=root"), "cgroup"),
        (("--set", "isolation=root", "--set", "cgroups=true"), None),
    ],
    ids=["userns", "root", "root_with_cgroups"],
)
def test_only_unavailable_layers_are_waived(values: tuple[str, ...], given_up: str | None) -> None:
    assert variables(render(*KEY, *values)).get("BELLJAR_JAIL_WITHOUT_WALLS") == given_up


def test_an_unprivileged_pod_has_no_cgroups() -> None:
    assert "needs isolation=root" in helm("template", "belljar", str(CHART), *KEY, "--set", "cgroups=true").stderr


def test_the_default_pod_is_unprivileged() -> None:
    (deployment,) = [each for each in render(*KEY) if each["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["hostUsers"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()


def variables(resources: list[dict[str, Any]]) -> dict[str, str]:
    """The environment variables of the server's container, without the key."""
    (deployment,) = [each for each in resources if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def test_the_server_answers_to_every_name_of_its_service(serve: Serve) -> None:
    hosts = variables(render(*KEY, "--namespace", "lab", "--set", "allowedHosts={code.example}"))
    names = ("belljar", "belljar.lab", "belljar.lab.svc", "belljar.lab.svc.cluster.local", "code.example")
    with serve("serve", BELLJAR_SERVER_ALLOWED_HOSTS=hosts["BELLJAR_SERVER_ALLOWED_HOSTS"]) as server:
        for name in (*names, "belljar.lab.svc.cluster.local:8000"):
            assert server.ask("GET", "/v1/info", headers={"Host": name}).status == 200, name
        assert server.ask("GET", "/v1/info", headers={"Host": "belljar.other"}).status == 403


def test_the_autoscaler_uses_existing_metrics() -> None:
    from belljar import telemetry

    (scaler,) = [each for each in render(*KEY, "--set", "autoscaling.enabled=true") if "Autoscaler" in each["kind"]]
    source = Path(telemetry.__file__).read_text()
    for metric in scaler["spec"]["metrics"]:
        assert f'"{metric["pods"]["metric"]["name"]}"' in source


def test_the_plain_manifests_match_the_chart(tmp_path: Path) -> None:
    program = shutil.which("helm", path=str(Path(sys.executable).parent)) or "helm"
    fresh = tmp_path / "belljar.yaml"
    script = DEPLOY / "kubernetes" / "render.sh"
    subprocess.run([str(script), str(fresh)], check=True, env={"HELM": program, "PATH": "/usr/bin:/bin"})
    assert (DEPLOY / "kubernetes" / "belljar.yaml").read_text() == fresh.read_text()
    for resource in yaml.safe_load_all(fresh.read_text()):
        if resource:
            check(resource, VERSIONS[0])


def test_the_agent_sandbox_example_uses_existing_fields() -> None:
    resources = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "agent-sandbox.yaml").read_text()))
    assert [each["kind"] for each in resources] == ["SandboxTemplate", "SandboxWarmPool", "SandboxClaim"]
    for each in resources:
        assert each["apiVersion"] == "extensions.agents.x-k8s.io/v1beta1"
        assert not each["spec"].keys() - AGENT_SANDBOX[each["kind"]]
    template, pool, claim = resources
    assert pool["spec"]["sandboxTemplateRef"]["name"] == template["metadata"]["name"]
    assert claim["spec"]["warmPoolRef"]["name"] == pool["metadata"]["name"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x"},
        "spec": template["spec"]["podTemplate"]["spec"],
    }
    check(pod, VERSIONS[0])
