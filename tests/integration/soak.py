#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of random size with random ends, kills, stops and signals: every exit status is right, and nothing is left of any:
no process, no zombie, no file.

    soak.py CDDPRUN PROBE [--jobs N] [--seed N] [--slow]        the full size: --jobs 2000

The seed is printed, and --seed repeats the same jobs (not the same timing). --only KIND runs one kind of job.
"""
import argparse
import ctypes
import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job

PR_SET_CHILD_SUBREAPER = 36
SLEEP = 'exec sleep 1000'
KINDS = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


class Run:
    """One job: chooses by its own generator, so that a job can be repeated alone."""

    def __init__(self, paths, seed):
        self.paths, self.random = paths, random.Random(seed)
        self.ranks = self.random.choice((1, 1, 2, 3, 4, 5, 8, 12))
        self.rank = self.random.randrange(self.ranks)
        self.flags = []
        if self.random.random() < 0.2:
            self.flags += [f'--log_dir={paths["logs"]}', '--tee=3', '--redirects=0:1']

    def job(self, script, *flags, program=None):
        return Job(self.paths['cddprun'], '--standalone', f'--nproc_per_node={self.ranks}', *self.flags, *flags,
                   *(program or ['sh', '-c', script]))

    def pause(self, most=0.05):
        time.sleep(self.random.random() * most)

    def up(self, job):
        """All workers have said so."""
        launch.wait_for('all workers', lambda: len([n for n in job.left_in_tmp() if n.startswith('up_')]) == self.ranks)
        for name in job.left_in_tmp():
            if name.startswith('up_'):
                os.unlink(os.path.join(job.tmp, name))

    def victim(self, job):
        """One of them; a process that execs this moment has no environment to be found by."""
        return self.random.choice(launch.wait_for('a worker', job.workers))

    def expect(self, job, *statuses):
        status = job.finish()
        assert status in statuses, f'exit status {status}, not {statuses}: {job.err}'


UP = 'touch "$TMPDIR/up_$RANK"; '


@kind
def ends_well(run):
    with run.job(f'sleep 0.0{run.random.randrange(10)}; seq {run.random.randrange(2000)}') as job:
        run.expect(job, 0)


@kind
def one_exits_badly(run):
    code = run.random.randrange(1, 250)
    with run.job(f'if [ $RANK = {run.rank} ]; then exit {code}; fi; {SLEEP}') as job:
        run.expect(job, code)


@kind
def one_dies_of_a_signal(run):
    number = run.random.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, signal.SIGUSR1))
    with run.job(f'ulimit -c 0; if [ $RANK = {run.rank} ]; then kill -{int(number)} $$; fi; {SLEEP}') as job:
        run.expect(job, 128 + number)


@kind
def a_worker_is_killed(run):
    with run.job(UP + SLEEP) as job:
        run.up(job)
        os.kill(run.victim(job), signal.SIGKILL)
        run.expect(job, 137)


@kind
def a_worker_is_killed_and_all_start_again(run):
    script = UP + f'[ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; {SLEEP}'
    with run.job(script, '--max_restarts=2') as job:
        for _ in range(2):
            run.up(job)
            os.kill(run.victim(job), run.random.choice((signal.SIGKILL, signal.SIGTERM)))
        run.up(job)
        run.expect(job, 0)


@kind
def the_job_is_ended(run):
    number = run.random.choice((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))
    with run.job('trap "exit 0" INT HUP QUIT TERM; ' + UP + 'while :; do sleep 0.01; done') as job:
        run.up(job)
        run.pause()
        job.process.send_signal(number)
        run.expect(job, 128 + number)


@kind
def a_deaf_job_is_ended(run):
    with run.job("trap '' INT TERM; exec >&- 2>&-; " + UP + 'while :; do sleep 0.01; done', '--shutdown_timeout=0.1') as job:
        run.up(job)
        job.process.send_signal(signal.SIGTERM)
        run.expect(job, 143)


@kind
def stopped_and_continued(run):
    with run.job(UP + 'i=0; while [ $i -lt 20 ]; do i=$((i + 1)); sleep 0.005; done') as job:
        run.up(job)
        for _ in range(run.random.randrange(1, 4)):
            job.process.send_signal(signal.SIGTSTP)
            run.pause(0.02)
            job.process.send_signal(signal.SIGCONT)
            run.pause(0.02)
        job.process.send_signal(signal.SIGCONT)
        run.expect(job, 0)


@kind
def leaves_daemons(run):
    with run.job('(setsid sleep 1000 &); setsid sh -c "sleep 1001 & exec sleep 1002" & exit 0') as job:
        run.expect(job, 0)


@kind
def the_agent_is_killed(run):
    with run.job(UP + '(setsid sleep 1000 &); ' + SLEEP) as job:
        run.up(job)
        os.kill(job.agent(), signal.SIGKILL)
        run.expect(job, 137)


@kind
def the_agent_is_killed_while_it_starts(run):
    with run.job('sleep 0.05') as job:
        time.sleep(run.random.random() * 0.02 * launch.busyness())
        agent = job.agent()
        try:
            if agent is not None:
                os.kill(agent, signal.SIGKILL)
        except ProcessLookupError:
            pass
        run.expect(job, 0, 137)


@kind
def the_guard_is_killed(run):
    with run.job('(setsid sleep 1000 &); ' + UP + SLEEP) as job:
        run.up(job)
        os.kill(job.process.pid, signal.SIGKILL)
        run.expect(job, -9)
        launch.wait_for('nothing left', lambda: not job.alive())


@kind
def no_descriptor_is_handed_down(run):
    with run.job('n=4; while [ $n -lt 64 ]; do [ -e /proc/$$/fd/$n ] && exit 9; n=$((n + 1)); done; exit 0') as job:
        run.expect(job, 0)


@kind
def a_rank_dies_inside_a_collective(run):
    run.ranks = max(2, min(run.ranks, 4))
    with run.job('', program=[run.paths['probe'], 'loop']) as job:
        launch.wait_for('all workers', lambda: len(job.workers()) == run.ranks or job.process.poll() is not None)
        assert job.process.poll() is None, f'{job.finish()}: {job.err}'
        run.pause(0.2)
        os.kill(run.victim(job), signal.SIGKILL)
        run.expect(job, 137)


def reaped():
    """No child is left, adopted orphans included; zombies that were adopted late are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] > 0:
            pass
    except ChildProcessError:
        return True
    return False


def shared_memory():
    return {name for name in os.listdir('/dev/shm') if 'cddp' in name}


def main():
    words = argparse.ArgumentParser()
    words.add_argument('cddprun')
    words.add_argument('probe')
    words.add_argument('--jobs', type=int, default=40)
    words.add_argument('--seed', type=int, default=random.SystemRandom().randrange(1 << 30))
    words.add_argument('--only', choices=sorted(KINDS))
    words.add_argument('--slow', action='store_true')
    args = words.parse_args()
    launch.SLOW = args.slow
    launch.take_signals()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # processes that the job does not kill become our children
    print(f'seed {args.seed}', flush=True)
    choose, began, counts = random.Random(args.seed), time.monotonic(), dict.fromkeys(KINDS, 0)
    before, files = shared_memory(), set(os.listdir('/proc/self/fd'))
    with launch.tempfile.TemporaryDirectory(prefix='cddp-soak-') as logs:
        paths = {'cddprun': os.path.abspath(args.cddprun), 'probe': os.path.abspath(args.probe), 'logs': logs}
        for i in range(args.jobs):
            name, seed = args.only or choose.choice(sorted(KINDS)), choose.randrange(1 << 30)
            try:
                KINDS[name](Run(paths, seed))
                launch.wait_for('no orphan and no zombie', reaped, timeout=launch.within(3))
            except BaseException:
                print(f'job {i}, {name}, seed {seed}:', flush=True)
                raise
            counts[name] += 1
            if (i + 1) % 200 == 0:
                print(f'{i + 1} jobs, {time.monotonic() - began:.0f} s', flush=True)
    assert shared_memory() <= before, f'left in /dev/shm: {shared_memory() - before}'
    assert len(os.listdir('/proc/self/fd')) == len(files)
    for name, count in counts.items():
        print(f'{count:6} {name}')
    print(f'{args.jobs} jobs in {time.monotonic() - began:.0f} s: every exit status right, nothing left')


main()
