#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Signals to cddprun reach the workers, end or stop the job, and give the exit status."""
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job

# These write by os.write: a signal may come while print flushes, and then print in the handler raises RuntimeError.
# Sleeps are short: Python handles a signal that arrives just before one after it.
OBEDIENT = 'import os, signal, sys, time\n' \
           'def said(n, _):\n' \
           '    os.write(1, b"got %s\\n" % signal.Signals(n).name.encode())\n' \
           '    if n not in (signal.SIGUSR1, signal.SIGUSR2): sys.exit(0)\n' \
           'for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):\n' \
           '    signal.signal(s, said)\n' \
           'os.write(1, b"up\\n")\n' \
           'while True: time.sleep(0.05)\n'
DEAF = 'import os, signal, time\n' \
       'for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, lambda *a: os.write(1, b"deaf\\n"))\n' \
       'os.write(1, b"up\\n")\n' \
       'while True: time.sleep(0.05)\n'

# Runs the following command as leader of a session whose terminal is its stdin.
LEAD_TERMINAL = (sys.executable, '-c', 'import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); '
                                       'os.execv(sys.argv[1], sys.argv[1:])')


def start(cddprun, script, n=2, flags=(), **popen):
    job = Job(cddprun, f'--nproc_per_node={n}', *flags, 'python3', '-c', script, **popen)
    assert sorted(job.process.stdout.readline() for _ in range(n)) == [f'[{i}] up\n' for i in range(n)]
    return job


def test_each_ending_signal_reaches_every_worker_and_is_the_exit_status(cddprun):
    for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT:
        with start(cddprun, OBEDIENT) as job:
            job.process.send_signal(number)
            assert job.finish() == 128 + number, job.err
            name = number.name
            assert sorted(job.out.splitlines()) == [f'[0] got {name}', f'[1] got {name}'], job.out
            assert f'ended by signal {int(number)} ({name})' in job.err, job.err


def test_signals_that_the_shell_of_a_script_ignores_stay_ignored(cddprun):
    """Which it does for a command with &. docs/stopping.md says to use SIGTERM."""
    read, write = os.pipe()
    shell = ['sh', '-c', f'"$@" & echo $! >&{write}; wait $!', 'sh', cddprun]
    with Job(*shell, '--nproc_per_node=1', sys.executable, '-c', OBEDIENT, pass_fds=[write]) as job:
        assert job.process.stdout.readline() == '[0] up\n'
        pid = int(os.read(read, 32))
        for number in signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1:
            os.kill(pid, number)
        assert job.process.stdout.readline() == '[0] got SIGUSR1\n'
        os.kill(pid, signal.SIGTERM)
        assert job.finish() == 143 and job.out == '[0] got SIGTERM\n', (job.out, job.err)
    os.close(read)
    os.close(write)


def test_worker_can_query_stop_request(cddprun):
    with Job(cddprun, '--nproc_per_node=2', os.environ['CDDP_PROBE'], 'stop') as job:
        assert sorted(job.process.stdout.readline() for _ in range(2)) == ['[0] up\n', '[1] up\n']
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 143, job.err
        assert sorted(job.out.splitlines()) == ['[0] asked to stop', '[1] asked to stop'], job.out
        assert re.search(r'ended by signal 15 \(SIGTERM\)\n    at that moment: rank', job.err), job.err


def test_failure_while_stopping_is_named(cddprun):
    fails = OBEDIENT.replace('sys.exit(0)', 'sys.exit(9 if os.environ["RANK"] == "1" else 0)')
    assert fails != OBEDIENT
    with start(cddprun, fails) as job:
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 143, job.err
        assert re.fullmatch(r'cddprun: ended by signal 15 \(SIGTERM\); then rank 1 \(pid \d+ on \S+\) exited with status 9\n', job.err), job.err


def test_kill_of_slow_workers_names_its_flag(cddprun):
    with start(cddprun, DEAF, flags=['--shutdown_timeout=1']) as job:
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 143, job.err
        assert job.err == ('cddprun: ended by signal 15 (SIGTERM); killed 2 workers that had not ended 1 s later '
                           '(--shutdown_timeout)\n'), job.err


def test_ctrl_c_to_the_whole_foreground_group_counts_once(cddprun):
    with start(cddprun, OBEDIENT, start_new_session=True) as job:
        os.killpg(job.process.pid, signal.SIGINT)
        assert job.finish() == 130, job.err
        assert sorted(job.out.splitlines()) == ['[0] got SIGINT', '[1] got SIGINT'], job.out


def test_second_interrupt_kills_workers(cddprun):
    with start(cddprun, DEAF) as job:
        job.process.send_signal(signal.SIGINT)
        assert job.process.stdout.readline().endswith('deaf\n')
        assert job.process.poll() is None
        deadline = time.monotonic() + launch.DEADLINE
        while job.process.poll() is None and time.monotonic() < deadline:
            job.process.send_signal(signal.SIGINT)  # more than 500 ms after the first it counts
            time.sleep(0.05)
        assert job.finish() == 130, job.err


def test_batch_system_signal_is_the_cause(cddprun):
    stays = 'import os, signal, time\n' \
            'if os.environ["RANK"] == "0": signal.signal(signal.SIGTERM, signal.SIG_IGN)\n' \
            'print("up", flush=True)\n' \
            'while not os.path.exists(os.environ["TMPDIR"] + "/go"): time.sleep(0.02)\n'
    with start(cddprun, stays) as job:
        workers = job.workers()
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
        launch.wait_for('rank 1 to die', lambda: None in [launch.state(pid) for pid in workers])
        job.process.send_signal(signal.SIGTERM)
        with open(f'{job.tmp}/go', 'w', encoding='ascii'):
            pass
        assert job.finish() == 143, job.err
        assert job.err.startswith('cddprun: ended by signal 15 (SIGTERM)') and 'killed' not in job.err, job.err
        os.unlink(f'{job.tmp}/go')


def test_usr1_and_usr2_pass_through(cddprun):
    with start(cddprun, OBEDIENT) as job:
        for number in signal.SIGUSR1, signal.SIGUSR2:
            job.process.send_signal(number)
            got = sorted(job.process.stdout.readline() for _ in range(2))
            assert got == [f'[0] got {number.name}\n', f'[1] got {number.name}\n'], got
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 143


def test_tstp_and_cont_apply_to_all(cddprun):
    with start(cddprun, OBEDIENT) as job:
        agent, both = job.agent(), job.workers()
        assert len(both) == 2
        everyone = [job.process.pid, agent, *both]
        for _ in range(3):
            job.process.send_signal(signal.SIGTSTP)
            launch.wait_for('all stopped', lambda: [launch.state(p) for p in everyone] == ['T'] * 4)
            job.process.send_signal(signal.SIGCONT)
            launch.wait_for('all running', lambda: 'T' not in [launch.state(p) for p in everyone])
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 143, job.err


def test_a_stopped_job_can_be_ended(cddprun):
    with start(cddprun, OBEDIENT) as job:
        agent = job.agent()
        job.process.send_signal(signal.SIGTSTP)
        launch.wait_for('stopped', lambda: launch.state(agent) == 'T' and launch.state(job.process.pid) == 'T')
        job.process.send_signal(signal.SIGTERM)
        job.process.send_signal(signal.SIGCONT)
        assert job.finish() == 143, job.err


def test_a_worker_that_is_stopped_alone_can_be_ended(cddprun):
    with start(cddprun, OBEDIENT) as job:
        worker = job.workers()[0]
        os.kill(worker, signal.SIGSTOP)
        launch.wait_for('stopped', lambda: launch.state(worker) == 'T')
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 143, job.err


def test_a_worker_that_runs_is_not_continued(cddprun):
    """SIGCONT takes back the SIGSTOP by which a debugger, or a leak checker at the program's end, attaches."""
    script = 'import os, signal, sys, time\n' \
             'signal.signal(signal.SIGCONT, lambda *a: os.write(1, b"continued\\n"))\n' \
             'signal.signal(signal.SIGTERM, lambda *a: (time.sleep(0.2), sys.exit(0)))\n' \
             'os.write(1, b"up\\n")\n' \
             'while True: time.sleep(0.05)\n'
    for signals in (signal.SIGTERM,), (signal.SIGCONT, signal.SIGTERM), (signal.SIGTERM, signal.SIGCONT):
        with start(cddprun, script) as job:
            for number in signals:  # a batch system sends both to the job
                job.process.send_signal(number)
            assert job.finish() == 143, job.err
            assert 'continued' not in job.out, job.out


def test_agent_obeys_only_the_guard(cddprun):
    with start(cddprun, OBEDIENT) as job:
        agent = job.agent()
        for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1:
            os.kill(agent, number)
        job.process.send_signal(signal.SIGUSR2)
        got = sorted(job.process.stdout.readline() for _ in range(2))
        assert got == ['[0] got SIGUSR2\n', '[1] got SIGUSR2\n'], got
        job.process.send_signal(signal.SIGQUIT)
        assert job.finish() == 131


def test_a_terminals_ctrl_c_ends_the_job(cddprun):
    master, slave = pty.openpty()
    with Job(*LEAD_TERMINAL, cddprun, '--nproc_per_node=2', 'python3', '-c', OBEDIENT, stdin=slave,
             start_new_session=True) as job:
        os.close(slave)
        assert sorted(job.process.stdout.readline() for _ in range(2)) == ['[0] up\n', '[1] up\n']
        os.write(master, b'\x03')
        assert job.finish() == 130, job.err
        assert sorted(job.out.splitlines()) == ['[0] got SIGINT', '[1] got SIGINT'], job.out
    os.close(master)


def test_ctrl_z_without_parent_does_not_stop(cddprun):
    """As in a container, or over ssh -t: the session leader has no shell that could say fg."""
    master, slave = pty.openpty()
    with Job(*LEAD_TERMINAL, cddprun, '--nproc_per_node=2', 'python3', '-c', OBEDIENT, stdin=slave,
             start_new_session=True) as job:
        os.close(slave)
        assert sorted(job.process.stdout.readline() for _ in range(2)) == ['[0] up\n', '[1] up\n']
        os.write(master, b'\x1a')
        time.sleep(0.5)  # without this rule it stands still by then
        os.write(master, b'\x03')
        assert job.finish() == 130, job.err
    os.close(master)


def test_rank_0_can_read_the_terminal(cddprun):
    master, slave = pty.openpty()
    with Job(*LEAD_TERMINAL, cddprun, 'head', '-n1', stdin=slave, start_new_session=True) as job:
        os.close(slave)
        os.write(master, b'typed\n')
        assert job.finish() == 0, job.err
        assert job.out == '[0] typed\n', job.out
    os.close(master)


def test_an_interactive_rank_has_the_terminal_and_its_ctrl_c(cddprun):
    launch.only_local('the terminal is on another host')
    master, slave = pty.openpty()
    worker = ('import os, select, signal, sys, time\n'
              'if os.environ["RANK"] != "1": time.sleep(1000)\n'
              'signal.signal(signal.SIGINT, lambda *a: os.write(1, b"interrupted\\n"))\n'
              'print("terminal" if all(os.isatty(i) for i in range(3)) else "none", os.tcgetpgrp(0) == os.getpgrp(), flush=True)\n'
              'while not select.select([0], [], [], 0.05)[0]: pass\n'  # a signal just before a read is handled after it
              'print("read", sys.stdin.readline(), flush=True)\n'
              'sys.exit(4)\n')
    with Job(*LEAD_TERMINAL, cddprun, '--nproc_per_node=3', '--interactive=1', 'python3', '-c', worker,
             stdin=slave, stdout=slave, stderr=slave, start_new_session=True) as job:
        os.close(slave)
        seen = b''

        def shows(text):
            nonlocal seen
            while text not in seen:
                assert select.select([master], [], [], launch.DEADLINE)[0], (text, seen)
                seen += os.read(master, 1000)
        shows(b'terminal True')
        os.write(master, b'\x03')
        shows(b'interrupted')
        os.write(master, b'typed\n')
        shows(b'read typed')
        shows(b'cddprun: rank 1 ')
        assert job.process.wait(launch.DEADLINE) == 4, seen
    os.close(master)


launch.main()
