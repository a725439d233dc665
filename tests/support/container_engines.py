"""A private container engine for the tests, started in a temporary directory and removed with all its containers.

An engine that this machine may already run is not touched. If no engine is installed, tests that need one are skipped;
with BELLJAR_TEST_CONTAINERS=1, as in CI, they fail instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.jail import policy
from belljar.settings import Settings

_REPOSITORY = Path(__file__).resolve().parents[2]
ENGINE_MOUNT = "belljar-tests"  # the name of the file system that holds all of an engine
_SECONDS = 60.0
_LABEL = "org.belljar.test"
_RUNSC = '#!/bin/sh\nexec {runsc} --platform=ptrace --network=none "$@"\n'
#: crun refuses machines on which both cgroup versions are mounted, so version 2 is hidden from it.
_CRUN = """#!/bin/sh
exec unshare --mount --propagation slave sh -c 'umount /sys/fs/cgroup/unified 2>/dev/null; exec {crun} "$@"' crun "$@"
"""


def needs(*programs: str) -> None:
    """Skip, or in CI fail, unless all of these are installed."""
    missing = [program for program in programs if shutil.which(program, path=_path()) is None]
    if missing and os.environ.get("BELLJAR_TEST_CONTAINERS") == "1":
        pytest.fail(f"not installed: {', '.join(missing)}")
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def _path() -> str:
    return f"/usr/sbin:/usr/bin:/sbin:/bin:{os.environ.get('PATH', '')}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout of the first test that needs an image, which waits for the image to be built."""
    for item in items:
        if {"docker", "base_tar"} & set(getattr(item, "fixturenames", ())) or any(
            each in item.name for each in ("[container", "[gvisor")
        ):
            item.add_marker(pytest.mark.timeout(600))


class Engine:
    """A running engine."""

    def __init__(self, kind: str, directory: Path, command: Sequence[str], environ: dict[str, str]) -> None:
        self.kind = kind
        self.directory = directory
        self.socket = str(directory / "engine.sock")
        self._command = command
        self._environ = {**environ, "PATH": _path(), "HOME": str(directory)}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        import docker

        Path(self.socket).unlink(missing_ok=True)
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environ
            )
        deadline = time.monotonic() + _SECONDS
        while not self._answers():
            log = (self.directory / "log").read_text()[-3000:]
            assert self.process.poll() is None, f"{self.kind} ended: {log}"
            assert time.monotonic() < deadline, f"{self.kind} does not answer: {log}"
            time.sleep(0.05)
        self.client = docker.DockerClient(base_url=f"unix://{self.socket}", timeout=120, version="auto")

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(5)
            try:
                peer.connect(self.socket)
                peer.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
                return b" 200 " in peer.recv(64)
            except OSError:
                return False

    def import_image(self, tar: Path, name: str, changes: Sequence[str] = ()) -> str:
        """Import a tar of a file system as an image; return its full name."""
        full = name if self.kind == "docker" else f"localhost/{name}"
        flags = [word for change in ('CMD ["/bin/sh"]', *changes) for word in ("--change", change)]
        self.command("import", *flags, str(tar), full)
        return full

    def command(self, *arguments: str) -> str:
        """Run the engine's command line client."""
        chosen = ["docker", f"--host=unix://{self.socket}"] if self.kind == "docker" else list(self._command[:4])
        ended = subprocess.run([*chosen, *arguments], env=self._environ, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{arguments}: {ended.stderr}"
        return ended.stdout

    def containers(self) -> list[dict[str, Any]]:
        """All containers, running or not."""
        return list(self.client.api.containers(all=True))

    def kill(self) -> None:
        """Kill the daemon, as a crash would; its containers keep running."""
        assert self.process is not None
        self.client.close()
        self.process.kill()
        self.process.wait()
        note = self.directory / "exec" / "containerd" / "containerd.pid"
        if note.exists():  # Docker's helper, which a new daemon would take for a working one
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(note.read_text()), signal.SIGKILL)
            note.unlink()

    def stop(self) -> None:
        """Remove all containers, then stop the daemon."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(Exception):
                for each in self.containers():
                    self.client.api.remove_container(each["Id"], force=True)
            with contextlib.suppress(AttributeError):  # it never answered
                self.client.close()
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for entry in Path("/proc").iterdir():  # helpers of a crashed engine, by our directory in their arguments
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and str(self.directory).encode() in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            place = line.split()[4]
            if place.startswith(f"{self.directory}/"):
                subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)
        subprocess.run(["umount", "--lazy", str(self.directory)], check=False, capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)


def _directory(prefix: str) -> Path:
    """In memory, because a gigabyte of small image files is slow to remove from disk after each test session."""
    path = Path(tempfile.mkdtemp(prefix=prefix))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6g,mode=0711", ENGINE_MOUNT, str(path)], check=True)
    return path


@contextlib.contextmanager
def docker_engine() -> Iterator[Engine]:
    """Start a private dockerd without any network."""
    needs("dockerd", "containerd", "runc")
    directory = _directory("bjd-")
    runtimes = []
    for name, script in (("runsc", _RUNSC), ("crun", _CRUN)):
        runtime = directory / name
        runtime.write_text(script.format(**{name: shutil.which(name, path=_path()) or f"/usr/bin/{name}"}))
        runtime.chmod(0o755)
        runtimes += ["--add-runtime", f"{name}={runtime}"]
    command = [
        *("dockerd", f"--host=unix://{directory}/engine.sock", f"--data-root={directory}/data"),
        *(f"--exec-root={directory}/exec", f"--pidfile={directory}/pid", "--bridge=none"),
        *("--iptables=false", "--ip6tables=false", "--exec-opt", "native.cgroupdriver=cgroupfs"),
        *("--default-ulimit", "nofile=16384:16384", *runtimes),
    ]
    engine = Engine("docker", directory, command, {})
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()


@contextlib.contextmanager
def podman_engine() -> Iterator[Engine]:
    """Start a private podman service."""
    needs("podman", "conmon", "runc")
    directory = _directory("bjp-")
    (directory / "containers.conf").write_text(
        '[containers]\ndefault_ulimits = ["nofile=16384:16384", "nproc=4096:4096"]\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    command = [
        *("podman", f"--root={directory}/root", f"--runroot={directory}/run", f"--tmpdir={directory}/tmp"),
        *("system", "service", "--time=0", f"unix://{directory}/engine.sock"),
    ]
    engine = Engine("podman", directory, command, {"CONTAINERS_CONF": str(directory / "containers.conf")})
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="session")
def docker() -> Iterator[Engine]:
    """A Docker engine for the whole test session."""
    with docker_engine() as engine:
        yield engine


@pytest.fixture(scope="session")
def base_tar() -> Path:
    """A tar of Debian with Python; CI builds it in advance."""
    return find_base_tar()


def find_base_tar() -> Path:
    """Find or build the tar of Debian with Python, outside of a test."""
    path = Path(os.environ.get("BELLJAR_TEST_BASE_TAR") or _REPOSITORY / ".state" / "containers" / "base.tar")
    deadline = time.monotonic() + 300
    while path.with_name(f"{path.name}.building").exists() and time.monotonic() < deadline:
        time.sleep(0.2)  # CI builds it while other tests run
    if not path.exists():
        needs("mmdebstrap")
        script = _REPOSITORY / "containers" / "build-base.sh"
        subprocess.run([str(script), str(path)], check=True, env={**os.environ, "PATH": _path()})
    return path


@pytest.fixture(scope="session")
def plain_image(docker: Engine, base_tar: Path) -> str:
    """An image with Debian's Python and nothing of Belljar."""
    return docker.import_image(base_tar, "belljar-test-plain:1")


@pytest.fixture(scope="session")
def guest_image(docker: Engine, base_tar: Path, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The environment of the local tests as an image, so that both back ends run the same interpreter."""
    return import_environment(docker, base_tar, settings.state_dir, tmp_path_factory.mktemp("image") / "guest.tar")


def import_environment(engine: Engine, base_tar: Path, state_dir: Path, tar: Path) -> str:
    """Import the default environment in `state_dir` as an image; `tar` is a temporary file."""
    root = state_dir.resolve() / "environments" / "default"
    shutil.copyfile(base_tar, tar)
    bound = [Path(path) for path in json.loads((root / "environment.json").read_text())["environment"]["bound_paths"]]
    trees = [(root, policy.ENVIRONMENT_DIR), *((path, str(path)) for path in bound if path != root)]
    for source, place in trees:
        if not place.startswith("/usr"):
            command = ["tar", "--append", f"--file={tar}", "--transform", f"s|^\\.|.{place}|S", "-C", str(source), "."]
            subprocess.run(command, check=True)
    try:
        return engine.import_image(tar, "belljar-test-guest:1")
    finally:
        tar.unlink()


def container_settings(settings: Settings, engine: Engine, image: str, **more: Any) -> Settings:
    """The settings of the tests, with programs in containers of this engine."""
    container = dataclasses.replace(settings.container, socket=engine.socket, image=image, **more)
    return dataclasses.replace(settings, backend="container", container=container)


@pytest.fixture(scope="session")
def container_box(settings: Settings, docker: Engine, guest_image: str) -> Iterator[belljar.Sandbox]:
    """An open sandbox whose programs run in a warm container."""
    with belljar.Sandbox(settings=container_settings(settings, docker, guest_image)) as opened:
        yield opened


@pytest.fixture(scope="session")
def gvisor_box(settings: Settings, docker: Engine, guest_image: str) -> Iterator[belljar.Sandbox]:
    """An open sandbox whose programs run in a warm container under gVisor."""
    needs("runsc")
    with belljar.Sandbox(settings=container_settings(settings, docker, guest_image, runtime="runsc")) as opened:
        yield opened
