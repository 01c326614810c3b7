#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cddp-bench, as a user starts it; its table as a script for nccl-tests reads it.

    bench_tool.py CDDPRUN      CDDP_BENCH is its path
"""
import json
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job

BENCH = os.environ['CDDP_BENCH']
KINDS = ('all_reduce', 'all_gather', 'broadcast', 'reduce', 'reduce_scatter', 'alltoall', 'alltoallv', 'gather', 'scatter',
         'sendrecv', 'hypercube', 'latency', 'bw', 'bibw', 'mbw_mr')
PAIRS = ('latency', 'bw', 'bibw', 'mbw_mr')
APART = ('alltoall', 'alltoallv', 'sendrecv', *PAIRS)


def bench(cddprun, ranks, *words, **how):
    """Its output without the launcher's "[0] "; ranks other than 0 print nothing."""
    with Job(cddprun, '--standalone', f'--nproc_per_node={ranks}', BENCH, *words, **how) as job:
        status = job.finish()
        assert all(line.startswith('[0] ') for line in job.out.splitlines()), job.out
        return status, re.sub(r'^\[0\] ', '', job.out, flags=re.M), job.err


def rows(out):
    """
    As nccl-tests' README describes its table: lines that begin with "#" are comments, columns are parted by blanks: size,
    count, type, redop, root, and time, algbw, busbw, #wrong out of place and in place.
    """
    found = []
    for line in out.splitlines():
        if line.startswith('#') or not line.strip():
            continue
        words = line.split()
        assert len(words) == 13, line
        found.append({'size': int(words[0]), 'count': int(words[1]), 'type': words[2], 'redop': words[3], 'root': int(words[4]),
                      'out': words[5:9], 'in': words[9:13]})
    return found


def wrong(row):
    return [way[3] for way in (row['out'], row['in'])]


def test_every_kind_is_right_on_one_to_five_ranks(cddprun):
    for n in 1, 2, 3, 4, 5:
        status, out, err = bench(cddprun, n, 'all', '-b', '8', '-e', '64K', '-f', '64', '-n', '3')
        assert status == 0 and 'Out of bounds values : 0 OK' in out, (n, out, err)
        parts = re.split(r'^# Test: (\w+)\n', out, flags=re.M)
        tables = dict(zip(parts[1::2], parts[2::2]))
        assert tuple(tables) == KINDS, tuple(tables)
        for kind, text in tables.items():
            run = (n in (1, 2, 4) or kind != 'hypercube') and (n > 1 or kind not in PAIRS)
            got = rows(text)
            assert len(got) == (3 if run else 0), (n, kind, text)
            for row in got:
                assert wrong(row) == ['0', 'N/A' if kind in APART else '0'], (kind, row)


def test_all_types_and_operations_are_right(cddprun):
    status, out, err = bench(cddprun, 3, 'all_reduce', '-d', 'all', '-o', 'all', '-b', '1000', '-e', '1000', '-n', '1')
    got = {(row['type'], row['redop']) for row in rows(out)}
    assert status == 0 and all(set(wrong(row)) == {'0'} for row in rows(out)), (out, err)
    assert ('half', 'avg') in got and ('int16', 'bxor') in got and ('uint64', 'prod') in got, got
    assert ('int32', 'avg') not in got and ('float', 'band') not in got, got
    # Floats of 8 bits are moved, but not added, on the CPU.
    for kind in 'all_gather', 'alltoall', 'broadcast':
        status, out, err = bench(cddprun, 3, kind, '-d', 'all', '-b', '4K', '-e', '4K', '-n', '1')
        assert status == 0 and len(rows(out)) == 14 and all(wrong(row)[0] == '0' for row in rows(out)), (out, err)


def test_bandwidths_are_those_that_the_times_and_sizes_give(cddprun):
    for kind, share in (('all_reduce', 2 * 3 / 4), ('all_gather', 3 / 4), ('broadcast', 1), ('alltoall', 3 / 4)):
        out = bench(cddprun, 4, kind, '-b', '1M', '-e', '1M', '-n', '2', '-c', '0')[1]
        row = rows(out)[0]
        time, algorithm, bus, checked = row['out']
        assert checked == 'N/A', row
        want = row['size'] / float(time) / 1e3
        assert abs(float(algorithm) - want) < 0.02 * want + 0.01 and abs(float(bus) - want * share) < 0.02 * want + 0.02, row


def test_groups_run_side_by_side_and_the_file_has_the_table(cddprun):
    with tempfile.TemporaryDirectory() as tmp:
        status, out, err = bench(cddprun, 4, 'reduce', '-s', 'MOD 2', '-r', 'all', '-b', '8', '-e', '32', '-f', '2', '-J',
                                 f'{tmp}/out.json')
        assert status == 0, err
        assert re.findall(r'Rank +(\d) Group +(\d)', out) == [('0', '0'), ('1', '1'), ('2', '0'), ('3', '1')], out
        table = rows(out)
        assert [row['root'] for row in table] == [0, 0, 0, 1, 1, 1], table
        with open(f'{tmp}/out.json', encoding='ascii') as file:
            data = json.load(file)
        assert data['ranks'] == 4 and [(r['size'], r['root'], r['in_place']['wrong']) for r in data['results']] == \
            [(row['size'], row['root'], 0) for row in table], data


def test_reports_bad_usage(cddprun):
    for words, text in ((['-d', 'float17'], "cddp-bench: -d 'float17'"), (['reduce', '-r', '7'], 'cddp-bench: -r 7: there are 2 ranks')):
        status, out, err = bench(cddprun, 2, *words)
        assert status == 2 and text in err and not rows(out), (out, err)


def test_reports_unwritable_file(cddprun):
    status, _, err = bench(cddprun, 1, '-b', '8', '-e', '8', '-J', '/nowhere/at/all')
    assert status == 1 and 'cddp-bench: cannot write /nowhere/at/all' in err, err


if __name__ == '__main__':
    launch.main()
