#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of 8 ranks on 2 nodes that come to a stop: which rank, which collective and which state cddprun names, and when.

    hangs.py CDDPRUN [--slow] [--all] [TEST...]     without --all, the tests whose names begin with test_ci_
    hangs.py CDDPRUN --write                        all, and docs/hangs.md is written from the results
"""
import contextlib
import os
import pathlib
import re
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, Skip, free_port, wait_for

WARNING = 2.0
NAMED = WARNING + 2  # agents look once a second, and the stacks are read before the message is printed
LATE = 5  # the rank that comes to a stop, on node 1
ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKER = os.environ.get('CDDP_HANG_WORKER', '')
WRAPPED = f'if [ $RANK = {LATE} ]; then "$@"; sleep 1000; else exec "$@"; fi'
CGROUPS = pathlib.Path('/sys/fs/cgroup')
seen = []  # for docs/hangs.md
SHOWN = 'It sleeps', 'It skips a collective'  # there, with their messages


class Hang(contextlib.ExitStack):
    """Two agents on this machine with 4 ranks each, and the time at which one of them came to a stop."""

    def __init__(self, cddprun, mode, *flags, script=None, group=None):
        super().__init__()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory(prefix='cddp-test-')))
        self.port, self.jobs = free_port(), []
        env = {'HANG_STAMP': str(self.folder / 'stamp'), 'CDDP_BACKEND': 'cpu', **({'HANG_CGROUP': str(group)} if group else {})}
        for node in 0, 1:
            err = self.enter_context(open(self.folder / f'err.{node}', 'w', encoding='utf-8'))
            self.jobs.append(self.enter_context(Job(
                cddprun, '--nnodes=2', f'--node_rank={node}', '--master_addr=127.0.0.1', f'--master_port={self.port}',
                f'--local_addr=node{node}', '--nproc_per_node=4', f'--hang_warning={WARNING}', '--shutdown_timeout=1', *flags,
                *(['sh', '-c', script, 'sh'] if script else []), WORKER, mode, str(LATE), '5', env=env, stdout=err, stderr=err)))

    def err(self, node=0):
        return (self.folder / f'err.{node}').read_text(encoding='utf-8')

    def stopped_at(self):
        with contextlib.suppress(FileNotFoundError, ValueError):
            return float((self.folder / 'stamp').read_text(encoding='ascii'))
        return None

    def ended(self):
        return [job.process.poll() for job in self.jobs]

    def hear(self, pattern):
        """Until a node prints it; returns the seconds since the rank stopped, and the match."""
        wait_for('the stop', self.stopped_at, more=lambda: self.err(0) + self.err(1))
        found = wait_for(pattern, lambda: re.search(pattern, self.err(0), re.M) or re.search(pattern, self.err(1), re.M),
                         more=lambda: self.err(0) + self.err(1))
        return time.monotonic() - self.stopped_at(), found

    def finish(self):
        """The exit statuses of jobs that end by themselves."""
        wait_for('the end', lambda: None not in self.ended(), more=lambda: self.err(0) + self.err(1))
        return self.ended()

    def end(self):
        for job in self.jobs:
            if job.process.poll() is None:
                job.process.send_signal(signal.SIGTERM)
        self.finish()


def message(text, start='cddprun: no progress'):
    """The first message that begins so: its first line, and the lines that are indented after it."""
    lines = text[text.index(start):].splitlines()
    n = next((i for i, line in enumerate(lines[1:], 1) if not line.startswith('    ')), len(lines))
    return lines[:n]


def stands(cddprun, title, done, mode, state, stack='planted_function', head='', **how):
    """The job comes to a stop, and rank LATE is named with its collective, its state, and the planted function."""
    with Hang(cddprun, mode, '--hang_timeout=0', **how) as job:
        try:
            took, _ = job.hear(r'no progress for')
            wait_for('the stack', lambda: f"rank {LATE}'s stack" in job.err() or not stack, more=job.err)
            lines = message(job.err())
            more = [] if any('stack:' in line for line in lines) or not stack else message(job.err(), 'cddprun: more about')
            assert took <= launch.within(NAMED), (took, lines)
            assert re.search(rf'no progress for [2-9] s: rank {LATE} \(pid \d+ on node1\) (is behind|cannot go on): '
                             rf'\w+ ?\w* all_reduce #\d+ .*step 6\).*{state}', lines[0]), lines
            assert re.search(r'^    ranks 0-4, 6, 7 wait in all_reduce #\d+ of 4\.0 KiB float32 \(step 6\), for \d s$', '\n'.join(lines), re.M), lines
            assert not stack or any(stack in line for line in lines + more), lines + more  # a busy machine reads it later
            assert any(head in line for line in lines + more), lines + more
            assert len(lines) <= 24, lines
            seen.append((title, done, f'{took:.1f} s', lines + more))
        finally:
            if how.get('group'):
                thaw(how['group'])
            job.end()


def differs(cddprun, title, done, mode, what):
    """libcddp itself names the rank that calls something else, and nothing has to wait."""
    with Hang(cddprun, mode) as job:
        took, found = job.hear(rf'ranks called different collectives: .*rank {LATE} called {what}.*')
        job.finish()
        assert took <= launch.within(NAMED), took
        seen.append((title, done, f'{took:.1f} s', [re.sub(r'^(\[\d\] )?hang_worker: ', '', found[0])]))


# -------------------------------------------------------------------------------------------------- memory and freezer
def top_of(kind):
    """The hierarchy of a version 1 controller, or that of version 2: mounted alone, or beside version 1."""
    tops = [CGROUPS / kind] if kind in ('freezer', 'memory') else []
    return next((top for top in [*tops, CGROUPS / 'unified', CGROUPS] if (top / 'cgroup.procs').exists()), CGROUPS)


def make_group(kind, name):
    """An own cgroup; Skip where none can be made."""
    folder = top_of(kind) / f'cddp-test-{os.getpid()}-{name}'
    try:
        folder.mkdir()
        if kind == 'memory' and (folder / 'memory.limit_in_bytes').exists():
            (folder / 'memory.limit_in_bytes').write_text('64M')
            (folder / 'memory.oom_control').write_text('1')
        elif kind == 'memory':
            (folder / 'memory.high').write_text('64M')
        elif not (folder / 'freezer.state').exists() and not (folder / 'cgroup.freeze').exists():
            raise OSError('it has no freezer')
    except OSError as why:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise Skip(f'no cgroup can be made: {why}') from why
    return folder


def thaw(folder):
    """It can be ended only after it runs again."""
    for name, word in ('freezer.state', 'THAWED'), ('cgroup.freeze', '0'), ('memory.oom_control', '0'):
        with contextlib.suppress(OSError):
            if (folder / name).exists():
                (folder / name).write_text(word)


def in_group(cddprun, kind, *args, **how):
    folder = make_group(kind, args[2])
    try:
        stands(cddprun, *args, group=folder, **how)
    finally:
        def gone():
            with contextlib.suppress(OSError):
                folder.rmdir()
            return not folder.exists()
        wait_for('the end of the cgroup', gone)


# --------------------------------------------------------------------------------------------------------------- tests
def test_ci_sleeps(cddprun):
    stands(cddprun, 'It sleeps', 'nanosleep for an hour', 'sleep', 'sleeping')


def test_spins(cddprun):
    stands(cddprun, 'It spins', 'an endless loop', 'spin', '(running|ready to run, but gets)')  # a busy machine gives it little


def test_ci_is_stopped(cddprun):
    stands(cddprun, 'It is stopped', 'SIGSTOP', 'stop', 'stopped by SIGSTOP')


def test_locks_its_own_mutex(cddprun):
    stands(cddprun, 'It deadlocks', 'a mutex that it holds is locked again', 'mutex', 'sleeping in futex')


def test_waits_on_a_pipe(cddprun):
    stands(cddprun, 'It waits on a pipe', 'read of a pipe that nobody writes', 'pipe', 'sleeping in read of a pipe')


def test_ci_sleeps_while_a_part_waits(cddprun):
    with Hang(cddprun, 'part', '--hang_timeout=0') as job:
        took, _ = job.hear(r'no progress for')
        wait_for('the stack', lambda: f"rank {LATE}'s stack" in job.err(), more=job.err)
        lines = message(job.err())
        more = [] if any('stack:' in line for line in lines) else message(job.err(), 'cddprun: more about')
        text = '\n'.join(lines)
        assert took <= launch.within(NAMED), (took, lines)
        assert re.search(rf"no progress for [2-9] s: rank {LATE} \(pid \d+ on node1\) is behind: after all_reduce #5 of part 'tp' "
                         r'\(ranks 4, 5\), \d s ago, sleeping', lines[0]), lines
        assert re.search(r"^    rank 4 waits in all_reduce #6 of part 'tp' \(ranks 4, 5\), 4\.0 KiB float32, for \d s$", text, re.M), lines
        assert re.search(r'^    ranks 0-3, 6, 7 wait in barrier #\d+, for \d s$', text, re.M), lines
        assert any('planted_function' in line for line in lines + more), lines + more
        status, out, err = launch.run(cddprun, '--where', f'127.0.0.1:{job.port}')
        assert status == 0 and err == '', (status, err)
        assert re.search(r"\b4 .*in all_reduce #6 of part 'tp' \(ranks 4, 5\)", out), out
        assert re.search(r"\b5 .*after all_reduce #5 of part 'tp' \(ranks 4, 5\)", out), out
        seen.append(('It sleeps, and a part waits', 'nanosleep for an hour; rank 4 waits in a part, the others in a barrier of the whole',
                     f'{took:.1f} s', lines + more))
        job.end()


def test_ci_is_killed_without_notice(cddprun):
    with Hang(cddprun, 'die', script=WRAPPED) as job:
        took, found = job.hear(rf'all_reduce\(sum\) of 1024 float32: rank {LATE} \(pid \d+.*\) died')
        job.end()
        assert took <= launch.within(NAMED), took
        seen.append(('It is killed without notice', 'SIGKILL; the worker is a shell script that started it, and runs on',
                     f'{took:.1f} s', [found[0]]))


def stack_in(kind):
    """What its stack shows; a process that version 2 has frozen or holds back can be stopped and read as any other."""
    return 'no stack: it cannot be stopped' if top_of(kind).name == kind else 'planted_function'


def test_is_frozen(cddprun):
    in_group(cddprun, 'freezer', 'It is frozen', 'its cgroup is frozen', 'freeze', 'frozen by its cgroup',
             stack=stack_in('freezer'), head='frozen by its cgroup:')


def test_is_frozen_by_version_2(cddprun):
    if top_of('freezer') == top_of('any'):
        raise Skip('the other test has done it')
    in_group(cddprun, 'any', 'It is frozen, version 2', 'its cgroup of version 2 is frozen', 'freeze', 'frozen by its cgroup',
             head='frozen by its cgroup:')


def test_is_at_its_memory_limit(cddprun):
    in_group(cddprun, 'memory', 'It is at its memory limit', 'its cgroup has 64 MiB and no way to free any', 'grow',
             'at its memory limit', stack=stack_in('memory'))


def test_ci_skips_a_collective(cddprun):
    differs(cddprun, 'It skips a collective', 'the all_reduce at the end of the step is left out', 'skip', r'all_reduce\(mean\) of 1048592')


def test_calls_another_collective(cddprun):
    differs(cddprun, 'It calls another collective', 'a broadcast in place of the all_reduce', 'other', 'broadcast of 1024')


def test_sends_another_size(cddprun):
    differs(cddprun, 'It sends another size', '512 elements in place of 1,024', 'size', r'all_reduce\(sum\) of 512')


def test_ci_goes_on_after_a_pause(cddprun):
    with Hang(cddprun, 'pause:3.5') as job:
        job.hear(r'^cddprun: no progress for [23] s: rank 5')
        job.hear(r'^cddprun: progress again after [3-9] s$')
        assert job.finish() == [0, 0], job.err()
        assert job.err().count('no progress') == 1, job.err()
        assert 'progress' not in job.err(1), job.err(1)  # the hosting node prints for the whole job


def test_ci_stops_after_the_timeout(cddprun):
    with Hang(cddprun, 'stop', '--hang_timeout=4', '--max_restarts=3') as job:
        assert job.finish() == [1, 1], job.err()
        for node in 0, 1:
            assert re.search(r'^cddprun: no progress for [4-9] s: rank 5 \(pid \d+ on node1\)', job.err(node), re.M), job.err(node)
        assert '--hang_timeout' in job.err() and 'restarting' not in job.err(), job.err()


def test_ci_restarts_after_the_timeout(cddprun):
    script = 'if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then exec "$@"; else shift 2; exec "$0" pause:0 "$@"; fi'
    with Hang(cddprun, 'sleep', '--hang_timeout=3', '--on_hang=restart', '--max_restarts=1',
              script=script.replace('"$0"', f'"{WORKER}"')) as job:
        assert job.finish() == [0, 0], job.err()
        assert re.search(r'^cddprun: no progress for \d s: rank 5 .*; restarting all workers \(restart 1 of 1\)$', job.err(), re.M), job.err()


def test_only_reports_after_the_timeout(cddprun):
    with Hang(cddprun, 'pause:5', '--hang_timeout=3', '--on_hang=report') as job:
        job.hear(r'--hang_timeout\) have passed: the job continues')
        assert job.finish() == [0, 0], job.err()


def test_ci_says_nothing_if_it_is_off(cddprun):
    with Hang(cddprun, 'pause:3', '--hang_warning=0', '--hang_timeout=0') as job:
        assert job.finish() == [0, 0], job.err()
        assert 'progress' not in job.err() + job.err(1), job.err()


HEAD = '''<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Written by tests/integration/hangs.py --write -->
# A job that stands still

When ranks have waited for `--hang_warning` (30 s) in a collective, cddprun prints one message for the whole job, on the node
of node rank 0: which ranks are behind and what they do, in which collective the others wait, and the stacks of those that
are behind. It is one screen at most, also for 1,000 ranks: ranks in equal places share a line. A message follows when
the state changes, a few at most, and "progress again after 41 s" at the end. So a slow checkpoint of one rank, an evaluation,
or a debugger costs one message, and ends nothing.

After `--hang_timeout` (600 s), `--on_hang` decides:

| `--on_hang` | |
| --- | --- |
| `stop` (default) | the job ends with exit status 1, and the report names the rank that is behind; no restart follows |
| `restart` | the round fails, and all workers are restarted if `--max_restarts` permits it |
| `report` | the message is printed once more, with stacks, and the job continues |

`--hang_warning=0` and `--hang_timeout=0` switch them off. A collective of libcddp also has its own limit (`CDDP_TIMEOUT`,
600 s). With the defaults that limit comes first: the call fails with `CDDP_E_TIMEOUT`, and if the program then exits with an
error, `--max_restarts` applies. To end a hang sooner, give `--hang_timeout=120`; to restart then, also
`--on_hang=restart --max_restarts=3`. A program whose ranks wait longer on purpose needs a higher value of both limits.
`cddprun --where` prints where all ranks are at any time ([how](cookbook.md#it-hangs)).

| the rank that is behind | what to do |
| --- | --- |
| is stopped by a signal or a debugger | `kill -CONT PID`, or leave the debugger |
| is in D state | look at its file system or driver |
| sleeps | look at its stack: in a read, often the data loader; in a futex, a lock |
| runs | look at its stack: an endless loop, or more work than the others have |
| is in another collective | look for a branch that depends on the rank |
| is frozen, or at its memory limit | look at its cgroup |

How it works: each agent looks at the flight pages of its workers about once a second, and reports nothing by itself while all is well.
When a rank has waited for too long, the agent reports it to the rendezvous, which asks the other agents, and decides
(`watch/hang.c`). A rank is behind if it is in no collective, or if it is in one and cannot run, or if it is in
another one than most. Ranks that wait for messages of each other, in a circle, are named with the ranks that they wait for (on the
CPU: the other backends do not record the other rank of a message). Numbers such as `#16` count the collectives of a rank on
the communicator of `cddp_init`.

A part (`cddp_comm_split`, `cddp_comm_create_group`) counts its collectives from 1, and is shown with its name and its ranks of the
job. A rank is shown in the collective, of the whole or of a part, in which it has been for longest. Outside of all it is shown after
the one that it finished last. A page has room for eight parts at once. Further ones are not shown: `CDDP_TIMEOUT` alone ends a wait
there. Steps of a reducer on a part, and CUDA graphs that replay its collectives, are not shown, either.

A PyTorch program has no flight page. Its agent watches the processor time of the node's workers, and after `--hang_warning` prints
where the Python stack of each one stands. When half of those workers use their processors again, it prints that once. Such a message
ends nothing: `--hang_timeout` is for collectives of libcddp. If PyTorch's flight recorder is on (`TORCH_FR_DUMP_TEMP_FILE`), the
message names its dumps, which `torchfrtrace` reads.
Time in which cddprun was suspended does not count.

A native stack is read from outside. It needs libdw (Debian's package libdw1) and the permission to trace: an agent may trace its own
workers unless a container or `ptrace_scope` forbids it. If it cannot be read, the message gives the reason.

A Python stack is read by py-spy, which cddprun looks for beside itself and in `PATH`. The Python wheel brings it; otherwise
`pip install py-spy`, on every node. Without it the message has the native stack, and the line that says how to install it.

A thread that is frozen by its cgroup (version 1), or in D state, cannot be stopped, and has no stack. The message has the system
call in which it waits, and the function of the kernel.

Jobs of 8 ranks on 2 nodes follow (ranks 0 to 3 on node0, 4 to 7 on node1), with `--hang_warning=2`. Rank 5 comes to a stop in
`planted_function`. The time is counted from there to the message.

'''


FOOT = '''
If both calls look the same, the end of the message says what differs: the model, by its number in the order in which models were created on
the communicator, or earlier steps of its optimizer (`cddp_optim_skip` on one rank alone, or another learning rate).
'''


def write():
    lines = ['| rank 5 | done | named after |', '| --- | --- | --- |']
    lines += [f'| {title} | {done} | {took} |' for title, done, took, _ in seen]
    for title, _, _, text in seen:
        if title not in SHOWN:
            continue
        lines += ['', f'## {title}', '', '```text', *text, '```']
    (ROOT / 'docs' / 'hangs.md').write_text(HEAD + '\n'.join(lines) + '\n' + FOOT, encoding='utf-8')


if __name__ == '__main__':
    writes = '--write' in sys.argv
    everything = writes or '--all' in sys.argv or any(word.startswith('test_') for word in sys.argv)
    sys.argv = [word for word in sys.argv if word not in ('--write', '--all')]
    if not everything:
        sys.argv += [name for name in dir() if name.startswith('test_ci_')]
    try:
        launch.main()
    except SystemExit as end:
        if end.code == 0 and writes:
            write()
        raise
