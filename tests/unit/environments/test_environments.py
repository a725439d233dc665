"""Guest environments, built with real interpreters and installers, and with builders that die."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slow_python import SlowPython, without_uv

from belljar.contract.errors import (
    BelljarError,
    CallerError,
    EnvironmentBroken,
    InvalidSettings,
    Overloaded,
    UnknownEnvironment,
)
from belljar.environments import Environment, Environments, ensure_unless_cancelled
from belljar.environments.build import MATPLOTLIB_CONFIG
from belljar.settings import EnvironmentSettings

EMPTY = EnvironmentSettings(packages=(), warm_imports=())
PATIENCE_SECONDS = 90.0

#: A package that builds without an index; its build runs `{action}`, as a package's setup may run any code.
BUILD_BACKEND = """
import os, sys, time, zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    {action}
    name = "{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        wheel.writestr("{name}.py", {module!r})
        wheel.writestr("{name}-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n")
        wheel.writestr("{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n")
        wheel.writestr("{name}-1.0.dist-info/RECORD", "")
    return name
"""

#: Runs one method in a separate process, given state directory, method and settings; prints progress and the result.
BUILDER = """
import json, sys
from pathlib import Path
from belljar.environments import Environments
from belljar.settings import EnvironmentSettings

state_dir, method, spec = sys.argv[1:]
spec = EnvironmentSettings(**{key: tuple(value) for key, value in json.loads(spec).items()})
environments = Environments(Path(state_dir), {"shared": spec})
say = lambda line: print(line, flush=True)
built = environments.ensure("shared", say) if method == "ensure" else environments.create("shared", spec, say, True)
print("built at", built.built_at, flush=True)
"""

#: Runs a program as nobody in a root with the system directories and the bound paths.
JAIL = """
set -e
root=$1; program=$2; shift 2
mount -t tmpfs none "$root"
for path in /usr /bin /sbin /lib /lib32 /lib64 /libx32 "$@"; do
    [ -e "$path" ] || continue
    mkdir -p "$root$path"
    mount --rbind "$path" "$root$path"
    mount -o remount,bind,ro "$root$path"
done
mkdir -p "$root/proc" "$root/tmp" "$root/dev"
touch "$root/dev/null"
mount --bind /dev/null "$root/dev/null"
mount --rbind /proc "$root/proc"
chmod 1777 "$root/tmp"
exec chroot $AS_NOBODY "$root" "$PYTHON" -I -W error -c "$program"
"""


@pytest.fixture(scope="module")
def uv_environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables with uv on PATH; most tests use it, because it is six times as fast as pip."""
    environ = without_uv()
    found = shutil.which("uv")
    if found is None:
        spec = EnvironmentSettings(packages=("uv",), warm_imports=())
        built = Environments(tmp_path_factory.mktemp("uv"), {}, environ).create("uv", spec, print)
        found = str(built.root / "bin/uv")
    link = tmp_path_factory.mktemp("bin") / "uv"
    link.symlink_to(found)
    return {**environ, "PATH": f"{link.parent}:{environ['PATH']}"}


@pytest.fixture
def environments(tmp_path: Path, uv_environ: dict[str, str]) -> Environments:
    return Environments(tmp_path, {"shared": EMPTY}, uv_environ)


@pytest.fixture
def builders() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for builder in started:
        if builder.poll() is None:
            builder.kill()
        builder.communicate()


def start_builder(
    started: list[subprocess.Popen[str]],
    state_dir: Path,
    environ: dict[str, str],
    method: str = "ensure",
    packages: tuple[str, ...] = (),
) -> subprocess.Popen[str]:
    spec = json.dumps({"packages": packages, "warm_imports": []})
    source = str(Path(sys.modules["belljar"].__path__[0]).parent)
    builder = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(state_dir), method, spec],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**environ, "PYTHONPATH": source},
    )
    started.append(builder)
    return builder


def local_package(place: Path, name: str, action: str = "pass", module: str = "") -> str:
    place.mkdir()
    (place / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "1.0"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (place / "backend.py").write_text(BUILD_BACKEND.format(action=action, name=name, module=module))
    return str(place)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not os.path.lexists(path):
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)


def processes_naming(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue  # it has just ended
        if text in command and entry.parent.name != str(os.getpid()):
            found.append(command)
    return found


def answer_of(environment: Environment, code: str) -> str:
    command = [str(environment.python), "-I", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_jailed(environment: Environment, program: str, root: Path) -> subprocess.CompletedProcess[str]:
    root.mkdir(exist_ok=True)
    as_root = os.geteuid() == 0
    command = ["unshare", "--mount", *([] if as_root else ["--user", "--map-root-user"]), "sh", "-c", JAIL, "jail"]
    return subprocess.run(
        [*command, str(root), program, *map(str, environment.bound_paths)],
        capture_output=True,
        text=True,
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHON": str(environment.python),
            "AS_NOBODY": "--userspec=1900000001:1900000001" if as_root else "",
            "MPLBACKEND": "agg",
            "HOME": "/tmp",
        },
    )


def interpreter(version: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The version if pyenv has installed it; otherwise skip the test with a visible message."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    if any(pyenv.glob(f"versions/{version}.*/bin/python")):
        return version
    with capsys.disabled():
        print(f"\n*** NOT TESTED: there is no Python {version} under {pyenv}/versions ***")
    pytest.skip(f"no Python {version} under {pyenv}/versions")


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_build_gives_an_interpreter_with_the_packages(
    tmp_path: Path, uv_environ: dict[str, str], installer: str
) -> None:
    spec = EnvironmentSettings(packages=("six==1.16.0",), warm_imports=("six", "six.moves"))
    environ = uv_environ if installer == "uv" else without_uv()
    lines: list[str] = []

    built = Environments(tmp_path, {}, environ).create("small", spec, lines.append)

    assert built.root == tmp_path / "environments/small"
    assert built.python == built.root / "bin/python"
    assert built.version == ".".join(map(str, sys.version_info[:3]))
    assert dict(built.packages)["six"] == "1.16.0"
    assert built.warm_imports == ("six", "six.moves")
    assert answer_of(built, "import six, sys; print(six.__version__, sys.prefix)") == f"1.16.0 {built.root}"
    assert lines[0].startswith("creating the interpreter")
    assert any("six" in line and "1.16.0" in line for line in lines[2:]), "the installer's output is passed on"
    assert lines[-1].startswith("environment 'small' is ready after ")
    assert Environments(tmp_path, {}, environ).find("small") == built


@pytest.mark.parametrize("version", ["3.9", "3.13"])
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_other_interpreters_become_environments(
    tmp_path: Path, uv_environ: dict[str, str], installer: str, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = EnvironmentSettings(packages=("six",), python=interpreter(version, capsys), warm_imports=("six",))
    environ = uv_environ if installer == "uv" else without_uv()

    built = Environments(tmp_path, {}, environ).create("other", spec, print)

    assert built.version.startswith(f"{version}.")
    ran = run_jailed(built, "import six, ssl, sqlite3, sys; print(sys.version.split()[0])", tmp_path / "jail")
    assert (ran.stdout.strip(), ran.stderr) == (built.version, "")


def test_python_may_be_a_venv(tmp_path: Path, uv_environ: dict[str, str]) -> None:
    first = Environments(tmp_path / "first", {}, uv_environ).create("venv", EMPTY, print)
    spec = EnvironmentSettings(packages=(), python=str(first.python), warm_imports=())

    second = Environments(tmp_path / "second", {}, uv_environ).create("venv", spec, print)

    shutil.rmtree(first.root)
    assert answer_of(second, "import sys; print(sys.prefix)") == str(second.root)


@pytest.mark.parametrize("version", ["2.7", "3.8"])
def test_python_before_3_9_is_refused_by_its_version(
    environments: Environments, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = EnvironmentSettings(packages=(), python=interpreter(version, capsys), warm_imports=())
    with pytest.raises(EnvironmentBroken, match=rf"needs Python 3\.9 or later; .* is Python {version}\.\d+"):
        environments.create("old", spec, print)
    assert environments.known() == ["shared"]


@pytest.mark.parametrize("python", ["3.99", "/no/such/python", "nopython", "/bin/true", "true"])
def test_a_missing_python_is_named(environments: Environments, python: str) -> None:
    spec = EnvironmentSettings(packages=(), python=python, warm_imports=())
    with pytest.raises(EnvironmentBroken, match=f"no working Python for '{python}'"):
        environments.create("absent", spec, print)


def test_bound_paths_suffice_and_do_not_nest(environments: Environments, tmp_path: Path) -> None:
    built = environments.create("bound", EMPTY, print)
    asked = "import os, sys; print(sys.base_prefix, os.__file__, os.path.realpath(sys.executable), sep='\\n')"
    for needed in map(Path, [*answer_of(built, asked).splitlines(), str(built.root)]):
        assert any(needed.is_relative_to(bound) for bound in (*built.bound_paths, Path("/usr")))
    for bound in built.bound_paths:
        assert not any(bound.is_relative_to(other) for other in built.bound_paths if other != bound)
        assert not Path.home().is_relative_to(bound)

    ran = run_jailed(built, "import ssl, sqlite3, ctypes, asyncio; print('alive')", tmp_path / "jail")
    assert (ran.stdout, ran.stderr) == ("alive\n", "")


def test_interpreter_behind_symlinks_is_bound_by_its_real_path(environments: Environments, tmp_path: Path) -> None:
    base = Path(getattr(sys, "_base_executable", sys.executable))
    (tmp_path / "links").symlink_to(base.parent)
    (tmp_path / "python").symlink_to(tmp_path / "links" / base.name)
    spec = EnvironmentSettings(packages=(), python=str(tmp_path / "python"), warm_imports=())

    built = environments.create("linked", spec, print)
    (tmp_path / "links").unlink()
    (tmp_path / "python").unlink()

    assert environments.require("linked") == built
    assert run_jailed(built, "print('alive')", tmp_path / "jail").stdout == "alive\n"


def test_interpreter_in_a_home_directory_does_not_expose_the_home(tmp_path: Path, uv_environ: dict[str, str]) -> None:
    environ = {**uv_environ, "HOME": sys.base_prefix, "UV_CACHE_DIR": str(tmp_path / "cache")}
    built = Environments(tmp_path, {}, environ).create("home", EMPTY, print)
    assert not any(Path(sys.base_prefix).is_relative_to(bound) for bound in built.bound_paths)
    assert run_jailed(built, "import ssl, ctypes; print('alive')", tmp_path / "jail").stdout == "alive\n"


def test_everything_is_compiled_and_readable_by_all(environments: Environments) -> None:
    before = os.umask(0o077)
    try:
        built = environments.create("open", EnvironmentSettings(packages=("six",), warm_imports=()), print)
    finally:
        os.umask(before)
    for path in (built.root, *built.root.rglob("*")):
        mode = path.lstat().st_mode
        wanted = 0 if stat.S_ISLNK(mode) else 0o055 if stat.S_ISDIR(mode) or mode & 0o100 else 0o044
        assert mode & wanted == wanted, path
    sources = list((built.root / "lib").rglob("*.py"))
    assert sources
    for source in sources:
        assert list((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")), source


def test_matplotlib_finds_its_font_list_in_a_read_only_tree(environments: Environments, tmp_path: Path) -> None:
    spec = EnvironmentSettings(packages=("matplotlib",), warm_imports=())  # the font list is still built
    built = environments.create("plots", spec, print)
    font_lists = [path.name for path in (built.root / MATPLOTLIB_CONFIG).iterdir()]
    assert len(font_lists) == 1
    assert font_lists[0].startswith("fontlist-")

    program = f"""
import os
os.environ["MPLCONFIGDIR"] = "/tmp/matplotlib"
os.mkdir("/tmp/matplotlib")
os.symlink("{built.root / MATPLOTLIB_CONFIG / font_lists[0]}", "/tmp/matplotlib/{font_lists[0]}")
import matplotlib.font_manager
def list_again(*_, **__): raise AssertionError("the font list was created again")
matplotlib.font_manager.FontManager.__init__ = list_again
import matplotlib.pyplot as plt
plt.plot([1, 2]); plt.title("title"); plt.savefig("/tmp/figure.png")
print(os.path.islink("/tmp/matplotlib/{font_lists[0]}"), os.listdir("/tmp/matplotlib"))
"""
    ran = run_jailed(built, program, tmp_path / "jail")
    assert (ran.stdout, ran.stderr) == (f"True {font_lists}\n", "")


def test_password_in_the_url_of_a_package_is_not_stored(tmp_path: Path, uv_environ: dict[str, str]) -> None:
    environments = Environments(tmp_path, {}, {**uv_environ, "UV_HTTP_RETRIES": "0"})
    spec = EnvironmentSettings(packages=("six @ https://me:s3cret@localhost:9/six-1.0.tar.gz",), warm_imports=())
    lines: list[str] = []
    with pytest.raises(EnvironmentBroken) as caught:
        environments.create("mine", spec, lines.append)
    assert "s3cret" not in "\n".join([*lines, caught.value.message])

    package = local_package(tmp_path / "p", "plain")
    built = environments.create("mine", EnvironmentSettings(packages=(package,), warm_imports=()), print)
    assert package not in (built.root / "environment.json").read_text()


def test_build_hides_secrets_from_what_it_runs(
    environments: Environments, uv_environ: dict[str, str], tmp_path: Path
) -> None:
    seen_by_build, seen_by_import = tmp_path / "build.json", tmp_path / "import.json"
    dump = "import os, json; json.dump(dict(os.environ), open({!r}, 'w'))"
    package = local_package(tmp_path / "p", "nosy", dump.format(str(seen_by_build)), dump.format(str(seen_by_import)))
    secrets = {"AWS_SECRET_ACCESS_KEY": "s3cret", "BELLJAR_API_KEY": "s3cret", "UV_PUBLISH_TOKEN": "s3cret"}
    reach = {"PIP_INDEX_URL": "https://me:s3cret@example.invalid/simple", "HTTPS_PROXY": "", "UV_HTTP_TIMEOUT": "30"}
    spec = EnvironmentSettings(packages=(package,), warm_imports=("nosy",))

    Environments(tmp_path, {}, {**uv_environ, **secrets, **reach}).create("nosy", spec, print)

    for_build, for_import = (json.loads(path.read_text()) for path in (seen_by_build, seen_by_import))
    assert not set(secrets) & set(for_build)
    assert for_build["PIP_INDEX_URL"] == reach["PIP_INDEX_URL"]
    assert "s3cret" not in json.dumps(for_import)
    assert for_import["HOME"] != os.environ["HOME"]


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_bad_package_name_shows_the_installers_message(
    tmp_path: Path, uv_environ: dict[str, str], installer: str
) -> None:
    environ = uv_environ if installer == "uv" else without_uv()
    environments = Environments(tmp_path, {}, environ)
    spec = EnvironmentSettings(packages=("belljar-no-such-package",), warm_imports=())
    with pytest.raises(EnvironmentBroken) as caught:
        environments.create("bad", spec, print)
    assert "environment 'bad' cannot be built: its packages cannot be installed" in caught.value.message
    assert "belljar-no-such-package" in "\n".join(caught.value.details["output"])
    assert len(caught.value.details["output"]) <= 20
    assert "what to do: check the package names" in caught.value.message
    assert environments.known() == []
    assert not (tmp_path / "environments/bad").exists()


def test_warm_import_that_is_not_installed_names_its_package(environments: Environments) -> None:
    spec = EnvironmentSettings(packages=(), warm_imports=("json", "PIL.Image", "six"))
    with pytest.raises(EnvironmentBroken) as caught:
        environments.create("cold", spec, print)
    assert "'PIL.Image' is not installed; add 'pillow' to its packages" in caught.value.message
    assert "'six' is not installed; add 'six' to its packages" in caught.value.message
    assert "json" not in caught.value.message
    assert environments.find("cold") is None


def test_failing_warm_import_is_explained(environments: Environments, tmp_path: Path) -> None:
    package = local_package(tmp_path / "p", "grumpy", module="raise RuntimeError('not today')")
    spec = EnvironmentSettings(packages=(package,), warm_imports=("grumpy", "json.nothing"))
    with pytest.raises(EnvironmentBroken) as caught:
        environments.create("cold", spec, print)
    assert "'grumpy' fails with RuntimeError: not today" in caught.value.message
    assert "'json.nothing' fails with ModuleNotFoundError" in caught.value.message


def test_warm_import_that_kills_the_interpreter_is_a_failure(environments: Environments, tmp_path: Path) -> None:
    package = local_package(tmp_path / "p", "fatal", module="import os; print('last words', flush=True); os.abort()")
    spec = EnvironmentSettings(packages=(package,), warm_imports=("fatal",))
    with pytest.raises(EnvironmentBroken, match=r"does not start \(python: signal 6\)\n  last words"):
        environments.create("cold", spec, print)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("", id="empty"),
        pytest.param("..", id="parent"),
        pytest.param("../escape", id="path_out"),
        pytest.param("a/b", id="path"),
        pytest.param(".hidden", id="hidden"),
        pytest.param(".previous-shared", id="reserved"),
        pytest.param("Upper", id="upper_case"),
        pytest.param("a\n", id="newline"),
        pytest.param("a\0", id="nul"),
        pytest.param("x" * 65, id="too_long"),
        pytest.param("shared.lock", id="a_lock_file"),
    ],
)
def test_unsafe_names_are_refused(environments: Environments, tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidSettings):
        environments.create(name, EMPTY, print)
    assert environments.find(name) is None
    for refuse in (environments.require, environments.remove, lambda name: environments.ensure(name, print)):
        with pytest.raises(UnknownEnvironment, match="choose from: shared"):
            refuse(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(EnvironmentSettings(packages=("--pre",), warm_imports=()), id="option_as_package"),
        pytest.param(EnvironmentSettings(packages=(" ",), warm_imports=()), id="blank_package"),
        pytest.param(EnvironmentSettings(packages=(), warm_imports=("os; import sys",)), id="code_as_module"),
        pytest.param(EnvironmentSettings(packages=(), warm_imports=("-c",)), id="option_as_module"),
    ],
)
def test_invalid_settings_are_refused_before_anything_is_built(
    environments: Environments, tmp_path: Path, spec: EnvironmentSettings
) -> None:
    with pytest.raises(InvalidSettings):
        environments.create("bad", spec, print)
    assert not list(tmp_path.iterdir())


def test_names_are_known_when_configured_or_built(environments: Environments) -> None:
    assert environments.known() == ["shared"]
    with pytest.raises(UnknownEnvironment, match="unknown environment 'extra'; choose from: shared"):
        environments.require("extra")
    with pytest.raises(UnknownEnvironment):
        environments.ensure("extra", print)
    with pytest.raises(EnvironmentBroken, match="not built yet; build it with: belljar env create shared"):
        environments.require("shared")

    built = environments.create("extra", EMPTY, print)

    assert environments.known() == ["extra", "shared"]
    assert environments.find("shared") is None
    assert environments.require("extra") == environments.find("extra") == environments.ensure("extra", print) == built


def test_ensure_builds_once_and_reports_changed_settings(tmp_path: Path, uv_environ: dict[str, str]) -> None:
    built = Environments(tmp_path, {"shared": EMPTY}, uv_environ).ensure("shared", print)
    lines: list[str] = []
    assert Environments(tmp_path, {"shared": EMPTY}, uv_environ).ensure("shared", lines.append) == built
    assert lines == []

    changed = {"shared": EnvironmentSettings(packages=("six",), warm_imports=())}
    assert Environments(tmp_path, changed, uv_environ).ensure("shared", lines.append) == built
    assert "rebuild with: belljar env create shared --replace" in lines[0]


def test_create_needs_replace_to_change_an_environment(environments: Environments) -> None:
    first = environments.create("mine", EMPTY, print)
    changed = EnvironmentSettings(packages=("six",), warm_imports=())
    assert environments.create("mine", EMPTY, print) == first
    with pytest.raises(CallerError, match="--replace"):
        environments.create("mine", changed, print)
    assert environments.find("mine") == first

    second = environments.create("mine", changed, print, replace=True)

    assert dict(second.packages).keys() == {"six"}
    assert environments.find("mine") == second
    third = environments.create("mine", changed, print, replace=True)
    assert third.built_at > second.built_at


def test_failed_replacement_restores_the_old_environment(environments: Environments, tmp_path: Path) -> None:
    first = environments.create("mine", EMPTY, print)
    with pytest.raises(EnvironmentBroken):
        environments.create("mine", EnvironmentSettings(packages=(), warm_imports=("six",)), print, replace=True)
    assert environments.require("mine") == first
    assert answer_of(first, "print('alive')") == "alive"
    assert sorted(path.name for path in (tmp_path / "environments").iterdir()) == ["mine", "mine.lock"]


def test_two_processes_build_once(
    tmp_path: Path, uv_environ: dict[str, str], builders: list[subprocess.Popen[str]]
) -> None:
    both = [start_builder(builders, tmp_path, uv_environ) for _ in range(2)]
    outputs = [builder.communicate(timeout=PATIENCE_SECONDS)[0] for builder in both]
    assert [builder.returncode for builder in both] == [0, 0], outputs
    assert sum("creating the interpreter" in output for output in outputs) == 1
    assert len({output.splitlines()[-1] for output in outputs}) == 1


@pytest.mark.parametrize("method", ["ensure", "create"])
def test_second_builder_waits_and_uses_the_result(
    tmp_path: Path, uv_environ: dict[str, str], builders: list[subprocess.Popen[str]], method: str
) -> None:
    go_on = tmp_path / "go_on"
    wait = f"open({str(tmp_path / 'reached')!r}, 'w')\n    while not os.path.exists({str(go_on)!r}): time.sleep(0.01)"
    packages = (local_package(tmp_path / "p", "slow", wait),)
    first = start_builder(builders, tmp_path, uv_environ, method, packages)
    wait_for(tmp_path / "reached")
    with pytest.raises(Overloaded, match=f"is being built by process {first.pid}"):
        Environments(tmp_path, {}, uv_environ).remove("shared")
    second = start_builder(builders, tmp_path, uv_environ, method, packages)
    assert second.stdout is not None
    assert second.stdout.readline() == f"waiting for process {first.pid}, which is building environment 'shared'\n"
    go_on.touch()

    results = [builder.communicate(timeout=PATIENCE_SECONDS)[0].splitlines() for builder in (first, second)]

    assert results[0][-1].startswith("built at ")
    assert results[1] == results[0][-1:]


def test_killed_build_is_rebuilt(tmp_path: Path, builders: list[subprocess.Popen[str]]) -> None:
    environ = without_uv()
    environments = Environments(tmp_path, {"shared": EMPTY}, environ)
    builder = start_builder(builders, tmp_path, environ)
    wait_for(tmp_path / "environments/shared/pyvenv.cfg")
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    assert environments.find("shared") is None

    lines: list[str] = []
    built = environments.ensure("shared", lines.append)

    assert lines[0].startswith(f"waiting for process {builder.pid}"), "its installer was still writing"
    assert lines[1].startswith("creating the interpreter")
    assert answer_of(built, "import pip; print('whole')") == "whole"


def test_killed_replacement_restores_the_old_environment(
    environments: Environments, tmp_path: Path, uv_environ: dict[str, str], builders: list[subprocess.Popen[str]]
) -> None:
    first = environments.create("shared", EMPTY, print)
    builder = start_builder(builders, tmp_path, without_uv(), "create", ("belljar-no-such-package",))
    wait_for(tmp_path / "environments/.previous-shared")
    wait_for(tmp_path / "environments/shared/pyvenv.cfg")
    builder.send_signal(signal.SIGKILL)
    builder.wait()

    unconfigured = Environments(tmp_path, {}, uv_environ)
    assert unconfigured.known() == ["shared"]
    assert unconfigured.ensure("shared", print) == first
    assert answer_of(first, "print('alive')") == "alive"


def test_interrupted_build_leaves_no_process_and_no_environment(
    tmp_path: Path, uv_environ: dict[str, str], builders: list[subprocess.Popen[str]]
) -> None:
    reached = tmp_path / "reached"
    endless = f"os.symlink(str(os.getpid()), {str(reached)!r})\n    time.sleep(600)"
    packages = (local_package(tmp_path / "p", "endless", endless),)
    builder = start_builder(builders, tmp_path, uv_environ, packages=packages)
    wait_for(reached)
    set_up = Path("/proc", reached.readlink(), "cmdline")
    assert set_up.read_bytes()

    builder.send_signal(signal.SIGINT)
    output = builder.communicate(timeout=PATIENCE_SECONDS)[0]

    assert "KeyboardInterrupt" in output
    assert not set_up.exists() or not set_up.read_bytes(), "the installer's children must be dead, too"
    assert not processes_naming(str(tmp_path / "environments/shared"))
    assert sorted(path.name for path in (tmp_path / "environments").iterdir()) == ["shared.lock"]


def test_exception_from_progress_abandons_the_build(environments: Environments, tmp_path: Path) -> None:
    class Cancelled(Exception):
        pass

    def cancel(line: str) -> None:
        if line.startswith("Using Python"):
            raise Cancelled

    with pytest.raises(Cancelled):
        environments.create("mine", EnvironmentSettings(packages=("six",), warm_imports=()), cancel)
    assert environments.find("mine") is None
    assert not processes_naming(str(tmp_path / "environments/mine"))


@pytest.mark.parametrize(
    "slow",
    [
        pytest.param({"waits_when_asked": True}, id="querying_the_version"),
        pytest.param({}, id="building"),
        pytest.param({"meanwhile": "exec >/dev/null 2>&1"}, id="building_with_output_closed"),
        pytest.param({"meanwhile": "while :; do echo busy; done &"}, id="building_with_endless_output"),
    ],
)
def test_cancelled_build_ends_and_leaves_nothing(tmp_path: Path, slow: dict[str, Any]) -> None:
    python = SlowPython(tmp_path / "slow", **slow)
    environments = Environments(tmp_path, {"shared": python.settings}, without_uv())

    async def cancel() -> None:
        building = asyncio.create_task(ensure_unless_cancelled(environments, "shared", lambda line: None))
        try:
            await asyncio.to_thread(python.wait_until_begun)
            building.cancel()
            with pytest.raises(asyncio.CancelledError):
                await building
            assert not python.is_alive
            python.wait_until_gone()
            assert os.listdir(tmp_path / "environments") == ["shared.lock"]
        finally:
            python.go_on()

    asyncio.run(cancel())


def test_cancelled_wait_for_another_builder_ends(tmp_path: Path) -> None:
    environments = Environments(tmp_path, {"shared": EMPTY})
    (tmp_path / "environments").mkdir()
    lines: list[str] = []

    async def cancel() -> None:
        waiting = asyncio.create_task(ensure_unless_cancelled(environments, "shared", lines.append))
        while not lines:
            await asyncio.sleep(0.01)
        waiting.cancel()
        done, _ = await asyncio.wait([waiting], timeout=PATIENCE_SECONDS)
        assert done
        assert waiting.cancelled()

    with (tmp_path / "environments/shared.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        asyncio.run(cancel())
    assert lines == ["waiting for process unknown, which is building environment 'shared'"]


def test_an_unfinished_build_is_not_an_environment(environments: Environments, tmp_path: Path) -> None:
    remains = tmp_path / "environments/shared"
    (remains / "bin").mkdir(parents=True)
    (remains / "bin/python").symlink_to(sys.executable)
    (remains / "environment.new").write_text("{")
    (tmp_path / "environments/other").mkdir()
    assert environments.known() == ["shared"]
    assert environments.find("shared") is None
    with pytest.raises(UnknownEnvironment):
        environments.require("other")

    built = environments.ensure("shared", print)

    assert not (remains / "environment.new").exists()
    assert answer_of(built, "import sys; print(sys.prefix)") == str(remains)


def test_remove_deletes_finished_and_unfinished_environments(environments: Environments, tmp_path: Path) -> None:
    environments.create("mine", EMPTY, print)
    (tmp_path / "environments/broken/lib").mkdir(parents=True)
    for name in ("mine", "broken"):
        environments.remove(name)
        assert environments.find(name) is None
        assert not (tmp_path / "environments" / name).exists()
        with pytest.raises(UnknownEnvironment, match="is not built; choose from: shared"):
            environments.remove(name)
    with pytest.raises(UnknownEnvironment):
        environments.remove("shared")


def corrupt_interpreter(root: Path) -> None:
    (root / "bin/python").unlink()
    (root / "bin/python").symlink_to("/no/such/python3.11")


def corrupt_base(root: Path) -> None:
    metadata = json.loads((root / "environment.json").read_text())
    metadata["environment"]["bound_paths"].append("/no/such/prefix")
    (root / "environment.json").write_text(json.dumps(metadata))


def corrupt_format(root: Path) -> None:
    metadata = json.loads((root / "environment.json").read_text())
    (root / "environment.json").write_text(json.dumps({**metadata, "format": 999}))


def corrupt_text(root: Path) -> None:
    (root / "environment.json").write_bytes(b"\xff{")


def corrupt_shape(root: Path) -> None:
    (root / "environment.json").write_text("[]")


@pytest.mark.parametrize(
    ("corrupt", "reason"),
    [
        pytest.param(corrupt_interpreter, "needs /no/such/python3.11, which is gone", id="base_interpreter_gone"),
        pytest.param(corrupt_base, "needs /no/such/prefix, which is gone", id="base_prefix_gone"),
        pytest.param(corrupt_format, "another version of Belljar", id="other_format"),
        pytest.param(corrupt_text, "another version of Belljar", id="not_text"),
        pytest.param(corrupt_shape, "another version of Belljar", id="not_an_object"),
    ],
)
def test_corrupted_environment_is_reported_and_can_be_replaced(
    environments: Environments, tmp_path: Path, corrupt: Callable[[Path], None], reason: str
) -> None:
    root = environments.ensure("shared", print).root
    corrupt(root)
    assert environments.find("shared") is None
    reports: list[Callable[[], Environment]] = [
        lambda: environments.require("shared"),
        lambda: environments.ensure("shared", print),
        lambda: environments.create("shared", EMPTY, print),
    ]
    for report in reports:
        with pytest.raises(EnvironmentBroken, match=reason) as caught:
            report()
        assert "rebuild with: belljar env create shared --replace" in caught.value.message

    assert environments.create("shared", EMPTY, print, replace=True) == environments.require("shared")


def test_environment_of_a_moved_state_directory_is_not_trusted(
    environments: Environments, tmp_path: Path, uv_environ: dict[str, str]
) -> None:
    environments.ensure("shared", print)
    shutil.move(tmp_path / "environments", tmp_path / "moved/environments")
    with pytest.raises(EnvironmentBroken, match="at another place"):
        Environments(tmp_path / "moved", {}, uv_environ).require("shared")


def test_unusable_state_directory_is_named(tmp_path: Path, uv_environ: dict[str, str]) -> None:
    (tmp_path / "file").touch()
    environments = Environments(tmp_path / "file", {"shared": EMPTY}, uv_environ)
    assert environments.known() == ["shared"]
    with pytest.raises(BelljarError, match=r"cannot write to .*/file/environments: Not a directory"):
        environments.ensure("shared", print)
