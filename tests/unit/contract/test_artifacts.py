"""Globs match as a shell user expects, and no combination of glob and path can block the server."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belljar.contract.artifacts import STEPS_MAX, Matcher, TooManySteps, select

PATHS = [
    "a.png",
    "b.csv",
    "Makefile",
    ".hidden",
    ".cache/x",
    "out/a.png",
    "out/deep/b.png",
    "out/deep/er/c.txt",
    "out/.secret/d",
    "out/.e",
    "output",
    "x1.log",
    "x12.log",
]


@pytest.mark.parametrize(
    ("glob", "matched"),
    [
        pytest.param("*.png", ["a.png"], id="star_stays_in_its_directory"),
        pytest.param("**/*.png", ["a.png", "out/a.png", "out/deep/b.png"], id="double_star_goes_everywhere"),
        pytest.param("out/**", ["out/a.png", "out/deep/b.png", "out/deep/er/c.txt"], id="everything_beneath"),
        pytest.param("out/", ["out/a.png", "out/deep/b.png", "out/deep/er/c.txt"], id="a_directory"),
        pytest.param("out/**/*.txt", ["out/deep/er/c.txt"], id="double_star_in_the_middle"),
        pytest.param("out/**/a.png", ["out/a.png"], id="double_star_matches_no_directory_too"),
        pytest.param("**/deep/**", ["out/deep/b.png", "out/deep/er/c.txt"], id="two_double_stars"),
        pytest.param("**/**/c.txt", ["out/deep/er/c.txt"], id="repeated_double_star"),
        pytest.param("out/*/*", ["out/deep/b.png"], id="fixed_depth"),
        pytest.param("x?.log", ["x1.log"], id="one_character"),
        pytest.param("x[0-9][0-9].log", ["x12.log"], id="sets"),
        pytest.param("[!a-z]*", ["Makefile"], id="negated_set"),
        pytest.param("[^a-z]*", ["Makefile"], id="negated_set_in_the_other_spelling"),
        pytest.param("*", ["a.png", "b.csv", "Makefile", "output", "x1.log", "x12.log"], id="star_leaves_dots_out"),
        pytest.param(".*", [".hidden"], id="a_written_dot"),
        pytest.param(".cache/**", [".cache/x"], id="a_written_dotted_directory"),
        pytest.param("out/.*", ["out/.e"], id="a_written_dot_below"),
        pytest.param("out/.*/*", ["out/.secret/d"], id="a_dotted_directory_below"),
        pytest.param("./a.png", ["a.png"], id="leading_dot_slash"),
        pytest.param("out//a.png", ["out/a.png"], id="double_slash"),
        pytest.param("out", [], id="a_directory_is_not_a_file"),
        pytest.param("A.PNG", [], id="case_counts"),
        pytest.param("*a*", ["a.png", "Makefile"], id="two_stars"),
        pytest.param("o***t", ["output"], id="many_stars_are_one"),
        pytest.param("a.png*", ["a.png"], id="star_may_match_nothing"),
    ],
)
def test_glob_matches(glob: str, matched: list[str]) -> None:
    assert select(PATHS, [glob]) == matched


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        pytest.param("[", "[", True, id="unclosed_set_is_a_bracket"),
        pytest.param("a[]]", "a]", True, id="closing_bracket_first_is_a_member"),
        pytest.param("a[!]]", "ab", True, id="all_but_a_closing_bracket"),
        pytest.param("a[*]", "a*", True, id="a_star_in_a_set_is_a_star"),
        pytest.param("a[*]", "ab", False, id="and_nothing_else"),
        pytest.param("[z-a]", "m", False, id="backward_range_is_empty"),
        pytest.param("[!z-a]", "m", True, id="negated_backward_range_is_anything"),
        pytest.param("[a-]", "-", True, id="dash_at_the_end_is_a_dash"),
        pytest.param("a[+-9]b", "a/b", False, id="a_range_over_the_slash_does_not_match_it"),
        pytest.param("a[!x]b", "a/b", False, id="a_negated_set_does_not_match_a_slash"),
        pytest.param("a?b", "a/b", False, id="a_question_mark_does_not_match_a_slash"),
        pytest.param("?x", ".x", False, id="a_question_mark_does_not_match_a_leading_dot"),
        pytest.param("[.]x", ".x", False, id="a_set_does_not_match_a_leading_dot"),
        pytest.param("a.b", "axb", False, id="a_dot_is_a_dot"),
        pytest.param("a+(b)|^$", "a+(b)|^$", True, id="no_character_of_expressions_is_special"),
        pytest.param("*.txt", "line\nbreak.txt", True, id="a_newline_is_a_character"),
        pytest.param("*.txt", "a.txt\n", False, id="also_at_the_end"),
        pytest.param("ä*", "äö", True, id="unicode"),
        pytest.param("a*a", "a", False, id="parts_do_not_overlap"),
        pytest.param("*ab*ab", "ab", False, id="nor_around_two_stars"),
        pytest.param("**/a/**/a/b", "a/a/b", True, id="nor_do_directories"),
        pytest.param("**/a/**/a/b", "a/b", False, id="or_else_it_is_no_match"),
    ],
)
def test_glob_edge_cases(glob: str, path: str, matches: bool) -> None:
    assert bool(select([path], [glob])) is matches


def test_no_globs_select_nothing() -> None:
    assert select(PATHS, []) == []


def test_a_path_is_selected_once_however_many_globs_match() -> None:
    assert select(PATHS, ["a*", "*.png", "**"])[0] == "a.png"
    assert select(["a.png"], ["a*", "*.png", "**"]) == ["a.png"]


def matches_slowly(glob: list[str], path: list[str]) -> bool:
    """A naive definition of matching: lists of names, then of characters."""
    if not glob:
        return not path
    if glob[0] == "**":
        if len(glob) == 1:
            return bool(path) and not any(name.startswith(".") for name in path)
        skips = bool(path) and not path[0].startswith(".") and matches_slowly(glob, path[1:])
        return matches_slowly(glob[1:], path) or skips
    return bool(path) and name_matches_slowly(glob[0], path[0]) and matches_slowly(glob[1:], path[1:])


def name_matches_slowly(glob: str, name: str) -> bool:
    if name.startswith(".") and not glob.startswith("."):
        return False
    return characters_match_slowly(glob, name)


def characters_match_slowly(glob: str, name: str) -> bool:
    if not glob:
        return not name
    if glob[0] == "*":
        return characters_match_slowly(glob[1:], name) or (bool(name) and characters_match_slowly(glob, name[1:]))
    return bool(name) and glob[0] in ("?", name[0]) and characters_match_slowly(glob[1:], name[1:])


NAMES = st.text("ab.", min_size=1, max_size=5).filter(lambda name: name not in (".", ".."))
GLOB_NAMES = st.one_of(st.just("**"), st.text("ab.*?", min_size=1, max_size=5)).filter(
    lambda name: name not in (".", "..")
)


@settings(deadline=None)
@given(glob=st.lists(GLOB_NAMES, min_size=1, max_size=5), path=st.lists(NAMES, min_size=1, max_size=6))
def test_matching_agrees_with_its_definition(glob: list[str], path: list[str]) -> None:
    assert bool(select(["/".join(path)], ["/".join(glob)])) == matches_slowly(glob, path)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the first draw builds a table of Unicode
@given(glob=st.text(max_size=40), path=st.text(max_size=40))
def test_any_text_is_a_glob(glob: str, path: str) -> None:
    select([path], [glob])


@pytest.mark.parametrize(
    ("globs", "path"),
    [
        pytest.param(["*a" * 100 + "*b"], "a" * 255, id="stars_between_characters"),
        pytest.param(["*a?" * 60 + "b"], "a" * 255, id="stars_and_question_marks"),
        pytest.param(["**/a/" * 40 + "b"], "a/" * 31 + "a", id="double_stars_between_names"),
        pytest.param(["**/*a*a*a/" * 20 + "b"], "/".join(["a" * 31] * 32), id="both"),
        pytest.param(["*" + "[a-b]" * 50 + "c"], "a" * 255, id="sets_after_a_star"),
        pytest.param([f"**/*a*a*a/**/b{n:02}" for n in range(64)], "/".join(["a" * 31] * 32), id="many_globs"),
    ],
)
def test_any_glob_is_matched_in_bounded_time(globs: list[str], path: str) -> None:
    select([], globs)
    began = time.process_time()
    assert select([path] * 10, globs) == []
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "globs",
    [
        pytest.param([("**/*" + "a" * 22 + f"b{n:02}/**") for n in range(64)], id="long_ends"),
        pytest.param([("**/*" + "a" * 22 + f"b*{n:02}") for n in range(64)], id="long_parts_that_float"),
        pytest.param(["**/*" + "[a-b]" * 48 + f"b*{n}" for n in range(8)], id="sets"),
        pytest.param(["**/*" + "?" * 240 + f"b*{n}" for n in range(8)], id="question_marks"),
        pytest.param(["**/" + "*a" * 120 + f"b*{n}" for n in range(8)], id="stars"),
        pytest.param([f"**/*a/**/*{n}b" for n in range(64)], id="many_directories"),
    ],
)
def test_the_total_work_of_matching_is_bounded(globs: list[str]) -> None:
    """With the maximum number of paths of the maximum length, matching ends, possibly before all are matched."""
    directory = ("a" * 254 + "/") * 3
    matcher = Matcher(globs)
    began = time.process_time()
    with contextlib.suppress(TooManySteps):
        for number in range(50_000):
            assert not matcher.matches(f"{directory}{number:a>254}")
    assert time.process_time() - began < 3  # the naive definition would take minutes


def test_the_budget_suffices_for_honest_globs() -> None:
    paths = [f"node_modules/package{n // 10}/lib/{n}.js" for n in range(50_000)]
    assert select([*paths, "out/plot.png"], ["**/*.png", "*.csv", "out/**", "report/*.html"]) == ["out/plot.png"]


def test_a_used_up_budget_stays_used_up() -> None:
    matcher = Matcher(["*" + "a" * 100 + "*b"])
    with pytest.raises(TooManySteps, match="too much to compare"):
        for _ in range(STEPS_MAX):
            matcher.matches("a" * 255)
    with pytest.raises(TooManySteps):
        matcher.matches("b")


def test_the_order_of_paths_changes_nothing() -> None:
    globs = ["out/**/*.png", "*/deep/**", "**/c.txt"]
    assert set(select(PATHS, globs)) == set(select(PATHS[::-1], globs)) == set(select(sorted(PATHS), globs))
