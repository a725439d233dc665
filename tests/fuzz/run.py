"""Fuzz one target with atheris: `python tests/fuzz/run.py NAME [--seconds N] [--runs N]`; `--list` names them all.

The kept corpus is where it starts. What it finds on the way that reaches new code goes to a scratch directory, and an
input that breaks a rule is written to `tests/fuzz/found/`: mend the parser, and move it into the corpus.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import harness


def main() -> None:
    """Fuzz in a child, because the fuzzer ends its process without cleaning up; exits with 0 if nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=harness.names())
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int, default=-1)
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    if given.list or given.name is None:
        print("\n".join(harness.names()))
        return
    with tempfile.TemporaryDirectory(prefix="belljar-fuzz-") as scratch:
        child = os.fork()
        if child == 0:
            _fuzz(given, Path(scratch))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(status if status >= 0 else 128 - status)


def _fuzz(given: argparse.Namespace, scratch: Path) -> None:
    """Never returns."""
    import atheris

    harness.import_path()
    from belljar.jail import syscalls

    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    warnings.simplefilter("error")
    with atheris.instrument_imports(include=["belljar", "fuzz_target"], enable_loader_override=False):
        target = harness.load(given.name)
    found = harness.HERE / "found"
    found.mkdir(exist_ok=True)
    (scratch / "corpus").mkdir()
    options = [
        f"-max_total_time={given.seconds}",
        f"-runs={given.runs}",
        f"-seed={given.seed}",
        f"-max_len={harness.BYTES_MAX}",
        f"-artifact_prefix={found}/{given.name}-",
        "-timeout=20",
        "-rss_limit_mb=1024",
        "-print_final_stats=1",
    ]
    if target.tokens:
        words = scratch / "words"
        words.write_text("".join(f'"{_escape(each)}"\n' for each in target.tokens))
        options.append(f"-dict={words}")
    directories = [f"{scratch}/corpus", str(harness.HERE / "corpus" / given.name)]
    atheris.Setup([sys.argv[0], *options, *directories], target.check)
    atheris.Fuzz()


def _escape(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


if __name__ == "__main__":
    main()
