"""Rules for the code as a whole.

import-linter checks which module may import which (see pyproject.toml).
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from side_by_side import GROUPS

GUEST_VERSIONS = ["3.9", "3.10", "3.11", "3.12", "3.13"]
REQUIRED_VERSION = "3.11"


@functools.cache
def find_interpreter(version: str) -> str | None:
    """Find a working Python of this version: a version manager's shim on PATH may exist and refuse to run."""
    name = f"python{version}"
    managed = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [shutil.which(name), *sorted(map(str, managed.glob(f"*/bin/{name}")))]
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        candidates.insert(0, sys.executable)
    for candidate in filter(None, candidates):
        answer = run_python(candidate, "import sys; print('%d.%d' % sys.version_info[:2])")
        if answer.returncode == 0 and answer.stdout.strip() == version:
            return candidate
    return None


def run_python(interpreter: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `code` without environment variables and without site-packages, with the standard library only."""
    return subprocess.run(
        [interpreter, "-I", "-S", "-B", "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(params=GUEST_VERSIONS)
def guest_python(request: pytest.FixtureRequest) -> str:
    """An interpreter of each version that a guest environment may be built from."""
    found = find_interpreter(request.param)
    if found is None:
        missing = f"NOT CHECKED: there is no python{request.param} on PATH or among pyenv's versions"
        if request.param == REQUIRED_VERSION:
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.fixture(scope="session")
def jailed_files(sources: Path) -> list[Path]:
    """Every file that is read by a guest's interpreter instead of the server's."""
    package = sources / "belljar"
    files = [package / "__init__.py", package / "channel.py"]
    for folder in ("inside", "jail"):
        found = sorted((package / folder).rglob("*.py"))
        assert found, f"belljar/{folder} is empty; if it moved, update this test"
        files += found
    return files


def test_jailed_code_compiles_under_every_guest_python(guest_python: str, jailed_files: list[Path]) -> None:
    code = """
import sys
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        compile(file.read(), path, "exec")
"""
    answer = run_python(guest_python, code, *map(str, jailed_files))
    assert answer.returncode == 0, answer.stderr


def test_jailed_code_needs_nothing_but_the_standard_library(
    guest_python: str, jailed_files: list[Path], sources: Path
) -> None:
    """Importing finds what compiling cannot: a class evaluated at import, or a name, newer than the interpreter."""
    modules = [
        ".".join(path.relative_to(sources).with_suffix("").parts).removesuffix(".__init__")
        for path in jailed_files
        if path.parent.name != "jail"  # the zygote pulls in those it uses; the rest runs on the host
        and path.stem != "sitecustomize"  # which is the start of a zygote, and does not return
    ]
    code = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
"""
    answer = run_python(guest_python, code, str(sources), *modules)
    assert answer.returncode == 0, answer.stderr


def test_every_module_starts_with_a_docstring(sources: Path) -> None:
    without = [
        str(path.relative_to(sources))
        for path in sorted((sources / "belljar").rglob("*.py"))
        if not starts_with_docstring(path.read_text("utf-8"))
    ]
    assert not without, f"say the idea of the module in its first line: {without}"


def starts_with_docstring(source: str) -> bool:
    tree = ast.parse(source)
    return bool(ast.get_docstring(tree)) and tree.body[0].lineno == 1


def test_importing_belljar_loads_nothing_heavy(sources: Path) -> None:
    """The package's own __init__ runs inside every jail and in front of every command line."""
    code = "import json, sys; sys.path.insert(0, sys.argv[1]); import belljar; print(json.dumps(sorted(sys.modules)))"
    answer = run_python(sys.executable, code, str(sources))
    assert answer.returncode == 0, answer.stderr
    loaded = set(json.loads(answer.stdout))
    own_modules = {name for name in loaded if name.startswith("belljar.")}
    assert not own_modules | (loaded & {"asyncio", "ctypes", "rich"})


def test_files_with_a_scheduling_group_exist(repository: Path) -> None:
    assert [path for path in GROUPS if not (repository / path).is_file()] == []


def test_the_map_of_the_code_is_complete_and_in_order(repository: Path) -> None:
    """Every top-level name is in the map once, none above another that it may not be imported by."""
    contracts = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [each["layers"] for each in contracts if each["type"] == "layers"]
    height = {name.strip(" ()"): -number for number, layer in enumerate(layers) for name in layer.split("|")}
    page = (repository / "docs" / "architecture.md").read_text("utf-8")
    lines = page.partition("## The map of the code\n")[2].split("```")[1].strip("\n").splitlines()
    drawn = [line.split()[0].removesuffix("/").removesuffix(".py") for line in lines if not line.startswith(" ")]
    assert sorted(drawn) == sorted(height.keys() - {"__main__"})
    assert [height[name] for name in drawn] == sorted((height[name] for name in drawn), reverse=True)


@pytest.mark.parametrize("folder", ["backends", "engine", "inside", "jail"])
def test_the_map_names_every_module_where_paths_lead(repository: Path, folder: str) -> None:
    page = (repository / "docs" / "architecture.md").read_text("utf-8")
    drawn = set(re.findall(r"\w+", page.partition("## The map of the code\n")[2]))
    modules = {path.stem for path in (repository / "src" / "belljar" / folder).rglob("*.py")} - {"__init__"}
    assert modules <= drawn


def test_the_map_names_no_missing_module(repository: Path) -> None:
    """The map lists modules as `one · another`."""
    page = (repository / "docs" / "architecture.md").read_text("utf-8")
    drawn = page.partition("## The map of the code\n")[2].split("```")[1]
    listed = set(re.findall(r"\w+(?=\)? ·)|(?<=· )\w+", drawn))
    assert len(listed) > 50
    assert sorted(listed - {path.stem for path in (repository / "src" / "belljar").rglob("*.py")}) == []


#: Pages that point to files and functions. A file is written as `path.py`, a function directly after its file.
GUIDES = ["docs/architecture.md", "CONTRIBUTING.md"]
NAMED_FILE = re.compile(r"`([\w./-]+)`")
NAMED_MEMBER = re.compile(r"`([\w/.-]+\.py)`\s+`([A-Za-z_][\w.]*)`")
FILE_ENDINGS = (".py", ".md", ".toml", ".svg", "/")


def find_named(repository: Path, path: str) -> Path | None:
    """Find a file as a page names it: relative to the repository or to the package."""
    for root in (repository, repository / "src" / "belljar"):
        if (root / path).exists():
            return root / path
    return None


@pytest.mark.parametrize("page", GUIDES)
def test_every_file_named_in_a_guide_exists(repository: Path, page: str) -> None:
    text = (repository / page).read_text("utf-8")
    named = {path for path in NAMED_FILE.findall(text) if path.endswith(FILE_ENDINGS)}
    assert len(named) > 5
    assert sorted(path for path in named if find_named(repository, path) is None) == []


@pytest.mark.parametrize("page", GUIDES)
def test_every_function_named_in_a_guide_exists(repository: Path, page: str) -> None:
    named = NAMED_MEMBER.findall((repository / page).read_text("utf-8"))
    assert named
    missing = []
    for path, member in named:
        file = find_named(repository, path)
        if file is None or member not in members_of(file.read_text("utf-8")):
            missing.append(f"{path} {member}")
    assert missing == []


def members_of(source: str) -> set[str]:
    """Classes, functions and constants of a module, and `Class.member` of its classes."""
    found = set()
    for node in ast.parse(source).body:
        names = names_bound_by(node)
        found |= names
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for each in node.body for name in names_bound_by(each)}
    return found


def names_bound_by(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def test_the_drawn_steps_match_the_tables(repository: Path) -> None:
    """If this fails: `python docs/draw_steps.py`."""
    spec = importlib.util.spec_from_file_location("draw_steps", repository / "docs" / "draw_steps.py")
    assert spec is not None
    assert spec.loader is not None
    draw_steps = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw_steps)
    drawn = draw_steps.drawings((repository / "docs" / "architecture.md").read_text("utf-8"))
    assert len(drawn) == 2
    assert [name for name, text in drawn.items() if (repository / "docs" / name).read_text("utf-8") != text] == []


def test_every_link_between_pages_has_a_target(repository: Path) -> None:
    """Relative links of every Markdown page, with the heading they name."""
    tracked = [*repository.glob("*.md"), *(page for folder in PAGES for page in (repository / folder).rglob("*.md"))]
    broken = []
    for page in tracked:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
            path, _, anchor = link.partition("#")
            target = page if not path else page.parent / path
            if ":" in link or (target.exists() and (not anchor or anchor in anchors_of(target))):
                continue
            broken.append(f"{page.relative_to(repository)}: {link}")
    assert broken == []


PAGES = ("docs", "bench", "containers", "deploy")


def anchors_of(page: Path) -> set[str]:
    """The names by which GitHub and GitLab link to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
