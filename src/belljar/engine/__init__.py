"""From request to answer: check it, wait for a slot, run it in a sandbox, judge the result. No Linux, no HTTP."""
