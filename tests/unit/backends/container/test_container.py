"""The container back end where it differs from the local one: containers, engines, images, and cleaning up."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from container_engines import Engine, container_settings, docker_engine, needs, podman_engine
from local_web import serving

import belljar
from belljar.backends.container import launch_config, ownership
from belljar.backends.local.pool.jail_slots import JAILS_MAX
from belljar.contract.errors import (
    EngineUnavailable,
    InvalidSettings,
    NotAllowed,
    NotOffered,
    SandboxFault,
    UnknownEnvironment,
)
from belljar.jail import policy
from belljar.settings import NetworkSettings, Settings, load

Host = Any


@pytest.fixture(scope="module")
def plain_settings(settings: Settings, docker: Engine, plain_image: str) -> Settings:
    """Settings with an image of Debian's Python, which allow every image of these tests."""
    return container_settings(settings, docker, plain_image, allowed_images=("belljar-test-*",))


@pytest.fixture(scope="module")
def plain_box(plain_settings: Settings) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(settings=plain_settings) as box:
        yield box


@pytest.fixture
def own_box(plain_settings: Settings) -> Iterator[belljar.Sandbox]:
    """A sandbox whose containers a test may kill."""
    with belljar.Sandbox(settings=plain_settings) as box:
        yield box


def ours(docker: Engine, pid: int | None = None) -> list[dict[str, Any]]:
    wanted = str(pid or os.getpid())
    return [each for each in docker.containers() if each["Labels"].get(f"{ownership.LABEL}.pid") == wanted]


def first_process(docker: Engine, container: dict[str, Any]) -> int:
    return int(docker.client.api.inspect_container(container["Id"])["State"]["Pid"])


# ------------------------------------------------------------------------------------------------------ the walls


def test_network_access_works_in_a_container_without_a_network(plain_settings: Settings) -> None:
    with serving() as web:
        network = NetworkSettings(offered=True, hosts=("in.test=127.0.0.1",), allow_private=(f"in.test:{web.port}",))
        ask = f"import urllib.request\nprint(urllib.request.urlopen('http://in.test:{web.port}/').read())"
        with belljar.Sandbox(settings=dataclasses.replace(plain_settings, network=network)) as box:
            assert box.run(ask, network=True).stdout == "b'hello'\n"
            assert box.run(ask).status == "failed"


def test_a_container_has_only_the_rights_that_its_warden_needs(plain_box: belljar.Sandbox, docker: Engine) -> None:
    (container, *_) = ours(docker)
    config = docker.client.api.inspect_container(container["Id"])["HostConfig"]
    assert config["NetworkMode"] == "none"
    assert config["ReadonlyRootfs"] is True
    assert not config["Privileged"]
    assert config["CapDrop"] == ["ALL"]
    assert sorted(name.removeprefix("CAP_") for name in config["CapAdd"]) == sorted(launch_config.CAPABILITIES)
    assert any(option.startswith("no-new-privileges") for option in config["SecurityOpt"])
    assert config["PidsLimit"] > 0
    assert config["Memory"] > 0


def test_no_process_in_a_container_has_a_uid_of_the_host(
    plain_box: belljar.Sandbox, docker: Engine, host: Host
) -> None:
    """So none has a capability outside of its own user namespace."""
    assert plain_box.run("print(1)").ok
    for container in ours(docker):
        if docker.client.api.inspect_container(container["Id"])["HostConfig"]["Runtime"] == "runsc":
            continue  # a container of the conformance tests, with its own kernel and users
        top = docker.client.api.top(container["Id"], ps_args="-eo pid,uid")
        uids = {int(row[1]) & 0xFFFFFFFF for row in top["Processes"]}
        assert uids
        assert min(uids) >= 2_000_000_000


def test_a_program_is_behind_both_sets_of_walls(plain_box: belljar.Sandbox) -> None:
    look = """
import json, os, resource, socket
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
def refusal(call, *args):
    try:
        call(*args)
    except OSError as error:
        return type(error).__name__
print(json.dumps({
    "caps": [status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")],
    "filters": int(status.get("Seccomp_filters", "3")),
    "nnp": status["NoNewPrivs"],
    "write": refusal(open, "/usr/x", "w"),
    "door": os.path.exists("/run"),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "network": refusal(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect, ("192.0.2.1", 9)),
    "pids": [name for name in os.listdir("/proc") if name.isdigit()],
}))
"""
    outcome = plain_box.run(look)
    assert outcome.ok, outcome.stderr
    seen = json.loads(outcome.stdout)
    assert {int(mask, 16) for mask in seen["caps"]} == {0}
    assert seen["filters"] >= 3  # the engine's, the zygote's, the guest's
    assert seen["nnp"].strip() == "1"
    assert seen["write"] in ("OSError", "PermissionError")
    assert seen["door"] is False
    assert seen["core"] == [1, 1]
    assert seen["network"] == "OSError"
    assert len(seen["pids"]) == 1


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("print('hello')", "ok"),
        ("1/0", "failed"),
        ("raise SystemExit(7)", "failed"),
        ("import os; os.abort()", "crashed"),
        ("import ctypes; ctypes.string_at(0)", "crashed"),
        ("while True: pass", "timed_out"),
        ("held = []\nwhile True: held.append(bytearray(10_000_000))", "out_of_memory"),
    ],
)
def test_statuses(plain_box: belljar.Sandbox, code: str, status: str) -> None:
    seconds = 2 if status == "timed_out" else 60
    assert plain_box.run(code, timeout=seconds, memory_mb=128).status == status


def test_limits_of_the_container_apply_to_all_its_programs_together(
    settings: Settings, docker: Engine, plain_image: str
) -> None:
    small = container_settings(settings, docker, plain_image, memory_bytes=256 << 20)
    hold = "held = bytearray(150_000_000)\nfor i in range(0, len(held), 4096): held[i] = 1\nimport time; time.sleep(3)"
    with belljar.Sandbox(settings=small) as box:
        outcomes = list(box.run_many([hold] * 4, max_in_flight=4))
        assert any(not outcome.ok for outcome in outcomes)  # each may use 512 MiB, all together 256
        assert box.run("print(1)").ok


# ----------------------------------------------------------------------------------------------------- the images


def test_a_request_may_name_an_allowed_image(plain_box: belljar.Sandbox, plain_image: str) -> None:
    outcome = plain_box.run("import sys; print(sys.prefix)", environment=f"image:{plain_image}")
    assert (outcome.status, outcome.stdout) == ("ok", "/usr\n")


def test_programs_of_two_containers_never_share_a_uid(plain_box: belljar.Sandbox, plain_image: str) -> None:
    look = "import os, pwd; print(os.getuid(), pwd.getpwuid(os.getuid()).pw_name)"
    outcomes = [plain_box.run(look, environment=name) for name in ("default", f"image:{plain_image}")]
    uids = [int(outcome.stdout.split()[0]) for outcome in outcomes]
    assert {outcome.stdout.split()[1] for outcome in outcomes} == {"sandbox"}
    assert len({(uid - policy.GUEST_UID_FIRST) // JAILS_MAX for uid in uids}) == 2


def test_images_that_are_not_allowed_or_do_not_exist_are_refused(plain_box: belljar.Sandbox) -> None:
    with pytest.raises(NotAllowed):
        plain_box.run("1", environment="image:other/image:latest")
    with pytest.raises(UnknownEnvironment, match="no image 'belljar-test-missing'"):
        plain_box.run("1", environment="image:belljar-test-missing")
    with pytest.raises(UnknownEnvironment):
        plain_box.run("1", environment="another")
    assert plain_box.run("print(1)").ok


_SPY = """#!/usr/bin/bash
while read -r line; do [[ $line == Cap* ]] && echo "seen $line" >&2; done < /proc/self/status
exit 1
"""


@pytest.fixture(scope="module")
def shell_image(docker: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of Bash and its libraries only; its python3 is a script that prints its capabilities and fails."""
    root = tmp_path_factory.mktemp("shell") / "root"
    (root / "usr" / "bin").mkdir(parents=True)
    shutil.copy("/bin/bash", root / "usr" / "bin" / "bash")
    (root / "usr" / "bin" / "python3").write_text(_SPY)
    (root / "usr" / "bin" / "python3").chmod(0o755)
    listed = subprocess.run(["ldd", "/bin/bash"], check=True, capture_output=True, text=True).stdout
    for library in [word for word in listed.split() if word.startswith("/")]:
        (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, root / library[1:])
    tar = root.with_suffix(".tar")
    subprocess.run(["tar", "-C", str(root), "-cf", str(tar), "."], check=True)
    return docker.import_image(tar, "belljar-test-shell:1", ["ENV LD_PRELOAD=/usr/lib/not-there.so"])


@pytest.fixture(scope="module")
def shell_box(settings: Settings, docker: Engine, shell_image: str) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(settings=container_settings(settings, docker, shell_image)) as box:
        yield box


def test_an_image_without_python_runs_its_own_languages(shell_box: belljar.Sandbox) -> None:
    outcome = shell_box.run("echo $((6 * 7)) /* /tmp/* $LD_PRELOAD; read line; echo $line", language="sh", stdin="in\n")
    assert outcome.stdout.split() == ["42", "/dev", "/etc", *_linked("/lib", "/lib64"), "/proc", "/tmp"] + [
        *("/usr", "/work", "/tmp/*", "in")
    ]
    assert shell_box.run("while :; do :; done", language="sh", timeout=1).status == "timed_out"
    compilation = shell_box.run("int main(void) { return 0; }", language="c").compilation
    assert compilation is not None
    assert "cannot start gcc" in compilation.stderr


def test_a_language_uses_the_image_named_after_it(
    settings: Settings, docker: Engine, plain_image: str, shell_image: str
) -> None:
    chosen = container_settings(settings, docker, plain_image, images=(f"sh={shell_image}",))
    with belljar.Sandbox(settings=chosen) as box:
        assert box.run("import sys; print(sys.prefix)").stdout == "/usr\n"
        assert box.run("type -P ls cat || echo none", language="sh").stdout == "none\n"


def _linked(*paths: str) -> list[str]:
    """The paths that exist in the image, because Bash on this machine has libraries there."""
    listed = subprocess.run(["ldd", "/bin/bash"], check=True, capture_output=True, text=True).stdout
    return [path for path in paths if f"{path}/" in listed]


def test_an_image_without_python_refuses_python(shell_box: belljar.Sandbox) -> None:
    with pytest.raises(NotOffered, match="has no Python"):
        shell_box.run("print(1)")
    with pytest.raises(NotOffered, match="has no IPython"), shell_box.session() as session:
        session.run("1")


def test_nothing_in_an_image_has_capabilities(shell_box: belljar.Sandbox, docker: Engine, shell_image: str) -> None:
    (container,) = [each for each in ours(docker) if each["Image"] == shell_image]
    said = docker.client.api.logs(container["Id"]).decode()
    held = {line.split()[1]: int(line.split()[2], 16) for line in said.splitlines() if line.startswith("seen Cap")}
    assert {held[f"Cap{each}:"] for each in ("Inh", "Prm", "Eff", "Amb")} == {0}
    assert "LD_PRELOAD" not in said  # the loader would report that the library is missing


def test_restricted_programs_run_in_containers(plain_box: belljar.Sandbox) -> None:
    assert plain_box.run("print(sum(range(4)))", restrict={}).stdout == "6\n"
    assert plain_box.run("import os", restrict={}).status == "denied"


def test_programs_in_containers_call_tools(plain_box: belljar.Sandbox) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    outcome = plain_box.run("import tools\nprint(tools.add(a=2, b=3))", tools=[add])
    assert outcome.stdout == "5\n", outcome.stderr
    assert len(outcome.tool_calls) == 1


def test_fresh_containers_for_each_run(settings: Settings, docker: Engine, plain_image: str) -> None:
    fresh = container_settings(settings, docker, plain_image, fresh="run")
    with belljar.Sandbox(settings=fresh) as box:
        before = box.facts()["sandbox"]["containers_started"]
        assert [box.run("print(1)").stdout for _ in range(2)] == ["1\n", "1\n"]
        assert box.facts()["sandbox"]["containers_started"] == before + 2
        assert len([each for each in ours(docker) if each["Image"] == plain_image]) >= 1


@pytest.mark.parametrize("fresh", ["never", "session"])
def test_sessions_run_in_containers(settings: Settings, docker: Engine, guest_image: str, fresh: str) -> None:
    chosen = container_settings(settings, docker, guest_image, fresh=fresh)
    with belljar.Sandbox(settings=chosen) as box, box.session() as session:
        assert session.run("x = 20").ok
        assert session.run("print(x + 1)").stdout == "21\n"
        assert box.facts()["sandbox"]["containers"] == (2 if fresh == "session" else 1)
        session.write_file("deep/put.txt", b"put")
        outcome = session.run("open('deep/put.txt', 'a').write('!');", artifacts=["deep/*"])
        assert [(file.path, file.content) for file in outcome.artifacts] == [("deep/put.txt", b"put!")]
        assert session.read_file("deep/put.txt") == b"put!"
        with box.session(language="sh") as shell:
            assert [shell.run(cell).stdout for cell in ("x=20", "echo $((x + 1))")] == ["", "21\n"]
        report = box.run("x = 1\nif x > 2:\n    print(3)\n", coverage=True).coverage
        assert report is not None
        assert report.files[0].missing == (3,)
    assert not [each for each in ours(docker) if each["Image"] == guest_image and each["State"] != "running"]


def test_other_languages_run_inside_the_image(plain_box: belljar.Sandbox) -> None:
    outcome = plain_box.run("echo $((6 * 7)); cat /etc/hostname", language="sh")
    assert (outcome.status, outcome.stdout) == ("ok", "42\nbelljar\n")


def test_a_toolchain_that_the_image_lacks_is_named(plain_box: belljar.Sandbox) -> None:
    outcome = plain_box.run("int main(void) { return 0; }", language="c")
    assert outcome.status == "compile_failed"
    assert outcome.compilation is not None
    assert "cannot start gcc" in outcome.compilation.stderr


# ----------------------------------------------------------------------- crashes of containers, servers and engines


def test_a_killed_container_is_replaced(own_box: belljar.Sandbox, docker: Engine, host: Host) -> None:
    before = {each["Id"] for each in ours(docker)}
    assert own_box.run("print(1)").ok
    started = threading.Event()
    failures: list[BaseException] = []

    def long_run() -> None:
        try:
            for _ in own_box.stream("print('here', flush=True)\nimport time; time.sleep(60)", timeout=90):
                started.set()
        except belljar.BelljarError as error:
            failures.append(error)

    running = threading.Thread(target=long_run)
    running.start()
    assert started.wait(30)
    newest = max(ours(docker), key=lambda each: each["Created"])
    os.kill(first_process(docker, newest), signal.SIGKILL)
    running.join(30)
    assert not running.is_alive()
    assert failures, "a program that died with its container has no outcome to give"
    assert own_box.run("print(2)").stdout == "2\n"
    assert own_box.facts()["sandbox"]["containers_replaced"] == 1
    host.wait_until(
        lambda: newest["Id"] not in {each["Id"] for each in docker.containers()}, "the dead container is removed"
    )
    assert before


def test_runs_survive_a_container_killed_under_load(own_box: belljar.Sandbox, docker: Engine) -> None:
    """Runs that are not known to have started are repeated; nothing hangs."""
    outcomes: list[Any] = []

    def work() -> None:
        for _ in range(30):
            try:
                outcomes.append(str(own_box.run("print(1)").status))
            except SandboxFault as error:
                outcomes.append(error.code)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        while len(outcomes) < 20:
            time.sleep(0.01)
        for container in ours(docker):
            if container["State"] == "running" and container["Created"] >= time.time() - 120:
                with contextlib.suppress(Exception):
                    docker.client.api.kill(container["Id"])
        break
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(outcomes) == 120
    assert outcomes.count("ok") > 80
    assert own_box.run("print(2)").ok


_SERVER = """
import sys, os
import belljar
from belljar.settings import load
flags = dict(each.split("=", 1) for each in sys.argv[1:])
with belljar.Sandbox(settings=load(environ={}, flags=flags)) as box:
    print(box.run("print('up')").stdout, flush=True)
    sys.stdin.read()
"""


def _start_server(settings: Settings, docker: Engine, image: str, runtime_dir: Path) -> subprocess.Popen[str]:
    given = {
        "backend": "container",
        "container.socket": docker.socket,
        "container.image": image,
        "runtime_dir": str(runtime_dir),
        "state_dir": str(settings.state_dir),
        "jail.uid_base": str(settings.jail.uid_base),
    }
    command = [sys.executable, "-c", _SERVER, *(f"{name}={value}" for name, value in given.items())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_containers_end_with_a_killed_server_and_the_next_one_removes_them(
    settings: Settings, docker: Engine, plain_image: str, tmp_path: Path, host: Host
) -> None:
    server = _start_server(settings, docker, plain_image, tmp_path / "run")
    assert [each["State"] for each in ours(docker, server.pid)] == ["running"]
    server.kill()
    server.wait()
    host.wait_until(lambda: [each["State"] for each in ours(docker, server.pid)] == ["exited"], "the container ends")
    server.stdin.close(), server.stdout.close()  # type: ignore[union-attr]
    successor = _start_server(settings, docker, plain_image, tmp_path / "run")
    try:
        assert not ours(docker, server.pid)
        assert len(ours(docker, successor.pid)) == 1
    finally:
        successor.communicate("")
    assert not ours(docker, successor.pid)
    assert not list((tmp_path / "run" / "containers").iterdir())


def test_a_container_of_a_living_owner_is_not_an_orphan() -> None:
    marks = ownership.labels("instance-x")
    assert not ownership.is_orphan(marks)
    assert ownership.is_orphan({**marks, f"{ownership.LABEL}.born": "1"})
    assert not ownership.is_orphan(
        {**marks, f"{ownership.LABEL}.born": "1", f"{ownership.LABEL}.place": "another machine"}
    )
    assert not ownership.is_orphan({})


def test_warm_containers_survive_the_death_of_their_engine(settings: Settings, base_tar: Path) -> None:
    with docker_engine() as engine:
        image = engine.import_image(base_tar, "belljar-test-plain:1")
        chosen = container_settings(settings, engine, image, allowed_images=("*",), call_seconds=5.0)
        with belljar.Sandbox(settings=chosen) as box:
            assert box.run("print(1)").ok
            engine.kill()
            assert box.run("print(2)").stdout == "2\n"
            began = time.monotonic()
            with pytest.raises(EngineUnavailable):
                box.run("print(3)", environment="image:belljar-test-plain:1")
            assert time.monotonic() - began < 10
            assert box.run("print(4)").ok
            engine.start()
            assert box.run("print(5)", environment="image:belljar-test-plain:1").stdout == "5\n"
        assert not ours(engine)


def test_an_absent_engine_is_an_error_with_advice(settings: Settings, tmp_path: Path) -> None:
    absent = load(flags={"backend": "container", "container.socket": str(tmp_path / "no.sock")})
    with pytest.raises(EngineUnavailable, match="Is it running"), belljar.Sandbox(settings=absent):
        pass


def test_a_silent_engine_is_an_error_after_a_time_limit(settings: Settings, tmp_path: Path) -> None:
    path = str(tmp_path / "deaf.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.bind(path)
        deaf.listen()
        began = time.monotonic()
        chosen = load(flags={"backend": "container", "container.socket": path, "container.call_seconds": 1})
        with pytest.raises(EngineUnavailable), belljar.Sandbox(settings=chosen):
            pass
        assert time.monotonic() - began < 10


def test_podman_runs_the_same(settings: Settings, base_tar: Path) -> None:
    with podman_engine() as engine:
        image = engine.import_image(base_tar, "belljar-test-plain:1")
        with belljar.Sandbox(settings=container_settings(settings, engine, image)) as box:
            assert box.run("print(6 * 7)").stdout == "42\n"
            assert box.run("while True: pass", timeout=1).status == "timed_out"
            assert box.run("held = bytearray(10**10)").status == "out_of_memory"
            outcome = box.run("open('a.txt', 'w').write('x')", artifacts=["*.txt"])
            assert [(file.path, file.content) for file in outcome.artifacts] == [("a.txt", b"x")]
        assert not engine.containers()


def test_crun_runs_the_same(settings: Settings, docker: Engine, plain_image: str) -> None:
    needs("crun")
    with belljar.Sandbox(settings=container_settings(settings, docker, plain_image, runtime="crun")) as box:
        assert box.run("print(6 * 7)").stdout == "42\n"
        assert box.run("held = bytearray(10**10)").status == "out_of_memory"


def test_nothing_is_left_after_a_close(settings: Settings, docker: Engine, plain_image: str, host: Host) -> None:
    made: set[str] = set()

    def left() -> tuple[list[str], set[str], list[Path]]:
        """What is left in the engine: mounts, containers, and cgroups of containers."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        mounted = sorted(line.split()[4] for line in lines if f" {docker.directory}/" in line)
        cgroups = [path for each in made for path in Path("/sys/fs/cgroup").glob(f"*/docker/{each}")]
        return mounted, {each["Id"] for each in docker.containers()}, cgroups

    with belljar.Sandbox(settings=container_settings(settings, docker, plain_image)) as box:
        assert box.run("print(1)").ok  # creates what is created once
    in_engine = left()
    before = host.settled_leftovers()
    for _ in range(2):
        with belljar.Sandbox(settings=container_settings(settings, docker, plain_image)) as box:
            assert box.run("print(1)").ok
            assert box.run("while True: pass", timeout=1).status == "timed_out"
            made |= {each["Id"] for each in ours(docker)}
    made -= {each["Id"] for each in ours(docker)}
    assert len(made) >= 2

    def is_back() -> bool:
        """Other sandboxes of this engine may end meanwhile."""
        return all(set(now) <= set(then) for now, then in zip(left(), in_engine, strict=True))

    host.wait_until(is_back, f"everything is gone from the engine again: {in_engine}")
    host.assert_nothing_new(before)


# ----------------------------------------------------------------------------------------------------- the settings


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"BACKEND": "kubernetes"}, "docker or podman"),
        ({"CONTAINER_IMAGE": "x"}, "together"),
        ({"BELLJAR_BACKEND": "cloud"}, "backend is 'cloud'"),
        ({"BELLJAR_CONTAINER_FRESH": "always"}, "container.fresh"),
        ({"BELLJAR_CONTAINER_IMAGES": "js"}, "NAME=IMAGE"),
    ],
)
def test_invalid_settings_are_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        load(environ=environ, takes_familiar_names=True)


def test_familiar_names_choose_engine_and_image() -> None:
    environ = {"BACKEND": "podman", "CONTAINER_IMAGE": "lab/python:3", "CONTAINER_LANGUAGE": "python"}
    chosen = load(environ=environ, takes_familiar_names=True)
    assert (chosen.backend, chosen.container.engine, chosen.container.image) == ("container", "podman", "lab/python:3")


def test_the_outer_filter_allows_what_guests_may_but_no_kernel_module() -> None:
    (rule,) = launch_config.seccomp_profile()["syscalls"]
    assert {"read", "unshare", "landlock_restrict_self"} <= set(rule["names"])
    assert not {"init_module", "kexec_load", "bpf", "ptrace", "keyctl", "open_by_handle_at"} & set(rule["names"])
