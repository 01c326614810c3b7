#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--trace: one file for all ranks of two nodes, read by a strict parser; a planted slow rank, a restart, a planted offset of
the clocks, and cddprun killed in the middle."""
import collections
import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
import trace_parser
from launch import Job, Skip, free_port, run

MS = 40
STEPS = 10
OFFSET_S = 5000


def two_nodes(stack, cddprun, path, *program, flags=(), wrap=None, env=None):
    """The jobs of two nodes with two ranks each; wrap: the command that starts node 1's cddprun."""
    port = free_port()
    common = ['--nnodes=2', '--master_addr=127.0.0.1', f'--master_port={port}', '--nproc_per_node=2', f'--trace={path}', *flags]
    env = {'CDDP_BACKEND': 'cpu', **(env or {})}
    return [stack.enter_context(Job(cddprun, '--node_rank=0', *common, *program, env=env)),
            stack.enter_context(Job(*(wrap or []), cddprun, '--node_rank=1', *common, *program, env=env))]


def traced(*args):
    return [os.environ['CDDP_TRACED'], *map(str, args)]


@contextlib.contextmanager
def trace_path():
    with tempfile.TemporaryDirectory(prefix='cddp-trace-') as folder:
        yield os.path.join(folder, 'trace.json')


def node_of(trace, rank):
    """The pid of the node that has this rank."""
    found = {pid for (pid, tid), name in trace.threads.items() if name == f'rank {rank}'}
    assert len(found) == 1, (rank, trace.threads)
    return found.pop()


def same_collective(trace, round_):
    """Collectives that all four ranks took part in: seq -> rank -> slice. All ranks make the same calls in the same order."""
    by_seq = collections.defaultdict(dict)
    for s in trace.select('collective', 'all_reduce', round=round_):
        if s.dur is not None and not s.args.get('unfinished'):
            by_seq[s.args['seq']][s.args['rank']] = s
    return {seq: ranks for seq, ranks in by_seq.items() if len(ranks) == 4}


def slowest(trace, round_):
    """The rank that most often came last; and how often, of how many."""
    last = collections.Counter()
    for ranks in same_collective(trace, round_).values():
        at = sorted(ranks.values(), key=lambda s: s.ts)
        if at[-1].ts - at[-2].ts > MS * 10**6 / 2:
            last[at[-1].args['rank']] += 1
    return last.most_common(1)[0] if last else (-1, 0)


def alignment(trace, pid):
    """What the trace says last about the clock of a node: shift and bound, in ns."""
    said = [i['args'] for i in trace.instants if i['name'] == 'clock' and i['pid'] == pid]
    assert said, trace.instants
    return said[-1]['shift_ns'], said[-1]['error_bound_ns']


def test_parser_finds_what_is_wrong(cddprun):
    with tempfile.TemporaryDirectory() as folder:
        trace_parser.self_test(folder)


def test_two_nodes_with_a_restart(cddprun):
    with trace_path() as path, contextlib.ExitStack() as stack:
        jobs = two_nodes(stack, cddprun, path, *traced(2, MS, STEPS, 1), flags=['--max_restarts=1'])
        assert [job.finish() for job in jobs] == [0, 0], [job.err for job in jobs]
        trace = trace_parser.read(path)
        assert re.search(rf"cddprun: the trace is in '{re.escape(path)}': \d+ records; clocks agree within \d+ us\n", jobs[0].err), jobs[0].err
        assert 'the trace is' not in jobs[1].err, jobs[1].err
    assert trace.complete
    assert sorted(name.split(' (')[0] for name in trace.processes.values()) == ['job none', 'node 0', 'node 1'], trace.processes
    assert {node_of(trace, 0), node_of(trace, 1)} == {node_of(trace, 0)} and node_of(trace, 2) == node_of(trace, 3) != node_of(trace, 0)
    rounds = trace.select('round')
    assert [s.name for s in rounds] == ['round 0', 'round 1'] and rounds[0].end <= rounds[1].ts, rounds
    marks = collections.Counter(i['name'] for i in trace.instants)
    assert marks['started'] == marks['ended'] == 8 and marks['failure'] == marks['restart'] == 1, marks
    failure = next(i for i in trace.instants if i['name'] == 'failure')
    assert failure['args']['rank'] == 1 and 'exited with status 7' in failure['args']['text'], failure
    # Nothing of an earlier round is in a later one.
    for s in trace.slices:
        if s.cat in ('collective', 'step', 'wait'):
            its = rounds[s.args['round']]
            assert its.ts - 50 * 10**6 <= s.ts and (s.end or s.ts) <= its.end + 50 * 10**6, (s, its)
    # In the second round every rank has all its collectives: a bucket or more, and the loss, of each step.
    full = same_collective(trace, 1)
    assert len(full) >= 2 * STEPS, len(full)
    for ranks in full.values():
        assert len({s.args['count'] for s in ranks.values()}) == 1, ranks
        assert {s.pid for rank, s in ranks.items() if rank < 2} == {node_of(trace, 0)}, ranks
    rank, n = slowest(trace, 1)
    assert rank == 2 and n >= STEPS * 8 // 10, (rank, n)
    assert not [i for i in trace.instants if i['name'] == 'lost records']


def test_waits_name_the_slow_rank(cddprun):
    """Where the workers record arrivals: by the waits, without any comparison of clocks."""
    with trace_path() as path, contextlib.ExitStack() as stack:
        jobs = two_nodes(stack, cddprun, path, *traced(3, MS, STEPS, -1))
        assert [job.finish() for job in jobs] == [0, 0], [job.err for job in jobs]
        trace = trace_parser.read(path)
    waits = collections.Counter()
    for s in trace.select('wait'):
        assert s.parent is not None and s.parent.args['seq'] == s.args['seq'], s
        waits[s.args.get('late_rank')] += s.dur
    if not waits:
        raise Skip('the workers record no arrivals')
    assert waits.most_common(1)[0][0] == 3, waits
    steps = trace.select('step', rank=0)
    assert len(steps) >= STEPS - 1 and all(s.args['late_rank'] == 3 for s in steps[2:]), steps
    assert any('layer' in s.args.get('parameters', '') for s in trace.select('collective')), 'names of parameters'


def can_have_time_namespace():
    return subprocess.run(['unshare', '--time', '--monotonic', '1', '--fork', 'true'], stderr=subprocess.DEVNULL, check=False).returncode == 0


def planted_offset(cddprun, seconds):
    with trace_path() as path, contextlib.ExitStack() as stack:
        jobs = two_nodes(stack, cddprun, path, *traced(0, MS, 2 * STEPS, -1),
                         wrap=['unshare', '--time', '--monotonic', str(seconds), '--fork'])
        assert [job.finish() for job in jobs] == [0, 0], [job.err for job in jobs]
        trace = trace_parser.read(path)
    shift, bound = alignment(trace, node_of(trace, 2))
    # Both clocks are one, but for the namespace: the error is known exactly.
    assert abs(shift + seconds * 10**9) <= bound, (shift, bound)
    assert bound < 50 * 10**6, bound  # seconds of planted error, and at most some ms of it left
    assert alignment(trace, node_of(trace, 0)) == (0, 0)
    # No rank leaves an all-reduce before the last has entered it.
    tick = 10**7
    for ranks in same_collective(trace, 0).values():
        entered, left = max(s.ts for s in ranks.values()), min(s.end for s in ranks.values())
        assert left >= entered - bound - tick, (entered, left, bound)
    print(f'# offset {seconds} s: error {abs(shift + seconds * 10**9) / 1000:.1f} us, stated {bound / 1000:.1f} us')


def test_planted_offset_of_clocks_is_corrected(cddprun):
    if not can_have_time_namespace():
        raise Skip('no time namespaces here')
    planted_offset(cddprun, OFFSET_S)
    planted_offset(cddprun, -100)


def test_node_0_need_not_host_the_server(cddprun):
    """The server's clock is that of node 1, and the file has that of node 0."""
    with trace_path() as path, contextlib.ExitStack() as stack:
        port = free_port()
        jobs = [stack.enter_context(Job(cddprun, '--nnodes=2', f'--node_rank={rank}', f'--rdzv_endpoint=127.0.0.1:{port}', '--rdzv_backend=c10d',
                                        f'--rdzv_conf=is_host={rank}', '--nproc_per_node=2', f'--trace={path}', *traced(0, MS, STEPS, -1),
                                        env={'CDDP_BACKEND': 'cpu'})) for rank in (0, 1)]
        assert [job.finish() for job in jobs] == [0, 0], [job.err for job in jobs]
        trace = trace_parser.read(path)
    shift, bound = alignment(trace, node_of(trace, 2))
    assert 0 < bound < 50 * 10**6 and abs(shift) <= bound, (shift, bound)
    assert len(same_collective(trace, 0)) >= 2 * STEPS
    assert not [m for m in trace.metadata if m['args'].get('labels') == 'clock not aligned'], trace.metadata


def test_killed_in_the_middle_leaves_a_readable_file(cddprun):
    with trace_path() as path:
        with contextlib.ExitStack() as stack:
            jobs = two_nodes(stack, cddprun, path, *traced(1, MS, 10000, -1))
            launch.wait_for('records of both nodes', lambda: os.path.exists(path) and b'rank 3 collectives' in open(path, 'rb').read())
            time.sleep(2.5)
            before = time.monotonic()
            for pid in [job.agent() for job in jobs]:
                with contextlib.suppress(ProcessLookupError):  # node 1 ends with the rendezvous server
                    os.kill(pid, signal.SIGKILL)
            assert [job.finish() for job in jobs] != [0, 0]
        trace = trace_parser.read(path)
    assert not trace.complete
    last = max(s.end or s.ts for s in trace.select('collective'))
    assert last / 1e9 > before - 1 - (5 if launch.SLOW else 0), (last, before)
    assert [s.name for s in trace.select('round')] == ['round 0'] and trace.select('round')[0].dur is None


def test_hanging_collective_is_in_the_file_before_it_ends(cddprun):
    with trace_path() as path, contextlib.ExitStack() as stack:
        jobs = two_nodes(stack, cddprun, path, *traced(1, 60000, 2, -1))

        def open_ones():
            trace = trace_parser.read(path) if os.path.exists(path) and os.path.getsize(path) > 2000 else None
            return trace and {s.args['rank'] for s in trace.select('collective', unfinished=True)} == {0, 2, 3}

        launch.wait_for('three ranks that wait', open_ones)
        jobs[0].process.send_signal(signal.SIGTERM)
        for job in jobs:
            job.finish()
        trace = trace_parser.read(path)
    assert trace.complete and not trace.unfinished
    signals = [i for i in trace.instants if i['name'] == 'signal']
    assert signals and signals[0]['args']['text'] == 'SIGTERM', signals


def test_size_is_bounded_and_the_newest_is_kept(cddprun):
    with trace_path() as path:
        with Job(cddprun, '--standalone', '--nproc_per_node=2', f'--trace={path}', '--trace_max=1', *traced(0, 1, 2000, -1),
                 env={'CDDP_BACKEND': 'cpu'}) as job:
            assert job.finish() == 0, job.err
        assert 'its older part in a file that ends in .old' in job.err, job.err
        sizes = os.path.getsize(path), os.path.getsize(path + '.old')
        assert sum(sizes) < 1300000, sizes
        new, old = trace_parser.read(path), trace_parser.read(path + '.old')
    assert new.complete and old.complete
    seqs = [[s.args['seq'] for s in trace.select('collective', rank=0)] for trace in (old, new)]
    assert seqs[0] and seqs[0][0] > 1, 'the oldest are gone'
    assert max(seqs[0] + seqs[1]) >= 2000 * 2 and seqs[0] + seqs[1] == sorted(seqs[0] + seqs[1]), seqs


def test_variable_and_errors(cddprun):
    with trace_path() as path:
        status, _, err = run(cddprun, '--standalone', *traced(-1, 0, 3, -1), env={'CDDP_TRACE': path, 'CDDP_BACKEND': 'cpu'})
        assert status == 0 and path in err, err
        assert trace_parser.read(path).select('collective')
    status, _, err = run(cddprun, '--standalone', '--trace=/nonexistent/t.json', 'true')
    assert status == 0 and "cannot write the trace '/nonexistent/t.json': No such file or directory; the job continues without a trace" in err, err
    for how in ({'flags': ['--trace=']}, {'env': {'CDDP_TRACE': ''}}):
        status, _, err = run(cddprun, '--standalone', *how.get('flags', []), 'true', env=how.get('env', {}))
        assert status == 2 and "TRACE '' is empty" in err.replace('--trace', 'TRACE'), err
    status, _, err = run(cddprun, '--trace_max=0', 'true')
    assert status == 2 and '--trace_max' in err, err
    status, _, err = run(cddprun, '--standalone', 'true')
    assert (status, err) == (0, ''), err


def lost_trace(cddprun, path, *flags, steps=300, code=0, **popen):
    """What cddprun says about a trace that is lost while the job runs: once, and the job's status stays."""
    status, _, err = run(cddprun, '--standalone', f'--trace={path}', *flags, *traced(0, 1, steps, -1), env={'CDDP_BACKEND': 'cpu'}, **popen)
    assert status == code and err.count('trace') == 1 + path.count('trace'), (status, err)
    return err


def test_a_full_disk_is_said_once(cddprun):
    assert "cddprun: cannot write the trace '/dev/full': No space left on device; it ends here, the job continues\n" == lost_trace(cddprun, '/dev/full')
    with trace_path() as path:
        limit = 200000

        def limited():
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

        err = lost_trace(cddprun, path, steps=1500, preexec_fn=limited)
        assert f"cannot write the trace '{path}': File too large; it ends here, the job continues\n" in err, err
        assert os.path.getsize(path) <= limit and trace_parser.read(path).select('collective')


def test_a_tmpfs_that_is_full_is_said_once(cddprun):
    with tempfile.TemporaryDirectory(prefix='cddp-full-') as folder:
        if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=64k', 'none', folder], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            raise Skip('tmpfs cannot be mounted here')
        try:
            err = lost_trace(cddprun, os.path.join(folder, 'trace.json'), steps=600)
            assert "trace.json': No space left on device; it ends here, the job continues\n" in err, err
        finally:
            subprocess.run(['umount', folder], check=True)


def test_a_removed_folder_is_said_once(cddprun):
    for flags, cause in ([], 'was removed or replaced while the job ran\n'), (['--trace_max=1'], "': No such file or directory; it ends here"):
        with tempfile.TemporaryDirectory(prefix='cddp-gone-') as top:
            path = os.path.join(top, 'in', 'trace.json')
            os.mkdir(os.path.dirname(path))
            with Job(cddprun, '--standalone', f'--trace={path}', *flags, *traced(0, 1, 4000 if flags else 1000, -1),
                     env={'CDDP_BACKEND': 'cpu'}) as job:
                launch.wait_for('records', lambda: os.path.exists(path) and os.path.getsize(path) > 5000)
                shutil.rmtree(os.path.dirname(path))
                assert job.finish() == 0, job.err
            assert cause in job.err and path in job.err and job.err.count('cddprun: ') == 1, repr(job.err)


def test_a_cddprun_in_a_worker_leaves_the_trace_alone(cddprun):
    with trace_path() as path:
        command = [sys.executable, '-c', 'import os, subprocess, sys; subprocess.run(sys.argv[1:], check=True); sys.exit(os.getenv("CDDP_TRACE") is not None)']
        status, _, err = run(cddprun, '--standalone', '--no_python', *command, cddprun, '--standalone', *traced(-1, 0, 3, -1),
                             env={'CDDP_TRACE': path, 'CDDP_BACKEND': 'cpu'})
        assert status == 0 and err.count('the trace is in') == 1, err
        trace = trace_parser.read(path)
    assert trace.complete and not trace.select('collective'), 'the outer trace: its worker does not use libcddp'


def test_checkpoints_are_marks(cddprun):
    with trace_path() as path:
        status, _, err = run(cddprun, '--standalone', '--nproc_per_node=2', f'--trace={path}', *traced(-1, 0, 3, -1, os.path.dirname(path)),
                             env={'CDDP_BACKEND': 'cpu'})
        assert status == 0, err
        trace = trace_parser.read(path)
    saves = {i['args']['rank']: i['args']['text'] for i in trace.instants if i['name'] == 'checkpoint'}
    assert sorted(saves) == [0, 1] and all(re.fullmatch(r'save of step 77, \d+ ms', text) for text in saves.values()), saves


# Rank 0 ends, and has been waited for when rank 1 fails. $0 is a file.
ONE_AFTER_ZERO = '''
if [ $RANK = 0 ]; then echo $$ > $0.new && mv $0.new $0; exit 0; fi
until [ -e $0 ]; do sleep 0.02; done
while kill -0 $(cat $0) 2>&-; do sleep 0.02; done
rm $0
exit 1
'''


def test_program_without_libcddp_has_its_processes(cddprun):
    with trace_path() as path:
        status, _, err = run(cddprun, '--standalone', '--nproc_per_node=2', f'--trace={path}', 'sh', '-c', ONE_AFTER_ZERO, path + '.pid')
        assert status == 1 and 'the trace is in' in err, err
        trace = trace_parser.read(path)
    ended = {i['args']['rank']: i['args']['text'] for i in trace.instants if i['name'] == 'ended'}
    assert ended == {0: 'exit status 0', 1: 'exit status 1'}, ended


launch.main()
