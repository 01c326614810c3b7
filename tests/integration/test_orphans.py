#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nothing outlives the job: kill -9 of either half of cddprun, with descendants of every awkward kind, leaves no process
within a second. Processes are found by a mark in their environment, not by name."""
import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job

# Grandchildren: in the same group; in a separate session; twice removed; stopped; ignoring every signal but KILL.
FAMILY = '''
sleep 1000 &
setsid sleep 1001 &
(setsid sh -c 'setsid sleep 1002 & setsid sleep 1003 & exec sleep 1004' &)
sleep 1005 & kill -STOP $!
(trap '' HUP INT TERM QUIT; exec setsid sh -c 'while :; do sleep 1006; done') &
echo up >&2
exec sleep 1007
'''
PER_WORKER = 9  # of these processes at least

# Forks as fast as it can, each child in a separate session, so that they have no common group.
FORKER = '''
import os, time
while True:
    for _ in range(20):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(0.02)
            os._exit(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
'''


def start(cddprun, n=2, **popen):
    job = Job(cddprun, f'--nproc_per_node={n}', 'sh', '-c', FAMILY, **popen)
    launch.wait_for('the family', lambda: len(job.alive()) >= 2 + n * PER_WORKER)
    return job


def gone(job, began):
    launch.wait_for('nothing left', lambda: not job.alive(), timeout=launch.within(1.0))
    print(f'# gone after {time.monotonic() - began:.3f} s')


def kill_one_half(cddprun, half, before=None):
    with start(cddprun) as job:
        pid = job.agent() if half == 'agent' else job.process.pid
        if before is not None:
            before(job)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        gone(job, began)
        status = job.finish()
        if half == 'agent':
            assert status == 128 + 9, status
            assert f'agent (pid {pid}) was killed by signal 9 (SIGKILL)' in job.err, job.err
        else:
            assert status == -9, status
            assert 'guard process was killed' in job.err, job.err


def test_kill_9_of_the_agent_leaves_nothing(cddprun):
    kill_one_half(cddprun, 'agent')


def test_kill_9_of_the_guard_leaves_nothing(cddprun):
    kill_one_half(cddprun, 'guard')


def test_kill_9_of_the_guard_of_an_agent_that_ends_by_itself(cddprun):
    began, runs = time.monotonic(), 40
    with Job(cddprun, '/nonexistent') as job:
        assert job.finish() == 127, job.err
    took = time.monotonic() - began
    # The guard's death orphans a process group, and the kernel continues its stopped members (SIGCONT): the leak checker, which
    # stops the agent at its exit, would wait for ever.
    env = {'ASAN_OPTIONS': os.environ.get('ASAN_OPTIONS', '') + ':detect_leaks=0'}
    for i in range(runs):
        with Job(cddprun, '/nonexistent', env=env) as job:
            until = time.monotonic() + took * i / runs
            while time.monotonic() < until:  # a sleep would not end in time
                pass
            job.process.kill()
            job.finish()  # the agent has its stderr until it ends


def test_kill_9_of_the_whole_process_group_leaves_nothing(cddprun):
    # As timeout -s KILL does it: the agent and the workers are in other groups.
    with start(cddprun, start_new_session=True) as job:
        began = time.monotonic()
        os.killpg(job.process.pid, signal.SIGKILL)
        gone(job, began)
        assert job.finish() == -9


def test_workers_share_a_separate_session(cddprun):
    # The scheduler lets a rank give its processor to another one only within a session.
    with Job(cddprun, '--nproc_per_node=3', 'python3', '-c',
             'import os; print(os.getsid(0), os.getpgrp() == os.getpid(), flush=True)') as job:
        assert job.finish() == 0, job.err
        sessions = {line.split()[1] for line in job.out.splitlines()}
        assert len(sessions) == 1 and str(os.getsid(0)) not in sessions, job.out
        assert job.out.count('True') == 3, job.out


def test_a_stopped_agent_is_woken_by_the_death_of_its_guard(cddprun):
    def stop(job):
        agent = job.agent()
        os.kill(agent, signal.SIGSTOP)
        launch.wait_for('a stopped agent', lambda: launch.state(agent) == 'T')
    kill_one_half(cddprun, 'guard', stop)


def kill_with_forkers(cddprun, half):
    with Job(cddprun, '--nproc_per_node=1', 'python3', '-c', FORKER) as job:
        launch.wait_for('forks', lambda: len(job.alive()) >= 6)
        pid = job.agent() if half == 'agent' else job.process.pid
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        gone(job, began)
        job.finish()


def test_fast_forking_children_do_not_escape_the_guard(cddprun):
    kill_with_forkers(cddprun, 'agent')


def test_fast_forking_children_do_not_escape_the_agent(cddprun):
    kill_with_forkers(cddprun, 'guard')


def test_failing_rank_ends_every_descendant(cddprun):
    script = ('if [ $RANK = 1 ]; then until [ -p "$TMPDIR/go" ]; do sleep 0.01; done; read x < "$TMPDIR/go"; rm "$TMPDIR/go"; exit 5; fi'
              + FAMILY)
    with Job(cddprun, '--nproc_per_node=2', 'sh', '-c', script) as job:
        os.mkfifo(os.path.join(job.tmp, 'go'))
        launch.wait_for('the family', lambda: len(job.alive()) >= 3 + PER_WORKER)
        with open(os.path.join(job.tmp, 'go'), 'w', encoding='ascii') as go:
            go.write('now\n')
        assert job.finish() == 5, job.err
        assert not job.alive()


def test_successful_job_leaves_no_daemon(cddprun):
    with Job(cddprun, '--nproc_per_node=2', 'sh', '-c', '(setsid sleep 1000 &) ; setsid sleep 1001 & exit 0') as job:
        assert job.finish() == 0, job.err
        assert not job.alive()


def test_orphans_are_reaped_while_the_job_runs(cddprun):
    with Job(cddprun, 'sh', '-c', 'for i in 1 2 3 4 5 6 7 8 9; do (setsid true &); done; echo up; exec sleep 1000') as job:
        assert job.process.stdout.readline() == '[0] up\n'
        agent = job.agent()

        def zombies():
            pids = [int(n) for n in os.listdir('/proc') if n.isdigit()]
            return [p for p in pids if launch.stat(p) == ('Z', agent)]
        launch.wait_for('no zombie', lambda: not zombies())
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 143


def test_a_signal_wakes_an_agent_that_was_stopped_alone(cddprun):
    with Job(cddprun, '--standalone', 'sleep', '1000') as job:
        launch.wait_for('a worker', lambda: len(job.workers()) == 1)
        agent = job.agent()
        os.kill(agent, signal.SIGSTOP)
        launch.wait_for('a stopped agent', lambda: launch.state(agent) == 'T')
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 143 and 'ended by signal 15 (SIGTERM)' in job.err, job.err


def test_an_agent_that_reads_no_signal_is_killed_with_its_workers(cddprun):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    seize, interrupt, wall = 0x4206, 0x4207, 0x40000000
    with Job(cddprun, '--standalone', '--shutdown_timeout=0', 'sleep', '1000') as job:
        launch.wait_for('a worker', lambda: len(job.workers()) == 1)
        agent = job.agent()
        if libc.ptrace(seize, agent, 0, 0) != 0:
            raise launch.Skip('processes may not be traced here')
        assert libc.ptrace(interrupt, agent, 0, 0) == 0  # no CONT ends this
        assert os.WIFSTOPPED(os.waitpid(agent, wall)[1])
        job.process.send_signal(signal.SIGTERM)
        launch.wait_for('the end of the agent', lambda: os.waitpid(agent, wall | os.WNOHANG)[0] == agent)
        assert job.finish() == 143, job.err
        assert f'agent (pid {agent}) did not answer signal 15 (SIGTERM) for 5 s' in job.err, job.err


def test_a_guard_that_dies_at_once_leaves_no_directory(cddprun):
    with tempfile.TemporaryDirectory(prefix='cddp-test-early-') as folder:
        for i in range(60):
            with Job(cddprun, '--standalone', 'sleep', '1000', env={'TMPDIR': folder}) as job:
                time.sleep(i % 12 * 0.0004)  # the moments in which it starts: each is to do no harm
                job.process.kill()
                job.finish()
                launch.wait_for('the end of the rest', lambda: not job.alive())
            assert not os.listdir(folder), (i, os.listdir(folder))


def test_a_cleaner_of_tmp_spares_the_directories_of_a_job(cddprun):
    """systemd-tmpfiles skips a locked directory: tmpfiles.d(5)."""
    launch.only_local('--standalone makes an auth token')
    with Job(cddprun, '--standalone', '--tee=1', 'sleep', '1000') as job:
        launch.wait_for('a worker', job.workers)
        names = job.left_in_tmp()
        assert len(names) == 2, names
        for name in names:
            fd = os.open(os.path.join(job.tmp, name), os.O_RDONLY)
            try:
                for how in fcntl.LOCK_SH, fcntl.LOCK_EX:
                    with contextlib.suppress(BlockingIOError):
                        fcntl.flock(fd, how | fcntl.LOCK_NB)
                        raise AssertionError(f'{name} is not locked')
            finally:
                os.close(fd)
        job.process.terminate()
        job.finish()
        shutil.rmtree(os.path.join(job.tmp, *job.left_in_tmp()))  # of --tee


launch.main()
