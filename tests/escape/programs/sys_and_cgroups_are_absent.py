# Property 17: neither sysfs nor any cgroup file exists.
# expect: status=ok exit=0 stdout=held

import os

assert not os.path.exists("/sys"), os.listdir("/sys")
kinds = {line.split(" - ")[1].split()[0] for line in open("/proc/self/mountinfo")}
assert not kinds & {"sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "bpf", "configfs", "fuse"}, kinds
for root in ("/dev", "/proc/self", "/work", "/tmp", "/etc"):
    for folder, _, files in os.walk(root):
        assert not {"cgroup.procs", "release_agent", "notify_on_release", "tasks"} & set(files), folder
print("held")
