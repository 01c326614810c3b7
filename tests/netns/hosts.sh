#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Several hosts on one machine, for the time of one command: each is a network namespace with its own address,
# joined to the others by a bridge in one more. Nothing is added to the machine's own network; files and processes are
# shared. Everything in the hosts is killed and the hosts are removed when the command ends, whichever way it ends.
set -euo pipefail

usage()
{
    cat <<'END'
usage: hosts.sh up N COMMAND...   make hosts 1..N at 10.99.0.1 .. 10.99.0.N, run COMMAND (with NETNS_HOSTS in its
                                  environment, by which the commands below know the hosts), remove them
       hosts.sh exec I COMMAND... run COMMAND on host I, whose hostname is hostI
       hosts.sh cut I             its packets vanish from now on; its link stays up
       hosts.sh mute I            what it sends vanishes from now on, and it still hears the others
       hosts.sh part I J          what I sends to J vanishes from now on; all else passes
       hosts.sh heal I            undo all three
       hosts.sh kill I            SIGKILL everything on host I
       hosts.sh check             exit 0 if hosts can be made here, else 77 and the reason
END
}

die()
{
    echo "hosts.sh: $*" >&2
    exit 1
}

skip()
{
    echo "$*"
    exit 77
}

check()
{
    [ "$(id -u)" = 0 ] || skip "network namespaces need root"
    command -v ip >/dev/null || skip "there is no ip (package iproute2)"
    local why name=cddp-check-$$
    why=$(ip netns add "$name" 2>&1) || skip "this kernel or container has no network namespaces: $why"
    why=$({ ip -n "$name" link add br0 type bridge && ip -n "$name" link add veth1 type veth peer name veth2; } 2>&1) ||
        { ip netns del "$name" && skip "this kernel or container lacks bridges or veth: $why"; }
    ip netns del "$name"
}

# end NAME...: kill all in these namespaces, and remove them.
end()
{
    local name pids
    for name; do
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            pids=$(ip netns pids "$name" 2>/dev/null) || break
            [ -n "$pids" ] || break
            # shellcheck disable=SC2086 # one word per pid
            kill -KILL $pids 2>/dev/null || true
            sleep 0.05
        done
        ip netns del "$name" 2>/dev/null || true
    done
}

# Hosts whose maker was itself killed.
end_orphans()
{
    local name pid
    for name in $(ip netns list 2>/dev/null | awk '$1 ~ /^cddp-[0-9]+-/ { print $1 }'); do
        pid=${name#cddp-}
        [ -d "/proc/${pid%%-*}" ] || end "$name"
    done
}

up()
{
    local n=$1 i rc=0
    shift
    check
    end_orphans
    export NETNS_HOSTS=cddp-$$
    names=("$NETNS_HOSTS-net")
    for ((i = 1; i <= n; i++)); do names+=("$NETNS_HOSTS-$i"); done
    trap 'end "${names[@]}"' EXIT
    trap 'exit 143' TERM INT HUP
    ip netns add "$NETNS_HOSTS-net"
    ip -n "$NETNS_HOSTS-net" link add br0 type bridge
    ip -n "$NETNS_HOSTS-net" link set br0 up
    for ((i = 1; i <= n; i++)); do
        ip netns add "$NETNS_HOSTS-$i"
        ip -n "$NETNS_HOSTS-net" link add "port$i" type veth peer name eth0 netns "$NETNS_HOSTS-$i"
        ip -n "$NETNS_HOSTS-net" link set "port$i" master br0 up
        ip -n "$NETNS_HOSTS-$i" addr add "10.99.0.$i/24" dev eth0
        ip -n "$NETNS_HOSTS-$i" link set eth0 up
        ip -n "$NETNS_HOSTS-$i" link set lo up
    done
    "$@" &
    wait $! || rc=$?
    exit $rc
}

# lose I J: sends it to an address on the wire that nobody has
lose()
{
    ip -n "$NETNS_HOSTS-$1" neigh replace "10.99.0.$2" lladdr 02:00:00:00:00:fe dev eth0 nud permanent
}

[ $# -gt 0 ] || { usage >&2 && exit 2; }
command=$1
shift
case $command in
up) up "$@" ;;
check) check ;;
-h | --help) usage ;;
exec | cut | mute | part | heal | kill)
    [ -n "${NETNS_HOSTS:-}" ] || die "$command: only inside 'hosts.sh up'"
    [ -e "/run/netns/$NETNS_HOSTS-${1:-}" ] || die "$command: no host '${1:-}'"
    case $command in
    exec)
        # shellcheck disable=SC2016 # the inner shell expands these
        exec ip netns exec "$NETNS_HOSTS-$1" unshare --uts sh -c 'hostname "host$0" && exec "$@"' "$@"
        ;;
    cut) ip -n "$NETNS_HOSTS-net" link set "port$1" nomaster ;; # outside the bridge it still has its carrier
    mute)
        for name in "/run/netns/$NETNS_HOSTS"-[0-9]*; do
            lose "$1" "${name##*-}"
        done
        ;;
    part)
        [ -e "/run/netns/$NETNS_HOSTS-${2:-}" ] || die "part: no host '${2:-}'"
        lose "$1" "$2"
        ;;
    heal)
        ip -n "$NETNS_HOSTS-net" link set "port$1" master br0
        ip -n "$NETNS_HOSTS-$1" neigh flush dev eth0 nud permanent
        ;;
    kill)
        pids=$(ip netns pids "$NETNS_HOSTS-$1")
        # shellcheck disable=SC2086 # one word per pid
        [ -z "$pids" ] || kill -KILL $pids
        ;;
    esac
    ;;
*) usage >&2 && exit 2 ;;
esac
