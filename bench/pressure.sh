#!/usr/bin/env bash
# The load test that users of X-Master's code server know: wrk with a script that sends one small program.
#
#     bench/pressure.sh THREADS CONNECTIONS SECONDS script.lua URL
#     bench/pressure.sh 2 100 10 bench/pressure.lua http://127.0.0.1:30008
#
# A URL without a path means /execute.
set -euo pipefail

if [ $# -ne 5 ]; then
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
command -v wrk >/dev/null || { echo "pressure.sh needs wrk; on Debian and Ubuntu: apt-get install wrk" >&2; exit 2; }
[ -r "$4" ] || { echo "pressure.sh: cannot read the script $4" >&2; exit 2; }

url=$5
[[ $url =~ ^[a-z]+://[^/]+/?$ ]] && url="${url%/}/execute"

exec wrk --threads "$1" --connections "$2" --duration "$3s" --timeout 60s --latency --script "$4" "$url"
