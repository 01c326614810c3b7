#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A thousand agents and one rank that is stuck: the real rendezvous server, and agents that this process plays.

    hang_agents.py CDDP_RENDEZVOUS [AGENTS [RANKS]]

All agents report at the same moment that their ranks wait. Checks that node rank 0 gets one message of one screen with the
rank that is behind; prints the server's processor time for it, and the bytes, as a line of JSON.
"""
import json
import os
import re
import selectors
import socket
import struct
import subprocess
import sys
import time

MAGIC = b'CDDP\x01\r\n\0'
HELLO, CHALLENGE, PROOF, READY = 1000, 1001, 1002, 1003
JOIN, ASSIGN = 1, 103
REPORT, ASK, NOTICE = 500, 600, 601
WARNING_MS = 30000
STACK = ''.join(f'  #{i} function_{i}() at train.c:{i}\n' for i in range(100))


def frame(kind, payload):
    return struct.pack('<IHH', len(payload), kind, 0) + payload


class Agent:
    def __init__(self, port, number, n_agents, n_ranks):
        self.number, self.n_agents, self.n_ranks = number, n_agents, n_ranks
        self.node_rank, self.rank_base, self.round, self.notices = None, None, None, []
        self.sock = socket.create_connection(('127.0.0.1', port))
        self.sock.sendall(MAGIC + frame(HELLO, struct.pack('<BI', 1, 0xffffffff) + bytes(32) + struct.pack('<H', 3) + b'job'))
        self.sock.setblocking(False)
        self.bytes, self.sent, self.asks = b'', 0, 0

    def send(self, kind, value):
        payload = value if isinstance(value, bytes) else json.dumps(value, separators=(',', ':')).encode()
        self.sock.setblocking(True)
        self.sock.sendall(frame(kind, payload))
        self.sock.setblocking(False)
        self.sent += len(payload)

    def join(self):
        self.send(JOIN, {'version': 1, 'release': '0.1.0', 'run_id': 'job', 'host': f'node{self.number}', 'pid': 1000 + self.number,
                         'node_rank': self.number, 'n_procs': self.n_ranks, 'min_nodes': self.n_agents, 'max_nodes': self.n_agents,
                         'spares': 0, 'max_restarts': 0, 'topology': '', 'join_timeout_ms': -1, 'last_call_ms': -1,
                         'close_timeout_ms': -1, 'lease_ms': 300000, 'session': '', 'round': -1, 'nonce': f'{self.number:032}',
                         'restart_count': 0, 'hang_warning_ms': WARNING_MS, 'hang_timeout_ms': 600000, 'on_hang': 3})

    def report(self, asked=0, stacks_of=()):
        """Rank 7 of the job is behind."""
        ranks = []
        for rank in range(self.rank_base, self.rank_base + self.n_ranks):
            late = rank == 7
            ranks.append({'rank': rank, 'pid': 5000 + rank, 'place': 'after' if late else 'in', 'op_number': 1, 'op': 'all_reduce',
                          'dtype': 8, 'seq': 811 if late else 812, 'count': 1 << 20, 'step': 39, 'bucket': 3, 'for_ms': WARNING_MS,
                          'names': 'layer1.weight, layer1.bias and 3 more', 'doing': 'sleeping in read of a pipe' if late else
                          f'running, {rank % 100} % of a core', 'cpu_permille': 990, 'resident_bytes': 1 << 30, 'n_steps': 64,
                          'step_us': 100000, 'comm_us': 20000, 'exposed_us': 5000, 'late_us': 4000, 'late_rank': 7, 'late_count': 60})
            if rank in stacks_of:
                ranks[-1]['stack'] = STACK
        self.send(REPORT, {'round': self.round, 'asked': asked, 'node_rank': self.node_rank, 'host': f'node{self.number}', 'ranks': ranks})

    def take(self, kind, payload):
        if kind == CHALLENGE:
            self.send(PROOF, bytes(32))
        elif kind == READY:
            self.join()
        elif kind == ASSIGN:
            assign = json.loads(payload)
            self.node_rank, self.rank_base, self.round = assign['node_rank'], assign['rank_base'], assign['round']
        elif kind == ASK:
            self.asks += 1
            ask = json.loads(payload)
            self.report(ask['id'], ask.get('stacks_of', ()))
        elif kind == NOTICE:
            self.notices.append(json.loads(payload)['text'])

    def receive(self):
        got = self.sock.recv(1 << 20)
        assert got, 'the server has closed the connection'
        self.bytes += got
        while len(self.bytes) >= 8:
            size, kind, _ = struct.unpack('<IHH', self.bytes[:8])
            if len(self.bytes) < 8 + size:
                return
            payload, self.bytes = self.bytes[8:8 + size], self.bytes[8 + size:]
            self.take(kind, payload)


def serve(agents, selector, until, seconds=30):
    deadline = time.monotonic() + seconds
    while not until():
        for key, _ in selector.select(0.05):
            key.data.receive()
        assert time.monotonic() < deadline, 'timed out'


def cpu_s(pid):
    """The kernel counts it in ns."""
    with open(f'/proc/{pid}/schedstat', encoding='ascii') as f:
        return int(f.read().split()[0]) / 1e9


def measure(server, n_agents, n_ranks):
    port = int(re.search(r':(\d+)$', server.stdout.readline()).group(1))
    selector, agents = selectors.DefaultSelector(), []
    for number in range(n_agents):
        agents.append(Agent(port, number, n_agents, n_ranks))
        selector.register(agents[-1].sock, selectors.EVENT_READ, agents[-1])
        serve(agents, selector, lambda: agents[-1].sent > 300)  # a listener's queue is short
    serve(agents, selector, lambda: all(agent.round is not None for agent in agents))
    before = cpu_s(server.pid)
    began = time.monotonic()
    serve(agents, selector, lambda: time.monotonic() - began >= 2)
    calm, before = (cpu_s(server.pid) - before) / 2, cpu_s(server.pid)
    sent = sum(agent.sent for agent in agents)
    began = time.monotonic()
    for agent in agents:
        if agent.node_rank != 7 // n_ranks or n_ranks > 1:
            agent.report()
    serve(agents, selector, lambda: agents[0].notices)
    took, cpu = time.monotonic() - began, cpu_s(server.pid) - before
    text = agents[0].notices[0]
    serve(agents, selector, lambda: time.monotonic() - began >= took + 2)
    assert [len(agent.notices) for agent in agents] == [1] + [0] * (n_agents - 1), 'printed once, by node rank 0'
    lines = text.splitlines()
    assert re.fullmatch(rf'no progress for 3\d s: rank 7 \(pid 5007 on node{7 // n_ranks}\) is behind: after all_reduce #811 '
                        r'\(bucket 3, step 39\), 3\d s ago, sleeping in read of a pipe', lines[0]), lines[0]
    assert len(lines) <= 23 and all(len(line) < 200 for line in lines), text
    assert lines[1].startswith(f'    ranks 0-6, 8-{n_agents * n_ranks - 1} wait in all_reduce #812 of 4.0 MiB'), lines[1]
    assert '#0 function_0()' in text and lines[-1].strip() == '...', text
    return {'agents': n_agents, 'ranks': n_agents * n_ranks, 'lines': len(lines), 'asks': agents[0].asks,
            'server_cpu_ms': round(1000 * cpu, 1), 'server_cpu_ms_per_s_without_trouble': round(1000 * calm, 2),
            'until_printed_ms': round(1000 * took), 'kib_received': (sum(agent.sent for agent in agents) - sent) // 1024, 'text': lines}


def run(rendezvous, n_agents, n_ranks):
    with subprocess.Popen([rendezvous, '--bind=127.0.0.1', '--port=0'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True) as server:
        try:
            return measure(server, n_agents, n_ranks)
        finally:
            server.kill()


if __name__ == '__main__':
    result = run(os.path.abspath(sys.argv[1]), *(int(word) for word in (sys.argv[2:] + ['1000', '1'][len(sys.argv) - 2:])))
    print(json.dumps(result))
