# SPDX-License-Identifier: Apache-2.0
"""A cluster of real etcd members (Debian: etcd-server) on free ports of the loopback, or on hosts of tests/netns, which may
be killed, stopped and cut off."""
import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request

import launch


def program():
    found = shutil.which('etcd')
    if found is None:
        raise launch.Skip('etcd is not installed (Debian: etcd-server)')
    return found


class Member:
    """At this address; `within` is the command that runs others there."""

    def __init__(self, name, folder, scheme, address='127.0.0.1', within=()):
        self.name, self.folder, self.address, self.within = name, folder, address, within
        self.client, self.peer = launch.free_port(), launch.free_port()
        self.url, self.peer_url, self.scheme = f'{scheme}://{address}:{self.client}', f'http://{address}:{self.peer}', scheme
        self.process = None

    def start(self, cluster, state, flags):
        with open(os.path.join(self.folder, f'{self.name}.log'), 'ab') as log:
            self.process = subprocess.Popen(
                [*self.within, program(), '--name', self.name, '--data-dir', os.path.join(self.folder, self.name),
                 '--listen-client-urls', self.url, '--advertise-client-urls', self.url,
                 '--listen-peer-urls', self.peer_url, '--initial-advertise-peer-urls', self.peer_url,
                 '--initial-cluster', cluster, '--initial-cluster-state', state, *flags], stdout=log, stderr=log,
                env={k: v for k, v in os.environ.items() if not k.startswith('ETCD')})

    def kill(self):
        self.process.kill()
        self.process.wait()


class Etcd:
    """Use it in a `with`. Member i is members[i]."""

    def __init__(self, n=3, scheme='http', flags=(), context=None, places=None):
        program()
        self.folder = tempfile.mkdtemp(prefix='cddp-etcd-')
        self.members = [Member(f'm{i}', self.folder, scheme, *place) for i, place in enumerate(places or [()] * n)]
        self.cluster = ','.join(f'{m.name}={m.peer_url}' for m in self.members)
        self.flags, self.context, self.token = list(flags), context, None

    def __enter__(self):
        for member in self.members:
            member.start(self.cluster, 'new', self.flags)
        self.wait()
        return self

    def __exit__(self, *_):
        for member in self.members:
            with contextlib.suppress(ProcessLookupError):
                member.process.send_signal(signal.SIGCONT)
            member.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self):
        return ''.join(open(os.path.join(self.folder, f'{m.name}.log'), encoding='utf-8', errors='replace').read()[-2000:] for m in self.members)

    def wait(self):
        launch.wait_for('etcd to answer', lambda: self.call('/v3/kv/range', {'key': 'AA=='}) is not None, more=self.log)

    def endpoints(self):
        return ','.join(f'{m.address}:{m.client}' for m in self.members)

    def call(self, path, body, member=None):
        for m in self.members if member is None else [member]:
            request = urllib.request.Request(m.url + path, json.dumps(body).encode(), {'Authorization': self.token} if self.token else {})
            with contextlib.suppress(OSError, ValueError):
                with urllib.request.urlopen(request, timeout=2, context=self.context) as answer:
                    return json.loads(answer.read())
        return None

    def leader(self):
        for m in self.members:
            status = self.call('/v3/maintenance/status', {}, m)
            if status is not None and status.get('leader') == status['header']['member_id']:
                return m
        return None

    def put(self, key, value):
        code = lambda text: base64.b64encode(text.encode()).decode()
        assert self.call('/v3/kv/put', {'key': code(key), 'value': code(value)}) is not None

    def keys(self):
        """All keys, with their values."""
        got = self.call('/v3/kv/range', {'key': 'AA==', 'range_end': 'AA=='})
        assert got is not None, self.log()
        return {base64.b64decode(kv['key']).decode(): base64.b64decode(kv.get('value', '')).decode() for kv in got.get('kvs', [])}


class Proxy:
    """Between a node and the members: while it is cut, no byte passes, and nothing says so."""

    def __init__(self, etcd):
        self.ports, self.cut, self.listeners, self.socks = [], threading.Event(), [], []
        self.open = threading.Event()
        self.open.set()
        for member in etcd.members:
            listener = socket.create_server(('127.0.0.1', 0))
            self.listeners.append(listener)
            self.ports.append(listener.getsockname()[1])
            threading.Thread(target=self.accept, args=(listener, member.client), daemon=True).start()

    def endpoints(self):
        return ','.join(f'127.0.0.1:{port}' for port in self.ports)

    def accept(self, listener, port):
        while True:
            try:
                near = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.carry, args=(near, port), daemon=True).start()

    def carry(self, near, port):
        self.open.wait()
        try:
            far = socket.create_connection(('127.0.0.1', port), timeout=5)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        self.socks += [near, far]
        for a, b in (near, far), (far, near):
            threading.Thread(target=self.one_way, args=(a, b), daemon=True).start()

    def one_way(self, a, b):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                self.open.wait()
                b.sendall(data)
        for sock in a, b:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.open.set()
        for sock in self.listeners + self.socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
