#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A rendezvous server for your jobs on the login node:   scripts/slurm/rendezvous.sh start    and later   stop
# It prints the value of RENDEZVOUS for grow.sbatch. If it is killed, start it again: the jobs come back to it.
# Its pid and its output are in RENDEZVOUS_DIR (~/.cddp-rendezvous), its ports are PORT (29400) and JOB_PORTS (any).
# A file token there, if there is one, holds the auth token; jobs need it, too (CDDP_AUTH_TOKEN_FILE).
directory=${RENDEZVOUS_DIR:-$HOME/.cddp-rendezvous}
port=${PORT:-29400}
server=${CDDP_RENDEZVOUS:-$(command -v cddp-rendezvous || echo "$PWD/build/rendezvous/cddp-rendezvous")}
pid=$directory/pid

# The process of the file `pid`, if it is still the server: the number may belong to another process by now.
running() {
    [ -s "$pid" ] && [[ $(readlink "/proc/$(cat "$pid")/exe") = */cddp-rendezvous* ]]
}

case ${1:-} in
start)
    umask 077
    mkdir -p "$directory" || exit
    if running; then
        echo "rendezvous.sh: it is running already (pid $(cat "$pid"))" >&2
        exit 1
    fi
    flags=(--port="$port" ${JOB_PORTS:+--job_ports="$JOB_PORTS"})
    [ ! -e "$directory/token" ] || flags+=(--auth_token_file="$directory/token")
    : >"$directory/log"
    setsid "$server" "${flags[@]}" >>"$directory/log" 2>&1 </dev/null &
    echo $! >"$pid"
    for ((tries = 0; tries < 100; tries++)); do
        if grep -q '^listening ' "$directory/log"; then
            echo "RENDEZVOUS=$(hostname):$port"
            exit 0
        fi
        kill -0 "$(cat "$pid")" 2>/dev/null || break
        sleep 0.1
    done
    cat "$directory/log" >&2
    exit 1
    ;;
stop)
    if ! running; then
        echo "rendezvous.sh: it is not running" >&2
        exit 1
    fi
    kill "$(cat "$pid")"
    echo "rendezvous.sh: it ends after the last job; $directory/log has its output"
    ;;
*)
    echo "usage: rendezvous.sh start|stop" >&2
    exit 2
    ;;
esac
