#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--hosts: one command starts a job on several nodes by ssh (fake_ssh.py), and ends it everywhere."""
import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, wait_for, within

HERE = os.path.dirname(os.path.realpath(__file__))
BOTH = ['--hosts', 'user@a:2,b', '--master_addr', '127.0.0.1']


@contextlib.contextmanager
def ssh():
    """A PATH where ssh is the fake one, and the folder where it says who it is."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, 'log'))
        os.symlink(os.path.join(HERE, 'fake_ssh.py'), os.path.join(folder, 'ssh'))
        yield {'PATH': folder + os.pathsep + os.environ['PATH'], 'FAKE_SSH_LOG': os.path.join(folder, 'log'), 'FAKE_SSH_SERVER': launch.far_ends()}


def started(env, host):
    path = os.path.join(env['FAKE_SSH_LOG'], host)
    return os.path.exists(path) and open(path, encoding='ascii').read()


def ready(folder, n):
    return lambda: len(os.listdir(folder)) == n


def test_one_command_runs_on_all_hosts(cddprun):
    with ssh() as env, tempfile.TemporaryDirectory(prefix="it's here ") as folder:
        say = 'echo "$RANK/$WORLD_SIZE node $GROUP_RANK \'$1\' $A $B $CDDP_DATA_PORTS in $PWD"; echo err $RANK >&2'
        with Job(cddprun, *BOTH, '-x', 'A=x y', '-x', 'B', 'sh', '-c', say, 'sh', "it's $HOME", cwd=folder,
                 env=env | {'B': '"b"', 'PET_NPROC_PER_NODE': '1', 'CDDP_DATA_PORTS': '21000-21099'}) as job:
            assert job.finish() == 0, job.err
            assert sorted(job.out.splitlines()) == [
                f"[{r}] {r}/3 node {n} 'it's $HOME' x y \"b\" 21000-21099 in {folder}" for r, n in ((0, 0), (1, 0), (2, 1))], job.out
            assert [line for line in sorted(job.err.splitlines()) if 'err' in line] == ['[0] err 0', '[1] err 1', '[2] err 2'], job.err


def test_preflight_alone_needs_no_program(cddprun):
    with ssh() as env:
        status, out, err = launch.run(cddprun, *BOTH, '--preflight=only', env=env)
        assert status == 0, out + err


def test_stdin_goes_to_rank_0_and_output_is_complete(cddprun):
    with ssh() as env:
        text = ''.join(f'{i} {"x" * (i % 3000)}\n' for i in range(2000))
        with Job(cddprun, *BOTH, 'cat', env=env, stdin=subprocess.PIPE) as job:
            job.out, job.err = job.process.communicate(text, timeout=60)
            assert job.process.returncode == 0, job.err
            assert job.out == ''.join('[0] ' + line + '\n' for line in text.splitlines()), len(job.out)


def test_stdin_all_goes_to_every_host(cddprun):
    with ssh() as env:
        text = ''.join(f'{i}\n' for i in range(100000))
        with Job(cddprun, *BOTH, '--stdin=all', 'cksum', env=env, stdin=subprocess.PIPE) as job:
            job.out, job.err = job.process.communicate(text, timeout=launch.DEADLINE)
            assert job.process.returncode == 0, job.err
            want = subprocess.run(['cksum'], input=text, check=True, stdout=subprocess.PIPE, text=True).stdout
            assert sorted(job.out.splitlines()) == [f'[{r}] {want.strip()}' for r in range(3)], (job.out, job.err)


def test_a_host_that_does_not_read_stdin_holds_up_no_other(cddprun):
    # Rank 2, on the second host, reads nothing until the ranks of the first have got all.
    script = 'if [ $RANK = 2 ]; then until [ -e $0/0 ] && [ -e $0/1 ]; do sleep 0.05; done; cksum; else cksum && touch $0/$RANK; fi'
    with ssh() as env, tempfile.TemporaryDirectory() as folder:
        text = ''.join(f'{i}\n' for i in range(500000))
        with Job(cddprun, *BOTH, '--stdin=all', 'sh', '-c', script, folder, env=env, stdin=subprocess.PIPE) as job:
            job.out, job.err = job.process.communicate(text, timeout=launch.DEADLINE)
            assert job.process.returncode == 0, job.err
            want = subprocess.run(['cksum'], input=text, check=True, stdout=subprocess.PIPE, text=True).stdout
            assert sorted(job.out.splitlines()) == [f'[{r}] {want.strip()}' for r in range(3)], (job.out, job.err)


def test_a_failure_ends_all_hosts_with_its_status(cddprun):
    with ssh() as env, Job(cddprun, *BOTH, 'sh', '-c', '[ $RANK = 2 ] && exit 42; exec sleep 60', env=env) as job:
        began = time.monotonic()
        assert job.finish() == 42, job.err
        assert time.monotonic() - began < within(10)
        assert 'rank 2' in job.err and 'exited with status 42' in job.err, job.err


def test_ctrl_c_reaches_every_host(cddprun):
    # If the other host's end is noticed first, a worker gets SIGTERM instead; one that is slow to end gets both.
    script = 'trap "touch $0/$RANK.int; exit 3" INT; trap "touch $0/$RANK.term; exit 3" TERM; touch $0/$RANK; while :; do sleep 0.05; done'
    with ssh() as env, tempfile.TemporaryDirectory() as folder, Job(cddprun, *BOTH, 'sh', '-c', script, folder, env=env) as job:
        wait_for('three workers', ready(folder, 3))
        job.process.send_signal(signal.SIGINT)
        assert job.finish() == 130, job.err
        ends = sorted(n for n in os.listdir(folder) if '.' in n)
        assert {n[0] for n in ends} == {'0', '1', '2'} and any(n.endswith('int') for n in ends), ends


def test_a_broken_connection_ends_the_job_on_both_sides(cddprun):
    for host in 'a', 'b':
        with ssh() as env, tempfile.TemporaryDirectory() as folder, \
                Job(cddprun, *BOTH, 'sh', '-c', 'touch $0/$RANK; exec sleep 60', folder, env=env) as job:
            wait_for('three workers', ready(folder, 3))
            os.kill(int(started(env, host)), signal.SIGKILL)
            assert job.finish() == 1, job.err
            assert f'the connection to {"user@" if host == "a" else ""}{host} failed' in job.err, job.err
            wait_for('an end of every process', lambda: not job.alive())


def test_kill_9_of_the_launcher_ends_every_process(cddprun):
    with ssh() as env, tempfile.TemporaryDirectory() as folder, \
            Job(cddprun, *BOTH, 'sh', '-c', 'touch $0/$RANK; exec sleep 60', folder, env=env) as job:
        wait_for('three workers', ready(folder, 3))
        job.process.kill()
        wait_for('an end of every process', lambda: not job.alive())
        job.finish()
        wait_for('no litter', lambda: not job.left_in_tmp())


def test_reports_unreachable_host(cddprun):
    with ssh() as env, Job(cddprun, '--hosts', 'a,nowhere', '--master_addr=127.0.0.1', 'sleep', '60', env=env) as job:
        assert job.finish() == 1, job.err
        assert 'the connection to nowhere failed' in job.err and 'Could not resolve' in job.err, job.err


def test_reports_a_first_host_that_is_only_an_alias_of_ssh(cddprun):
    with ssh() as env:
        status, _, err = launch.run(cddprun, '--hosts', 'alias.invalid,b', '--rdzv_conf=join_timeout=1', 'true', env=env)
        assert status == 1 and re.search(r"'alias.invalid' .*does not resolve on this node: .*; with --hosts give .*--master_addr=IP", err), err


def test_reports_mistakes_before_start(cddprun):
    for flags, says in [(['--hosts=a,,b'], "'' is not HOST"), (['--hosts=a:0'], "'a:0' is not HOST"),
                        (['--hosts=-oX=y'], 'is not HOST'),
                        (['--hosts=a,b', '--nnodes=2'], 'remove --nnodes'),
                        (['--hosts=a', '--standalone'], 'remove --standalone'),
                        (['--hosts=a', '--node_rank=0'], 'remove --node_rank'),
                        (['--hosts=a', '--status_fd=7'], 'with --hosts it can be 1 or 2 only'),
                        (['--hosts=a', '-n', '3'], 'give each host')]:
        with ssh() as env, Job(cddprun, *flags, 'true', env=env) as job:
            assert job.finish() == 2 and says in job.err and not os.listdir(env['FAKE_SSH_LOG']), (flags, job.err)


def test_many_hosts_have_enough_descriptors_or_a_message(cddprun):
    hosts = ','.join(f'127.0.0.{i}' for i in range(1, 13))  # --dry_run looks them up

    def limit(soft, hard):
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with ssh() as env, Job(cddprun, '--hosts', hosts, '--dry_run', 'true', env=env, preexec_fn=limit(30, 100)) as job:
        assert job.finish() == 0, job.err
    with Job(cddprun, '--hosts', hosts, 'true', preexec_fn=limit(30, 60)) as job:
        assert job.finish() == 1 and 'with 12 hosts cddprun needs 68; raise it (ulimit -n 68)' in job.err, job.err


def test_reports_missing_ssh(cddprun):
    with tempfile.TemporaryDirectory() as empty, Job(cddprun, '--hosts=a', 'true', env={'PATH': empty}) as job:
        assert job.finish() == 1 and 'cannot run ssh' in job.err, job.err


if __name__ == '__main__':
    launch.main()
