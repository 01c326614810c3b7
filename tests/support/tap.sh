#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a Criterion program for Meson: TAP on stdout and, if a test fails, all that the tests wrote on stderr.
# With --tap alone, Criterion sends the tests' own output to /dev/null. A file takes it, since a process that a test
# has started and not ended must not keep Meson's pipe open.
exec 3>&1
words=$(mktemp) || exit 1
trap 'rm -f "$words"' EXIT
program=$1
shift
"$program" --tap=/dev/fd/3 "$@" >"$words" 2>&1 3>&3
status=$?
[ "$status" -eq 0 ] || cat "$words" >&2
exit "$status"
