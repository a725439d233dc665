# Property 67: signal handlers and mask are those of a new interpreter; no timer runs, no wake-up descriptor is set.
# expect: status=ok exit=0 stdout=held

import signal

ignored_by_python = {signal.SIGPIPE, signal.SIGXFSZ}
for number in sorted(signal.valid_signals()):
    handler = signal.getsignal(number)
    if number == signal.SIGINT:
        assert handler is signal.default_int_handler, handler
    else:
        assert handler == (signal.SIG_IGN if number in ignored_by_python else signal.SIG_DFL), (number, handler)
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
assert signal.sigpending() == set()
assert signal.set_wakeup_fd(-1) == -1
for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
    assert signal.getitimer(which) == (0.0, 0.0)
facts = {name: value.strip() for name, _, value in (line.partition(":") for line in open("/proc/self/status"))}
assert int(facts["SigBlk"], 16) == int(facts["SigPnd"], 16) == int(facts["ShdPnd"], 16) == 0
assert int(facts["SigIgn"], 16) == 1 << 12 | 1 << 24 and int(facts["SigCgt"], 16) == 1 << 1, facts
assert facts["Threads"] == "1"
print("held")
