"""Requests are admitted as intended, or refused with the name of the field and a remedy."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from belljar.contract.errors import (
    BelljarError,
    CallerError,
    InvalidExecution,
    LimitAboveCeiling,
    TooLarge,
    UnknownEnvironment,
    UnknownLanguage,
    UnsafePath,
)
from belljar.contract.execution import MIB, Limits
from belljar.contract.files import File
from belljar.contract.request import ExecutionRequest
from belljar.engine.admission.request import admit
from belljar.settings import RequestSettings, Settings

SETTINGS = Settings(
    request=RequestSettings(
        code_bytes=1000, file_count=3, files_bytes=1000, stdin_bytes=1000, env_bytes=1000, display_count=1
    )
)
SURROGATE = "\ud800"


def test_code_alone_gets_the_defaults() -> None:
    execution = admit(SETTINGS, ExecutionRequest("print(1)"))
    assert execution.code == "print(1)"
    assert execution.language == "python"
    assert (execution.stdin, execution.args, execution.env, execution.files) == (b"", (), {}, ())
    assert execution.limits is SETTINGS.default_limits
    assert execution.environment == "default"


def test_every_requested_value_is_kept() -> None:
    files: dict[str, str | bytes] = {"data/./a.csv": "ä", "b": b"\0\xff"}
    request = ExecutionRequest(
        "print(1)",
        language="Python3",
        stdin="ü",
        args=["-x", ""],
        env={"LD_PRELOAD": "x", "PATH": "", "odd name": "a=b"},
        files=files,
        artifacts=["*.png", "out/**"],
        limits={"cpu_seconds": 3, "output_kb": 1, "disk_mb": 1.5, "processes": 4},
        timeout=2,
        memory_mb=64,
        environment="other-1.0",
    )
    execution = admit(SETTINGS, request, "me")
    assert execution.language == "python"
    assert execution.stdin == "ü".encode()
    assert execution.args == ("-x", "")
    assert execution.env == {"LD_PRELOAD": "x", "PATH": "", "odd name": "a=b"}
    assert execution.files == (File(path="data/a.csv", content="ä".encode()), File(path="b", content=b"\0\xff"))
    assert execution.artifacts == ("*.png", "out/**")
    assert execution.limits == Limits(
        wall_seconds=2.0,
        cpu_seconds=3.0,
        memory_bytes=64 * MIB,
        output_bytes=1024,
        disk_bytes=3 * MIB // 2,
        processes=4,
    )
    assert (execution.environment, execution.caller) == ("other-1.0", "me")


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        pytest.param({"code": ""}, InvalidExecution, "code is blank", id="empty_code"),
        pytest.param({"code": " \n\t\u2003"}, InvalidExecution, "code is blank", id="blank_code"),
        pytest.param({"code": "a\0b"}, InvalidExecution, "NUL character at position 1", id="nul_in_code"),
        pytest.param(
            {"code": f"'{SURROGATE}'"}, InvalidExecution, "code has a lone surrogate (U+D800)", id="surrogate"
        ),
        pytest.param({"code": "#" * 1001}, TooLarge, "code: 1,001 bytes", id="long_code"),
        pytest.param({"code": "#" + "ü" * 500}, TooLarge, "code: 1,001 bytes", id="long_code_in_bytes"),
        pytest.param({"code": b"print()"}, InvalidExecution, "code must be a string, not bytes", id="code_as_bytes"),
        pytest.param({"language": "cobol"}, UnknownLanguage, "choose one of: ", id="unknown_language"),
        pytest.param({"language": 3}, UnknownLanguage, "language 3", id="language_is_no_text"),
        pytest.param({"stdin": SURROGATE}, InvalidExecution, "stdin has a lone surrogate", id="surrogate_in_stdin"),
        pytest.param({"stdin": b"x" * 1001}, TooLarge, "stdin: 1,001 bytes", id="long_stdin"),
        pytest.param({"stdin": 5}, InvalidExecution, "stdin must be a string or bytes, not int", id="stdin_number"),
        pytest.param({"args": "abc"}, InvalidExecution, "args must be a list of strings, not str", id="args_bare_text"),
        pytest.param({"args": [1]}, InvalidExecution, "args[0] must be a string, not int", id="args_number"),
        pytest.param({"args": ["a", SURROGATE]}, InvalidExecution, "args[1] has a lone", id="surrogate_in_args"),
        pytest.param({"args": ["a\0"]}, InvalidExecution, "args[0] has a NUL", id="nul_in_args"),
        pytest.param({"args": ["x" * 1000]}, TooLarge, "args and env together: 1,001", id="long_args"),
        pytest.param({"env": ["A=1"]}, InvalidExecution, "env must be a mapping", id="env_list"),
        pytest.param({"env": {"": "x"}}, InvalidExecution, "env name ''", id="env_name_empty"),
        pytest.param({"env": {"A=B": "x"}}, InvalidExecution, "env name 'A=B'", id="env_name_with_equals"),
        pytest.param({"env": {"A\0": "x"}}, InvalidExecution, "env has a NUL", id="env_name_with_nul"),
        pytest.param({"env": {"A": "x\0"}}, InvalidExecution, "env['A'] has a NUL", id="env_value_with_nul"),
        pytest.param({"env": {"A": 1}}, InvalidExecution, "env['A'] must be a string, not int", id="env_number"),
        pytest.param({"env": {"A": SURROGATE}}, InvalidExecution, "env['A'] has a lone", id="surrogate_in_env"),
        pytest.param(
            {"env": {SURROGATE: "A"}}, InvalidExecution, "a name in env has a lone", id="surrogate_in_env_name"
        ),
        pytest.param({"env": {"BELLJAR_X": "1"}}, InvalidExecution, "reserved", id="env_name_of_ours"),
        pytest.param({"args": ["x" * 600], "env": {"A": "y" * 400}}, TooLarge, "together", id="args_and_env"),
        pytest.param({"files": {"a": 1}}, InvalidExecution, "files['a'] must be a string or bytes", id="file_number"),
        pytest.param({"files": {"a": SURROGATE}}, InvalidExecution, "files['a'] has a lone", id="surrogate_in_file"),
        pytest.param({"files": {SURROGATE: "a"}}, UnsafePath, "not valid Unicode", id="surrogate_in_file_name"),
        pytest.param({"files": {1: "a"}}, InvalidExecution, "a path in files must be a string", id="file_name_number"),
        pytest.param({"files": "abc"}, InvalidExecution, "files must be a mapping", id="files_bare_text"),
        pytest.param({"files": ["a"]}, InvalidExecution, "each of files must be a File", id="files_of_text"),
        pytest.param({"files": {"../a": ""}}, UnsafePath, "..", id="file_outside"),
        pytest.param({"files": {"/a": ""}}, UnsafePath, "relative", id="file_absolute"),
        pytest.param({"files": dict.fromkeys("abcd", "")}, TooLarge, "files: 4 files", id="many_files"),
        pytest.param({"files": {"a": "x" * 600, "b": "y" * 401}}, TooLarge, "files together: 1,001", id="large_files"),
        pytest.param({"files": {"a": "", "./a": ""}}, InvalidExecution, "names 'a' twice", id="file_twice"),
        pytest.param({"files": {"a/b": "", "a": ""}}, InvalidExecution, "files needs 'a'", id="file_and_directory"),
        pytest.param({"files": {"main.py": ""}}, InvalidExecution, "reserved for the program", id="main"),
        pytest.param({"files": {".//main.py": ""}}, InvalidExecution, "reserved for the program", id="main_respelt"),
        pytest.param({"files": {"main.py/x": ""}}, InvalidExecution, "files needs 'main.py'", id="main_directory"),
        pytest.param({"artifacts": "*.png"}, InvalidExecution, "artifacts must be a list", id="glob_bare_text"),
        pytest.param({"artifacts": [1]}, InvalidExecution, "artifacts[0] must be a string", id="glob_number"),
        pytest.param({"artifacts": ["x"] * 65}, TooLarge, "artifacts: 65 patterns", id="many_globs"),
        pytest.param({"artifacts": ["x" * 257]}, TooLarge, "artifacts[0]: 257 characters", id="long_glob"),
        pytest.param({"artifacts": ["x" * 256] * 9}, TooLarge, "artifacts together", id="long_globs"),
        pytest.param(
            {"artifacts": ["/etc/*"]}, InvalidExecution, "artifacts[0] '/etc/*' must be relative", id="glob_abs"
        ),
        pytest.param({"artifacts": ["a", "b/../c"]}, InvalidExecution, "artifacts[1]", id="glob_outside"),
        pytest.param({"artifacts": ["./"]}, InvalidExecution, "names no file", id="glob_empty"),
        pytest.param({"artifacts": [SURROGATE]}, InvalidExecution, "artifacts[0] has a lone", id="surrogate_in_glob"),
        pytest.param({"artifacts": ["a\0"]}, InvalidExecution, "artifacts[0] has a NUL", id="nul_in_glob"),
        pytest.param({"environment": "../x"}, UnknownEnvironment, "'../x'", id="environment_path"),
        pytest.param({"environment": None}, UnknownEnvironment, "None", id="environment_none"),
    ],
)
def test_refused(asked: dict[str, Any], error: type[BelljarError], said: str) -> None:
    with pytest.raises(error) as refused:
        admit(SETTINGS, ExecutionRequest(**{"code": "print(1)", **asked}))
    assert said in str(refused.value)
    assert isinstance(refused.value, CallerError)
    str(refused.value).encode()  # any message must be encodable, because it is sent over a socket


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        pytest.param({"timeout": 301}, LimitAboveCeiling, "timeout is 301, but this server gives at most 300 seconds"),
        pytest.param(
            {"memory_mb": 4097}, LimitAboveCeiling, "memory_mb is 4097, but this server gives at most 4096 MiB"
        ),
        pytest.param({"limits": {"wall_seconds": 300.5}}, LimitAboveCeiling, "limits.wall_seconds is 300.5"),
        pytest.param({"limits": {"output_kb": 16385}}, LimitAboveCeiling, "at most 16384 KiB"),
        pytest.param({"limits": {"processes": 513}}, LimitAboveCeiling, "at most 512 processes"),
        pytest.param({"limits": {"disk_mb": 10**400}}, LimitAboveCeiling, "limits.disk_mb is a number of more than"),
        pytest.param({"limits": {"disk_mb": 1e308}}, LimitAboveCeiling, "limits.disk_mb is 1e+308"),
        pytest.param({"limits": Limits(memory_bytes=2**40)}, LimitAboveCeiling, "limits.memory_bytes is 1099511627776"),
        pytest.param({"timeout": math.inf}, InvalidExecution, "timeout is inf but must be a finite number above 0"),
        pytest.param({"timeout": math.nan}, InvalidExecution, "timeout is nan"),
        pytest.param({"timeout": 0}, InvalidExecution, "timeout is 0"),
        pytest.param({"timeout": -1}, InvalidExecution, "timeout is -1"),
        pytest.param({"timeout": -math.inf}, InvalidExecution, "timeout is -inf"),
        pytest.param({"timeout": True}, InvalidExecution, "timeout must be a number, not bool"),
        pytest.param({"timeout": "10"}, InvalidExecution, "timeout must be a number, not str"),
        pytest.param({"limits": {"wall_seconds": None}}, InvalidExecution, "limits.wall_seconds must be a number"),
        pytest.param({"limits": {"processes": 1.5}}, InvalidExecution, "limits.processes is 1.5 but must be a whole"),
        pytest.param({"limits": {"memory_mb": 1e-9}}, InvalidExecution, "less than a byte"),
        pytest.param(
            {"limits": {"memory_bytes": 1}}, InvalidExecution, "unknown limit 'memory_bytes'; choose from wall_"
        ),
        pytest.param({"limits": {1: 1}}, InvalidExecution, "unknown limit 1"),
        pytest.param({"limits": [1]}, InvalidExecution, "limits must be a mapping of limits to numbers, not list"),
        pytest.param({"limits": {"wall_seconds": 5}, "timeout": 6}, InvalidExecution, "timeout and limits disagree"),
        pytest.param(
            {"limits": Limits(processes=True)}, InvalidExecution, "limits.processes must be a number, not bool"
        ),
    ],
)
def test_limit_refused(asked: dict[str, Any], error: type[BelljarError], said: str) -> None:
    with pytest.raises(error) as refused:
        admit(SETTINGS, ExecutionRequest("print(1)", **asked))
    assert said in str(refused.value)


def test_details_name_a_limit_above_the_ceiling() -> None:
    with pytest.raises(LimitAboveCeiling) as refused:
        admit(SETTINGS, ExecutionRequest("print(1)", limits={"memory_mb": 5000}))
    assert refused.value.details == {"limit": "memory_mb", "ceiling": 4096, "unit": "MiB"}


def test_a_limit_at_the_ceiling_is_accepted() -> None:
    assert admit(SETTINGS, ExecutionRequest("1", memory_mb=4096, timeout=300)).limits.memory_bytes == 4096 * MIB


@pytest.mark.parametrize(
    ("asked", "cpu_seconds"),
    [
        pytest.param({"timeout": 60}, 60.0, id="more_wall_time_brings_cpu_time"),
        pytest.param({"timeout": 1}, 10.0, id="less_takes_none"),
        pytest.param({"timeout": 60, "limits": {"cpu_seconds": 2}}, 2.0, id="unless_asked_for"),
        pytest.param({"timeout": 60, "limits": Limits(cpu_seconds=3)}, 3.0, id="or_part_of_whole_limits"),
        pytest.param({"timeout": 100}, 80.0, id="within_the_ceiling"),
    ],
)
def test_cpu_time_follows_wall_time(asked: dict[str, Any], cpu_seconds: float) -> None:
    ceiling = dataclasses.replace(SETTINGS.ceiling_limits, cpu_seconds=80.0)
    settings = dataclasses.replace(SETTINGS, ceiling_limits=ceiling)
    assert admit(settings, ExecutionRequest("1", **asked)).limits.cpu_seconds == cpu_seconds


def test_the_same_value_twice_is_not_a_conflict() -> None:
    assert admit(SETTINGS, ExecutionRequest("1", timeout=5, limits={"wall_seconds": 5.0})).limits.wall_seconds == 5.0


def test_keywords_narrow_whole_limits() -> None:
    limits = admit(SETTINGS, ExecutionRequest("1", limits=Limits(processes=3), timeout=2, memory_mb=10)).limits
    assert limits == Limits(processes=3, wall_seconds=2.0, memory_bytes=10 * MIB)


def test_text_of_any_script_is_admitted() -> None:
    code = "print('Grüße, 世界 🌍')"
    assert admit(SETTINGS, ExecutionRequest(code)).code == code


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = [
    "code",
    "language",
    "stdin",
    "args",
    "env",
    "files",
    "artifacts",
    "limits",
    "timeout",
    "memory_mb",
    "environment",
]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the first draw builds a table of Unicode
@given(asked=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
@example(asked={"code": "1", "env": {"A": "b"}, "args": None})
def test_any_request_is_admitted_or_refused_with_a_reason(asked: dict[str, Any]) -> None:
    try:
        execution = admit(SETTINGS, ExecutionRequest(**{"code": "print(1)", **asked}))
    except CallerError as refused:
        refused.message.encode()
    else:
        execution.code.encode()
        assert 0 < execution.limits.wall_seconds <= SETTINGS.ceiling_limits.wall_seconds
