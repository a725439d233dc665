"""The language description files, and the page that lists the languages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from belljar.contract.errors import InvalidSettings
from belljar.languages import find_name, load_all
from belljar.languages.toolchain import Toolchain, find_by_extension, parse

TWENTY_NINE = (
    *("clj", "cpp", "cs", "dfy", "dlang", "elixir", "fs", "go", "hs", "java", "javascript", "julia", "lean", "lua"),
    *(
        "luau",
        "matlab",
        "ocaml",
        "php",
        "pl",
        "python",
        "racket",
        "r",
        "ruby",
        "rust",
        "scala",
        "sh",
        "swift",
        "ts",
        "v",
    ),
)

MINIMAL = """
name = "toy"
title = "Toy"
extensions = ["toy"]
source = "main.toy"
needs = ["toy"]
[run]
argv = ["toy", "{source}"]
[hello]
source = "hello"
stdout = "hello"
"""


def test_all_languages_are_described() -> None:
    assert {*TWENTY_NINE, "c", "kotlin", "vlang", "sql"} <= set(load_all())


@pytest.mark.parametrize(
    ("word", "name"),
    [
        # MultiPL-E's
        *[(word, word) for word in TWENTY_NINE],
        *[("py", "python"), ("js", "javascript"), ("rs", "rust"), ("rb", "ruby"), ("rkt", "racket"), ("jl", "julia")],
        *[("d", "dlang"), ("ml", "ocaml"), ("m", "matlab"), ("coq", "v")],
        # SandboxFusion's
        *[("nodejs", "javascript"), ("csharp", "cs"), ("bash", "sh"), ("typescript", "ts"), ("R", "r"), ("perl", "pl")],
        *[("D_ut", "dunit"), ("go_test", "gotest"), ("lean", "lean"), ("swift", "swift")],
        # Piston's
        *[("c++", "cpp"), ("node", "javascript"), ("golang", "go"), ("haskell", "hs"), ("clojure", "clj")],
        *[("fsharp", "fs"), ("octave", "matlab"), ("sqlite3", "sql"), ("kt", "kotlin"), ("python3", "python")],
        # common aliases
        *[("C++", "cpp"), ("JavaScript", "javascript"), ("dafny", "dfy"), ("C#", "cs"), ("F#", "fs")],
    ],
)
def test_names_of_other_systems_are_understood(word: str, name: str) -> None:
    assert find_name(word) == name


def test_unknown_names_are_refused() -> None:
    assert find_name("cobol") is None
    assert find_name("") is None


def test_files_are_recognized_by_their_extension() -> None:
    assert [find_by_extension(each) for each in ("cc", "R", "jl", "py", "txt")] == ["cpp", "r", "julia", "python", None]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(("title =", "titel ="), "title is missing", id="misspelt_key"),
        pytest.param(("needs =", "wants = 1\nneeds ="), "unknown key 'wants'", id="unknown_key"),
        pytest.param(('name = "toy"', 'name = "other"'), "name must be 'toy'", id="wrong_name"),
        pytest.param(('source = "main.toy"', "source = 3"), "source must be a str", id="wrong_type"),
        pytest.param(('needs = ["toy"]', "needs = [1]"), "list of strings", id="wrong_member"),
        pytest.param(
            ("[hello]", "[compile]\nargv = []\noutputs = []\nlimits = {memory = 3}\n[hello]"), "limits", id="limits"
        ),
        pytest.param(("[hello]", '[install]\nnpm = ["toy"]\n[hello]'), "must have a version", id="no_version"),
        pytest.param(
            ("[hello]", "[names.x]\npattern = 'x'\ndefault = ''\n[hello]"), "must have a group", id="no_group"
        ),
        pytest.param(('[hello]\nsource = "hello"\nstdout = "hello"', ""), "[hello] is missing", id="no_proof"),
    ],
)
def test_files_are_read_strictly(change: tuple[str, str], said: str) -> None:
    assert parse("toy", MINIMAL).run == ("toy", "{source}")
    with pytest.raises(InvalidSettings, match=re.escape(said)):
        parse("toy", MINIMAL.replace(*change))


@pytest.mark.parametrize(
    ("code", "source", "started"),
    [
        pytest.param("class A { static void main() {} }", "Main.java", "A", id="no_public_class"),
        pytest.param("public class B { public static void main(String[] a) {} }", "B.java", "B", id="public_class"),
        pytest.param(
            "public final class Lib {}\nclass Start { public static void main(String[] a) {} }",
            "Lib.java",
            "Start",
            id="main_elsewhere",
        ),
        pytest.param("package a.b;\npublic record C() { static void main() {} }", "C.java", "a.b.C", id="package"),
        pytest.param("interface X {}", "Main.java", "Main", id="no_main"),
        pytest.param("public class " + "x" * 5000 + " {}", "Main.java", "Main", id="name_too_long_for_a_file"),
    ],
)
def test_a_java_file_is_named_after_its_class(code: str, source: str, started: str) -> None:
    java = load_all()["java"]
    plan = java.plan(code)
    assert plan.source == source
    assert plan.fill(java.run)[-1] == started


def test_names_cannot_be_options_or_paths() -> None:
    for code in ("public class ../../x {}", "public class -version {}", "object ../x extends App", "package ..;"):
        for name in ("java", "scala"):
            plan = load_all()[name].plan(code)
            assert "/" not in plan.source
            assert not plan.fill(("{entry}",))[0].startswith(("-", "."))


def test_input_source_files_are_compiled_too() -> None:
    plan = load_all()["c"].plan("int main;", ("lib/a.c", "a.h", "-evil.c"))
    assert plan.fill(("gcc", "{sources}")) == ["gcc", "main.c", "lib/a.c", "./-evil.c"]


def test_patterns_are_fast_on_hostile_text() -> None:
    """They are matched against programs on the host's event loop."""
    script = """
import time
from belljar.languages import load_all
texts = ["public " * 150_000, "class " * 150_000, "a" * 1_000_000, " " * 1_000_000, "object x" * 100_000,
         "require " * 120_000,
         "package a." + "b." * 400_000, "static void " * 80_000, "\\n" * 1_000_000, "public class " + "x" * 1_000_000,
         "unexpected " * 90_000, "Error: " * 140_000, "\\t" * 1_000_000, "error: error: " * 70_000]
for toolchain in load_all().values():
    for text in texts:
        began = time.process_time()
        toolchain.plan(text)
        if toolchain.check is not None and toolchain.check.pattern is not None:
            toolchain.check.pattern.search(text)
        spent = time.process_time() - began
        assert spent < 2, (toolchain.name, text[:20], spent)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_python_needs_no_description_file() -> None:
    script = """
import sys, json
from belljar.settings import load
from belljar.contract.request import ExecutionRequest
from belljar.engine.admission.request import admit
admit(load(environ={}), ExecutionRequest("print(1)", language="py"))
print(json.dumps(sorted(name for name in sys.modules if name.startswith("belljar.languages"))))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == []


# ---- the page


def _row(toolchain: Toolchain) -> str:
    install = toolchain.install
    ways = [("Debian", (*install.debian, *install.debian_libraries)), ("npm", install.npm), ("PyPI", install.pypi)]
    packages = "; ".join(f"{where}: {', '.join(names)}" for where, names in ways if names)
    steps = "warm process" if not toolchain.run else "compile, run" if toolchain.compile else "one step"
    names = ", ".join(f"`{alias}`" for alias in toolchain.aliases)
    where = packages or ("a guest environment" if toolchain.name == "python" else "upstream only")
    source = toolchain.source.replace("{unit}", "Main")
    return f"| `{toolchain.name}` | {toolchain.title} | {names} | `{source}` | {steps} | {where} |"


def test_the_page_lists_every_language(repository: Path) -> None:
    page = repository / "docs/languages.md"
    text = page.read_text()
    head = "| name | language | also called | file | steps | from |\n|---|---|---|---|---|---|"
    table = "\n".join((head, *map(_row, load_all().values())))
    wanted = re.sub(
        r"(<!-- table:[^\n]*\n).*(<!-- end of table -->)", lambda m: f"{m[1]}{table}\n{m[2]}", text, flags=re.DOTALL
    )
    if os.environ.get("REGENERATE"):
        page.write_text(wanted)
    assert text == wanted or os.environ.get("REGENERATE"), "run with REGENERATE=1, and read the difference"
