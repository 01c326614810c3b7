#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cddprun runs a job: exit status, report, environment, output, restart, bad input."""
import contextlib
import ctypes
import errno
import json
import os
import re
import resource
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, Skip, run

HERE = os.path.realpath(__file__)


def sh(script, *args):
    return ['sh', '-c', script, 'sh', *args]


# --- exit status and report -----------------------------------------------------------------------------------------

def test_successful_job_prints_nothing_itself(cddprun):
    assert run(cddprun, '--nproc_per_node=2', 'true') == (0, '', '')


def test_the_exit_status_is_the_first_failing_ranks(cddprun):
    status, out, err = run(cddprun, '--nproc_per_node=3', *sh('[ $RANK = 1 ] && exit 42; exec sleep 60'))
    assert status == 42, (status, err)
    assert re.match(r'cddprun: rank 1 \(pid \d+ on \S+\) exited with status 42 after \d+\.\d s\n'
                    r'    local rank 1 of sh, at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}\n', err), err
    assert 'workers of this node were stopped or failed after it' in err, err


def test_death_by_a_signal_is_reported_with_its_name(cddprun):
    status, out, err = run(cddprun, '--nproc_per_node=2', *sh('[ $RANK = 0 ] && kill -KILL $$; exec sleep 60'))
    assert status == 128 + 9, (status, err)
    assert re.search(r'rank 0 \(pid \d+ on \S+\) was killed by signal 9 \(SIGKILL\)', err), err


def test_no_core_is_claimed_where_none_was_written(cddprun):
    status, out, err = run(cddprun, *sh('ulimit -c 0; kill -SEGV $$'))
    assert status == 128 + 11 and '(SIGSEGV) after' in err, err


def test_a_core_is_mentioned(cddprun):
    if launch.SLOW:
        raise Skip('AddressSanitizer lowers the limit of cores for itself and its children')
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    with open('/proc/sys/kernel/core_pattern', encoding='ascii') as f:
        pattern = f.read().strip()
    if hard == 0 or not pattern or pattern.startswith(('|', '/')):
        raise Skip(f'cores are not written where the test may remove them (core_pattern {pattern!r}, limit {hard})')
    with Job(cddprun, *sh('cd "$TMPDIR" && kill -SEGV $$'),
             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))) as job:
        status = job.finish()
        for name in job.left_in_tmp():
            if name.startswith('core'):
                os.unlink(os.path.join(job.tmp, name))
        assert status == 128 + 11 and '(SIGSEGV), core dumped after' in job.err, job.err


def test_the_last_lines_of_stderr_and_the_error_file_are_shown(cddprun):
    script = ('[ $RANK = 1 ] || exec sleep 60; for i in $(seq 1 30); do echo line $i >&2; done; '
              'printf %s \'{"message":{"message":"ValueError: bad\\nsecond","extraInfo":{}}}\' > "$TORCHELASTIC_ERROR_FILE"; '
              'exit 1')
    status, out, err = run(cddprun, '--nproc_per_node=2', *sh(script))
    assert status == 1
    report = err[err.index('cddprun: rank 1'):]
    assert '    its message:\n    | ValueError: bad\n    | second\n' in report, report
    assert '    | line 21\n' in report and '    | line 30\n' in report and 'line 20\n' not in report, report
    assert report.count('\n') <= 24, 'a report fits on a screen'


def test_first_recorded_exception_is_the_cause(cddprun):
    """Rank 0 fails because of rank 1, which ends slowly, as Python does."""
    note = 'printf %s \'{"message":{"message":"\'"$1"\'"}}\' > "$TORCHELASTIC_ERROR_FILE"'
    script = (f'note() {{ {note}; }}; ulimit -c 0; [ $RANK = 2 ] && exec sleep 60; '
              '[ $RANK = 1 ] && { note "a bad batch"; sleep 0.1; touch $TMPDIR/noted; exec sleep 60; }; '
              'until [ -e $TMPDIR/noted ]; do sleep 0.01; done; note "closed by peer"; kill -ABRT $$')
    with Job(cddprun, '--nproc_per_node=3', *sh(script)) as job:
        assert job.finish() == 1, job.err
        os.unlink(os.path.join(job.tmp, 'noted'))
    report = job.err[job.err.index('cddprun: rank'):]
    assert re.match(r'cddprun: rank 1 \(pid \d+ on \S+\) exited with status 1', report), report
    assert '    | a bad batch\n' in report and 'closed by peer' not in report, report
    assert re.search(r'\n    rank 0: killed by signal 6 \(SIGABRT\)\n', report), report


def test_exiting_worker_has_status_noted_by_libcddp(cddprun):
    """Rank 1's last destructor is slow; rank 0 fails because of it, and exits first."""
    note = 'printf %s \'{"message":{"message":"\'"$1"\'","extraInfo":{"exitStatus":\'$2\'}}}\' > "$TORCHELASTIC_ERROR_FILE"'
    script = (f'note() {{ {note}; }}; [ $RANK = 1 ] && {{ note "no such file" 75; sleep 0.1; touch $TMPDIR/noted; exec sleep 60; }}; '
              'until [ -e $TMPDIR/noted ]; do sleep 0.01; done; note "rank 1 gave up" 3; exit 3')
    with Job(cddprun, '--nproc_per_node=2', *sh(script)) as job:
        assert job.finish() == 75, job.err
        os.unlink(os.path.join(job.tmp, 'noted'))
    report = job.err[job.err.index('cddprun: rank'):]
    assert re.match(r'cddprun: rank 1 \(pid \d+ on \S+\) exited with status 75', report), report
    assert '    | no such file\n' in report and re.search(r'\n    rank 0: exited with status 3\n', report), report


def test_others_that_failed_have_a_line_each_and_a_killed_one_comes_first(cddprun):
    script = ("trap 'exit 5' TERM; ulimit -c 0; touch $TMPDIR/up$RANK; "
              '[ $RANK = 2 ] && { while ! [ -e $TMPDIR/up0 -a -e $TMPDIR/up1 ]; do sleep 0.01; done; rm $TMPDIR/up*; kill -ABRT $$; }; '
              'while :; do sleep 0.01; done')
    status, out, err = run(cddprun, '--nproc_per_node=3', *sh(script))
    assert status == 134, err
    assert re.search(r'(?m)^cddprun: rank 2 .*SIGABRT', err) and re.search(r'\n    rank 0: exited with status 5, [\d.]+ s later\n', err), err


def test_reports_progress_of_hanging_rank(cddprun):
    probe = os.environ['CDDP_PROBE']
    with Job(cddprun, '--nproc_per_node=3', '--shutdown_timeout=1', probe, 'freeze', env={'CDDP_TIMEOUT': '3'}) as job:
        assert job.finish() == 3, job.err
        assert re.search(r'(?m)^    at that moment: rank 1 before the first collective; ranks 0, 2 in all_reduce #1(, for \d+ s)?$', job.err), job.err


def test_restart_line_has_its_cause(cddprun):
    probe = os.environ['CDDP_PROBE']
    with Job(cddprun, '--nproc_per_node=2', '--max_restarts=1', '--shutdown_timeout=1', probe, 'freeze', env={'CDDP_TIMEOUT': '1'}) as job:
        assert job.finish() == 3, job.err
        assert re.search(r'(?m)^cddprun: rank 0 \(pid \d+ on \S+\) exited with status 3: CDDP_E_TIMEOUT: all_reduce.*: rank 1 did not arrive '
                         r'within 1 s .*; restarting all workers \(restart 1 of 1\)$', job.err), job.err
    script = '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; echo first >&2; echo "ValueError: bad batch" >&2; exit 4'
    status, _, err = run(cddprun, '--max_restarts=1', *sh(script))
    assert status == 0 and re.search(r'(?m)exited with status 4: the last of its stderr: ValueError: bad batch; restarting all workers', err), err


def test_rank_exiting_with_0_too_early_is_the_cause(cddprun):
    probe = os.environ['CDDP_PROBE']
    deserted = 'exited with status 0 in the middle of the job, without cddp_finalize'
    with Job(cddprun, '--nproc_per_node=3', probe, 'desert', env={'CDDP_TIMEOUT': '60'}) as job:
        assert job.finish() == 1, job.err
        assert re.search(rf'(?m)^cddprun: rank 1 \(pid \d+ on \S+\) {deserted}, after \d', job.err), job.err
        assert re.search(rf'CDDP_E_PEER: all_reduce.* of 4 float32.*: rank 1 \(pid \d+\) {deserted}', job.err), job.err
        assert re.search(r'(?m)^    rank [02]: exited with status 3', job.err), job.err
        assert 'died' not in job.err and 'succeeded' not in job.err, job.err


def test_rank_exiting_with_0_too_early_is_the_cause_although_another_one_wrote_an_error_first(cddprun):
    # Of ranks 0 and 2, which miss rank 1, the one that wrote its error file first exits last.
    script = (f'{shlex.quote(os.environ["CDDP_PROBE"])} desert; status=$?; [ $RANK = 1 ] && exit $status; sleep 0.5; other=$((2 - RANK)); '
              '[ "$TORCHELASTIC_ERROR_FILE" -ot "${TORCHELASTIC_ERROR_FILE%_*}_$other.json" ] && sleep 60; exit $status')
    with Job(cddprun, '--nproc_per_node=3', '--shutdown_timeout=1', 'bash', '-c', script, env={'CDDP_TIMEOUT': '60'}) as job:
        assert job.finish() == 1, job.err
        assert re.search(r'(?m)^cddprun: rank 1 \(pid \d+ on \S+\) exited with status 0 in the middle of the job', job.err), job.err


def test_rank_exiting_with_0_before_joining_ends_the_others(cddprun):
    probe = shlex.quote(os.environ['CDDP_PROBE'])
    began = time.monotonic()
    with Job(cddprun, '--nproc_per_node=3', *sh(f'[ $RANK = 1 ] && exit 0; exec {probe}'), env={'CDDP_JOIN_TIMEOUT': '80'}) as job:
        assert job.finish() == 1, job.err
        assert re.search(r'(?m)^cddprun: rank 1 \(pid \d+ on \S+\) exited with status 0 before cddp_init, after \d', job.err), job.err
        assert 'CDDP_E_PEER: rank 1 exited with status 0 before cddp_init and did not join' in job.err, job.err
    assert time.monotonic() - began < launch.within(10), 'CDDP_JOIN_TIMEOUT is 80 s'


def test_child_of_exited_worker_can_join_instead(cddprun):
    probe = shlex.quote(os.environ['CDDP_PROBE'])
    with Job(cddprun, '--nproc_per_node=2', *sh(f'[ $RANK = 1 ] && {{ (sleep 2; exec {probe}) & exit 0; }}; exec {probe}')) as job:
        assert job.finish() == 0, job.err
        assert '[0] rank 0 of 2 joined' in job.out, (job.out, job.err)


def test_reports_how_to_continue_without_an_exited_rank(cddprun):
    probe = os.environ['CDDP_PROBE']
    with Job(cddprun, '--nproc_per_node=2', probe, 'few', env={'CDDP_TIMEOUT': '60'}) as job:
        assert job.finish() == 3, job.err
        assert 'rank 1 has left the job (cddp_finalize); if it had fewer batches than others, CDDP_DDP_JOIN' in job.err, job.err
        report = job.err[job.err.index('cddprun: rank 0'):]
        assert report.count('has left the job') == 1, 'a message stands once in a report'


def test_cddprun_error_file_has_first_failure(cddprun):
    script = 'printf %s \'{"message":{"message":"bad"}}\' > "$TORCHELASTIC_ERROR_FILE"; exit 6'
    with Job(cddprun, *sh(script), env={'TORCHELASTIC_ERROR_FILE': '/dev/null/no'}) as job:
        assert job.finish() == 6 and "cannot write the error file '/dev/null/no'" in job.err, job.err
    path = os.path.join(launch.tempfile.gettempdir(), f'cddp-test-error-{os.getpid()}')
    with Job(cddprun, *sh(script), env={'TORCHELASTIC_ERROR_FILE': path}) as job:
        assert job.finish() == 6, job.err
    with open(path, encoding='ascii') as f:
        assert f.read() == '{"message":{"message":"bad","errorCode":6}}'
    os.unlink(path)


# --- environment ----------------------------------------------------------------------------------------------------

def test_two_workers_find_exactly_torchruns_variables(cddprun):
    status, out, err = run(cddprun, '--nproc_per_node=2', '--rdzv_id=run7', '--max_restarts=3', 'env',
                           env={'UNTOUCHED': 'yes', 'RANK': '99'})
    assert status == 0, err
    for rank in '0', '1':
        got = dict(line[4:].split('=', 1) for line in out.splitlines() if line.startswith(f'[{rank}] '))
        error_file, flight, port = got.pop('TORCHELASTIC_ERROR_FILE'), got.pop('CDDP_FLIGHT'), got.pop('MASTER_PORT')
        assert re.fullmatch(rf'/.+/cddprun-\w{{6}}/error_0_{rank}\.json', error_file), error_file
        assert got.pop('CDDP_STOP_SIGNALS') == 'HUP,INT,QUIT,TERM'
        assert re.fullmatch(r'fd:3,/proc/\d+/fd/\d+,[0-9a-f]{16}', flight), flight
        assert 0 < int(port) < 65536
        golden = {
            'RANK': rank, 'LOCAL_RANK': rank, 'WORLD_SIZE': '2', 'LOCAL_WORLD_SIZE': '2', 'GROUP_RANK': '0',
            'GROUP_WORLD_SIZE': '1', 'ROLE_NAME': 'default', 'ROLE_RANK': rank, 'ROLE_WORLD_SIZE': '2',
            'MASTER_ADDR': '127.0.0.1', 'TORCHELASTIC_RESTART_COUNT': '0', 'TORCHELASTIC_MAX_RESTARTS': '3',
            'TORCHELASTIC_RUN_ID': 'run7', 'TORCHELASTIC_USE_AGENT_STORE': 'True',
            'TORCH_NCCL_ASYNC_ERROR_HANDLING': '1', 'OMP_NUM_THREADS': '1',
            'TORCHELASTIC_SIGNALS_TO_HANDLE': 'SIGTERM,SIGINT,SIGHUP,SIGQUIT',
        }
        assert got.pop('UNTOUCHED') == 'yes'
        inherited = {k: v for k, v in os.environ.items() if k not in golden}
        inherited.update({'TMPDIR': got.get('TMPDIR', ''), launch.MARK: got.get(launch.MARK, '')})
        assert {k: v for k, v in got.items() if k not in inherited} == golden


def test_replaces_local_rank_in_arguments(cddprun):
    status, out, err = run(cddprun, '--nproc_per_node=2', 'echo', 'a${local_rank}b', '$RANK')
    assert sorted(out.splitlines()) == ['[0] a0b $RANK', '[1] a1b $RANK'], out


def test_flags_may_come_from_variables(cddprun):
    status, out, err = run(cddprun, 'sh', '-c', 'echo $WORLD_SIZE', env={'PET_NPROC_PER_NODE': '3'})
    assert sorted(out.splitlines()) == ['[0] 3', '[1] 3', '[2] 3'], out


# --- output ---------------------------------------------------------------------------------------------------------

def test_four_ranks_writing_fast_give_whole_prefixed_lines(cddprun):
    lines = 20000
    status, out, err = run(cddprun, '--nproc_per_node=4', *sh(f'seq -f "$RANK-%06.0f-abcdefghijklmnopqrstuvwxyz" 1 {lines}'))
    assert status == 0, err
    following = {rank: 1 for rank in '0123'}
    for line in out.splitlines():
        match = re.fullmatch(r'\[(\d)\] (\d)-(\d{6})-abcdefghijklmnopqrstuvwxyz', line)
        assert match and match[1] == match[2], line
        assert int(match[3]) == following[match[1]], line
        following[match[1]] += 1
    assert set(following.values()) == {lines + 1}, following


def test_separates_stdout_and_stderr_and_completes_last_line(cddprun):
    status, out, err = run(cddprun, *sh('printf out; printf err >&2'))
    assert (status, out, err) == (0, '[0] out\n', '[0] err\n')


def test_output_of_a_grandchild_that_outlives_its_rank_does_not_hang_the_job(cddprun):
    status, out, err = run(cddprun, *sh('sleep 1000 & echo done'))
    assert (status, out, err) == (0, '[0] done\n', '')


@contextlib.contextmanager
def memory_cgroup(limit):
    """A memory cgroup with a limit: the path of the file that takes its processes."""
    tops = [(top, files) for top, files in (('/sys/fs/cgroup/memory', ('memory.limit_in_bytes', 'memory.memsw.limit_in_bytes')),
                                            ('/sys/fs/cgroup', ('memory.max', 'memory.swap.max')))
            if os.path.exists(os.path.join(top, 'memory.stat')) or os.path.exists(os.path.join(top, 'memory.oom_control'))]
    path = ''
    try:
        top, files = tops[0]
        path = os.path.join(top, f'cddp-test-{os.getpid()}')
        os.mkdir(path)
        with open(os.path.join(path, files[0]), 'w', encoding='ascii') as f:
            f.write(str(limit))
        with contextlib.suppress(OSError), open(os.path.join(path, files[1]), 'w', encoding='ascii') as f:
            f.write('0' if 'swap.max' in files[1] else str(limit))
    except (IndexError, OSError) as why:
        with contextlib.suppress(OSError):
            os.rmdir(path)
        raise Skip(f'no memory cgroup can be made here: {why}') from why
    try:
        yield os.path.join(path, 'cgroup.procs')
    finally:
        launch.wait_for('an empty cgroup', lambda: not open(os.path.join(path, 'cgroup.procs'), encoding='ascii').read())
        os.rmdir(path)


def test_reports_out_of_memory_killer(cddprun):
    hungry = 'import os; x = bytearray(1 << 30) if os.environ["RANK"] == "1" else os.read(os.pipe()[0], 1)'
    with memory_cgroup(300 << 20) as procs:
        def enter():
            with open(procs, 'w', encoding='ascii') as f:
                f.write('0')
        status, _, err = run(cddprun, '--standalone', '-n', '2', sys.executable, '-c', hungry, preexec_fn=enter)
        assert status == 137, err
        assert re.search(r'^cddprun: rank 1 .* was killed by signal 9 \(SIGKILL\) .*\n.*\n    the kernel killed it: out of memory '
                         r'\(the limit of its memory cgroup is 300 MiB\)$', err, re.M), err
        # Somebody else's SIGKILL is not the kernel's, although the kernel has killed before.
        status, _, err = run(cddprun, '--standalone', 'sh', '-c', 'kill -9 $$', preexec_fn=enter)
        assert status == 137 and 'out of memory' not in err, err


def limited(kind, value):
    return lambda: resource.setrlimit(kind, (value, value))


def test_reports_too_low_limits(cddprun):
    for kind, value, words in ((resource.RLIMIT_FSIZE, 8192, 'the limit of file sizes is 8192 bytes'),
                               (resource.RLIMIT_FSIZE, 20000, 'the limit of file sizes is 20000 bytes'),
                               (resource.RLIMIT_STACK, 65536, 'the stack limit is 64 KiB')):
        status, out, err = run(cddprun, *sh('true'), preexec_fn=limited(kind, value))
        assert (status, out) == (1, '') and words in err and '; raise it (ulimit -' in err, (status, err)


def test_output_beyond_the_limit_of_file_sizes_is_an_error_with_words(cddprun):
    with tempfile.TemporaryDirectory() as folder:
        token = f'{folder}/token'
        for args in [f'--make_token={token}'], ['--standalone', '--dry_run', 'true'], ['--help'], ['--version']:
            with open(f'{folder}/out', 'w') as out, \
                    Job(cddprun, *args, stdout=out, preexec_fn=limited(resource.RLIMIT_FSIZE, 0)) as job:
                assert job.finish() == 1 and ': File too large' in job.err, (args, job.process.returncode, job.err)
        assert not os.path.exists(token)
        with Job(cddprun, f'--make_token={token}', preexec_fn=limited(resource.RLIMIT_FSIZE, 32)) as job:  # of its 64 bytes
            assert job.finish() == 1 and ': File too large' in job.err, (job.process.returncode, job.err)
        assert not os.path.exists(token)


def test_the_signal_of_a_file_size_limit_stays_the_workers(cddprun):
    # cddprun ignores it; a worker that did not choose to dies of it.
    with tempfile.TemporaryDirectory() as folder:
        status, out, err = run(cddprun, *sh(f'exec head -c 200000 /dev/zero > {folder}/f'), preexec_fn=limited(resource.RLIMIT_FSIZE, 65536))
    assert status == 128 + signal.SIGXFSZ, (status, err)


def test_a_closed_stdout_ends_a_job_that_writes_to_it(cddprun):
    def closed(script):
        read_end, write_end = os.pipe()
        with Job(cddprun, *sh(script), stdout=write_end) as job:
            os.close(write_end)
            os.close(read_end)
            return job.finish(), job.err
    assert closed('echo finished >&2') == (0, '[0] finished\n')
    status, err = closed('seq 1 200000; exec sleep 1000')
    assert (status, err) == (141, 'cddprun: the reader of its output is gone (SIGPIPE); the workers have been stopped\n'), err


def test_stalled_reader_blocks_workers_but_not_signals(cddprun):
    with Job(cddprun, 'yes') as job:
        sleeping = 0

        def stuck():
            nonlocal sleeping
            states = [launch.state(pid) for pid in job.workers()]
            sleeping = sleeping + 1 if states == ['S'] else 0
            return sleeping == 20
        launch.wait_for('a worker that cannot write', stuck)
        job.process.send_signal(15)
        assert job.process.wait(launch.DEADLINE) == 143


def test_status_fd_has_all_events(cddprun):
    read_end, write_end = os.pipe()
    with Job(cddprun, '--standalone', '--nproc_per_node=2', '--max_restarts=1', f'--status_fd={write_end}',
             *sh('ls -l /proc/$$/fd >&2; [ $RANK = 1 ] && exit 7; exec sleep 60'), pass_fds=[write_end]) as job:
        os.close(write_end)
        assert job.finish() == 7, job.err
    with os.fdopen(read_end, encoding='ascii') as f:
        lines = [json.loads(line) for line in f]
    assert f' {write_end} -> pipe' not in job.err, 'it is none of the workers\' business'
    assert all(line['time_ms'] > 1.7e12 for line in lines)
    events = [line['event'] for line in lines]
    assert sorted(events) == sorted(2 * (['round'] + 2 * ['started'] + 2 * ['ended'] + ['failure']) + ['restart', 'end']), events
    assert (events[0], events[-1]) == ('round', 'end')
    by_name = {line['event']: line for line in lines}  # the last of each
    assert by_name['round'] | {'time_ms': 0, 'master_port': 0} == {
        'event': 'round', 'time_ms': 0, 'round': 1, 'restart_count': 1, 'node_rank': 0, 'n_nodes': 1, 'rank_base': 0,
        'n_procs': 2, 'world_size': 2, 'master_addr': '127.0.0.1', 'master_port': 0}
    assert by_name['failure']['rank'] == 1 and by_name['failure']['status'] == 7
    assert by_name['failure']['text'].startswith(f'rank 1 (pid {by_name["failure"]["pid"]} on ')
    assert by_name['restart']['restart_count'] == 1 and by_name['end']['status'] == 7
    stopped = next(line for line in lines if line['event'] == 'ended' and line['rank'] == 0)
    assert (stopped['status'], stopped['signal'], stopped['core_dumped']) == (143, 'SIGTERM', False), stopped


def test_a_status_descriptor_that_is_not_open(cddprun):
    for number in *range(3, 30), 99:  # also those that will be cddprun's own
        one_message(run(cddprun, f'--status_fd={number}', 'true'), 2, f'--status_fd {number} is', 'not an open descriptor')
    with open('/dev/null', encoding='ascii') as f:
        one_message(run(cddprun, f'--status_fd={f.fileno()}', 'true', pass_fds=[f.fileno()]), 2, 'not open for writing')


def test_unwritable_events_warn_once(cddprun):
    with open('/dev/full', 'wb', buffering=0) as full:
        number = full.fileno()
        status, out, err = run(cddprun, '--nproc_per_node=2', f'--status_fd={number}', 'echo', 'through', pass_fds=[number])
    assert status == 0 and sorted(out.splitlines()) == ['[0] through', '[1] through'], (status, out, err)
    assert err == (f'cddprun: cannot write to --status_fd {number}: No space left on device; the job continues, '
                   'but later events are lost\n'), err
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        assert run(cddprun, f'--status_fd={write_end}', 'true', pass_fds=[write_end]) == (0, '', ''), 'its reader has closed it'
    finally:
        os.close(write_end)


# --- restart --------------------------------------------------------------------------------------------------------

def test_a_restart_keeps_the_port_and_counts(cddprun):
    script = ('echo port $MASTER_PORT; echo count $TORCHELASTIC_RESTART_COUNT; '
              '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; '
              '[ $RANK = 0 ] && touch "$TMPDIR/up" && exec sleep 60; '
              'while ! rm "$TMPDIR/up" 2>/dev/null; do sleep 0.01; done; exit 3')
    status, out, err = run(cddprun, '--nproc_per_node=2', '--max_restarts=1', *sh(script))
    assert status == 0, (status, err)
    assert len(set(re.findall(r'port (\d+)', out))) == 1, out
    assert sorted(re.findall(r'\[(\d)\] count (\d)', out)) == [('0', '0'), ('0', '1'), ('1', '0'), ('1', '1')], out
    assert re.search(r'rank 1 .* exited with status 3; restarting all workers \(restart 1 of 1\)', err), err


def test_when_no_restart_is_left_the_last_failure_counts(cddprun):
    status, out, err = run(cddprun, '--max_restarts=2', *sh('exit $((10 + TORCHELASTIC_RESTART_COUNT))'))
    assert status == 12, (status, err)
    assert 'after 2 restarts' in err, err


def test_rounds_are_separate(cddprun):
    script = ('if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then setsid sleep 1000 & echo $! > "$TMPDIR/old"; exit 1; fi; '
              'kill -0 $(cat "$TMPDIR/old") 2>/dev/null && exit 7; rm "$TMPDIR/old"')
    status, out, err = run(cddprun, '--max_restarts=1', *sh(script))
    assert status == 0, (status, err)


# --- descriptors and stdin ------------------------------------------------------------------------------------------

def test_stdin_goes_to_local_rank_0_only(cddprun):
    with Job(cddprun, '--nproc_per_node=2', 'cat', stdin=subprocess.PIPE) as job:
        job.out, job.err = job.process.communicate('to rank 0\n', timeout=launch.DEADLINE)
        assert (job.process.returncode, job.out) == (0, '[0] to rank 0\n'), job.out


def test_stdin_goes_to_the_ranks_that_the_flag_says(cddprun):
    text = ''.join(f'{i}\n' for i in range(30000))
    script = 'read first; sum=$(cksum); echo "$first $sum"'
    want = subprocess.run(['cksum'], input=text[2:], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    nothing = subprocess.run(['cksum'], input='', check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    for flags, lines in (['--stdin=none'], [f'[{i}]  {nothing}' for i in range(3)]), (['--stdin=all'], [f'[{i}] 0 {want}' for i in range(3)]), \
            ([], [f'[0] 0 {want}', f'[1]  {nothing}', f'[2]  {nothing}']):
        with Job(cddprun, '--nproc_per_node=3', *flags, 'sh', '-c', script, stdin=subprocess.PIPE) as job:
            out, err = job.process.communicate(text if flags != ['--stdin=none'] else '', timeout=launch.DEADLINE)
            assert job.process.returncode == 0 and sorted(out.splitlines()) == lines, (flags, out, err)


def test_ranks_that_do_not_read_a_copy_of_stdin(cddprun):
    # Rank 0 reads some, the others end: nobody is left who reads, and the job ends, although the input does not.
    with subprocess.Popen(['yes'], stdout=subprocess.PIPE) as yes:
        with Job(cddprun, '--nproc_per_node=2', '--stdin=all', 'sh', '-c', 'exec head -n 100000 | tail -n 1', stdin=yes.stdout) as job:
            assert job.finish() == 0 and sorted(job.out.splitlines()) == ['[0] y', '[1] y'], (job.out, job.err)
        yes.kill()
    script = '[ $RANK = 1 ] && exit 3; sleep 60'  # the thread waits for a rank that does not read
    with subprocess.Popen(['yes'], stdout=subprocess.PIPE) as yes:
        with Job(cddprun, '--nproc_per_node=2', '--stdin=all', 'sh', '-c', script, stdin=yes.stdout) as job:
            assert job.finish() == 3, job.err
        yes.kill()
    # A later round reads on.
    with Job(cddprun, '--nproc_per_node=2', '--stdin=all', '--max_restarts=1', 'sh', '-c',
             'read line; [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 1; echo "$line"', stdin=subprocess.PIPE) as job:
        job.process.stdin.write('first\n')
        job.process.stdin.flush()
        assert 'restarting' in job.process.stderr.readline()
        launch.wait_for('the second round', lambda: len(job.workers()) == 2)
        job.process.stdin.write('second\n')
        job.process.stdin.flush()
        assert job.finish() == 0 and sorted(job.out.splitlines()) == ['[0] second', '[1] second'], (job.out, job.err)


def test_a_worker_has_four_descriptors_and_no_more(cddprun):
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    script = 'import os; print(*sorted((int(f), os.readlink(f"/proc/self/fd/{f}")) for f in os.listdir("/proc/self/fd")' \
             ' if os.path.exists(f"/proc/self/fd/{f}")))'
    status, out, err = run(cddprun, '--nproc_per_node=2', 'python3', '-c', script, pass_fds=[write_end])
    os.close(read_end)
    os.close(write_end)
    assert status == 0, err
    for line in out.splitlines():
        links = dict(eval(pair) for pair in re.findall(r"\(\d+, '[^']*'\)", line))
        links = {fd: link for fd, link in links.items() if not link.startswith('/proc/')}
        assert sorted(links) == [0, 1, 2, 3], line
        assert links[0] == '/dev/null' and links[3].startswith('/memfd:cddp-flight'), line


def test_survives_closed_standard_descriptors(cddprun):
    status = subprocess.run(['sh', '-c', '"$0" true <&- >&- 2>&-', cddprun], timeout=launch.DEADLINE, check=False)
    assert status.returncode == 0


def test_signals_that_were_ignored_stay_ignored_and_the_others_are_default(cddprun):
    status, out, err = run('nohup', cddprun, 'grep', '^Sig[BI]', '/proc/self/status')
    assert status == 0, err
    assert '[0] SigBlk:\t0000000000000000\n[0] SigIgn:\t0000000000000001\n' in out, out


# --- bad input ------------------------------------------------------------------------------------------------------

def one_message(result, status, *words):
    assert result[0] == status, result
    assert result[1] == '', result
    assert result[2].startswith('cddprun: ') and result[2].count('\n') == 1, result
    for word in words:
        assert word in result[2], (word, result)


def test_a_program_that_does_not_exist(cddprun):
    one_message(run(cddprun, './no/such/program'), 127, "'./no/such/program'", 'No such file')
    one_message(run(cddprun, 'no-such-program'), 127, "'no-such-program'", 'PATH')


def test_a_program_that_is_not_executable(cddprun):
    one_message(run(cddprun, HERE.replace('test_job.py', 'meson.build')), 126, 'meson.build', 'not executable')
    one_message(run(cddprun, '/'), 126, "'/'")


def test_a_program_whose_interpreter_is_missing(cddprun):
    with Job(cddprun, 'true') as job:
        job.finish()
        path = os.path.join(job.tmp, 'script')
        with open(path, 'w', encoding='ascii') as f:
            f.write('#!/no/such/interpreter\n')
        os.chmod(path, 0o700)
        status, out, err = run(cddprun, '--nproc_per_node=2', path)
        os.unlink(path)
        assert status == 127 and f"cannot run script '{path}': the file exists, but its interpreter does not: '/no/such/interpreter'" in err, (status, err)


def test_an_environment_that_only_cddprun_makes_too_large(cddprun):
    stack = 4 << 20  # a quarter of it is for arguments and environment

    def filled(n, tmp='/tmp/cddp-test-12345678'):  # of the length of the one that is used
        env = {**{k: os.environ[k] for k in ('PATH', 'LD_LIBRARY_PATH') if k in os.environ}, 'LANG': 'C', 'TMPDIR': tmp}
        env.update({f'FILL{i:05}': 'x' * 200 for i in range(n)})
        return env

    def limit():
        resource.setrlimit(resource.RLIMIT_STACK, (stack, resource.getrlimit(resource.RLIMIT_STACK)[1]))

    def fits(n):
        try:
            return subprocess.run([cddprun, '--version'], env=filled(n), preexec_fn=limit, capture_output=True, check=False).returncode == 0
        except OSError:
            return False

    low, high = 500, 20000
    while low + 1 < high:
        low, high = ((low + high) // 2, high) if fits((low + high) // 2) else (low, (low + high) // 2)
    with tempfile.TemporaryDirectory() as tmp:
        # A few variables less: this command is longer than that of the search.
        done = subprocess.run([cddprun, '--nproc_per_node=2', 'true'], env=filled(low - 1, tmp), preexec_fn=limit, capture_output=True,
                              text=True, check=False, timeout=launch.DEADLINE)
    if done.returncode == 0:
        raise Skip('the last variable that fits leaves room for those of cddprun')
    assert done.returncode == 126 and re.match(r"cddprun: rank [01]: cannot run program 'true': its arguments and environment, with the variables of "
                                               r'cddprun, are too large; .*\(ulimit -s\)\n', done.stderr), (done.returncode, done.stderr)


def test_a_shim_that_is_lost_while_the_job_runs(cddprun):
    for how, status, words in (('rm -f', 127, 'No such file or directory'), ('chmod 600', 126, 'Permission denied')):
        with tempfile.TemporaryDirectory() as folder:
            for name in ('cddprun', 'cddprun-shim'):
                shutil.copy(os.path.join(os.path.dirname(cddprun), name), folder)
            shim = os.path.join(os.path.realpath(folder), 'cddprun-shim')
            got, out, err = run(os.path.join(folder, 'cddprun'), '--max_restarts=1', *sh(f'{how} {shlex.quote(shim)}; exit 3'))
            assert got == status, (got, err)
            assert f"cddprun: rank 0: cannot run '{shim}', a part of cddprun: {words}; install cddprun again" in err, err


def forbid(number, error):
    """Make this process and its children get that error from a system call: seccomp(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    program = b''.join(struct.pack('HBBI', *line) for line in (
        (0x20, 0, 0, 0),                      # the number of the call
        (0x15, 0, 1, number),                 # is it that one?
        (0x06, 0, 0, 0x00050000 | error),     # SECCOMP_RET_ERRNO
        (0x06, 0, 0, 0x7fff0000)))            # SECCOMP_RET_ALLOW
    text = ctypes.create_string_buffer(program)
    head = struct.pack('HxxxxxxP', len(program) // 8, ctypes.addressof(text))
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, ctypes.c_char_p(head), 0, 0) != 0:
        os._exit(99)


def test_a_system_call_that_a_filter_forbids_is_named(cddprun):
    dup3 = {'x86_64': 292, 'aarch64': 24}.get(os.uname().machine)
    if dup3 is None or launch.SLOW:
        raise Skip('the number of dup3 is not known here, or libc uses it')
    status, out, err = run(cddprun, '--nproc_per_node=2', 'true', preexec_fn=lambda: forbid(dup3, errno.EPERM))
    if status == 99:
        raise Skip('seccomp filters are not allowed here')
    assert status == 126, (status, err)
    assert re.match(r'cddprun: rank \d: cannot give it its standard streams and flight page: Operation not permitted; a seccomp filter', err), err


def test_a_port_in_use(cddprun):
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        s.listen()
        port = s.getsockname()[1]
        one_message(run(cddprun, f'--master_port={port}', 'true'), 1, str(port), '127.0.0.1', 'in use')


def test_a_master_address_that_does_not_resolve(cddprun):
    one_message(run(cddprun, '--master_addr=no-such-host.invalid', 'true'), 1, 'no-such-host.invalid')


def test_bad_flags(cddprun):
    one_message(run(cddprun, '--nproc_per_node=none', 'true'), 2, '--nproc_per_node', "'none'")
    one_message(run(cddprun, '--nproc_pernode=2', 'true'), 2, 'did you mean --nproc_per_node?')
    one_message(run(cddprun, '--nnodes=1:x', 'true'), 2, '--nnodes', 'number of nodes')
    one_message(run(cddprun), 2, 'no program')


def test_missing_tmpdir(cddprun):
    one_message(run(cddprun, 'true', env={'TMPDIR': '/no/such/dir'}), 1, '/no/such/dir', 'TMPDIR')


def test_few_open_files_give_one_message(cddprun):
    def limit(hard):
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (16, hard))
    one_message(run(cddprun, 'true', preexec_fn=limit(16)), 1, 'open files is 16,', 'ulimit -n')
    status, out, err = run(cddprun, *sh('ulimit -n'), preexec_fn=limit(1024))
    assert (status, out, err) == (0, '[0] 16\n', ''), 'the worker has the limit that cddprun was started with'
    with Job(cddprun, *sh('exec sleep 60'), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 1000))) as job:
        agent = launch.wait_for('a worker', lambda: job.workers() and job.agent())
        assert resource.prlimit(agent, resource.RLIMIT_NOFILE) == (1000, 1000), 'the agent takes what it may'
        job.process.send_signal(15)
        assert job.finish() == 143


def test_64_mib_of_address_space_are_enough(cddprun):
    if launch.SLOW:
        raise Skip('a sanitizer alone needs more')
    status, out, err = run(cddprun, '--nproc_per_node=2', 'echo', 'ok',
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (64 << 20, 64 << 20)))
    assert status == 0 and sorted(out.splitlines()) == ['[0] ok', '[1] ok'], (status, out, err)


launch.main()
