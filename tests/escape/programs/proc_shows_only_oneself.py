# Properties 16, 18 and 21: /proc shows only the program's own processes, nothing of the kernel or the host.
# expect: status=ok exit=0 stdout=held

import os

entries = set(os.listdir("/proc"))
assert entries == {"self", "thread-self", str(os.getpid())}, entries
for name in ("kcore", "kallsyms", "keys", "timer_list", "sysrq-trigger", "kmsg", "sys", "sys/kernel/core_pattern", "cpuinfo",
             "meminfo", "version", "mounts/../1", "config.gz", "kpagemap", "kpageflags", "modules", "scsi", "acpi", "fs",
             "irq", "bus", "sched_debug", "vmallocinfo", "slabinfo", "cmdline", "1", "1/environ"):
    assert not os.path.exists(f"/proc/{name}"), name
for line in open("/proc/self/mountinfo"):
    fields = line.split()
    root, place, kind = fields[3], fields[4], fields[fields.index("-") + 1]
    if kind not in ("tmpfs", "proc", "devtmpfs"):  # of the host's files: only what is meant to be seen, at its own place
        assert root == place or place == "/env", line
    assert not place.startswith(("/sys", "/var", "/home", "/run", "/boot")), line
    assert "shared:" not in line and "master:" not in line, line
print("held")
