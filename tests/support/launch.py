# SPDX-License-Identifier: Apache-2.0
"""Running cddprun in tests: a private TMPDIR, a mark in the environment by which every process of the job is found
whatever it is called, deadlines, and a runner that prints TAP.

A test file defines functions test_*(cddprun) and ends with launch.main(). meson gives it the path of cddprun,
--slow where sanitizers are in it, and --hosts for a second run, in which --hosts starts each job, by fake_ssh.py.
"""
import atexit
import contextlib
import faulthandler
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from ports import free_port, free_ports, hold

MARK = 'CDDP_TEST_MARK'
DEADLINE = 90.0  # for anything that must happen; only what hangs reaches it
SLOW = False
HOSTS = False
FAKE_SSH = os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'integration', 'fake_ssh.py')


class Skip(Exception):
    """Raised by a test that cannot run here; its text says why."""


def only_local(why):
    """For a test of what --hosts does not have."""
    if HOSTS:
        raise Skip(f'only without --hosts: {why}')


servers = []


def far_ends():
    """A socket by which fake_ssh.py has commands run by this process, as sshd would: outside of cddprun's own tree."""
    if not servers:
        folder = tempfile.mkdtemp(prefix='cddp-far-')
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        servers.append(os.path.join(folder, 'server'))
        server = socket.socket(socket.AF_UNIX)
        server.bind(servers[0])
        server.listen(64)
        threading.Thread(target=serve_far_ends, args=(server,), daemon=True).start()
    return servers[0]


def serve_far_ends(server):
    while True:
        threading.Thread(target=run_far_end, args=(server.accept()[0],), daemon=True).start()


def run_far_end(connection):
    text, fds, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while more := connection.recv(1 << 16):
        text += more
    there, env, folder = json.loads(text)
    with subprocess.Popen(there, stdin=fds[0], stdout=fds[1], stderr=fds[2], env=env, cwd=folder, start_new_session=True) as far:
        for fd in fds:
            os.close(fd)
        status = far.wait()
    with contextlib.suppress(OSError):  # ssh was killed
        connection.send(str(status).encode())
    connection.close()


def by_ssh(command):
    """The command with --hosts: one host, the same number of workers."""
    at = next(i for i, word in enumerate(command) if os.path.basename(word) == 'cddprun') + 1
    flags = ['--nproc_per_node' if word == '-n' else word for word in command[at:at + 5] if word != '--standalone']
    return [*command[:at], '--hosts=a', *flags, *command[at + 5:]]


class Job:
    """One run of cddprun. Use it in a `with`: nothing of it survives the block, and leftovers fail the test."""

    def __init__(self, cddprun, *args, env=None, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                 stderr=subprocess.PIPE, **popen):
        self.mark = f'{os.getpid()}-{time.monotonic_ns()}'
        self.tmp = tempfile.mkdtemp(prefix='cddp-test-')
        # Clean of what an outer job (a test under torchrun, a CI runner) may have set.
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(('PET_', 'TORCHELASTIC_', 'CDDP_', 'OMP_', 'SLURM_', 'MASTER_'))}
        self.env.update({MARK: self.mark, 'TMPDIR': self.tmp})
        self.env.update(env or {})
        command = [cddprun, *args]
        if HOSTS:
            command = by_ssh(command)
            self.ssh = tempfile.mkdtemp(prefix='cddp-test-ssh-')
            os.symlink(os.path.realpath(FAKE_SSH), os.path.join(self.ssh, 'ssh'))
            self.env.update({'PATH': self.ssh + os.pathsep + self.env['PATH'], 'FAKE_SSH_SERVER': far_ends()})
        self.process = subprocess.Popen(command, env=self.env, stdin=stdin, stdout=stdout, stderr=stderr,
                                        text=True, **popen)
        self.out = self.err = ''

    def __enter__(self):
        return self

    def finish(self, timeout=DEADLINE):
        """Wait for the end; the exit status. out and err are filled."""
        self.out, self.err = self.process.communicate(timeout=timeout)
        return self.process.returncode

    def alive(self):
        """Every process of this job that is not a zombie, but for the test itself."""
        return marked(self.mark)

    def agent(self):
        """The pid of cddprun's inner process, on the host with --hosts; None: not yet."""
        program = exe(self.process.pid)
        for pid in self.alive():
            guard = parent(pid)
            if exe(pid) == program and (exe(guard) == exe(parent(guard)) == program if HOSTS else guard == self.process.pid):
                return pid
        return None

    def workers(self):
        """The pids of the agent's own children."""
        agent = self.agent()
        return [pid for pid in self.alive() if agent is not None and parent(pid) == agent]

    def left_in_tmp(self):
        return os.listdir(self.tmp)

    def __exit__(self, kind, value, trace):
        left = self.alive()
        litter = self.left_in_tmp()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
        shutil.rmtree(self.tmp, ignore_errors=True)
        if HOSTS:
            shutil.rmtree(self.ssh)
        if kind is None:
            assert not left, f'processes left running: {left}'
            assert not litter, f'left in TMPDIR: {litter}'


def run(cddprun, *args, **popen):
    """Run to the end: (exit status, stdout, stderr); nothing may be left."""
    with Job(cddprun, *args, **popen) as job:
        status = job.finish()
        return status, job.out, job.err


def exe(pid):
    try:
        return os.readlink(f'/proc/{pid}/exe')
    except OSError:
        return None


def stat(pid):
    """(state, ppid) or None."""
    try:
        with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as f:
            fields = f.read().rpartition(')')[2].split()
        return fields[0], int(fields[1])
    except (OSError, IndexError):
        return None


def parent(pid):
    found = stat(pid)
    return found[1] if found else None


def state(pid):
    found = stat(pid)
    return found[0] if found else None


def marked(mark):
    wanted = f'{MARK}={mark}'.encode()
    found = []
    for name in os.listdir('/proc'):
        if not name.isdigit():
            continue
        try:
            with open(f'/proc/{name}/environ', 'rb') as f:
                if wanted in f.read().split(b'\0') and state(int(name)) not in (None, 'Z', 'X'):
                    found.append(int(name))
        except OSError:
            pass
    return found


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(('127.0.0.1', port)) == 0


def wait_for(what, condition, timeout=DEADLINE, more=lambda: ''):
    """Until condition() is true; returns what it returned. more() is what a failure says besides."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f'not within {timeout} s: {what} {more()}'
        time.sleep(0.005)


def busyness():
    """How many processes want each processor, now or in the last minute, whichever is more; at least 1."""
    try:
        with open('/proc/loadavg', encoding='ascii') as f:
            average, _, _, running, _ = f.read().split()
    except OSError:
        return 1.0
    return max(1.0, float(average) / os.cpu_count(), int(running.split('/')[0]) / os.cpu_count())


def path_with_py_spy():
    """A PATH with py-spy: this one, or with the folder of -Dtorch_python's interpreter."""
    path = os.environ['PATH'] + os.pathsep + os.path.dirname(os.environ.get('CDDP_TEST_TORCH_PYTHON', ''))
    if shutil.which('py-spy', path=path) is None:
        raise Skip('needs py-spy: pip install py-spy')
    return path


STALL_S = 1  # a virtual machine can lose its processors for so long, which no load average shows


def within(seconds):
    """A limit for what must happen soon: so long on a calm machine, longer as it is busier, or slowed by sanitizers."""
    return seconds * busyness() * (5 if SLOW else 1) + STALL_S


def take_signals():
    """Undo what nohup and a shell's background jobs do: they ignore these signals, and every child inherits that."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGTSTP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def main():
    global SLOW, HOSTS
    take_signals()
    faulthandler.register(signal.SIGTERM, chain=True)  # at the time limit: where it hangs
    args = sys.argv[1:]
    if '--slow' in args:
        SLOW = True
        args.remove('--slow')
    if '--hosts' in args:
        HOSTS = True
        args.remove('--hosts')
    cddprun = os.path.abspath(args[0])
    names = args[1:]
    tests = [(n, f) for n, f in sys.modules['__main__'].__dict__.items() if n.startswith('test_') and callable(f)]
    tests = [(n, f) for n, f in tests if not names or n in names]
    if not tests:
        sys.exit('no such test')
    print(f'1..{len(tests)}', flush=True)
    failed = 0
    for i, (name, function) in enumerate(tests, 1):
        began = time.monotonic()
        try:
            function(cddprun)
            print(f'ok {i} - {name[5:]} # {time.monotonic() - began:.2f} s', flush=True)
        except Skip as why:
            print(f'ok {i} - {name[5:]} # SKIP {why}', flush=True)
        except Exception:  # also assertion and timeout: one bad test must not hide the others
            failed += 1
            print(f'not ok {i} - {name[5:]}', flush=True)
            for line in traceback.format_exc().splitlines():
                print(f'# {line}', flush=True)
    sys.exit(1 if failed else 0)
