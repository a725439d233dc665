"""The command line, with real processes, jails and signals."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import belljar as package

COMMAND = [sys.executable, "-m", "belljar"]
CGROUP_PARENT = f"belljar-cli-test-{os.getpid()}"
DEADLINE_SECONDS = 100.0
PLAIN_UID = 12345
EVERY_BYTE = bytes(range(256)) * 5

SETTINGS = """
state_dir = "{base}/bare-state"
runtime_dir = "{base}/cli-run"
[jail]
cgroup_parent = "{cgroup_parent}"
[environments.default]
packages = []
warm_imports = []
"""

Belljar = Callable[..., "subprocess.CompletedProcess[bytes]"]


def clean_environ() -> dict[str, str]:
    """This process's environment without Belljar's settings, and with the package on the path."""
    passed = {name: value for name, value in os.environ.items() if not name.startswith("BELLJAR_")}
    return {**passed, "PYTHONPATH": str(Path(package.__file__).parents[1])}


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A settings file whose default environment is built and has no packages."""
    base = tmp_path_factory.getbasetemp()
    path = base / "cli.toml"
    path.write_text(SETTINGS.format(base=base, cgroup_parent=CGROUP_PARENT))
    created = subprocess.run(
        [*COMMAND, "--config", path, "env", "create", "default", "--if-missing"],
        env=clean_environ(),
        capture_output=True,
        timeout=DEADLINE_SECONDS,
    )
    assert created.returncode == 0, created.stderr.decode()
    return path


@pytest.fixture
def belljar(config: Path, tmp_path: Path) -> Belljar:
    """Run `belljar …` to completion in a temporary directory."""

    def run(*words: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*COMMAND, "--config", config, *words],
            input=stdin,
            capture_output=True,
            cwd=tmp_path,
            env=clean_environ(),
            timeout=DEADLINE_SECONDS,
        )

    return run


@pytest.fixture
def start(config: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start `belljar …` without waiting for it; processes still running are killed after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*words: str | Path) -> subprocess.Popen[bytes]:
        # A signal handled here has its default action in children; one ignored here (nohup) would stay ignored.
        handler = signal.signal(signal.SIGHUP, lambda *_: None)
        try:
            process = subprocess.Popen(
                [*COMMAND, "--config", config, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=tmp_path,
                env=clean_environ(),
            )
        finally:
            signal.signal(signal.SIGHUP, handler)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


# ---- the program's own output and exit code


@pytest.mark.parametrize(
    ("code", "options", "exit_code", "note"),
    [
        pytest.param("print('x')", [], 0, "", id="ok"),
        pytest.param("raise SystemExit(7)", [], 7, "", id="its_own_exit_code"),
        pytest.param("import os; os.abort()", [], 134, "killed by SIGABRT", id="signal"),
        pytest.param("import os; os.kill(os.getpid(), 37)", [], 165, "killed by SIGRTMIN+3", id="real_time_signal"),
        pytest.param("while True: pass", ["--timeout", "0.3"], 124, "--timeout", id="wall_time"),
        pytest.param("while True: pass", ["--cpu", "0.2"], 124, "--cpu", id="cpu_time"),
        pytest.param("b'x' * 200_000_000", ["--memory", "32"], 137, "--memory", id="memory"),
        pytest.param("print('x' * 5000)", ["--output-limit", "1"], 0, "--output-limit", id="output_cut"),
        pytest.param("import os\nfor _ in range(9): os.fork()", ["--processes", "4"], 1, "", id="processes"),
        pytest.param("open('f', 'wb').write(bytes(4 << 20))", ["--disk", "1"], 1, "", id="disk"),
    ],
)
def test_exit_code_reflects_how_the_program_ended(
    belljar: Belljar, code: str, options: list[str], exit_code: int, note: str
) -> None:
    done = belljar("run", *options, "-c", code)
    notes = [line for line in done.stderr.decode().splitlines() if line.startswith("belljar: ")]
    assert done.returncode == exit_code, done.stderr.decode()
    assert len(notes) == bool(note)
    assert note in "".join(notes)


@pytest.mark.parametrize("source", ["file", "inline", "stdin"])
def test_code_comes_from_a_file_the_command_line_or_standard_input(
    belljar: Belljar, tmp_path: Path, source: str
) -> None:
    code = "import sys\nprint('gräße', sys.argv, sys.stdin.read())"
    (tmp_path / "program.py").write_text(code, "utf-8")
    words, stdin = {
        "file": (["program.py"], b"given"),
        "inline": (["-c", code], b"given"),
        "stdin": (["-"], code.encode()),
    }[source]
    done = belljar("run", *words, "--", "a", "--json", "--", "", stdin=stdin)
    given = "" if source == "stdin" else "given"
    assert done.stdout.decode() == f"gräße ['main.py', 'a', '--json', '--', ''] {given}\n", done.stderr.decode()


def test_bytes_pass_unchanged_both_ways(belljar: Belljar) -> None:
    code = (
        "import sys\nread = sys.stdin.buffer.read()\nsys.stdout.buffer.write(read)\nsys.stderr.buffer.write(read[::-1])"
    )
    done = belljar("run", "-c", code, stdin=EVERY_BYTE)
    assert (done.stdout, done.stderr) == (EVERY_BYTE, EVERY_BYTE[::-1])


def test_output_appears_while_the_program_runs(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start("run", "-c", "print('first', flush=True)\nimport time\ntime.sleep(30)")
    assert process.stdout is not None
    assert process.stdout.readline() == b"first\n"
    assert process.poll() is None


def test_the_time_limit_applies_while_output_is_not_read(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    code = "import time\nwhile True: print('x' * 999, flush=True); time.sleep(0.001)"  # below the output limit
    process = start("run", "--timeout", "2", "--output-limit", "16000", "-c", code)
    assert process.stdout is not None
    wait_for(lambda: pipe_is_full(process.stdout.fileno()))  # type: ignore[union-attr]
    wait_for(lambda: not jailed(process.pid))  # it ended although no byte was read
    output, notes = process.communicate(timeout=DEADLINE_SECONDS)
    assert output.startswith(b"x" * 999)
    assert process.returncode == 124
    assert b"--timeout" in notes


def test_a_note_starts_on_a_line_of_its_own(belljar: Belljar) -> None:
    done = belljar("run", "-c", "import os\nos.write(2, b'half a line')\nos.abort()")
    assert done.stderr == b"half a line\nbelljar: killed by SIGABRT\n"


# ---- input files and artifacts


def test_a_program_gets_files_and_variables_and_its_artifacts_are_saved(belljar: Belljar, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(EVERY_BYTE)
    (tmp_path / "a:b").write_text("colon")
    code = """
import os, pathlib
path = pathlib.Path("out/deep")
path.mkdir(parents=True)
(path / "copy.bin").write_bytes(pathlib.Path("in/data.bin").read_bytes())
(path / "text").write_text(os.environ["K"] + pathlib.Path("data.bin").read_bytes().hex()[:4] + open("a:b").read())
pathlib.Path("unasked").touch()
"""
    given = ["--file", "data.bin", "--file", "data.bin:in/data.bin", "--file", "a:b", "--env", "K=V=W"]
    done = belljar("run", *given, "--artifact", "out/**", "--output-dir", "saved", "-c", code)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "saved/out/deep/copy.bin").read_bytes() == EVERY_BYTE
    assert (tmp_path / "saved/out/deep/text").read_text() == "V=W0001colon"
    assert not (tmp_path / "saved/unasked").exists()


@pytest.mark.parametrize("glob", [pytest.param("result", id="known_ahead"), pytest.param("r*", id="known_afterwards")])
def test_files_are_overwritten_only_with_force(belljar: Belljar, tmp_path: Path, glob: str) -> None:
    (tmp_path / "result").write_text("precious")
    words = ["run", "--artifact", glob, "-c", "open('result', 'w').write('new'); open('rest', 'w'); print('ran')"]
    refused = belljar(*words)
    assert refused.returncode == 2
    assert b"result exists; overwrite it with --force" in refused.stderr
    assert refused.stdout == (b"" if glob == "result" else b"ran\n")
    assert (tmp_path / "result").read_text() == "precious"
    assert not (tmp_path / "rest").exists()
    assert belljar(*words, "--force").returncode == 0
    assert (tmp_path / "result").read_text() == "new"


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
def test_saving_follows_no_link_in_the_output_directory(belljar: Belljar, tmp_path: Path, force: list[str]) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/out").symlink_to(tmp_path / "elsewhere")
    code = "import os; os.mkdir('out'); open('out/file', 'w').close()"
    done = belljar("run", *force, "--artifact", "out/*", "--output-dir", "saved", "-c", code)
    assert done.returncode == 2
    assert b"cannot save" in done.stderr
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_failed_save_leaves_nothing_behind(belljar: Belljar, tmp_path: Path) -> None:
    (tmp_path / "saved/result").mkdir(parents=True)
    words = ["--force", "--artifact", "result", "--output-dir", "saved", "-c", "open('result', 'w').close()"]
    done = belljar("run", *words)
    assert done.returncode == 2
    assert b"cannot save" in done.stderr
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["result"]


def test_unchanged_input_files_are_not_artifacts(belljar: Belljar, tmp_path: Path) -> None:
    for name in ("main.py", "same", "changed"):
        (tmp_path / name).write_text("open('changed', 'a').write('!')")
    given = ["--file", "same", "--file", "changed"]
    done = belljar("run", *given, "--artifact", "**", "--output-dir", "saved", "main.py")
    assert (done.returncode, done.stderr) == (0, b"")
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["changed"]


def test_a_missing_artifact_is_noted(belljar: Belljar) -> None:
    done = belljar("run", "--artifact", "*.png", "-c", "pass")
    assert (done.returncode, done.stderr) == (0, b"belljar: no file matches --artifact\n")


def test_json_is_the_whole_result(belljar: Belljar, tmp_path: Path) -> None:
    code = "import sys\nopen('a', 'w').write('b')\nprint('ö')\nsys.stderr.write('e')\nsys.exit(3)"
    done = belljar("run", "--json", "--artifact", "a", "-c", code)
    tree = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (3, b"")
    assert (tree["status"], tree["exit_code"], tree["stdout"], tree["stderr"]) == ("failed", 3, "ö\n", "e")
    assert tree["artifacts"] == [{"path": "a", "bytes": 1, "encoding": "base64", "content": "Yg=="}]
    assert not (tmp_path / "a").exists()


def test_json_stream_prints_events_as_they_happen(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start("run", "--json", "--stream", "--timeout", "1", "-c", "print('a', flush=True)\nwhile True: pass")
    assert process.stdout is not None
    started, wrote = (json.loads(process.stdout.readline()) for _ in range(2))
    (finished,) = map(json.loads, process.communicate(timeout=DEADLINE_SECONDS)[0].splitlines())
    assert started == {"event": "started", "id": finished["id"]}
    assert wrote == {"event": "stdout", "text": "a\n"}
    assert (finished["event"], finished["status"]) == ("finished", "timed_out")
    assert "stdout" not in finished
    assert process.returncode == 124


# ---- pictures


@pytest.fixture
def pictures_state() -> str:
    """A state directory whose default environment has matplotlib."""
    state_dir = os.environ.get("BELLJAR_STATE_DIR", "")
    if not (Path(state_dir) / "environments/default/environment.json").exists():
        pytest.skip("NOT CHECKED: BELLJAR_STATE_DIR names no state directory with the default environment")
    return state_dir


def test_pictures_are_saved_or_noted(pictures_state: str, tmp_path: Path) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.plot([2, 1])"
    settings = f'runtime_dir = "{tmp_path}/run"\nstate_dir = "{pictures_state}"\n'
    (tmp_path / "pictures.toml").write_text(settings)

    def run(*words: str) -> subprocess.CompletedProcess[bytes]:
        command = [*COMMAND, "--config", "pictures.toml", "run", *words, "-c", code]
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=tmp_path,
            env=clean_environ(),
            timeout=DEADLINE_SECONDS,
        )

    assert run().stderr == b"belljar: 2 pictures were not saved; use --displays DIR\n"
    saved = run("--displays", "shown")
    assert (saved.returncode, saved.stderr) == (0, b"")
    assert sorted(path.name for path in (tmp_path / "shown").iterdir()) == ["display-1.png", "display-2.png"]
    assert (tmp_path / "shown/display-2.png").read_bytes().startswith(b"\x89PNG")


# ---- leaving early


def jailed(pid: int) -> list[tuple[int, str]]:
    """All descendants of a process as (pid, start time)."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1]), fields[19]
    found: list[tuple[int, str]] = []
    pending = {pid}
    while pending:
        children = {child for child, (parent, _) in parents.items() if parent in pending}
        found += [(child, parents[child][1]) for child in children]
        pending = children
    return found


def are_alive(processes: list[tuple[int, str]]) -> bool:
    for pid, born in processes:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[19] == born and fields[0] != "Z":
            return True
    return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def pipe_is_full(descriptor: int) -> bool:
    waiting = bytearray(4)
    fcntl.ioctl(descriptor, 0x541B, waiting)  # FIONREAD
    return int.from_bytes(waiting, sys.byteorder) >= 60_000


def cgroups_left() -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/{CGROUP_PARENT}"))


@pytest.mark.parametrize(
    ("number", "is_impatient", "exit_code"),
    [
        pytest.param(signal.SIGINT, False, 130, id="ctrl_c"),
        pytest.param(signal.SIGINT, True, 130, id="ctrl_c_by_an_impatient_person"),
        pytest.param(signal.SIGTERM, False, 143, id="sigterm"),
        pytest.param(signal.SIGHUP, False, 129, id="the_terminal_is_closed"),
    ],
)
def test_a_signal_ends_the_program_and_leaves_nothing_behind(
    start: Callable[..., subprocess.Popen[bytes]], number: signal.Signals, is_impatient: bool, exit_code: int
) -> None:
    code = "import os, signal\nsignal.signal(2, signal.SIG_IGN)\nos.fork()\nprint('up', flush=True)\nsignal.pause()"
    process = start("run", "--timeout", "100", "-c", code)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    running = jailed(process.pid)
    assert len(running) >= 4
    process.send_signal(number)
    while is_impatient and process.poll() is None:
        process.send_signal(number)
        time.sleep(0.001)
    _, notes = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, notes) == (exit_code, b"")
    wait_for(lambda: not are_alive(running))
    assert not cgroups_left()


def test_a_closed_output_pipe_ends_the_program_quietly(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start("run", "-c", "while True: print('y')")
    assert process.stdout is not None
    assert process.stdout.readline() == b"y\n"
    running = jailed(process.pid)
    process.stdout.close()
    assert process.wait(DEADLINE_SECONDS) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    wait_for(lambda: not are_alive(running))


def test_a_full_disk_is_an_error_of_belljar_and_not_of_the_program(config: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "--config", config, "run", "-c", "print(1)"],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            env=clean_environ(),
            timeout=DEADLINE_SECONDS,
        )
    assert done.returncode == 125
    assert done.stderr == b"belljar: cannot write the program's output: No space left on device\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_standard_descriptor_is_harmless(config: Path, closed: str) -> None:
    command = f'exec "$@" {closed}'
    program = [*map(str, COMMAND), "--config", str(config), "run", "-c", "import sys; print(sys.stdin.read(), 'out')"]
    done = subprocess.run(
        ["sh", "-c", command, "sh", *program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=clean_environ(),
        timeout=DEADLINE_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == (b"" if closed == ">&-" else b" out\n")


# ---- errors


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        pytest.param([], 2, "usage: belljar", id="nothing"),
        pytest.param(["fly"], 2, "unknown command 'fly'", id="unknown_command"),
        pytest.param(["run"], 2, "give one program", id="no_program"),
        pytest.param(["run", "-c", "1", "f.py"], 2, "give one program", id="two_programs"),
        pytest.param(["run", "f.py", "x"], 2, "the program's own arguments come after '--'", id="stray_argument"),
        pytest.param(["run", "missing.py"], 2, "cannot read missing.py: No such file", id="no_such_file"),
        pytest.param(["run", "/"], 2, "cannot read /: Is a directory", id="a_directory"),
        pytest.param(["run", "latin1.py"], 2, "latin1.py is not UTF-8", id="not_utf8"),
        pytest.param(["run", "-c", " "], 2, "code", id="blank_code"),
        pytest.param(["run", "-c", "1", "--env", "K"], 2, "expected NAME=VALUE", id="bad_variable"),
        pytest.param(["run", "-c", "1", "--file", "missing.csv"], 2, "cannot read missing.csv", id="no_such_input"),
        pytest.param(["run", "-c", "1", "--file", "latin1.py:../x"], 2, "inside the work directory", id="unsafe_path"),
        pytest.param(["run", "-c", "1", "--timeout", "9999"], 2, "at most 300", id="above_the_ceiling"),
        pytest.param(["run", "-c", "1", "--timeout", "nan"], 2, "finite", id="not_a_number"),
        pytest.param(["run", "-c", "1", "--memory", "much"], 2, "invalid float value", id="not_numeric"),
        pytest.param(["run", "-c", "1", "--environment", "no"], 2, "unknown environment 'no'", id="no_environment"),
        pytest.param(["run", "-c", "1", "--without-wall", "moat"], 2, "unknown wall 'moat'", id="no_such_wall"),
        pytest.param(["run", "-c", "1", "--config", "/none"], 125, "cannot read the settings file", id="no_settings"),
        pytest.param(["env", "remove", "none"], 2, "environment 'none' is not built", id="nothing_to_remove"),
        pytest.param(["env", "create", "Bad Name"], 125, "environment name 'Bad Name'", id="bad_environment_name"),
        pytest.param(["doctor", "--", "x"], 2, "only 'belljar run' takes arguments", id="arguments_without_a_program"),
    ],
)
def test_errors_are_one_line(belljar: Belljar, tmp_path: Path, words: list[str], exit_code: int, message: str) -> None:
    (tmp_path / "latin1.py").write_bytes("print('ü')".encode("latin-1"))
    done = belljar(*words)
    text = done.stderr.decode()
    assert done.returncode == exit_code, text
    assert done.stdout == b""
    assert message in text
    assert "Traceback" not in text
    assert "belljar" in text


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        pytest.param("httpx", ["shell", "--url", "http://127.0.0.1:1"], "'belljar[client]'", id="client"),
        pytest.param(
            "docker", ["serve", "--backend", "container", "--port", "0"], "'belljar[container]'", id="container"
        ),
    ],
)
def test_a_missing_package_is_named(config: Path, module: str, words: list[str], extra: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; from belljar.frontends.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "--config", config, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=clean_environ(),
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 125
    assert done.stderr.splitlines()[-1].endswith(f"pip install {extra}"), done.stderr


def test_debug_shows_a_traceback(belljar: Belljar) -> None:
    done = belljar("run", "missing.py", "--debug")
    assert done.returncode == 1
    assert b"Traceback" in done.stderr
    assert b"CallerError: cannot read missing.py" in done.stderr


def test_input_beyond_the_limit_is_refused(belljar: Belljar, config: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.toml"
    small.write_text(config.read_text() + "[request]\nstdin_bytes = 10\n")
    done = belljar("--config", small, "run", "-c", "print(1)", stdin=b"x" * 11)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"stdin: 11 bytes are more than the 10 taken here" in done.stderr


# ---- help, version, settings


@pytest.mark.parametrize("command", ["run", "doctor", "env", "env list", "env create", "env remove", "bench", "config"])
def test_every_command_has_help(belljar: Belljar, command: str) -> None:
    done = belljar(*command.split(), "--help")
    assert done.returncode == 0
    assert f"usage: belljar {command}".encode() in done.stdout
    assert b"--config" in done.stdout


def test_the_overview_lists_every_command(belljar: Belljar) -> None:
    done = belljar("--help")
    assert done.returncode == 0
    assert {"run", "doctor", "env", "bench", "config"} <= set(re.findall(r"^  (\w+) ", done.stdout.decode(), re.M))


def test_version_is_that_of_the_package(belljar: Belljar) -> None:
    assert belljar("--version").stdout.decode() == f"belljar {package.__version__}\n"


def test_run_imports_only_what_it_needs(config: Path) -> None:
    code = "import sys; from belljar.frontends.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "--config", config, "run", "-c", "pass"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=clean_environ(),
        timeout=DEADLINE_SECONDS,
    )
    loaded = set(done.stdout.decode().split())
    assert "belljar.frontends.cli.run" in loaded
    assert not {name for name in loaded if name.split(".")[0] == "rich"}
    assert not loaded & {"belljar.jail.probe", "belljar.frontends.cli.doctor", "belljar.frontends.embedded.sandbox"}


def test_config_show_prints_values_and_sources_and_can_be_read_back(
    belljar: Belljar, config: Path, tmp_path: Path
) -> None:
    shown = belljar("config", "show").stdout.decode()
    assert re.search(rf'^cgroup_parent = "{CGROUP_PARENT}" +# file {config}$', shown, re.M)
    assert re.search(r"^max_queued = 4096 +# default$", shown, re.M)
    assert tomllib.loads(shown)["environments"]["default"]["packages"] == []
    (tmp_path / "again.toml").write_text(shown)
    again = belljar("config", "show", "--config", "again.toml").stdout.decode()
    assert tomllib.loads(again) == tomllib.loads(shown)
    tree = json.loads(belljar("config", "show", "--json").stdout)
    assert tree["jail.cgroup_parent"] == {"value": CGROUP_PARENT, "source": f"file {config}"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("[pool]\nmax_runing = 3", "did you mean 'pool.max_running'?", id="misspelt"),
        pytest.param("[pool]\nmax_running = 'x'", "must be a whole number, not 'x'", id="not_a_whole_number"),
        pytest.param("[server]\nhead_seconds = 'x'", "must be a number, not 'x'", id="not_a_number"),
        pytest.param("[server]\ndebug = 'maybe'", "must be true or false, not 'maybe'", id="neither_true_nor_false"),
        pytest.param("[jail]\nwithout_walls = 5", "must be a list, not 5", id="not_a_list"),
        pytest.param("state_dir = 5", "must be a path, not 5", id="not_a_path"),
    ],
)
def test_an_invalid_setting_is_explained(belljar: Belljar, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    done = belljar("config", "show", "--config", "bad.toml")
    assert done.returncode == 125
    assert message in done.stderr.decode()


def test_a_single_key_is_not_plural(belljar: Belljar, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(f"[server]\nkeys_file = '{tmp_path}/keys.json'\n")
    titles = []
    for name in ("one", "two"):
        assert belljar("--config", "own.toml", "key", "create", name).returncode == 0
        titles.append(belljar("--config", "own.toml", "key", "list").stdout.decode().split("\n")[0].strip())
    assert titles == ["1 key", "2 keys"]


def test_an_installed_language_is_not_installed_again(belljar: Belljar) -> None:
    done = belljar("languages", "install", "sh")
    assert (done.returncode, done.stdout) == (0, b"already installed: sh\nnothing was installed\n")


def test_config_show_hides_the_api_key(config: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "config", "show"],
        env={**clean_environ(), "BELLJAR_SERVER_API_KEY": "k-0123456789abcdef0123456789abcdef"},
        capture_output=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"0123456789abcdef" not in done.stdout
    assert "api_key" not in tomllib.loads(done.stdout.decode())["server"]  # no placeholder to read back


def test_config_show_prints_named_tables_without_secrets(belljar: Belljar, tmp_path: Path) -> None:
    (tmp_path / "named.toml").write_text(
        '[tools.servers.files]\ncommand = ["serve", "/srv"]\nenv = ["TOKEN", "MODE=hush"]\n'
        '[tools.servers.search]\nurl = "https://me:hush@example.org/mcp"\nheaders = ["Authorization:Bearer hush"]\n'
        '[llm.models."gpt-4.1"]\nurl = "https://example.org/v1"\nauthorization = "hush"\n'
        '[languages.roots]\nlean = "/opt/lean"\n'
    )
    shown = belljar("config", "show", "--config", "named.toml").stdout.decode()
    assert "hush" not in shown
    tree = tomllib.loads(shown)
    assert tree["tools"]["servers"]["files"]["command"] == ["serve", "/srv"]
    assert tree["llm"]["models"]["gpt-4.1"] == {"url": "https://example.org/v1", "retries": 3, "seconds": 120.0}
    assert tree["languages"]["roots"] == {"lean": "/opt/lean"}
    as_json = belljar("config", "show", "--json", "--config", "named.toml").stdout.decode()
    assert "hush" not in as_json
    assert json.loads(as_json)["tools.servers.files.env"]["value"] == ["TOKEN", "MODE=(set, not shown)"]
    assert json.loads(as_json)["tools.servers.search.headers"]["value"] == ["Authorization:(set, not shown)"]


def test_config_show_warns_about_variables_that_only_a_server_reads(config: Path) -> None:
    def show(*words: str) -> tuple[str, str]:
        environ = {**clean_environ(), "PORT": "8123", "MAX_MEMORY_MB": "64", "API_KEY": "k-0123456789"}
        command = [*COMMAND, "config", "show", *words]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    shown, note = show()
    assert tomllib.loads(shown)["server"]["port"] == 8000
    assert "PORT, API_KEY, MAX_MEMORY_MB are set, but only `belljar serve` reads them" in note
    shown, note = show("--for-serve")
    assert re.search(r"^port = 8123 +# environment, as PORT$", shown, re.M)
    assert re.search(r"^memory_bytes = 67108864 +# environment, as MAX_MEMORY_MB$", shown, re.M)
    assert "0123456789" not in shown
    assert not note


@pytest.mark.parametrize(
    ("variables", "shown", "ceiling"),
    [
        pytest.param({"MAX_EXECUTION_TIME": "7"}, 7, 300, id="sets_the_default_only"),
        pytest.param({"MAX_EXECUTION_TIME": "900"}, 900, 900, id="raises_a_lower_ceiling"),
        pytest.param(
            {
                "MAX_EXECUTION_TIME": "7",
                "BELLJAR_DEFAULT_LIMITS_WALL_SECONDS": "9",
                "BELLJAR_DEFAULT_LIMITS_CPU_SECONDS": "9",
            },
            *(9, 300),
            id="own_names_win",
        ),
    ],
)
def test_max_execution_time_sets_the_default_limit(variables: dict[str, str], shown: float, ceiling: float) -> None:
    command = [*COMMAND, "config", "show", "--for-serve"]
    environ = {**clean_environ(), **variables}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True)
    tree = tomllib.loads(done.stdout)
    for kind, seconds in (("default_limits", shown), ("ceiling_limits", ceiling)):
        assert (tree[kind]["wall_seconds"], tree[kind]["cpu_seconds"]) == (seconds, seconds)


def test_max_execution_time_must_be_a_number() -> None:
    command = [*COMMAND, "config", "show", "--for-serve"]
    environ = {**clean_environ(), "MAX_EXECUTION_TIME": "a while"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode != 0
    assert "MAX_EXECUTION_TIME must be a number of seconds, not 'a while'" in done.stderr


def test_coverage_needs_its_package(belljar: Belljar) -> None:
    done = belljar("run", "--coverage", "-c", "a = 1")
    assert done.returncode == 2  # the environment of these tests has no packages, and so no coverage.py
    assert b"--coverage" in belljar("run", "--help").stdout
    assert b"belljar env create default" in done.stderr


# ---- environments


@pytest.mark.timeout(600)
def test_an_environment_is_created_listed_and_removed(belljar: Belljar, config: Path) -> None:
    created = belljar("env", "create", "spare", "--python", sys.executable)
    assert created.returncode == 0, created.stderr.decode()
    lines = created.stderr.decode().splitlines()
    assert lines[0].startswith("belljar: creating the interpreter")
    assert all(line.startswith("belljar: ") for line in lines)
    listed = {row["name"]: row for row in json.loads(belljar("env", "list", "--json").stdout)["environments"]}
    assert listed["spare"]["state"] == "ok"
    assert listed["spare"]["bytes"] > 1_000_000
    assert re.search(r"\bspare +ok +3\.", belljar("env", "list").stdout.decode())
    ran = belljar("run", "--environment", "spare", "-c", "import sys; print(sys.prefix)")
    assert (ran.stdout, ran.stderr) == (b"/env\n", b"")
    again = belljar("env", "create", "spare", "--python", sys.executable)
    assert b"already exists" in again.stdout
    assert belljar("env", "create", "spare", "--warm-import", "json").returncode == 2
    assert belljar("env", "remove", "spare").returncode == 0
    assert "spare" not in belljar("env", "list", "--json").stdout.decode()


def test_progress_is_one_live_line_at_a_terminal(config: Path) -> None:
    """Changed settings of an existing environment are reported, and nothing is built."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        subprocess.run(
            [*COMMAND, "--config", config, "env", "create", "default", "--if-missing", "--warm-import", "json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            env={**clean_environ(), "TERM": "xterm", "COLUMNS": "200"},
            check=True,
            timeout=DEADLINE_SECONDS,
        )
        os.close(theirs)
        shown = screen.read(65536)
    assert b"the settings of environment 'default' have changed" in shown
    assert b"belljar: " not in shown
    assert b"\x1b[" in shown


# ---- doctor and bench


def examine(done: subprocess.CompletedProcess[bytes]) -> tuple[dict[str, Any], set[str]]:
    """The doctor's report, and the names of the rows whose state is 'missing'."""
    tree = json.loads(done.stdout)
    rows = [row for table in ("walls", "machine", "environments", "program") for row in tree[table]]
    assert {row["state"] for row in rows} <= {"ok", "missing", "given up", "note"}
    assert all(row["fix"] for row in rows if row["state"] == "missing"), rows
    return tree, {row["name"] for row in rows if row["state"] == "missing"}


@pytest.mark.skipif(os.geteuid() != 0, reason="the next test covers unprivileged users")
def test_doctor_finds_every_layer_as_root(belljar: Belljar) -> None:
    done = belljar("doctor", "--json")
    tree, missing = examine(done)
    assert (done.returncode, missing) == (0, set())
    assert tree["ok"] is True
    assert len(tree["walls"]) > 20
    assert {"core dumps", "SMT", "CPU weaknesses", "swap"} <= {row["name"] for row in tree["host"]}
    assert {row["state"] for row in tree["host"]} <= {"ok", "note"}, "advice never fails the check"
    (inside,) = tree["program"]
    for promise in ("no capabilities", "NoNewPrivs 1", "Seccomp 2", "/ read-only", "1 process visible"):
        assert promise in inside["seen"]
    assert not cgroups_left()


@pytest.mark.skipif(os.geteuid() != 0, reason="layers are always missing for an unprivileged user")
def test_doctor_succeeds_before_an_environment_is_built(belljar: Belljar, tmp_path: Path) -> None:
    (tmp_path / "new.toml").write_text(SETTINGS.format(base=tmp_path, cgroup_parent=CGROUP_PARENT))
    done = belljar("doctor", "--json", "--config", "new.toml")
    tree, missing = examine(done)
    assert (done.returncode, tree["ok"], missing) == (0, True, set())
    (inside,) = tree["program"]
    assert (inside["state"], inside["fix"]) == ("note", "build one: belljar env create default")


def test_doctor_shows_layers_that_were_given_up(belljar: Belljar) -> None:
    done = belljar("doctor", *(word for wall in ("landlock", "cgroup", "uid") for word in ("--without-wall", wall)))
    shown = done.stdout.decode()
    assert done.returncode == 0, shown
    assert len(re.findall(r"^ (?:landlock|uid|cgroup \w+) +given up ", shown, re.M)) == 5
    assert "Everything works on this machine." in shown


@pytest.fixture
def plain_user(sources: Path) -> Iterator[Belljar]:
    """`belljar` as an unprivileged user, with a home and an interpreter that this user can run."""
    if os.geteuid() != 0:
        pytest.skip("NOT CHECKED: only root can run as another user")
    home = Path(tempfile.mkdtemp(prefix="belljar-plain-"))
    shutil.copytree(sources, home / "src", ignore=shutil.ignore_patterns("__pycache__"))
    settings = f'state_dir = "{home}/state"\nruntime_dir = "{home}/run"\n'
    settings += "[environments.default]\npackages = []\nwarm_imports = []\n"
    (home / "settings.toml").write_text(settings)
    home.chmod(0o755)
    os.chown(home, PLAIN_UID, PLAIN_UID)

    def run_as(argv: list[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            env={"PATH": os.defpath, "HOME": str(home), "PYTHONPATH": str(home / "src"), "LANG": "C.UTF-8"},
            user=PLAIN_UID,
            group=PLAIN_UID,
            extra_groups=[],
            timeout=DEADLINE_SECONDS,
        )

    def works(python: str) -> bool:
        try:
            return (
                run_as([python, "-c", "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"]).returncode
                == 0
            )
        except OSError:
            return False

    try:
        python = next(filter(works, (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")), None)
        if python is None:
            pytest.skip("NOT CHECKED: no Python 3.11 that an unprivileged user can start")
        chosen = python
        yield lambda *words: run_as([chosen, "-m", "belljar", "--config", f"{home}/settings.toml", *map(str, words)])
    finally:
        shutil.rmtree(home)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["run", "-c", "print(1)"], id="run"),
        pytest.param(["safe-execute", "--code", "print(1)"], id="safe_execute"),
        pytest.param(["shell"], id="shell"),
        pytest.param(["bench", "--quick"], id="bench"),
        pytest.param(["languages", "check", "sh"], id="languages"),
    ],
)
def test_nothing_is_built_if_a_layer_is_missing(plain_user: Belljar, words: list[str]) -> None:
    refused = plain_user(*words)
    assert (refused.returncode, refused.stdout) == (125, b""), refused.stderr
    (line,) = refused.stderr.decode().splitlines()
    assert line.startswith("belljar: wall 'uid' is missing")
    assert "wall 'cgroup' is missing" in line


@pytest.mark.timeout(600)
def test_doctor_reports_what_an_unprivileged_user_lacks(plain_user: Belljar) -> None:
    created = plain_user("env", "create", "default")
    assert created.returncode == 0, created.stderr.decode()
    done = plain_user("doctor", "--json")
    tree, missing = examine(done)
    assert done.returncode == 1
    assert missing == {"uid", "cgroup memory", "cgroup pids", "cgroup cpu"}
    fixes = {row["name"]: row["fix"] for row in tree["walls"]}
    assert "run Belljar as root" in fixes["uid"]
    assert "Delegate=yes" in fixes["cgroup memory"]
    (inside,) = tree["program"]
    assert f"({PLAIN_UID} outside)" in inside["seen"]
    assert "it ran without: cgroup, uid" in inside["seen"]

    refused = plain_user("run", "-c", "print(1)")
    assert (refused.returncode, refused.stdout) == (125, b"")
    assert b"wall 'uid' is missing" in refused.stderr
    assert b"wall 'cgroup' is missing" in refused.stderr

    waivers = ["--without-wall", "uid", "--without-wall", "cgroup"]
    assert plain_user("doctor", *waivers, "--json").returncode == 0
    ran = plain_user("run", *waivers, "-c", "print(1)")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"1\n", b"")


def test_bench_prints_all_measurements(belljar: Belljar) -> None:
    done = belljar("bench", "--quick", "--json")
    assert done.returncode == 0, done.stderr.decode()
    lines = json.loads(done.stdout)["lines"]
    assert [line["name"].split(",")[0] for line in lines[2:]] == ["belljar", "belljar"]
    for line in lines:
        assert 0 < line["p50_seconds"] <= line["p99_seconds"]
        assert line["runs_per_second"] > 0


# ---- network


def test_network_is_available_only_with_the_option(belljar: Belljar) -> None:
    code = "from urllib.request import *\ntry:\n    urlopen('http://10.0.0.1/')\nexcept OSError as e:\n    print(e)"
    assert b"HTTP Error 403: 10.0.0.1 cannot be reached" in belljar("run", "--network", "-c", code).stdout
    assert b"HTTP Error" not in belljar("run", "-c", code).stdout
