#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cddp-bench, as a user starts it; its table as a script for nccl-tests reads it.

    bench_tool.py CDDPRUN      CDDP_BENCH is its path; the other variables say where the stand-in and the modules are
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
import nccl_tests_readers as readers
from launch import Job

BENCH = os.environ['CDDP_BENCH']
SANITIZED = bool(os.environ.get('CDDP_TEST_SANITIZED'))
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


def wrong(row):
    return [row['out'][3], row['in'][3]]


def tables_in(out):
    parts = re.split(r'^# Collective test starting: (\w+)_perf\n', out, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def check_all_kinds(n, out, err):
    tables = tables_in(out)
    assert tuple(tables) == KINDS, (tuple(tables), err)
    for kind, text in tables.items():
        run = (n in (1, 2, 4) or kind != 'hypercube') and (n > 1 or kind not in PAIRS)
        got = readers.lines(text)
        assert len(got) == (3 if run else 0), (n, kind, text)
        for row in got:
            assert wrong(row) == ['0', 'N/A' if kind in APART else '0'], (kind, row)


SIZES = ('-b', '8', '-e', '64K', '-f', '64', '-n', '3')


def test_every_kind_is_right_on_one_to_five_ranks(cddprun):
    for n in 1, 2, 3, 4, 5:
        status, out, err = bench(cddprun, n, 'all', *SIZES)
        assert status == 0, (n, out, err)
        check_all_kinds(n, out, err)


def test_every_kind_is_right_on_the_standin(cddprun):
    standin = os.environ.get('CDDP_BENCH_STANDIN')
    if not standin:
        raise launch.Skip('built without CUDA')
    env = {'CDDP_BACKEND': 'nccl', 'CDDP_MODULE_DIR': os.environ['CDDP_BENCH_NCCL'], 'CDDP_CUDA_LIBRARY': standin,
           'CDDP_NCCL_LIBRARY': standin}
    for more in [], ['-z', '2', '-R', '1', '-m', '3']:
        status, out, err = bench(cddprun, 2, 'all', *SIZES, *more, env=env)
        assert status == 0 and 'backend=nccl' in out, (out, err)
        if not more:
            check_all_kinds(2, out, err)
        assert all(right for _, right in readers.summary(out)) and len(readers.summary(out)) == len(KINDS), out


def test_every_kind_is_right_under_mpirun(_cddprun):
    at = os.path.join(os.environ.get('CDDP_BENCH_MPI', '/nowhere'), 'openmpi')
    mpirun = shutil.which('mpirun.openmpi')
    if SANITIZED or not mpirun or not os.path.exists(os.path.join(at, 'cddp_mpi.so')):
        raise launch.Skip('built with sanitizers, or without Open MPI')
    clean = {k: v for k, v in os.environ.items() if not k.startswith(('PET_', 'TORCHELASTIC_', 'CDDP_', 'SLURM_', 'OMPI_', 'PMI'))}
    for backend in 'mpi', 'cpu':
        env = clean | {'CDDP_BACKEND': backend, 'CDDP_MODULE_DIR': at, 'MASTER_PORT': str(launch.free_port()),
                       'MASTER_ADDR': '127.0.0.1', 'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}
        done = subprocess.run([mpirun, '--oversubscribe', '-n', '2', BENCH, 'all', *SIZES], env=env, capture_output=True, text=True,
                              timeout=launch.DEADLINE, check=False)
        assert done.returncode == 0 and f'backend={backend}' in done.stdout, done
        check_all_kinds(2, done.stdout, done.stderr)


def test_runs_alone_and_under_the_names_of_nccl_tests(_cddprun):
    with tempfile.TemporaryDirectory() as tmp:
        name = os.path.join(tmp, 'broadcast_perf')
        os.symlink(BENCH, name)
        for command in [name], [BENCH, 'broadcast_perf']:
            done = subprocess.run([*command, '-b', '8', '-e', '8', '-g', '1', '-t', '1', '-p', '1', '-G', '0'], capture_output=True,
                                  text=True, timeout=launch.DEADLINE, check=False)
            assert done.returncode == 0 and tuple(tables_in(done.stdout)) == ('broadcast',), done


def test_readers_of_nccl_tests_read_it(cddprun):
    assert [row[:3] for row in readers.columns(readers.SAMPLE)] == [(8, 37.71, 0), (8589934592, 2225678, 6.76)]
    assert [wrong(row) for row in readers.lines(readers.SAMPLE)] == [['0', '0'], ['0', 'N/A']]
    assert readers.summary(readers.SAMPLE) == [(3.38123, True)] and len(readers.devices(readers.SAMPLE)) == 1
    for kind, sizes in (('all_reduce', [8, 64, 512, 4096]), ('alltoall', [0, 64, 512, 4096])):
        status, out, err = bench(cddprun, 2, kind, '-b', '8', '-e', '4K', '-f', '8', '-n', '7', '-w', '2')
        assert status == 0, err
        got = readers.lines(out)
        assert [row['size'] for row in got] == sizes == [row[0] for row in readers.columns(out)], out
        for one, other in zip(got, readers.columns(out)):
            assert other[1:] == (one['out'][0], one['out'][2], one['in'][0], one['in'][2]), (one, other)
        assert len(readers.summary(out)) == 1 and readers.config(out) == (1, 1, 8, 4096, 2, 7), out
        assert [device[:2] for device in readers.devices(out)] == [('0', '0'), ('1', '0')], out
    # Several tests: as the outputs of so many programs, one after another.
    _, out, _ = bench(cddprun, 2, 'all', *SIZES)
    assert [name for name, text in tables_in(out).items() if not readers.summary(text)] == [], out


def test_a_wrong_result_is_counted_and_fails_the_run(cddprun):
    if SANITIZED:
        raise launch.Skip('a sanitizer must be preloaded first')
    env = {'LD_PRELOAD': os.environ['CDDP_BENCH_PLANTED']}
    for more in [], ['-u', '1']:
        status, out, err = bench(cddprun, 3, '-b', '4K', '-e', '8K', '-f', '2', '-n', '2', '-c', '3', *more, env=env)
        assert status == 1 and [wrong(row) for row in readers.lines(out)] == [['1', '1']] * 2, (status, out, err)
        assert readers.summary(out)[0][1] is False and 'Out of bounds values : 4 FAILED' in out, out
        assert 'cddp-bench: 4 wrong elements' in err, err
        status, out, _ = bench(cddprun, 3, '-b', '4K', '-e', '8K', '-f', '2', '-n', '2', '-c', '0', *more, env=env)
        assert status == 0 and [wrong(row) for row in readers.lines(out)] == [['N/A', 'N/A']] * 2, out


def test_memory_is_written_before_it_is_timed(cddprun):
    """Pages that nobody has written are one page of zeros, which is read from the cache."""
    if SANITIZED:
        raise launch.Skip('a sanitizer must be preloaded first')
    env = {'LD_PRELOAD': os.environ['CDDP_BENCH_PLANTED'], 'CDDP_PLANT': 'look'}
    for more in [], ['-m', '3'], ['-u', '3'], ['-R', '1']:
        status, out, err = bench(cddprun, 2, '-b', '3M', '-e', '4M', '-w', '0', '-n', '1', '-c', '0', *more, env=env)
        assert status == 0 and 'planted' not in err and len(readers.lines(out)) == 2, (more, out, err)


def test_a_rank_that_dies_is_named_and_ends_the_run(cddprun):
    if SANITIZED:
        raise launch.Skip('a sanitizer must be preloaded first')
    env = {'LD_PRELOAD': os.environ['CDDP_BENCH_PLANTED'], 'CDDP_PLANT': 'die'}
    for how in [], ['--on_failure=wait']:
        with tempfile.TemporaryDirectory() as tmp:
            with open(f'{tmp}/out.json', 'w', encoding='ascii') as earlier:
                earlier.write('{"results": "of an earlier run"}')
            with Job(cddprun, '--standalone', '--nproc_per_node=3', *how, BENCH, '-b', '1M', '-e', '64M', '-f', '2', '-J', f'{tmp}/out.json',
                     env=env) as job:
                assert job.finish() != 0 and 'rank 1' in job.err, job.err
                if how:
                    assert re.search(r'cddp-bench: rank [02]: all_reduce: .*rank 1', job.err), job.err
                assert len(readers.devices(job.out.replace('[0] ', ''))) == 3, job.out
            with open(f'{tmp}/out.json', encoding='ascii') as file:
                assert 'earlier' not in file.read()


def slow_rank_is_named(cddprun):
    """Rank 1 is stopped most of the time, as one on a busy core would be."""
    with Job(cddprun, '--standalone', '--nproc_per_node=3', BENCH, '-b', '1M', '-e', '1M', '-n', '1', '-c', '0', '-N', '50') as job:
        head = ''
        while '# Collective' not in head:
            line = job.process.stdout.readline()
            assert line, head
            head += line
        pid = next(int(pid) for rank, _, pid, *_ in readers.devices(head.replace('[0] ', '')) if rank == '1')
        over = threading.Event()

        def hold():
            while not over.is_set():
                try:
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(0.05)
                    os.kill(pid, signal.SIGCONT)
                    time.sleep(0.002)
                except ProcessLookupError:
                    return
        holder = threading.Thread(target=hold)
        holder.start()
        try:
            status = job.finish()
        finally:
            over.set()
            holder.join()
        assert status == 0, (job.out, job.err)
        return re.search(r'# slow: rank 1 takes \d+\.\d times as long as usual', job.out)


def test_a_rank_that_is_slow_is_named(cddprun):
    """On a busy machine the other rank may be as slow in one run, so one of some must name it."""
    assert any(slow_rank_is_named(cddprun) for _ in range(6))


def test_a_closed_pipe_ends_it(_cddprun):
    child = subprocess.Popen([BENCH, '-b', '8', '-e', '8', '-N', '0', '-n', '1'], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.readline()
    child.stdout.close()
    child.wait(timeout=launch.DEADLINE)
    child.stderr.close()
    assert child.returncode != 0


def test_all_types_and_operations_are_right(cddprun):
    status, out, err = bench(cddprun, 3, 'all_reduce', '-d', 'all', '-o', 'all', '-b', '1000', '-e', '1000', '-n', '1')
    got = {(row['type'], row['redop']) for row in readers.lines(out)}
    assert status == 0 and all(set(wrong(row)) == {'0'} for row in readers.lines(out)), (out, err)
    assert ('half', 'avg') in got and ('int16', 'bxor') in got and ('uint64', 'prod') in got, got
    assert ('int32', 'avg') not in got and ('float', 'band') not in got, got
    # Floats of 8 bits are moved, but not added, on the CPU.
    for kind in 'all_gather', 'alltoall', 'broadcast':
        status, out, err = bench(cddprun, 3, kind, '-d', 'all', '-b', '4K', '-e', '4K', '-n', '1')
        assert status == 0 and len(readers.lines(out)) == 14 and all(wrong(row)[0] == '0' for row in readers.lines(out)), (out, err)


def test_bandwidths_are_those_that_the_times_and_sizes_give(cddprun):
    for kind, share in (('all_reduce', 2 * 3 / 4), ('all_gather', 3 / 4), ('broadcast', 1), ('alltoall', 3 / 4)):
        out = bench(cddprun, 4, kind, '-b', '1M', '-e', '1M', '-n', '2', '-c', '0')[1]
        row = readers.lines(out)[0]
        took, algorithm, bus, checked = row['out']
        assert checked == 'N/A', row
        want = row['size'] / took / 1e3
        assert abs(algorithm - want) < 0.02 * want + 0.01 and abs(bus - want * share) < 0.02 * want + 0.02, row


def test_a_table_that_cannot_be_written_fails_the_run(_cddprun):
    for more in [], ['-N', '0']:
        with open('/dev/full', 'wb') as full:
            done = subprocess.run([BENCH, '-b', '8', '-e', '8', '-n', '1', *more], stdout=full, stderr=subprocess.PIPE, text=True,
                                  timeout=launch.DEADLINE, check=False)
        assert done.returncode == 1 and 'cddp-bench: cannot write the table: No space left on device' in done.stderr, done


def test_variables_of_nccl_tests_count(cddprun):
    status, out, err = bench(cddprun, 4, '-b', '8', '-e', '8', env={'NCCL_TESTS_SPLIT': 'DIV 2'})
    assert status == 0 and re.findall(r'Rank +(\d) Group +(\d)', out) == [('0', '0'), ('1', '0'), ('2', '1'), ('3', '1')], (out, err)
    status, out, err = bench(cddprun, 2, '-b', '8', '-e', '8', env={'NCCL_TESTS_SPLIT': 'every 2'})
    assert status == 2 and "NCCL_TESTS_SPLIT 'every 2'" in err, err
    for least, mark in ('1e9', 'FAILED'), ('0.000001', 'OK'):
        with tempfile.TemporaryDirectory() as tmp:
            status, out, err = bench(cddprun, 2, '-b', '64K', '-e', '64K', '-J', f'{tmp}/out.json', env={'NCCL_TESTS_MIN_BW': least})
            assert status == (mark == 'FAILED') and re.search(rf'Avg bus bandwidth +: \S+ {mark}\n', out), (status, out, err)
            assert ('below NCCL_TESTS_MIN_BW, 1e+09 GB/s' in err) == (mark == 'FAILED'), err
            with open(f'{tmp}/out.json', encoding='ascii') as file:
                assert json.load(file)['average_bus_bandwidth']['okay'] == ('true' if mark == 'OK' else 'false')


def test_groups_run_side_by_side_and_the_file_has_the_table(cddprun):
    with tempfile.TemporaryDirectory() as tmp:
        status, out, err = bench(cddprun, 4, 'reduce', '-s', 'MOD 2', '-r', 'all', '-b', '8', '-e', '32', '-f', '2', '-J',
                                 f'{tmp}/out.json')
        assert status == 0, err
        assert re.findall(r'Rank +(\d) Group +(\d)', out) == [('0', '0'), ('1', '1'), ('2', '0'), ('3', '1')], out
        table = readers.lines(out)
        assert [row['root'] for row in table] == [0, 0, 0, 1, 1, 1], table
        with open(f'{tmp}/out.json', encoding='ascii') as file:
            data = json.load(file)
        assert data['out_of_bounds'] == {'count': 0, 'okay': 'true'} and data['config']['minimum_bytes'] == 8, data
        assert data['config']['step_factor'] == 2 and isinstance(data['config']['step_factor'], int), data
        devices = readers.devices(out)
        assert [(d['rank'], d['group'], d['pid'], d['hostname'], d['device'], d['device_info']) for d in data['config']['devices']] == \
            [(int(r), int(g), int(p), host, int(device), name) for r, g, p, host, device, name in devices] and len(devices) == 4, data
        assert [(r['size'], int(r['root']), r['in_place']['nwrong']) for r in data['results']] == \
            [(row['size'], row['root'], 0) for row in table], data


def fit(*words):
    done = subprocess.run([BENCH, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_tells_whether_a_model_fits(_cddprun):
    """docs/fsdp.md has these numbers; the test 'fit' has what models hold."""
    status, out, err = fit('--fit=1.3B', '--units', '24', '--ranks=8')
    assert (status, err) == (0, ''), err
    gb = [float(word) * 2**30 / 1e9 for word in out.splitlines()[-1].split()[1:]]
    assert [round(x, 1) for x in gb] == [20.8, 11.7, 8.2, 3.7], out
    status, out, err = fit('--fit', '7B', '-d', 'bfloat16', '--memory=40G')
    assert status == 0 and out.startswith('# 6738415616 parameters (bfloat16), 34 units, the largest has 202383360; adamw\n'), out
    marked = {int(line.split()[0]): line.count('*') for line in out.splitlines() if line[0] == ' '}
    assert marked == {1: 0, 2: 0, 4: 2, 8: 3, 16: 3, 32: 3, 64: 3}, marked
    assert out.endswith('fits into 40.00 GiB; DDP never, stage 1 from 6 ranks, stage 2 from 4 ranks, stage 3 from 3 ranks\n'), out
    for words, text in ((['--fit=3B'], "--fit '3B': not 124M"), (['--fit=x', '--units=2'], "--fit 'x': expected a number"),
                        (['--fit=7B', '--optim=lion'], "--optim 'lion'"), (['--fit=7B', '--ranks=0'], "--ranks '0'"),
                        (['--fit=7B', '-d', 'int8'], '-d must be half'), (['--ranks=2'], 'need --fit=MODEL'), (['--memory=0'], "--memory '0'")):
        status, out, err = fit(*words)
        assert status == 2 and text in err and err.count('\n') == 1 and out == '', (words, out, err)


def test_reports_bad_usage(cddprun):
    for words, text in ((['-d', 'float17'], "cddp-bench: -d 'float17'"), (['reduce', '-r', '7'], 'cddp-bench: -r 7: the job has 2 ranks'),
                        (['-g', '8'], "-g '8': a rank has one GPU; start more ranks"), (['-G', '1'], 'no CUDA graphs'),
                        (['hypercube', '-m', '2'], '-m 2: hypercube'), (['-d', 'float', '-o', 'band'], 'nothing was measured')):
        status, out, err = bench(cddprun, 2, *words)
        assert status == 2 and text in err and not readers.lines(out), (words, out, err)
    assert '# band is not defined for float: not run' in out, out


def test_reports_unwritable_file_before_it_measures(cddprun):
    status, out, err = bench(cddprun, 2, '-b', '8', '-e', '8', '-J', '/nowhere/at/all')
    assert status == 1 and 'cddp-bench: cannot write /nowhere/at/all: No such file' in err and not readers.lines(out), (out, err)


if __name__ == '__main__':
    launch.main()
