#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python module cddp over the libcddp of this build.

    test_module.py CDDPRUN    CDDP_TEST_LIBCDDP is its path; CDDP_TEST_TORCH_PYTHON a python3 with PyTorch, or empty
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / 'support'))
import launch  # noqa: E402
from launch import Skip  # noqa: E402

LIBRARY = os.environ['CDDP_TEST_LIBCDDP']
TORCH_PYTHON = os.environ.get('CDDP_TEST_TORCH_PYTHON', '')
ENV = {'PYTHONPATH': str(ROOT / 'python'), 'CDDP_LIBRARY': LIBRARY, 'CDDP_BACKEND': 'cpu', 'PYTHONDONTWRITEBYTECODE': '1',
       'OMP_NUM_THREADS': '1'}


def python_with(module):
    for python in (TORCH_PYTHON, sys.executable):
        if python and subprocess.run([python, '-c', f'import {module}'], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return python
    raise Skip(f'no python3 with {module}')


def job(cddprun, python, *mode, ranks=2, script='ranks.py', deadline=launch.DEADLINE):
    with tempfile.TemporaryDirectory() as cache, launch.Job(cddprun, '--standalone', f'--nproc_per_node={ranks}', python, HERE / script,
                                                            *mode, env={**ENV, 'TORCHINDUCTOR_CACHE_DIR': cache}) as run:
        return run.finish(deadline), run.out, run.err


def passes(cddprun, python, mode):
    status, out, err = job(cddprun, python, mode)
    assert status == 0, out + err
    return out


def by_hand(code, **env):
    return subprocess.Popen([sys.executable, '-c', code], env={**os.environ, **ENV, **env}, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def test_needs_neither_numpy_nor_torch(cddprun):
    passes(cddprun, sys.executable, 'plain')


def test_mean_is_numpys(cddprun):
    out = passes(cddprun, python_with('numpy'), 'mean')
    assert all(f"rank {rank}: the mean is numpy's" in out for rank in (0, 1)), out


def test_collectives_of_every_type(cddprun):
    passes(cddprun, python_with('numpy'), 'kinds')


def test_rejects_what_it_cannot_use(cddprun):
    passes(cddprun, python_with('numpy'), 'wrong')


def test_parts(cddprun):
    passes(cddprun, python_with('numpy'), 'parts')


def test_log(cddprun):
    status, out, err = job(cddprun, sys.executable, 'logs')
    assert status == 0, out + err
    assert sorted(line.split('] ', 1)[1] for line in err.splitlines()) == sorted(
        ['[rank 0] once\\x1b', '[rank 0] each', '[rank 1] each', '[rank 0] odd \\udc80 2']), err


def test_reducer(cddprun):
    passes(cddprun, python_with('numpy'), 'reducer')


def test_uneven_ranks_buffers_and_optimizer(cddprun):
    passes(cddprun, sys.executable, 'uneven')


def test_sharded_model(cddprun):
    for ranks in (1, 2, 3):
        status, out, err = job(cddprun, python_with('numpy'), 'sharded', ranks=ranks)
        assert status == 0, out + err


def test_sharded_model_rejects_what_it_cannot_use(cddprun):
    passes(cddprun, python_with('numpy'), 'sharded_wrong')


def test_stats(cddprun):
    passes(cddprun, sys.executable, 'stats')


def test_torch_tensors(cddprun):
    out = passes(cddprun, python_with('torch'), 'tensors')
    assert all(f'rank {rank}: PyTorch agrees' in out for rank in (0, 1)), out


def test_exception_names_the_rank_that_died(cddprun):
    status, out, err = job(cddprun, sys.executable, 'dies', ranks=3)
    assert status != 0
    for rank in (0, 2):
        assert f'rank {rank}: PEER by rank 1: ' in out, out + err
        message = out.split(f'rank {rank}: PEER by rank 1: ')[1].splitlines()[0]
        assert 'rank 1' in message, message


def test_exception_in_with_reaches_the_others(cddprun):
    status, out, err = job(cddprun, sys.executable, 'fails')
    assert status != 0
    line = next((line for line in out.splitlines() if 'rank 0: ' in line), out + err)
    assert 'ABORTED by rank 1: ' in line and 'KeyError' in line and 'a bad batch' in line, line


def test_exit_in_with_is_an_orderly_end(cddprun):
    status, out, err = launch.run(cddprun, '--standalone', '--nproc_per_node=2', sys.executable, HERE / 'ranks.py', 'leaves', env=ENV)
    assert (status, out, err) == (0, '[0] rank 0 has ended\n', ''), out + err


def test_line_example(cddprun):
    status, out, err = launch.run(cddprun, '--standalone', '--nproc_per_node=2', python_with('numpy'),
                                  ROOT / 'python/examples/line.py', env=ENV)
    assert status == 0 and all(f'w[{d}] = {d + 1}.00' in out for d in range(8)), out + err


def test_first_program_of_the_page(cddprun):
    page = (ROOT / 'docs/python.md').read_text(encoding='utf-8')
    program = re.search(r'(?ms)^```python\n(import cddp.*?)^```', page)[1]
    program += '    assert (gradient == 0.5).all() and rows.shape == (2, 1000) and part.shape == (1, 1000) and (part == 1).all()\n'
    status, out, err = launch.run(cddprun, '--standalone', '--nproc_per_node=2', python_with('numpy'), '-c', program, env=ENV)
    assert status == 0, out + err


def test_world_of_one(_):
    done = by_hand("import array, cddp\nwith cddp.init() as c: print(c, c.all_reduce(array.array('f', [2])).tolist())")
    out, err = done.communicate(timeout=60)
    assert out == '<cddp.Comm: rank 0 of 1, cpu> [2.0]\n', out + err


def test_a_rank_that_stands_still_has_its_python_stack(cddprun):
    env = {**ENV, 'PATH': launch.path_with_py_spy()}
    with launch.Job(cddprun, '--standalone', '--nproc_per_node=2', '--hang_warning=1', '--hang_timeout=3', '--shutdown_timeout=0.1',
                    sys.executable, HERE / 'ranks.py', 'stands', env=env) as run:
        assert run.finish() == 1, run.out + run.err
    assert re.search(r"\n    rank 1's stack:\n        main thread:\n {12}(stands\.<locals>\.)?planted_sleep \(ranks\.py:\d+\)\n {12}stands ",
                     run.err), run.err


def test_job_without_a_launcher(_):
    code = ('import array, cddp, sys\n'
            'with cddp.init(world_size=2, rank=int(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), host_store=True,'
            ' join_timeout=60) as c: print(c.all_reduce(array.array("f", [c.rank + 1])).tolist())')
    port = str(launch.free_port())
    ranks = [subprocess.Popen([sys.executable, '-c', code, str(rank), port], env={**os.environ, **ENV}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in (0, 1)]
    for rank in ranks:
        out, err = rank.communicate(timeout=90)
        assert out == '[3.0]\n', out + err


def test_ranks_that_are_missing_are_named(_):
    done = by_hand('import cddp\n'
                   'try: cddp.init(join_timeout=0.5)\n'
                   'except cddp.Error as e: print(e.status.name, e)',
                   RANK='0', WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=str(launch.free_port()))
    out, err = done.communicate(timeout=60)
    assert out.startswith('TIMEOUT ') and out.rstrip().endswith(': 1'), out + err


def test_ctrl_c_ends_init(_):
    done = by_hand('import cddp\nprint("joining", flush=True)\n'
                   'try: cddp.init()\n'
                   'except KeyboardInterrupt: print("interrupted")',
                   RANK='0', WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=str(launch.free_port()))
    assert done.stdout.readline() == 'joining\n'
    time.sleep(0.3)  # the signal may come before the join begins: then Python itself raises it
    began = time.monotonic()
    done.send_signal(signal.SIGINT)
    out, err = done.communicate(timeout=60)
    assert out == 'interrupted\n' and time.monotonic() - began < launch.within(10), out + err


def test_bad_arguments_of_init(_):
    done = by_hand('import cddp\n'
                   'for named in ({"rank": 1}, {"timeout": 0}, {"timeout": -1}, {"world_size": 2, "rank": 0, "id": b"x"}):\n'
                   '    try: cddp.init(**named)\n'
                   '    except ValueError as e: print(e)\n'
                   'try: cddp.init("gpu")\n'
                   'except cddp.Error as e: print(e.status.name, e.rank, e)\n')
    out, err = done.communicate(timeout=60)
    lines = out.splitlines()
    assert len(lines) == 5 and 'need world_size' in lines[0] and 'timeout of 0 s' in lines[1] and 'id has 1 bytes' in lines[3], out + err
    assert lines[4].startswith('INVALID None ') and 'gpu' in lines[4], out


def test_library_that_is_missing(_):
    done = by_hand('import cddp\n'
                   'try: cddp.init()\n'
                   'except ImportError as e: print(e)', CDDP_LIBRARY='/nowhere/libcddp.so.0')
    out, err = done.communicate(timeout=60)
    assert 'cannot load libcddp' in out and '/nowhere/libcddp.so.0' in out and 'CDDP_LIBRARY' in out, out + err


if __name__ == '__main__':
    launch.main()
