"""The doctor's advice about the host, derived from files in /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.frontends.cli.doctor.host import host_rows
from belljar.frontends.cli.doctor.rows import NOTE, OK, Row

SWAPS = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
WEAK = "sys/devices/system/cpu/vulnerabilities"
FINE = {
    "proc/sys/kernel/osrelease": "6.18.4-generic",
    "proc/sys/kernel/core_pattern": "core",
    "proc/sys/kernel/unprivileged_bpf_disabled": "2",
    "proc/sys/kernel/sched_autogroup_enabled": "1",
    "proc/swaps": SWAPS,
    "sys/devices/system/cpu/smt/active": "0",
    f"{WEAK}/meltdown": "Not affected",
    f"{WEAK}/retbleed": "Mitigation: IBRS",
    "sys/kernel/mm/ksm/run": "0",
}


def rows(root: Path, changes: dict[str, str]) -> dict[str, Row]:
    for name, text in {**FINE, **changes}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return {row.name: row for row in host_rows(root)}


def test_a_host_without_faults_has_no_notes(tmp_path: Path) -> None:
    assert {row.state for row in rows(tmp_path, {}).values()} == {OK}


def test_unreadable_facts_are_not_notes(tmp_path: Path) -> None:
    found = {row.name: row for row in host_rows(tmp_path)}
    assert [name for name, row in found.items() if row.state != OK] == ["kernel features"]


@pytest.mark.parametrize(
    ("changes", "name", "seen", "fix"),
    [
        pytest.param(
            {"proc/sys/kernel/core_pattern": "|/usr/share/apport/apport -p%p"},
            *("core dumps", "piped to /usr/share/apport/apport", "core_pattern=core"),
            id="core dumps are piped",
        ),
        pytest.param(
            {"proc/sys/kernel/core_pattern": "@/run/dumps.sock"},
            *("core dumps", "socket /run/dumps.sock", "core_pattern=core"),
            id="core dumps are sent",
        ),
        pytest.param({"sys/devices/system/cpu/smt/active": "1"}, "SMT", "share cores", "nosmt", id="smt"),
        pytest.param(
            {f"{WEAK}/spectre_v2": "Vulnerable, IBPB: disabled", f"{WEAK}/mds": "Mitigation: Clear; SMT vulnerable"},
            *("CPU weaknesses", "mds (Mitigation: Clear; SMT vulnerable); spectre_v2 (Vulnerable", "mitigations=off"),
            id="weaknesses",
        ),
        pytest.param(
            {"proc/swaps": f"{SWAPS}/dev/sda2 partition 1 0 -2"},
            *("swap", "not encrypted: /dev/sda2", "encrypt it"),
            id="swap in the clear",
        ),
        pytest.param(
            {
                "proc/swaps": f"{SWAPS}/dev/dm-0 partition 1 0 -2",
                "sys/block/dm-0/dm/uuid": "CRYPT-PLAIN-swap",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "1",
            },
            *("swap", "encrypted or in memory; not counted for programs", "swapaccount=1"),
            id="swap that is not counted",
        ),
        pytest.param(
            {"proc/swaps": f"{SWAPS}/dev/zram0 partition 1 0 -2", "sys/block/zram0/backing_dev": "/dev/sda3"},
            *("swap", "not encrypted: /dev/zram0", "encrypt it"),
            id="swap in memory with a disk behind it",
        ),
        pytest.param(
            {"proc/sys/kernel/unprivileged_bpf_disabled": "0"},
            *("unprivileged BPF", "every user", "unprivileged_bpf_disabled=2"),
            id="bpf",
        ),
        pytest.param({"sys/kernel/mm/ksm/run": "1"}, "KSM", "merges", "ksm/run", id="ksm"),
        pytest.param(
            {"proc/sys/kernel/osrelease": "6.1.0-18-amd64"},
            *("kernel features", "without branching of sessions (Linux 6.5)", "newer kernel"),
            id="an older kernel",
        ),
    ],
)
def test_each_fault_is_a_note_with_a_remedy(
    tmp_path: Path, changes: dict[str, str], name: str, seen: str, fix: str
) -> None:
    found = rows(tmp_path, changes)
    assert [row.name for row in found.values() if row.state != OK] == [name]
    row = found[name]
    assert row.state == NOTE
    assert seen in row.seen
    assert fix in row.fix
    assert row.meaning


@pytest.mark.parametrize(
    "changes",
    [
        {"proc/swaps": f"{SWAPS}/dev/dm-0 partition 1 0 -2", "sys/block/dm-0/dm/uuid": "CRYPT-LUKS2-x"},
        {"proc/swaps": f"{SWAPS}/dev/zram0 partition 1 0 -2", "sys/block/zram0/backing_dev": "none"},
        {"proc/sys/kernel/core_pattern": "/var/crash/core.%p"},
        {"proc/sys/kernel/osrelease": "7.0-rc1+"},
    ],
    ids=["encrypted swap", "swap in memory", "dumps in files", "a kernel to come"],
)
def test_safe_variants_are_not_notes(tmp_path: Path, changes: dict[str, str]) -> None:
    assert {row.state for row in rows(tmp_path, changes).values()} == {OK}
