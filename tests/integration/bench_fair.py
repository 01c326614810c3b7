#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' rules (bench/fair.py): unfair starts are planted, and must be refused; old peers must be named.

    bench_fair.py CDDPRUN
"""
import argparse
import contextlib
import datetime
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, '..', 'support'), os.path.join(HERE, '..', '..', 'bench')]
import common
import fair
import launch

SLEEP = shutil.which('sleep')
CORES = sorted(os.sched_getaffinity(0))
ENV = {**os.environ, 'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}
RUN_S = '0.5'


def two_cores():
    if len(CORES) < 2:
        raise launch.Skip('one core: no side can have fewer')


def run(name, *command, ranks=2, program=SLEEP):
    done = common.watched(name, list(command), program, ranks, ENV, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout


def ours(cddprun, *before):
    return [*before, cddprun, '--standalone', '--nproc_per_node=2', SLEEP, RUN_S]


def refusal():
    try:
        fair.check()
    except fair.Unfair as why:
        return str(why)
    return ''


def test_equal_sides_pass_and_are_stored(cddprun):
    fair.start_anew()
    for _ in range(2):
        run('ours', *ours(cddprun))
        run('peer', *ours(cddprun, 'env', 'X=1'))
    assert refusal() == ''
    told = fair.record(2)
    seen, = told['sides']['peer']['cores_and_threads']  # two readings were alike, in both runs
    assert seen['runs'] == 2 and seen['ranks'] == 2 and len(seen['before']) == 2, seen
    assert all(fair.cores_of(one['cores']) == set(CORES) and sum(one['threads'].values()) == 1 for one in seen['before']), seen
    assert len(told['load_before_and_after']) == 2


def test_side_under_taskset_is_refused(cddprun):
    two_cores()
    fair.start_anew()
    run('ours', *ours(cddprun))
    run('peer', *ours(cddprun, 'taskset', '-c', str(CORES[0])))
    assert refusal().startswith('refused: peer has fewer cores than ours'), refusal()
    fair.start_anew()
    run('ours', *ours(cddprun, 'taskset', '-c', str(CORES[0])))
    run('peer', *ours(cddprun))
    assert refusal().startswith('refused: ours has fewer cores than peer'), refusal()


def each_on(*cores):
    return ['sh', '-c', ' '.join(f'taskset -c {core} {SLEEP} {RUN_S} &' for core in cores) + ' wait']


def test_ranks_on_one_core_each_pass_and_crowded_ones_do_not(cddprun):
    two_cores()
    fair.start_anew()
    run('ours', *ours(cddprun))
    run('peer', *each_on(*CORES[:2]))
    if len(CORES) == 2:
        assert refusal() == ''
    fair.start_anew()
    first, second = CORES[:2]
    run('ours', *each_on(first, first, second, second), ranks=4)
    run('peer', *each_on(first, first, first, second), ranks=4)
    assert 'refused: peer has fewer cores than ours' in refusal(), refusal()


def test_mpirun_with_two_ranks_on_one_core_is_refused(cddprun):
    two_cores()
    mpirun = shutil.which('mpirun.openmpi')
    if not mpirun:
        raise launch.Skip('no mpirun.openmpi')
    fair.start_anew()
    run('ours', *ours(cddprun))
    run('Open MPI', mpirun, '--oversubscribe', '--bind-to', 'none', '-n', '2', SLEEP, RUN_S)
    assert refusal() == ''
    run('Open MPI', mpirun, '--oversubscribe', '--cpu-set', str(CORES[0]), '--bind-to', 'core:overload-allowed', '-n', '2', SLEEP, RUN_S)
    assert refusal().startswith('refused: Open MPI has fewer cores than ours'), refusal()


def beside_script(cddprun, text):
    """Ours, and a peer whose two ranks run this script."""
    two_cores()
    fair.start_anew()
    with tempfile.NamedTemporaryFile('w', suffix='.py') as script:
        script.write(text)
        script.flush()
        run('ours', *ours(cddprun))
        run('peer', cddprun, '--standalone', '--nproc_per_node=2', sys.executable, script.name, program=script.name)


def test_rank_that_is_confined_later_is_refused(cddprun):
    beside_script(cddprun, f'import os, threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()\ntime.sleep(0.5)\n'
                  f'os.sched_setaffinity(0, {{{CORES[0]}}})\ntime.sleep(1.2)\nos._exit(0)\n')
    seen, = fair.sides['peer'].seen
    assert [sum(one['threads'].values()) for one in seen['after']] == [2, 2] and seen['before'] != seen['after'], seen
    assert refusal().startswith('refused: peer has fewer cores than ours'), refusal()


def test_rank_that_is_confined_for_a_moment_passes(_):
    """hwloc and libcddp bind a thread for a moment. What a reader sees of that is planted: a loaded machine may make a moment long."""
    two_cores()
    free, one, other = ([{'cores': cores, 'threads': {cores: 1}}] for cores in (','.join(map(str, CORES)), str(CORES[0]), str(CORES[1])))
    for seen, expected in (([free], free), ([one, free], free), ([one] * (fair.STEADY - 1) + [free], free), ([one, other] * fair.STEADY + [free], free),
                           ([one] * fair.STEADY, one), ([one, other] + [one] * fair.STEADY, one), ([one, None], None)):
        left = list(seen)
        with unittest.mock.patch.multiple(fair, read_all=lambda pids, left=left: left.pop(0), STEADY_S=0):
            assert fair.steady(threading.Event(), [1]) == expected and left == [], (seen, left)


def test_side_that_was_not_seen_is_refused(cddprun):
    fair.start_anew()
    run('ours', *ours(cddprun))
    run('peer', shutil.which('true'))
    assert 'no process of peer was seen' in refusal(), refusal()


def test_old_peer_is_named(_):
    today = datetime.date(2026, 11, 26)
    assert fair.age('Open MPI 4.1.4', today) == 'of 2022-05, older than two years'
    assert fair.age('Open MPI 5.0.11', today) == '' and fair.age('PyTorch 2.13.0+cpu', today) == ''
    assert fair.age('Open MPI 5.0.11', datetime.date(2028, 11, 1)) == 'of 2026-09, older than two years'
    assert fair.age('Open MPI 4.1.40', today) == fair.age('Else 1', today) == 'its age is not known'


def test_result_names_what_the_rules_ask_for(cddprun):
    fair.start_anew()
    run('ours', *ours(cddprun))
    os.environ['OMPI_MCA_planted'] = ENV['OMPI_MCA_planted'] = 'x'
    fair.side('Open MPI', 'Open MPI 4.1.4')
    run('Open MPI', *ours(cddprun))
    del os.environ['OMPI_MCA_planted'], ENV['OMPI_MCA_planted']
    with tempfile.TemporaryDirectory() as folder:
        args = argparse.Namespace(out=folder, rounds=1)
        with contextlib.redirect_stdout(io.StringIO()):
            common.write(args, 'planted', {'machine': {'date': '2026-11-26', 'commit': 'none'}})
        name, = os.listdir(folder)
        assert name.startswith('planted_few_rounds-'), name
        with open(os.path.join(folder, name), encoding='utf-8') as file:
            side = json.load(file)['sides']['Open MPI']
    assert side['age'] == 'of 2022-05, older than two years' and side['env']['OMPI_MCA_planted'] == 'x', side
    assert side['commands'][0][1:3] == ['--standalone', '--nproc_per_node=2'], side
    for one in fair.side('Open MPI').seen[0]['before']:
        one['cores'] = str(CORES[0])
    if len(CORES) > 1:
        try:
            common.write(args, 'planted', {'machine': {'date': '2026-11-26', 'commit': 'none'}})
        except fair.Unfair:
            return
        raise AssertionError('an unfair run was written')


def test_speedup_has_quartiles_and_the_order_alternates(_):
    one = fair.speedup([1, 1, 1, 1, 2], [1, 2, 3, 4, 10])
    assert (one['median'], one['quartiles'], one['min'], one['max']) == (3, [2, 4], 1, 5), one
    assert fair.turns('ab', 0) == ['a', 'b'] and fair.turns('ab', 1) == ['b', 'a']


if __name__ == '__main__':
    launch.main()
