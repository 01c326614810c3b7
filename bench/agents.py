#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many agents and one cddp-rendezvous on one machine: `cddprun --nnodes=N` N times, one rank of /bin/true each.

Measures the time from the first start until the last agent has ended, and of the daemon the processor time and the peak
of its memory. An agent that does not exit with status 0 counts as failed, and its messages are shown: the benchmark then
fails, too.
"""
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import common
import fair

SIZES = [25, 50, 100, 200, 400, 800, 1600]
LIMIT_S = 240
PER_AGENT = 4  # processes: agent, guard, shim or worker, and one that is ending


def room_for(n):
    """'' or the limit of this machine that n agents would exceed."""
    with open('/proc/sys/kernel/pid_max', encoding='ascii') as file:
        pids = int(file.read())
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if most != resource.RLIM_INFINITY:
        pids = min(pids, most)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if n * PER_AGENT > pids * 0.9:
        return f'{n} agents need {n * PER_AGENT} processes, and the limit is {pids} (kernel.pid_max, ulimit -u)'
    return f'{n} agents need {n + 64} open files, and the limit is {files} (ulimit -n)' if n + 64 > files else ''


class Daemon:
    """cddp-rendezvous on a free port, ended with the block."""

    def __init__(self, build):
        path = os.path.join(build, 'rendezvous', 'cddp-rendezvous')
        self.process = subprocess.Popen([path, '--bind=127.0.0.1', '--port=0'], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)

    def __enter__(self):
        line = self.process.stdout.readline()
        if not line.startswith('listening '):
            sys.exit(f'cddp-rendezvous did not start: {line!r}')
        self.port = int(line.rsplit(':', 1)[1])
        self.before = fair.read_all([self.process.pid])
        return self

    def __exit__(self, *why):
        fair.side('cddp-rendezvous').told(1, self.before, fair.read_all([self.process.pid]))
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def cpu_s(self):
        """The kernel's own sum in ns; it does not round to a tick of 10 ms."""
        with open(f'/proc/{self.process.pid}/schedstat', encoding='ascii') as file:
            return int(file.read().split()[0]) / 1e9

    def peak_kib(self):
        with open(f'/proc/{self.process.pid}/status', encoding='ascii') as file:
            return next(int(line.split()[1]) for line in file if line.startswith('VmHWM:'))


def run(args, n):
    """One job of n agents: its figures, and the messages of agents that failed."""
    load = os.getloadavg()[0]
    env = {name: value for name, value in os.environ.items() if not name.startswith(('PET_', 'CDDP_', 'TORCHELASTIC_', 'SLURM_'))}
    with Daemon(args.build) as daemon, tempfile.TemporaryFile() as messages:
        command = [common.cddprun(args.build), f'--nnodes={n}', '--rdzv_backend=c10d', '--rdzv_id=agents',
                   f'--rdzv_endpoint=127.0.0.1:{daemon.port}', '/bin/true']
        streams = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                   (os.POSIX_SPAWN_DUP2, messages.fileno(), 2)]
        began = time.monotonic()
        left = {os.posix_spawn(command[0], command, env, file_actions=streams) for _ in range(n)}
        spawned = time.monotonic() - began
        failed, end = 0, began + LIMIT_S
        try:
            while left:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid in left:
                    left.remove(pid)
                    failed += status != 0
                elif pid == 0:
                    if time.monotonic() > end:
                        break
                    time.sleep(0.002)
        finally:
            for pid in left:
                os.kill(pid, 9)
            for pid in left:
                os.waitpid(pid, 0)
        took = time.monotonic() - began
        figures = {'s': took, 'spawning_s': spawned, 'daemon_cpu_s': daemon.cpu_s(), 'daemon_peak_kib': daemon.peak_kib(),
                   'failed': failed, 'unfinished': len(left), 'load': load}
        messages.seek(0)
        return figures, messages.read(1 << 20).decode(errors='replace')


def main():
    parser = common.parser(__doc__.splitlines()[0])
    parser.add_argument('--nodes', type=int, nargs='+', default=SIZES)
    args = parser.parse_args()
    args.build = os.path.abspath(args.build)
    result, bad = {'machine': common.machine(args), 'rounds': args.rounds, 'nodes': {}}, 0
    print(f'{"nodes":>6}{"started and ended":>30}{"of it spawning":>16}{"CPU of the daemon":>20}{"its peak":>12}{"failed":>8}{"load":>7}')
    for n in args.nodes:
        why = room_for(n)
        if why:
            print(f'{n:6} skipped: {why}')
            continue
        runs = []
        for _ in range(args.rounds):
            figures, messages = run(args, n)
            runs.append(figures)
            if figures['failed'] or figures['unfinished']:
                lines = messages.splitlines()
                print('\n'.join(sorted(set(lines))[:40]), f'\n({len(lines)} lines)', flush=True)
        result['nodes'][n] = runs
        took = [one['s'] for one in runs]
        wrong = sum(one['failed'] + one['unfinished'] for one in runs)
        bad += wrong
        print(f'{n:6}{f"{statistics.median(took):.2f} s ({min(took):.2f} to {max(took):.2f})":>30}'
              f'{statistics.median(one["spawning_s"] for one in runs):14.2f} s{1e3 * statistics.median(one["daemon_cpu_s"] for one in runs):17.0f} ms'
              f'{max(one["daemon_peak_kib"] for one in runs) / 1024:8.1f} MiB{wrong:8}{max(one["load"] for one in runs):7.1f}', flush=True)
    if bad:
        sys.exit(f'{bad} agents failed; nothing is written')
    common.write(args, 'agents', result)


if __name__ == '__main__':
    main()
