# SPDX-License-Identifier: Apache-2.0
"""Agents of one job that are only a thread of the test: they join, send heartbeats, and answer ASK with planted ranks."""
import json
import os
import select
import socket
import struct
import threading
import time

HELLO, CHALLENGE, PROOF, READY = 1000, 1001, 1002, 1003
JOIN, HEARTBEAT, ASSIGN = 1, 6, 103
REPORT, ASK = 500, 600


def frame(kind, payload):
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return struct.pack('<IHH', len(data), kind, 0) + data


class Agent:
    def __init__(self, port, run_id, node_rank, nnodes, nproc):
        self.node_rank, self.data, self.assign = node_rank, b'', None
        self.socket = socket.create_connection(('127.0.0.1', port), 10)
        name = run_id.encode()
        self.socket.sendall(b'CDDP\x01\r\n\0' + frame(HELLO, struct.pack('<BI', 1, 0) + os.urandom(32) + struct.pack('<H', len(name)) + name))
        assert self.next()[0] == CHALLENGE
        self.socket.sendall(frame(PROOF, bytes(32)))
        assert self.next()[0] == READY
        self.socket.sendall(frame(JOIN, {
            'version': 1, 'release': '0.1.0', 'run_id': run_id, 'host': f'node{node_rank}', 'pid': 100 + node_rank, 'node_rank': node_rank,
            'n_procs': nproc, 'min_nodes': nnodes, 'max_nodes': nnodes, 'spares': 0, 'max_restarts': 0, 'topology': '', 'join_timeout_ms': -1,
            'last_call_ms': -1, 'close_timeout_ms': -1, 'lease_ms': -1, 'session': '', 'round': -1, 'nonce': os.urandom(16).hex(),
            'restart_count': 0}))

    def frames(self):
        """The complete frames that have been received."""
        while len(self.data) >= 8 and len(self.data) >= 8 + struct.unpack('<I', self.data[:4])[0]:
            size, kind, _ = struct.unpack('<IHH', self.data[:8])
            payload, self.data = self.data[8:8 + size], self.data[8 + size:]
            yield kind, payload

    def next(self):
        while True:
            for one in self.frames():
                return one
            more = self.socket.recv(65536)
            assert more, 'the rendezvous has closed the connection'
            self.data += more


class FakeAgents:
    """nnodes agents with nproc ranks each; ranks_of(node_rank) returns their reports, or None for a node that is silent."""

    def __init__(self, port, run_id, nnodes, nproc, ranks_of):
        self.ranks_of, self.asks, self.briefs, self.stopped = ranks_of, 0, 0, False
        self.agents = [Agent(port, run_id, i, nnodes, nproc) for i in range(nnodes)]
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def __enter__(self):
        for agent in self.agents:
            while agent.assign is None:
                kind, payload = agent.next()
                if kind == ASSIGN:
                    agent.assign = json.loads(payload)
        self.thread.start()
        return self

    def __exit__(self, *why):
        self.stopped = True
        self.thread.join()
        for agent in self.agents:
            agent.socket.close()

    def answer(self, agent, ask):
        ranks = self.ranks_of(agent.node_rank)
        self.asks += not ask.get('brief')
        self.briefs += bool(ask.get('brief'))
        if ranks is not None:
            agent.socket.sendall(frame(REPORT, {'round': agent.assign['round'], 'asked': ask['id'], 'node_rank': agent.node_rank,
                                                'host': f'node{agent.node_rank}', 'ranks': ranks}))

    def serve(self):
        by_fd = {agent.socket.fileno(): agent for agent in self.agents}
        poll, beat = select.poll(), 0
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        while not self.stopped:
            if time.monotonic() > beat + 1:
                beat = time.monotonic()
                for agent in self.agents:
                    agent.socket.sendall(frame(HEARTBEAT, {'seq': int(beat)}))
            for fd, _ in poll.poll(50):
                agent = by_fd[fd]
                more = agent.socket.recv(65536)
                if not more:
                    return
                agent.data += more
                for kind, payload in agent.frames():
                    if kind == ASK:
                        self.answer(agent, json.loads(payload))
