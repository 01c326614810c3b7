#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ports of the tests: no two programs get the same one, and no connection takes one as its local end before a test's
own program listens there. CDDP_PORT_HOLDER is a program that chooses as the tests in C do."""
import collections
import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
import ports

EACH, HOLDERS = 20, 6
SMALL = (18000, 18399)  # all ports that anybody gets below, so that the same one would be met often


def choose(n):
    """In a separate process: prints n ports, and keeps them until its standard input ends."""
    ports.FIRST, ports.LAST = SMALL
    print(*(launch.free_port() for _ in range(n)), sep='\n', flush=True)
    sys.stdin.read()


@contextlib.contextmanager
def holders(commands):
    """The ports that these processes chose at the same time, each a set."""
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(subprocess.Popen(c, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)) for c in commands]
        yield [[int(one.stdout.readline()) for _ in range(EACH)] for one in started]
        for one in started:
            one.stdin.close()
        assert [one.wait(timeout=launch.DEADLINE) for one in started] == [0] * len(started)


def differ(lists):
    twice = [port for port, n in collections.Counter(sum(lists, [])).items() if n > 1]
    assert not twice, f'these ports were chosen twice: {twice}'


def test_programs_in_python_choose_different_ports(_):
    with holders([[sys.executable, __file__, 'choose', str(EACH)]] * HOLDERS) as lists:
        differ(lists)


def test_programs_in_c_choose_different_ports(_):
    with holders([[os.environ['CDDP_PORT_HOLDER'], str(EACH)]] * 40) as lists:
        differ(lists)


def connections(to, stop, locals_, errors):
    """Opens connections and ports that nobody chose, until stop."""
    while not stop.is_set():
        with socket.socket() as s, socket.socket() as any_port:
            any_port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))  # its port is free again at once
            try:
                any_port.bind(('127.0.0.1', 0))
                any_port.listen()
                s.connect(('127.0.0.1', to))
            except OSError as e:
                errors.append(e)
                continue
            locals_.update((s.getsockname()[1], any_port.getsockname()[1]))


def serve(server):
    while True:
        with server.accept()[0] as one, contextlib.suppress(ConnectionError):
            one.recv(1)


def alone():
    """In a separate network namespace, whose ephemeral ports are those that tests choose from."""
    server = socket.create_server(('127.0.0.1', 9000))
    threading.Thread(target=serve, args=(server,), daemon=True).start()
    stop, locals_, errors = threading.Event(), set(), []
    opens = threading.Thread(target=connections, args=(9000, stop, locals_, errors), daemon=True)
    opens.start()
    with holders([[sys.executable, __file__, 'choose', str(EACH)]] * 4) as lists:
        differ(lists)
        chosen = {port for some in lists for port in some}
        locals_.clear()
        launch.wait_for('all other ports', lambda: len(locals_) >= 150, more=lambda: f'{len(locals_)} {errors[-1:]}')
        assert not locals_ & chosen, f'connections took {sorted(locals_ & chosen)}'
        for port in chosen:
            assert not launch.listens(port)
            for address in '127.0.0.1', '':
                socket.create_server((address, port)).close()
    stop.set()
    opens.join()


def test_no_connection_takes_a_chosen_port(_):
    words = ['unshare', '-n', 'sh', '-c', f'ip link set lo up && sysctl -qw net.ipv4.ip_local_port_range="{SMALL[0]} {SMALL[1]}" && exec "$@"', 'sh']
    if subprocess.run([*words, 'true'], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        raise launch.Skip('it needs a separate network namespace')
    done = subprocess.run([*words, sys.executable, __file__, 'alone'], capture_output=True, text=True, timeout=launch.DEADLINE, check=False)
    assert done.returncode == 0, done.stderr


if __name__ == '__main__':
    if sys.argv[1] == 'choose':
        choose(int(sys.argv[2]))
    elif sys.argv[1] == 'alone':
        alone()
    else:
        launch.main()
