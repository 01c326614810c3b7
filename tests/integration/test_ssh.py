#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--hosts through a real sshd (tests/support/sshd.py): on a terminal, without one, and where ssh fails."""
import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
import sshd
from launch import Job, wait_for, within

BOTH = ['--hosts', 'a,b', '--master_addr=127.0.0.1']
# Says that it is up, which signals it gets, and each line of its stdin.
WORKER = 'import os, signal, sys, threading, time\n' \
         'def said(n, _): os.write(1, b"got %s\\n" % signal.Signals(n).name.encode()); n == signal.SIGUSR1 or os._exit(0)\n' \
         'for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU): signal.signal(s, said)\n' \
         'def lines():\n' \
         '    for line in sys.stdin: os.write(1, b"line " + line.encode())\n' \
         'threading.Thread(target=lines, daemon=True).start()\n' \
         'os.write(1, b"up\\n")\n' \
         'while True: time.sleep(0.02)\n'
# Becomes the leader of a session whose terminal is its stdin, and runs the following command there as its foreground job.
LEAD = 'import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])'


class Terminal(Job):
    """A command on its own terminal."""

    def __init__(self, command, env):
        self.master, slave = pty.openpty()
        self.shown = ''
        os.set_blocking(self.master, False)
        super().__init__(sys.executable, '-c', LEAD, *command, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)

    def look(self):
        with contextlib.suppress(OSError):  # nothing now, or no more
            self.shown += os.read(self.master, 65536).decode(errors='replace')
        return self.shown

    def see(self, pattern, n=1):
        wait_for(pattern, lambda: len(re.findall(pattern, self.look())) >= n, more=lambda: self.shown)

    def type(self, text):
        os.write(self.master, text.encode())

    def end(self):
        wait_for('its end', lambda: (self.look() or True) and self.process.poll() is not None, more=lambda: self.shown)
        self.look()
        return self.process.returncode

    def __exit__(self, *why):
        os.close(self.master)
        super().__exit__(*why)


def python(script=WORKER):
    return [sys.executable, '-uc', script]


def on_terminal(cddprun, server, *flags, script=WORKER):
    return Terminal([cddprun, *BOTH, *flags, *python(script)], server.env())


def start(cddprun, server, *flags, script=WORKER, **popen):
    job = Job(cddprun, *BOTH, *flags, *python(script), env=server.env(), **popen)
    assert sorted(job.process.stdout.readline() for _ in range(2)) == ['[0] up\n', '[1] up\n'], job.finish() or job.err
    return job


def lines(job):
    return sorted(job.out.splitlines())


def test_signals_output_and_status(cddprun):
    server = sshd.sshd()
    for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU:
        with start(cddprun, server, '--signals_to_handle=TERM,INT,HUP,XCPU') as job:
            job.process.send_signal(signal.SIGUSR1)
            assert sorted(job.process.stdout.readline() for _ in range(2)) == ['[0] got SIGUSR1\n', '[1] got SIGUSR1\n']
            job.process.send_signal(number)
            assert job.finish() == 128 + number, (number, job.err)
            # One host may learn of the end from the other one first.
            assert set(lines(job)) <= {f'[{r}] got {s}' for r in (0, 1) for s in (number.name, 'SIGTERM')}, job.out
            assert f'got {number.name}' in job.out and len(lines(job)) == 2, (job.out, job.err)


def test_status_255_is_the_workers(cddprun):
    server = sshd.sshd()
    for status in 255, 3:
        with Job(cddprun, *BOTH, 'sh', '-c', f'[ $RANK = 1 ] && exit {status}; exec sleep 60', env=server.env()) as job:
            assert job.finish() == status, job.err
            assert f'exited with status {status}' in job.err and 'connection' not in job.err, job.err


def test_arguments_of_170_kb_arrive_through_each_login_shell(cddprun):
    words = [f"it's {i} $HOME `id` \\ ! " + 'x' * 60000 for i in range(3)]
    say = 'import hashlib, sys; print(len(sys.argv), hashlib.sha256(repr(sys.argv[1:]).encode()).hexdigest())'
    want = subprocess.run([*python(say), *words], check=True, stdout=subprocess.PIPE, text=True).stdout
    server = sshd.sshd()
    for name in 'sh', 'bash', 'tcsh', 'fish':
        try:
            sshd.shell(name)
        except launch.Skip as why:
            print(f'# without {name}: {why}')
            continue
        for rc in '.bashrc', '.cshrc', '.config/fish/config.fish':
            os.makedirs(os.path.dirname(os.path.join(server.folder, name, rc)), exist_ok=True)
            server.write(f'{name}/{rc}', 'echo hello from the login shell\n')
        server.client(name)
        with Job(cddprun, *BOTH, *python(say), *words, env=server.env()) as job:
            assert job.finish() == 0, (name, job.err)
            assert [f'[{r}] {want.strip()}' for r in (0, 1)] == [line for line in lines(job) if line[0] == '['], (name, job.out, job.err)


def test_grace_is_that_of_the_flag_on_every_way(cddprun):
    # With CDDP_SAVE_S=70, longer than any time limit of ssh.c but the grace period.
    save_s = float(os.environ.get('CDDP_SAVE_S', 1.5))
    saves = 'import os, signal, time\nsaving = []\n' \
            'signal.signal(signal.SIGTERM, lambda *_: saving or saving.append(time.monotonic()))\n' \
            'os.write(1, b"up\\n")\n' \
            f'while not saving or time.monotonic() < saving[0] + {save_s}: time.sleep(0.02)\n' \
            'open(os.environ["TMPDIR"] + "/saved" + os.environ["RANK"], "w")\n'
    server = sshd.sshd()
    for way in 'a signal', 'a signal and a lost connection', 'a lost connection', 'too short':
        with start(cddprun, server, f'--shutdown_timeout={0.5 if way == "too short" else save_s + 60}', script=saves) as job:
            if 'signal' in way or way == 'too short':
                job.process.send_signal(signal.SIGTERM)
            if 'and' in way:
                time.sleep(0.7)  # a second SIGTERM would count by now
            if 'connection' in way:
                os.kill(ssh_of(job)[0], signal.SIGKILL)
            status = job.finish(launch.DEADLINE + save_s)
            assert status == (1 if way == 'a lost connection' else 143), (way, status, job.err)
            wait_for('an end of every process', lambda: not job.alive(), launch.DEADLINE + save_s)
            saved = sorted(n for n in job.left_in_tmp() if n.startswith('saved'))
            assert saved == ([] if way == 'too short' else ['saved0', 'saved1']), (way, saved, job.err)
            for name in saved:
                os.unlink(f'{job.tmp}/{name}')


def ssh_of(job):
    """The ssh processes that cddprun has started."""
    return sorted(p for p in job.alive() if os.path.basename(launch.exe(p) or '') == 'ssh')


def test_a_host_that_dies_ends_the_job(cddprun):
    server = sshd.sshd()
    with start(cddprun, server, script=WORKER.replace('os._exit(0)', '0'), *['--shutdown_timeout=1']) as job:
        far = [p for p in job.alive() if launch.exe(p) == os.path.realpath(cddprun) and launch.exe(launch.parent(p)) != launch.exe(p)]
        far.remove(job.process.pid)
        assert len(far) == 2, far
        session = launch.parent(far[0])
        os.kill(session, signal.SIGKILL)  # sshd's: the connection is reset
        assert job.finish() == 1 and re.search(r'the connection to [ab] failed', job.err), job.err
        wait_for('an end of every process', lambda: not job.alive())


def test_nohup_and_ignored_interrupt_stay_ignored(cddprun):
    server = sshd.sshd()
    def ignore():
        for number in signal.SIGHUP, signal.SIGINT, signal.SIGQUIT:
            signal.signal(number, signal.SIG_IGN)
    with start(cddprun, server, preexec_fn=ignore) as job:
        for number in signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1:
            job.process.send_signal(number)
        assert sorted(job.process.stdout.readline() for _ in range(2)) == ['[0] got SIGUSR1\n', '[1] got SIGUSR1\n']
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 143, job.err
        assert 'SIGHUP' not in job.out and 'SIGINT' not in job.out, job.out


def test_kill_of_the_whole_group_reaches_the_workers(cddprun):
    server = sshd.sshd()
    with start(cddprun, server, start_new_session=True) as job:
        os.killpg(job.process.pid, signal.SIGTERM)
        assert job.finish() == 143 and 'connection' not in job.err, job.err
        assert lines(job) == ['[0] got SIGTERM', '[1] got SIGTERM'], job.out


def test_input_that_nobody_reads_holds_no_signal_up(cddprun):
    deaf = WORKER.replace('threading.Thread', '(lambda **_: threading.Event())').replace('.start()', '')
    server = sshd.sshd()
    with subprocess.Popen(['yes'], stdout=subprocess.PIPE) as yes:
        with Job(cddprun, '--hosts=a', *python(deaf), env=server.env(), stdin=yes.stdout) as job:
            assert job.process.stdout.readline() == '[0] up\n', job.finish() or job.err
            time.sleep(0.5)  # for the input to fill every buffer on its way
            job.process.send_signal(signal.SIGINT)
            began = time.monotonic()
            assert job.finish() == 130 and lines(job) == ['[0] got SIGINT'], (job.out, job.err)
            assert time.monotonic() - began < within(10)
        yes.kill()


def test_stop_and_continue_reach_the_far_ends(cddprun):
    server = sshd.sshd()
    with start(cddprun, server) as job:
        workers = [p for p in job.alive() if launch.exe(p) == os.path.realpath(sys.executable)]
        assert len(workers) == 2, workers
        for _ in range(2):
            job.process.send_signal(signal.SIGTSTP)
            wait_for('all stopped', lambda: [launch.state(p) for p in [job.process.pid, *workers]] == ['T'] * 3)
            job.process.send_signal(signal.SIGCONT)
            wait_for('all running', lambda: 'T' not in [launch.state(p) for p in [job.process.pid, *workers]])
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 143, job.err


def test_terminal_stops_and_continues_the_job(cddprun):
    server = sshd.sshd()
    with Terminal(['bash', '--norc', '-i'], {**server.env(), 'PS1': 'ready> '}) as shell:
        shell.see('ready> ')
        path = server.write('worker.py', WORKER)
        shell.type(f'{cddprun} {" ".join(BOTH)} {path}\n')
        shell.see(r'\[[01]\] up', 2)
        shell.type('first\n')
        shell.see(r'\[0\] line first')
        shell.type('\x1a')
        shell.see('Stopped')
        workers = [p for p in shell.alive() if b'worker.py' in open(f'/proc/{p}/cmdline', 'rb').read() and 'python' in launch.exe(p)]
        wait_for('all stopped', lambda: [launch.state(p) for p in workers] == ['T', 'T'])  # the far ends hear of it later
        shell.type('fg\n')
        wait_for('all running', lambda: 'T' not in [launch.state(p) for p in workers])
        shell.type('second\n')
        shell.see(r'\[0\] line second')
        shell.type('\x03')
        shell.see('ended by signal 2')
        shell.see('ready> ', 3)
        shell.type('echo status=$?\n')
        shell.see('status=130')
        shell.type('exit\n')
        shell.end()


def test_background_job_leaves_the_terminal_alone(cddprun):
    server = sshd.sshd()
    with Terminal(['bash', '--norc', '-i'], {**server.env(), 'PS1': 'ready> '}) as shell:
        path = server.write('worker.py', WORKER)
        shell.see('ready> ')
        shell.type(f'{cddprun} {" ".join(BOTH)} {path} &\n')
        shell.see(r'\[[01]\] up', 2)
        shell.type('echo typed $((40+2))\n')
        shell.see('typed 42')
        shell.type('jobs\n')
        shell.see('Running')
        assert 'Stopped' not in shell.shown, shell.shown
        shell.type('fg\n')  # a shell sends no signal to a job that runs
        shell.see('worker.py')
        shell.type('now\n')
        shell.see(r'\[0\] line now')
        assert 'line echo' not in shell.shown, shell.shown
        shell.type('\x03')
        shell.see('ended by signal 2')
        shell.see('ready> ', 5)
        shell.type('exit\n')
        shell.end()


def test_ssh_has_the_terminal_for_its_questions(cddprun):
    server = sshd.sshd()
    server.trust(False)
    server.client(more='StrictHostKeyChecking ask\n')
    with on_terminal(cddprun, server) as job:
        job.see('continue connecting')
        job.type('yes\n')
        job.see(r'\[[01]\] up', 2)
        job.type('hello\n')
        job.see(r'\[0\] line hello')
        job.type('\x03')
        assert job.end() == 130, job.shown
    set_passphrase(server, 'open sesame')
    with on_terminal(cddprun, server) as job:
        for n in 1, 2:
            job.see('Enter passphrase', n)
            job.type('open sesame\n')
        job.see(r'\[[01]\] up', 2)
        job.type('hello\n')
        job.see(r'\[0\] line hello')
        assert 'line open' not in job.shown, job.shown
        job.type('\x03')
        assert job.end() == 130, job.shown
    for _ in range(5):  # Ctrl-C at a question: ssh and the guard hear of it in any order
        with on_terminal(cddprun, server) as job:
            job.see('Enter passphrase')
            assert not echoes(job.master)
            job.type('\x03')
            assert job.end() == 130, job.shown
            assert echoes(job.master)


def test_a_question_in_the_background_waits_for_fg(cddprun):
    server = sshd.sshd()
    set_passphrase(server, 'open sesame')
    with Terminal(['bash', '--norc', '-i'], {**server.env(), 'PS1': 'ready> '}) as shell:
        path = server.write('worker.py', WORKER)
        shell.see('ready> ')
        shell.type(f'{cddprun} --hosts=a {path} &\n')
        wait_for('the stop', lambda: [p for p in shell.alive() if os.path.basename(launch.exe(p) or '') == 'ssh' and launch.state(p) == 'T'])
        # ssh stops first. The shell reports that cddprun has stopped at its next prompt, and not later.
        wait_for('cddprun', lambda: [p for p in shell.alive() if launch.parent(p) == shell.process.pid and launch.state(p) == 'T'])
        shell.type('\n')
        shell.see('Stopped')
        shell.type('fg\n')
        shell.see('worker.py')
        wait_for('ssh', lambda: not any(launch.state(p) == 'T' for p in shell.alive()))
        shell.see('Enter passphrase')
        shell.type('open sesame\n')
        shell.see(r'\[0\] up')
        shell.type('\x03')
        shell.see('ended by signal 2')
        shell.see('ready> ', 4)
        shell.type('exit\n')
        shell.end()


def set_passphrase(server, new):
    subprocess.run(['ssh-keygen', '-q', '-p', '-a', '1', '-P', '', '-N', new, '-f', os.path.join(server.folder, 'key')], check=True,
                   stdout=subprocess.DEVNULL)


def echoes(terminal):
    return termios.tcgetattr(terminal)[3] & termios.ECHO != 0


def test_what_did_not_start_is_named(cddprun):
    server = sshd.sshd()
    server.client(user='nobody-there')
    with Job(cddprun, *BOTH, 'true', env=server.env()) as job:
        assert job.finish() == 1 and re.search(r'Permission denied', job.err), job.err
        assert re.search(r'the connection to [ab] failed \(ssh.s exit status 255\)', job.err), job.err


def test_a_missing_directory_is_named(cddprun):
    server = sshd.sshd()
    with tempfile.TemporaryDirectory(dir='/run') as folder:  # sshd's users have another /run
        with Job(cddprun, *BOTH, 'true', env=server.env(), cwd=folder) as job:
            assert job.finish() in (1, 2) and re.search(rf"cddprun did not start on [ab] .*'{folder}' must be there", job.err), job.err
            # The shell of the other host ends by itself: its connection may end first.
            wait_for('both hosts to end', lambda: not job.alive())


def test_hosts_that_a_busy_sshd_refuses_have_a_second_try(cddprun):
    server = sshd.sshd(startups='4:100:4')
    hosts = [f'h{i}' for i in range(8)]
    with Job(cddprun, '--hosts', ','.join(hosts), '--master_addr=127.0.0.1', 'sh', '-c', 'echo $RANK', env=server.env()) as job:
        assert job.finish() == 0, job.err
        said = [line for line in job.err.splitlines() if 'nodes have joined' not in line]  # which a busy machine prints after 10 s
        assert lines(job) == [f'[{i}] {i}' for i in range(8)] and not said, (job.out, job.err)
        assert 'MaxStartups' in server.text()  # so that they were refused


def test_ssh_args_and_a_hostfile(cddprun):
    server = sshd.sshd()
    config = os.path.join(server.folder, 'ssh_config')
    path = server.write('hosts', '\ufeffa slots = 2\n# all\nb\n')  # as an editor of Windows writes it
    script = ['sh', '-c', 'echo $RANK $WORLD_SIZE $GROUP_RANK']
    plain = {'PATH': os.path.dirname(shutil.which('ssh')) + os.pathsep + os.environ['PATH']}
    for flags, want in ([], ['[0] 0 3 0', '[1] 1 3 0', '[2] 2 3 1']), (['--nproc_per_node=1'], ['[0] 0 2 0', '[1] 1 2 1']):
        with Job(cddprun, '--hostfile', path, *flags, f'--ssh_args=-F {config} -v', '--master_addr=127.0.0.1', *script, env=plain) as job:
            assert job.finish() == 0 and lines(job) == want, (job.out, job.err)
            assert 'debug1:' in job.err, job.err


def test_environment_goes_along_if_asked_for(cddprun):
    server = sshd.sshd()
    here = {**server.env(), 'HERE': 'yes', 'VIRTUAL_ENV': '/venv', 'SLURM_X': '1', 'HOME': '/nowhere'}
    script = ['sh', '-c', 'echo "$HERE $VIRTUAL_ENV $SLURM_X" $([ "$HOME" = /nowhere ] || echo home)']
    for flags, want in ([], '[0]    home'), (['--export=ALL'], '[0] yes /venv  home'), (['-x', 'VIRTUAL_ENV'], '[0]  /venv  home'):
        with Job(cddprun, '--hosts=a', *flags, *script, env=here) as job:
            assert job.finish() == 0 and job.out == want + '\n', (flags, job.out, job.err)
            assert ('VIRTUAL_ENV is set here' in job.err) == (not flags), job.err


if __name__ == '__main__':
    launch.main()
