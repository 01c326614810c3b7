#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What workers print, on its way to cddprun's own stdout: pseudo-terminals, and a stdout that cannot be written."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import tty

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, run

PRINTER = os.environ['CDDP_PRINTER']
# Makes stdout the controlling terminal, as for a user's shell, and becomes the command.
OURS = 'import fcntl, os, sys, termios; fcntl.ioctl(1, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])'


class Terminal:
    """A terminal as cddprun's stdout. Raw, so that bytes are read as they were written."""

    def __init__(self, columns=0, rows=0):
        self.master, self.slave = pty.openpty()
        tty.setraw(self.slave)
        self.text = b''
        if columns:
            self.resize(columns, rows)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for fd in (self.master, self.slave):
            if fd >= 0:
                os.close(fd)

    def resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))

    def job(self, cddprun, *args, ours=False, **more):
        """Starts cddprun on it; ours: as its controlling terminal."""
        more.setdefault('stderr', subprocess.PIPE)
        before = [sys.executable, '-c', OURS] if ours else []
        return Job(*before, cddprun, '--standalone', *args, stdout=self.slave, start_new_session=ours, **more)

    def read_until(self, wanted, timeout=launch.DEADLINE):
        deadline = time.monotonic() + timeout
        while wanted not in self.text:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.master], [], [], left)[0], f'{wanted!r} did not come: {self.text[-500:]!r}'
            self.text += os.read(self.master, 65536)

    def finish(self, job, timeout=launch.DEADLINE):
        """To the end of the job: its exit status; self.text is all it has shown, job.err its stderr."""
        os.close(self.slave)
        self.slave = -1
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.master], [], [], left)[0], f'no end: {self.text[-500:]!r}'
            try:
                self.text += os.read(self.master, 65536)
            except OSError:
                break  # the other side is closed
        if job.process.stderr:
            job.err = job.process.stderr.read()
        return job.process.wait(launch.DEADLINE)


def on_terminal(cddprun, *args, **more):
    with Terminal() as terminal, terminal.job(cddprun, *args, **more) as job:
        status = terminal.finish(job)
        return status, terminal.text, job.err


def test_terminal_shows_c_programs_lines_immediately(cddprun):
    with Terminal() as terminal, terminal.job(cddprun, PRINTER, 'step', stdin=subprocess.PIPE) as job:
        for i in (1, 2, 3):
            terminal.read_until(b'[0] step %d\n' % i)
            assert b'step %d' % (i + 1) not in terminal.text
            if i < 3:
                job.process.stdin.write('x')
                job.process.stdin.flush()
        assert terminal.finish(job) == 0, job.err


def test_terminal_shows_all_output_of_crashed_program(cddprun):
    status, text, err = on_terminal(cddprun, '-n', '2', PRINTER, 'crash')
    assert status == 134, err
    for rank in (b'0', b'1'):
        shown = [line for line in text.splitlines() if line.startswith(b'[%s] ' % rank)]
        # The other one may have been stopped while it printed.
        assert shown == [b'[%s] step %d loss %d.5' % (rank, i, 5 - i) for i in range(1, 5)][:len(shown)], text
    assert text.count(b'step 4') >= 1, text
    assert 'its stdout was a pipe' not in err, err


def test_report_explains_lost_output_of_pipe(cddprun):
    status, out, err = run(cddprun, '--standalone', PRINTER, 'crash')
    assert (status, out) == (134, ''), (out, err)
    assert re.search(r'SIGABRT.*\n.*\n    its stdout was a pipe: unflushed output is lost; --pty=always, ', err), err
    status, out, err = run(cddprun, '--standalone', '--pty=always', PRINTER, 'crash')
    assert (status, out.count('[0] step')) == (134, 4) and 'a pipe' not in err, (out, err)
    # It flushed all it had, and Python's workers do that at once.
    assert 'a pipe' not in run(cddprun, '--standalone', PRINTER, 'exit', '3')[2]
    with tempfile.NamedTemporaryFile(suffix='.py', mode='w') as script:
        script.write('import os; os.abort()')
        script.flush()
        status, out, err = run(cddprun, '--standalone', script.name)
        assert status == 134 and 'a pipe' not in err, err


def test_pty_always_never_auto(cddprun):
    for flag, on_one, elsewhere in (('always', '0 1 0', '0 1 0'), ('never', '0 0 0', '0 0 0'), ('auto', '0 1 0', '0 0 0')):
        assert on_terminal(cddprun, f'--pty={flag}', PRINTER, 'tty')[:2] == (0, f'[0] {on_one}\n'.encode()), flag
        assert run(cddprun, '--standalone', f'--pty={flag}', PRINTER, 'tty')[:2] == (0, f'[0] {elsewhere}\n'), flag
    assert run(cddprun, '--standalone', PRINTER, 'tty', env={'PET_PTY': 'always'})[:2] == (0, '[0] 0 1 0\n')
    status, _, err = run(cddprun, '--standalone', '--pty=maybe', PRINTER, 'tty')
    assert status == 2 and "--pty 'maybe' is neither auto, always nor never" in err, err


def test_hidden_stream_stays_a_pipe(cddprun):
    with tempfile.TemporaryDirectory() as logs:
        assert on_terminal(cddprun, f'--log_dir={logs}', '--redirects=1', '--rdzv_id=a', PRINTER, 'tty')[:2] == (0, b'')
        (path,) = [os.path.join(d, f) for d, _, files in os.walk(logs) for f in files if f == 'stdout.log']
        with open(path, encoding='utf-8') as f:
            assert f.read() == '0 0 0\n'
    assert on_terminal(cddprun, '-n', '2', '--local_ranks_filter=1', PRINTER, 'tty')[:2] == (0, b'[1] 0 1 0\n')


def test_files_have_exact_bytes_through_pty(cddprun):
    with tempfile.TemporaryDirectory() as logs:
        status, out, err = run(cddprun, '--standalone', '--pty=always', f'--log_dir={logs}', '--redirects=1', PRINTER, 'bytes')
        assert (status, out) == (0, ''), err
        (path,) = [os.path.join(d, f) for d, _, files in os.walk(logs) for f in files if f == 'stdout.log']
        with open(path, 'rb') as f:
            assert f.read() == bytes(range(256)) + b'\n'


def test_exit_status_and_last_output_through_pty(cddprun):
    for i in range(20):  # the end of the process races with the reading of what it wrote
        status, out, err = run(cddprun, '--standalone', '--pty=always', PRINTER, 'exit', str(i))
        assert (status, out) == (i, '[0] leaving\n'), (i, status, out, err)


def test_many_megabytes_through_pty(cddprun):
    n = 40000  # of 80 bytes, from each of two ranks
    with tempfile.TemporaryFile() as out:
        with Job(cddprun, '--standalone', '-n', '2', '--pty=always', PRINTER, 'lines', str(n), stdout=out) as job:
            assert job.finish(120) == 0, job.err
        out.seek(0)
        lines = out.read().split(b'\n')
    assert lines.pop() == b''
    for rank in (b'[0] ', b'[1] '):
        assert [line[4:] for line in lines if line.startswith(rank)] == [b'%079d' % i for i in range(n)]
    assert len(lines) == 2 * n


def test_a_pty_that_a_grandchild_holds_does_not_keep_the_job(cddprun):
    # It has left the session, and no process waits for it; cddprun ends it.
    status, out, err = run(cddprun, '--standalone', '--pty=always', 'sh', '-c', 'setsid sleep 1000 & echo gone')
    assert (status, out) == (0, '[0] gone\n'), err


def test_reopened_pty_is_no_controlling_terminal(cddprun):
    script = ('echo again > /dev/stdout; cut -d" " -f7 /proc/self/stat; cut -d" " -f7 /proc/$PPID/stat')
    status, out, err = run(cddprun, '--standalone', '--pty=always', 'sh', '-c', script)
    assert (status, out) == (0, '[0] again\n[0] 0\n[0] 0\n'), (out, err)


def test_pty_window_follows_terminal(cddprun):
    launch.only_local('the terminal is on another host')
    with Terminal(100, 30) as terminal, terminal.job(cddprun, PRINTER, 'size', ours=True, stdin=subprocess.PIPE,
                                                     env={'TERM': 'dumb'}) as job:
        terminal.read_until(b'[0] 96 x 30\n')
        terminal.resize(61, 20)
        terminal.read_until(b'[0] 57 x 20\n')
        job.process.stdin.close()
        job.process.stdin = None
        assert terminal.finish(job) == 0, job.err


def test_progress_bar_stays_in_one_line(cddprun):
    launch.only_local('hosts send whole lines')
    with Terminal() as terminal, terminal.job(cddprun, PRINTER, 'bar', ours=True, env={'TERM': 'xterm', 'NO_COLOR': '1'}) as job:
        assert terminal.finish(job) == 0, job.err
        assert terminal.text == b'[0] 1 of 3 and more\r\x1b[K[0] 2 of 3 and more\r\x1b[K[0] 3 of 3\n', terminal.text
    # Nobody draws in a file.
    with tempfile.TemporaryFile() as out:
        assert run(cddprun, '--standalone', '--pty=always', PRINTER, 'bar', stdout=out)[0] == 0
        out.seek(0)
        assert out.read() == b'[0] \r1 of 3 and more\r2 of 3 and more\r3 of 3\n'


def test_filter_after_worker_writes_all_output(cddprun):
    script = ('exec > >(while read -r l; do echo "late $l"; done) 2>&1\n'
              'for i in $(seq 2000); do echo line $i; done\nexit {status}')
    for status in 0, 3:
        for flag in '--pty=never', '--pty=always':
            rc, out, err = run(cddprun, '--standalone', flag, 'bash', '-c', script.format(status=status))
            assert rc == status, (rc, err)
            assert [line for line in out.splitlines() if 'late' in line] == [f'[0] late line {i}' for i in range(1, 2001)], out[-200:]


def without_ptys(command, **more):
    """The command where no pseudo-terminal can be had: in a mount namespace without /dev/pts."""
    script = 'mount -t tmpfs none /dev/pts && if [ -e /dev/ptmx ]; then mount --bind /dev/null /dev/ptmx; fi && exec "$@"'
    return ['unshare', '-m', 'sh', '-c', script, 'sh', *command]


def test_without_ptys_auto_uses_pipe_and_always_fails(cddprun):
    launch.only_local('the host has ptys')
    if subprocess.run(without_ptys(['true']), capture_output=True, check=False).returncode != 0:
        raise launch.Skip('mount namespaces are not allowed here')
    with Terminal() as terminal, Job(*without_ptys([cddprun]), '--standalone', '-n', '3', PRINTER, 'tty', stdout=terminal.slave) as job:
        assert terminal.finish(job) == 0, job.err
        assert sorted(terminal.text.splitlines()) == [b'[%d] 0 0 0' % i for i in range(3)], terminal.text
        assert job.err.count('cannot open a pseudo-terminal') == 1 and 'using a pipe instead' in job.err, job.err
    with Job(*without_ptys([cddprun]), '--standalone', '-n', '3', '--pty=always', PRINTER, 'tty') as job:
        assert job.finish() == 126, job.err
        assert 'rank 0 could not be started: cannot open a pseudo-terminal for its stdout (--pty=always): ' in job.err, job.err
        when = time.mktime(time.strptime(re.search(r' at (\d+-\d+-\d+ \d+:\d+:\d+) [+-]\d{4}\n', job.err)[1], '%Y-%m-%d %H:%M:%S'))
        assert time.time() - launch.DEADLINE < when <= time.time(), job.err


# ------------------------------------------------------------------------------- a stdout that cannot be written

GONE = 'cddprun: the reader of its output is gone (SIGPIPE); the workers have been stopped\n'


def test_full_stdout_disk_warns_once_and_fails_at_end(cddprun):
    with tempfile.TemporaryDirectory() as folder, open('/dev/full', 'w', encoding='ascii') as full:
        script = f'for i in 1 2 3 4 5 6; do seq 3000; done; echo trained > {folder}/$RANK'
        status, _, err = run(cddprun, '--standalone', '-n', '2', 'sh', '-c', script, stdout=full)
        assert status == 1 and sorted(os.listdir(folder)) == ['0', '1'], err
        assert err == ('cddprun: cannot write to stdout: No space left on device; the job continues, but further output of its workers there '
                       'is lost, and the exit status will not be 0\n'), err
        assert run(cddprun, '--standalone', 'sh', '-c', 'echo x; exit 7', stdout=full)[0] == 7
        assert run(cddprun, '--standalone', 'true', stdout=full)[::2] == (0, '')
        assert run(cddprun, '--standalone', 'sh', '-c', 'echo x >&2', stderr=full)[0] == 1


def reader_goes_away(cddprun, *args, both=False, **more):
    """Reads one byte of its output and closes the pipe: status and stderr."""
    read, write = os.pipe()
    with Job(cddprun, *args, stdout=write, stderr=write if both else subprocess.PIPE, **more) as job:
        os.close(write)
        assert os.read(read, 1) == b'['
        os.close(read)
        return job.finish(), job.err


def is_told(status, err):
    """With --hosts, the job's own cddprun says who ended it, too."""
    return status == 141 and ('the reader of its output is gone (SIGPIPE)' in err if launch.HOSTS else err == GONE)


def test_closed_reader_ends_the_job(cddprun):
    assert is_told(*reader_goes_away(cddprun, '--standalone', '-n', '2', 'yes'))
    assert is_told(*reader_goes_away(cddprun, '--standalone', '-n', '2', '--pty=always', 'yes'))
    python = 'import itertools\nfor i in itertools.count(): print(i, flush=True)'  # ignores SIGPIPE
    assert is_told(*reader_goes_away(cddprun, '--standalone', '-n', '2', sys.executable, '-c', python))
    assert reader_goes_away(cddprun, '--standalone', 'sh', '-c', 'exec yes >&2', both=True)[0] == 141


def test_closed_reader_ends_job_on_several_hosts(cddprun):
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, 'log'))
        os.symlink(os.path.join(os.path.dirname(os.path.realpath(__file__)), 'fake_ssh.py'), os.path.join(folder, 'ssh'))
        env = {'PATH': folder + os.pathsep + os.environ['PATH'], 'FAKE_SSH_LOG': os.path.join(folder, 'log'), 'FAKE_SSH_SERVER': launch.far_ends()}
        hosts = ['--hosts', 'a,b', '--master_addr', '127.0.0.1']
        status, err = reader_goes_away(cddprun, *hosts, 'yes', env=env)
        assert status == 141 and 'cddprun: the reader of its output is gone (SIGPIPE); ending the job\n' in err, err
        with open('/dev/full', 'w', encoding='ascii') as full:
            status, _, err = run(cddprun, *hosts, 'echo', 'x', env=env, stdout=full)
            assert status == 1 and err.count('cannot write to stdout: No space left on device') == 1, err


def test_stalled_reader_does_not_block_failure_report(cddprun):
    launch.only_local("a host's status follows its output")
    read, write = os.pipe()
    with Job(cddprun, '--standalone', '-n', '2', '--shutdown_timeout=1', 'sh', '-c',
             'if [ $RANK = 0 ]; then exec yes; fi; seq 20000; echo last words >&2; exit 5', stdout=write) as job:
        os.close(write)
        status = job.finish(launch.within(60))
        os.close(read)
    assert status == 5 and '[1] last words\n' in job.err, job.err
    assert 'cddprun: its output is not being read: the last output of the workers is lost\n' in job.err, job.err
    assert re.search(r'cddprun: rank 1 \(pid .*exited with status 5', job.err), job.err


def test_a_signal_ends_a_job_with_a_stalled_reader_within_its_grace(cddprun):
    read, write = os.pipe()
    with Job(cddprun, '--standalone', '-n', '1', '--shutdown_timeout=5', 'sh', '-c', 'yes; :', stdout=write) as job:
        os.close(write)
        # Every buffer on the way is full when the worker sleeps in its write.
        launch.wait_for('a worker that waits', lambda: len(
            [pid for pid in job.alive() if launch.exe(pid).endswith(('yes', 'coreutils')) and launch.state(pid) == 'S']) == 1)
        time.sleep(0.5)
        began = time.monotonic()
        os.kill(job.process.pid, signal.SIGTERM)
        status = job.finish(launch.within(60))
        took = time.monotonic() - began
        os.close(read)
    assert status == 128 + signal.SIGTERM and took < 9.5, (status, took, job.err)
    assert 'cddprun: its output is not being read: the last output of the workers is lost\n' in job.err, job.err


def test_successful_job_waits_for_its_reader(cddprun):
    read, write = os.pipe()
    with Job(cddprun, '--standalone', '--shutdown_timeout=0', 'seq', '50000', stdout=write) as job:
        os.close(write)
        launch.wait_for('the output', lambda: select.select([read], [], [], 0)[0])
        launch.wait_for('the worker to end', lambda: (launch.HOSTS or job.agent()) and not job.workers())  # a host may have ended by now
        text = b''
        while part := os.read(read, 65536):
            text += part
        os.close(read)
        assert job.finish() == 0, job.err
    assert text == b''.join(b'[0] %d\n' % i for i in range(1, 50001))


if __name__ == '__main__':
    launch.main()
