"""CPython's own tests, inside the jail and outside: what fails only inside must have an explanation.

The tests come with the guest environment's Python (its `test` package; Debian packs it as libpython3-testsuite). They
know much better than we do what honest programs ask of a kernel. Run this after every change of the seccomp policy.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import belljar
from belljar.environments.store import Environments
from belljar.settings import load

#: Modules of a second or two each, for every test run.
QUICK = """
    test_select test_epoll test_poll test_mmap test_posix test_resource test_fcntl test_time test_shutil test_thread
    test_os test_asyncore test_socketserver
"""
MODULES = f"""{QUICK}
    test_socket test_asyncio test_threading test_subprocess test_signal test_multiprocessing_fork
    test_multiprocessing_forkserver test_multiprocessing_spawn test_selectors test_ssl test_ioctl test_pty test_tty
    test_termios test_getpass test_ftplib test_httplib test_urllib2_localnet test_xmlrpc test_queue
    test_fork1 test_wait3 test_wait4 test_faulthandler test_tempfile test_posixpath
    test_largefile test_eintr test_threadsignals test_cmd_line test_io test_file test_tarfile test_zipfile test_sqlite3
    test_ctypes test_readline test_mailbox test_smtplib test_imaplib test_poplib test_telnetlib test_logging
    test_pathlib test_platform test_venv
"""

#: Tests that must fail in a jail, and why: patterns of their names.
EXPECTED = {
    "test.test_fcntl.*.test_fcntl_64_bit": "F_NOTIFY: jails share directories, and one could watch the others",
    "test.test_socket.*UDPLITE*": "UDP-Lite: a protocol that nothing uses",
    "test.test_socket.*.testInterfaceNameIndex": "asks netlink for the interfaces",
    "test.test_socket.*scopeid_symbolic": "asks netlink for the interfaces",
    "*[Pp]ty*": "there is no terminal",
    "test.test_termios.*": "there is no terminal",
    "test.test_tty.*": "there is no terminal",
    "test.test_readline.*": "there is no terminal",
    "test.test_resource.*.test_fsize_ismax": "the size of a file is limited",
    "test.test_shutil.*.test_chown": "files cannot be given away",
    "test.test_asyncore.*.test_handle_expt": "sends urgent data",
    "test.test_os.*.test_splice*": "splice moves pages between pipes and files",
    "test.test_os.TestInvalidFD.test_tc*": "terminal requests are refused before the descriptor is looked at",
    "test.test_venv.*.test_zippath_from_non_installed_posix": "copies an interpreter whose files are not all in sight",
}

#: Tests that are left out, because they wait forever once they have failed: endings of their names, and why.
LEFT_OUT = {
    "test_ftplib.TestFTPClass.test_abort": "sends urgent data, and its server waits for it",
    "test_ftplib.TestTLS_FTPClassMixin.test_abort": "the same",
}

_PROGRAM = (
    f"""
left_out = {tuple(LEFT_OUT)!r}
"""
    + '''
import io, json, sys, unittest

name, report = sys.argv[1:]
outcomes = {}


def flat(tests):
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        elif not test.id().endswith(left_out):
            yield test


class Result(unittest.TextTestResult):
    def note(self, test, how, error):
        outcomes[str(test.id())] = [how, str(error).strip().splitlines()[-1][-300:] if str(error).strip() else ""]

    def startTest(self, test):
        super().startTest(test)
        outcomes.setdefault(str(test.id()), ["passed", ""])

    def addError(self, test, error):
        super().addError(test, error)
        self.note(test, "failed", repr(error[1]))

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "failed", repr(error[1]))

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.note(test, "failed", repr(error[1]))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped", reason)


def module_of(name):
    """Some installed Pythons lack the files that try each way to start a process, but not the tests themselves."""
    method = name.partition("multiprocessing_")[2]
    if not method:
        return f"test.{name}"
    with open(f"tests_by_{method}.py", "w") as file:
        file.write("from test import _test_multiprocessing\\n")
        file.write(f"_test_multiprocessing.install_tests_in_module_dict(globals(), {method!r})\\n")
    sys.path.insert(0, ".")
    return f"tests_by_{method}"


def main():
    try:
        from test import support

        support.use_resources = ["network", "subprocess"]
        support.verbose = 0
        tests = unittest.defaultTestLoader.loadTestsFromName(module_of(name))
    except (unittest.SkipTest, ImportError) as reason:
        outcomes[name] = ["skipped", str(reason)]
    else:
        tests = unittest.TestSuite(flat(tests))
        unittest.TextTestRunner(io.StringIO(), resultclass=Result, warnings="ignore").run(tests)
    with open(report, "w") as file:
        json.dump(outcomes, file)


if __name__ == "__main__":
    main()
'''
)
_START = f"""
import os, subprocess, sys
with open("/tmp/run_tests.py", "w") as file:
    file.write({_PROGRAM!r})
os.chdir("/tmp")
command = [sys.executable, "/tmp/run_tests.py", sys.argv[1], "/tmp/report.json"]
ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
try:
    sys.stdout.write(open("/tmp/report.json").read())
except OSError:
    sys.exit(f"no report, exit status {{ended.returncode}}: {{ended.stdout[-2000:].decode(errors='replace')}}")
"""
_LIMITS = {"wall_seconds": 280, "cpu_seconds": 250, "memory_mb": 1500, "processes": 200, "disk_mb": 400}

Outcomes = dict[str, list[str]]  # of each test: passed, failed or skipped; and why


def main() -> None:
    """Run the modules, print every failure that only the jail causes, and exit with 1 if one is unexplained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="test modules to run (default: all that this script lists)")
    parser.add_argument("--quick", action="store_true", help="only the quickest modules")
    parser.add_argument("--inside-only", metavar="FILE", help="write the outcomes inside to FILE and compare nothing")
    asked = parser.parse_args()
    modules = asked.modules or (QUICK if asked.quick else MODULES).split()
    if asked.inside_only:
        outcomes = {}
        with belljar.Sandbox() as box:
            for name in modules:
                outcomes[name] = run_inside(box, name)
                Path(asked.inside_only).write_text(json.dumps(outcomes, indent=1))
        return
    unexplained = passed = 0
    with belljar.Sandbox() as box:
        for name in modules:
            inside = run_inside(box, name)
            passed += sum(way == "passed" for way, _ in inside.values())
            print(f"{name}: {summary(inside)}", flush=True)
            for test, error, reason in failures_of_the_jail(name, inside):
                unexplained += not reason
                print(f"    {'explained' if reason else 'UNEXPLAINED'}: {test}: {reason or error}", flush=True)
    if not passed:
        sys.exit("no test has passed: does the environment's Python come with its tests (libpython3-testsuite)?")
    sys.exit(f"{unexplained} failures have no explanation" if unexplained else 0)


def summary(outcomes: Outcomes) -> str:
    """Count the tests by result."""
    ways = [way for way, _ in outcomes.values()]
    return ", ".join(f"{ways.count(way)} {way}" for way in ("passed", "failed", "skipped"))


def run_inside(box: belljar.Sandbox, module: str) -> Outcomes:
    """One module's tests behind all walls; a run that ends without a report counts as one failed test."""
    outcome = box.run(_START, args=[module], limits=_LIMITS)
    if outcome.status != "ok":
        return {module: ["failed", f"{outcome.status}: {outcome.stderr[-2000:]}"]}
    return _parsed(outcome.stdout)


def run_outside(module: str) -> Outcomes:
    """Run the same tests with the same Python outside the jail."""
    settings = load()
    python = Environments(settings.state_dir, settings.environments).require("default").python
    with tempfile.TemporaryDirectory() as directory:
        program, report = Path(directory, "run_tests.py"), Path(directory, "report.json")
        program.write_text(_PROGRAM)
        command = [str(python), str(program), module, str(report)]
        subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=280, check=False)
        return _parsed(report.read_text())


def failures_of_the_jail(module: str, inside: Outcomes) -> Iterator[tuple[str, str, str]]:
    """Each test that fails inside and not outside: its name, its error, and its explanation (or nothing)."""
    failed = [test for test, (way, _) in inside.items() if way == "failed"]
    unexplained = [test for test in failed if not explanation(test)]
    outside = run_outside(module) if unexplained else {}
    for test in failed:
        if explanation(test) or outside.get(test, ["passed"])[0] != "failed":
            yield test, inside[test][1], explanation(test)


def explanation(test: str) -> str:
    """Explain why a test must fail in a jail; empty if there is no reason."""
    return next((why for pattern, why in EXPECTED.items() if fnmatch.fnmatch(test, pattern)), "")


def _parsed(text: str) -> Any:
    return json.loads(text)


if __name__ == "__main__":
    main()
