#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How workers are stopped, on every path: SIGTERM, the grace, SIGKILL; and how a killed one restarts all."""
import contextlib
import os
import re
import signal
import socket
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job

# Says what it hears, takes its time, and leaves. It writes by os.write: a signal may come while print flushes, and then
# print in the handler raises RuntimeError. And it sleeps for short times: of a signal that comes just before a sleep
# begins Python hears after it.
SLOW_TO_LEAVE = '''
import os, signal, sys, time
def leave(number, _):
    os.write(1, b"heard %s\\n" % signal.Signals(number).name.encode())
    time.sleep(0.3)
    os.write(1, b"left in peace\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
os.write(1, b"up %d\\n" % os.getpid())
while True: time.sleep(0.05)
'''
# Rank 0 fails when it can, unless CALM is set; the others do not hear SIGTERM.
DEAF = '''
trap '' TERM
if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then trap - TERM; exit 0; fi
if [ $RANK = 0 ] && [ -z "$CALM" ]; then while [ $(ls "$TMPDIR" | grep -c up_) != 2 ]; do sleep 0.01; done; rm "$TMPDIR"/up_*; exit 9; fi
touch "$TMPDIR/up_$RANK"
while :; do sleep 1; done
'''
GRACE = 0.6


def test_kill_9_gives_others_grace_and_restarts_all(cddprun):
    with Job(cddprun, '--standalone', '--nproc_per_node=8', '--max_restarts=3', sys.executable, '-c', SLOW_TO_LEAVE) as job:
        def up():
            found = {}
            while len(found) < 8:
                match = re.fullmatch(r'\[(\d)\] (up (\d+)|heard SIGTERM|left in peace)\n', job.process.stdout.readline())
                assert match, found
                heard.append((match[1], match[2].split()[0]))
                if match[3]:
                    found[match[1]] = int(match[3])
            return found
        heard = []
        now = up()
        for victim in '5', '0', '7':
            before, heard = now, []
            os.kill(before[victim], signal.SIGKILL)
            now = up()
            for rank in before:
                said = [what for who, what in heard if who == rank]
                assert said == (['up'] if rank == victim else ['heard', 'left', 'up']), (rank, said)
            assert not [pid for pid in before.values() if launch.state(pid) not in (None, 'Z')]
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 143, job.err
        assert job.out.count('left in peace') == 8, job.out


def stopped_within(cddprun, *flags, status, act=None):
    with Job(cddprun, '--standalone', '--nproc_per_node=3', f'--shutdown_timeout={GRACE}', *flags, 'sh', '-c', DEAF,
             env={'CALM': '1'} if act else {}) as job:
        if act is not None:
            act(job)
        began = time.monotonic()
        assert job.finish() == status, job.err
        took = time.monotonic() - began
        assert GRACE <= took + 0.2 and took < GRACE + launch.within(2), took
        return job.err


def test_some_statuses_are_not_followed_by_a_restart(cddprun):
    # By the rank that failed first, on any node; the others have SIGTERM.
    script = '[ $RANK = 1 ] || exec sleep 60; echo life; {}'
    for nodes, end, status, lives in ((1, 'exit 77', 77, 1), (1, 'exit 3', 3, 2), (1, 'kill -9 $$', 137, 1), (2, 'exit 77', 77, 1), (2, 'exit 3', 3, 2)):
        flags = [f'--nnodes={nodes}', f'--nproc_per_node={2 // nodes}', '--max_restarts=1', '--no_restart_codes=2,77,137',
                 '--master_addr=127.0.0.1', f'--master_port={launch.free_port()}']
        with contextlib.ExitStack() as stack:
            jobs = [stack.enter_context(Job(cddprun, *flags, f'--node_rank={i}', 'sh', '-c', script.format(end))) for i in range(nodes)]
            ends = [job.finish() for job in jobs]
            out, err = ''.join(job.out for job in jobs), ''.join(job.err for job in jobs)
        assert set(ends) == {status} and out.count('life') == lives, (nodes, end, ends, out, err)
        assert err.count('not restarted (--no_restart_codes)') == (nodes if lives == 1 else 0), err


def test_peer_ignoring_sigterm_is_killed_after_failure(cddprun):
    stopped_within(cddprun, status=9)


def test_peer_ignoring_sigterm_is_killed_at_restart(cddprun):
    stopped_within(cddprun, '--max_restarts=1', status=0)


def test_peer_ignoring_sigterm_is_killed_at_job_end(cddprun):
    def end(job):
        launch.wait_for('deaf workers', lambda: len([n for n in job.left_in_tmp() if n.startswith('up_')]) == 3)
        for name in job.left_in_tmp():
            if name.startswith('up_'):
                os.unlink(os.path.join(job.tmp, name))
        job.process.send_signal(signal.SIGTERM)
    stopped_within(cddprun, status=143, act=end)


def test_reports_running_worker_after_5_seconds(cddprun):
    script = '[ $RANK = 1 ] && trap "" TERM; echo up $RANK $$; while :; do sleep 0.02; done'
    with Job(cddprun, '--standalone', '--nproc_per_node=3', '--shutdown_timeout=60', 'sh', '-c', script) as job:
        pids = dict(job.process.stdout.readline().split()[2:] for _ in range(3))
        job.process.send_signal(signal.SIGTERM)
        line = job.process.stderr.readline()
        assert re.fullmatch(rf'cddprun: rank 1 \(pid {pids["1"]}\) on {re.escape(socket.gethostname())}: still running \d+ s after SIGTERM; '
                            r'SIGKILL in 5\d s \(--shutdown_timeout\), or at the next signal\n', line), line
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 143 and 'still running' not in job.err, job.err


def test_the_shutdown_timeout_also_comes_from_torchruns_variable(cddprun):
    with Job(cddprun, '--standalone', '--nproc_per_node=3', 'sh', '-c', DEAF,
             env={'TORCH_ELASTIC_SHUTDOWN_TIMEOUT': str(GRACE)}) as job:
        began = time.monotonic()
        assert job.finish() == 9, job.err
        assert time.monotonic() - began < GRACE + launch.within(2)


def test_signals_to_handle_end_job_and_others_are_forwarded(cddprun):
    script = ("trap 'echo got TERM' TERM; trap 'echo got USR1; exit 0' USR1; echo up; "
              'while :; do sleep 0.02; done')
    with Job(cddprun, '--standalone', '--signals_to_handle=SIGUSR1', 'sh', '-c', script) as job:
        assert job.process.stdout.readline() == '[0] up\n'
        job.process.send_signal(signal.SIGTERM)
        assert job.process.stdout.readline() == '[0] got TERM\n'
        job.process.send_signal(signal.SIGUSR1)
        assert job.finish() == 128 + signal.SIGUSR1, job.err
        assert job.out == '[0] got USR1\n' and 'SIGUSR1' in job.err, (job.out, job.err)


launch.main()
