# SPDX-License-Identifier: Apache-2.0
"""The store servers that store.py and join.py compare: started, watched, ended."""
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time

import common
import fair

CORES = sorted(os.sched_getaffinity(0))


def for_child(core):
    """What a child process does first: as many files as may be, and one core where there are two."""
    def prepare():
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if len(CORES) > 1:
            os.sched_setaffinity(0, {CORES[core]})
    return prepare


def raise_files(n):
    """Let this process and its children open n files; root may. Returns how many it is."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < n and os.geteuid() == 0:
        try:
            with open('/proc/sys/fs/nr_open', encoding='ascii') as limit:
                if int(limit.read()) < n:
                    with open('/proc/sys/fs/nr_open', 'w', encoding='ascii') as raised:
                        raised.write(str(n))
            resource.setrlimit(resource.RLIMIT_NOFILE, (n, n))
        except (OSError, ValueError) as error:
            print(f'note: no more than {hard} open files: {error}')
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


class Server:
    """A process that prints its port and ends when its standard input does; or one that listens on a given port."""

    def __init__(self, name, protocol, command, env=None, port=None, version=''):
        self.name, self.protocol = name, protocol
        fair.side(name, version).started(command, env or {})
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE if port is None else
                                        subprocess.DEVNULL, text=True, env=env, preexec_fn=for_child(0))
        self.port = port if port is not None else int(self.process.stdout.readline() or 0)
        self.await_answer()
        self.before = fair.read_all([self.process.pid])

    def await_answer(self):
        for _ in range(500):
            if self.process.poll() is not None or self.port == 0:
                sys.exit(f'{self.name} ended at once, with {self.process.wait()}')
            try:
                socket.create_connection(('127.0.0.1', self.port), 1).close()
                return
            except OSError:
                time.sleep(0.02)
        sys.exit(f'{self.name} does not answer on port {self.port}')

    @property
    def pid(self):
        return str(self.process.pid)

    def memory_kib(self):
        with open(f'/proc/{self.pid}/status', encoding='ascii') as status:
            return next(int(line.split()[1]) for line in status if line.startswith('VmRSS'))

    def close(self):
        fair.side(self.name).told(1, self.before, fair.read_all([self.process.pid]))
        self.process.stdin.close()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def ours(args):
    return Server('cddprun', 'c10d', [os.path.join(args.build, 'bench', 'bench_server')])


def bare(args):
    """The least that a server can do: what the kernel and the load cost."""
    return Server('bare', 'c10d', [os.path.join(args.build, 'bench', 'bench_bare_server')])


def torch(args, names_us=0):
    """names_us: how long its look-up of each client's name takes, in microseconds."""
    env = dict(os.environ, TORCH_CPP_LOG_LEVEL='FATAL', OMP_NUM_THREADS='1', NAMES_US=str(names_us),
               LD_PRELOAD=os.path.join(args.build, 'bench', 'libbench_names.so'))
    return Server('PyTorch', 'c10d', [args.torch_python, os.path.join(common.HERE, 'peers', 'torch_store.py')], env,
                  version=f'PyTorch {common.torch_version(args.torch_python)}')


def redis():
    """None: there is no Redis here."""
    program = shutil.which('redis-server')
    if not program:
        return None
    version = subprocess.run([program, '--version'], capture_output=True, text=True, check=True).stdout.split(' v=')[1].split()[0]
    port = common.free_port()
    return Server('Redis', 'resp', [program, '--save', '', '--appendonly', 'no', '--bind', '127.0.0.1', '--port', str(port),
                                    '--daemonize', 'no', '--loglevel', 'warning'], port=port, version=f'Redis {version}')
