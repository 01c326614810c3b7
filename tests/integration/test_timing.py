#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The times of steps: a planted slow rank is the one that the others name, over shared memory and between nodes."""
import contextlib
import json
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, free_port

MS = 40
STEPS = 12


def train(cddprun, nprocs, slow, env=None, steps=STEPS):
    """Train on nodes of so many ranks; the lines of all ranks, by rank."""
    program = [os.environ['CDDP_SLOW_RANK'], str(slow), str(MS), str(steps)]
    port = free_port()
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(Job(cddprun, *(['--standalone'] if len(nprocs) == 1 else
                                                   [f'--nnodes={len(nprocs)}', f'--node_rank={node}', '--master_addr=127.0.0.1',
                                                    f'--master_port={port}']), f'--nproc_per_node={n}', *program,
                                        env={'CDDP_BACKEND': 'cpu', **(env or {})})) for node, n in enumerate(nprocs)]
        assert [job.finish() for job in jobs] == [0] * len(jobs), [job.err for job in jobs]
        lines = [json.loads(line[line.index('{'):]) for job in jobs for line in job.out.splitlines() if '{' in line]
    assert len(lines) == sum(nprocs), lines
    return {line['rank']: line for line in lines}


def check_sums(line, steps=STEPS):
    assert line['steps'] == steps - 1, line
    assert line['comm_ns'] == line['exposed_ns'] + line['hidden_ns'], line
    assert line['comm_ns'] == line['waiting_ns'] + line['transfer_ns'], line
    assert 0 <= line['late_ns'] <= line['waiting_ns'] and 0 < line['transfer_ns'], line
    assert 0 <= line['late_ns'] <= line['exposed_ns'] <= line['comm_ns'] <= line['step_ns'], line
    assert 0 <= line['forward_ns'] and 0 <= line['backward_ns'], line
    assert line['forward_ns'] + line['backward_ns'] <= line['step_ns'], line
    assert line['bytes'] == (steps - 1) * 6 * 20000 * 4, line
    assert line['buckets'] >= 2 and line['bucket_bytes'] == 6 * 20000 * 4 >= line['largest'] > 0, line


def named(cddprun, nprocs, slow):
    lines = train(cddprun, nprocs, slow)
    for rank, line in lines.items():
        check_sums(line)
        if rank == slow:
            # All its sleeps are within its steps. On a busy machine another rank may notice the end of the first step late,
            # and its later steps are shorter by that.
            assert line['step_ns'] >= (STEPS - 1) * MS * 1000000, line
            assert line['backward_ns'] >= (STEPS - 1) * MS * 1000000, line
            continue
        assert line['slowest'] == slow, (rank, slow, lines)
        assert line['slowest_steps'] >= STEPS // 2, line
        assert line['late_ns'] >= (STEPS - 1) * MS * 1000000 // 2, line
        assert line['late_ns'] > lines[slow]['late_ns'], lines


def test_slow_rank_is_named_within_a_node(cddprun):
    named(cddprun, [3], 1)
    named(cddprun, [2], 0)


def test_slow_rank_is_named_between_nodes(cddprun):
    named(cddprun, [2, 2], 3)
    named(cddprun, [2, 2], 0)


def test_slow_rank_is_named_where_nodes_have_different_sizes(cddprun):
    named(cddprun, [1, 2], 2)
    named(cddprun, [1, 2], 0)


def test_slow_rank_is_named_where_each_node_has_one(cddprun):
    named(cddprun, [1, 1, 1], 1)


def test_without_timing_there_are_no_times(cddprun):
    for how in 'off', 'none':
        for line in train(cddprun, [2], 0, {'CDDP_TIMING': how}).values():
            assert line['steps'] == line['step_ns'] == line['comm_ns'] == 0 and line['slowest'] == -1, line
            assert line['buckets'] >= 2 and line['bucket_bytes'] == 6 * 20000 * 4, line


def test_unknown_timing_is_an_error(cddprun):
    with Job(cddprun, '--standalone', '--nproc_per_node=1', os.environ['CDDP_SLOW_RANK'], '0', '1', '2',
             env={'CDDP_TIMING': 'fast'}) as job:
        assert job.finish() == 1
        assert "CDDP_TIMING='fast' is none of on, all, off, none" in job.err, job.err


def test_metrics_file_of_each_rank(cddprun):
    with tempfile.TemporaryDirectory() as folder:
        lines = train(cddprun, [2], 1, {'CDDP_METRICS_FILE': os.path.join(folder, 'rank-%r.prom')})
        assert sorted(os.listdir(folder)) == ['rank-0.prom', 'rank-1.prom'], os.listdir(folder)
        for rank, line in lines.items():
            with open(os.path.join(folder, f'rank-{rank}.prom'), encoding='ascii') as f:
                text = f.read()
            for one in text.splitlines():
                assert re.fullmatch(r'# (HELP|TYPE) cddp_[a-z_]+ .+|cddp_[a-z_]+\{rank="\d+",model=""\} \d+(\.\d+)?', one), one
            assert f'cddp_steps_total{{rank="{rank}",model=""}} {STEPS - 1}\n' in text, text
            assert f'cddp_step_seconds_total{{rank="{rank}",model=""}} {line["step_ns"] / 1e9:.9f}\n' in text, text


def test_metrics_file_follows_no_planted_link(cddprun):
    with tempfile.TemporaryDirectory() as folder:
        precious, name = f'{folder}/precious', f'{folder}/rank.prom'
        with open(precious, 'w', encoding='ascii') as f:
            f.write('kept')
        plant = f'ln -s {precious} {name}.$$.0.tmp && exec "$@"'
        with Job(cddprun, '--standalone', '--nproc_per_node=1', 'sh', '-c', plant, 'sh', os.environ['CDDP_SLOW_RANK'], '0', '1', '2',
                 env={'CDDP_METRICS_FILE': name}) as job:
            assert job.finish() == 0, job.err
        assert sorted(os.listdir(folder)) == ['precious', 'rank.prom'], os.listdir(folder)
        with open(precious, encoding='ascii') as f:
            assert f.read() == 'kept'


def test_metrics_file_that_cannot_be_written_is_no_error(cddprun):
    train(cddprun, [1], 0, {'CDDP_METRICS_FILE': '/proc/nowhere/%r'}, steps=2)


def test_bad_name_of_the_metrics_file_is_an_error(cddprun):
    with Job(cddprun, '--standalone', '--nproc_per_node=1', os.environ['CDDP_SLOW_RANK'], '0', '1', '2',
             env={'CDDP_METRICS_FILE': '/tmp/%q'}) as job:
        assert job.finish() == 1
        assert "CDDP_METRICS_FILE='/tmp/%q' is not a file's name" in job.err, job.err


if __name__ == '__main__':
    launch.main()
