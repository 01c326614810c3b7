#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real programs over the MPI backend, under each MPI that it was built for.

    test_mpi.py CDDPRUN [TEST...]     CDDP_TEST_MPI: the folder with a folder per module, each with cddp_mpi.so
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch

KINDS = {'openmpi': (['mpirun.openmpi', 'mpirun'], ['--oversubscribe']),
         'mpich': (['mpiexec.hydra', 'mpiexec.mpich', 'mpiexec'], [])}


MODES = ['beside', 'again', 'given', 'group', 'threads']


def found():
    """(kind, its launcher's words, the folder of its module) of each that can be tested here."""
    at = os.environ['CDDP_TEST_MPI']
    kinds = []
    for kind, (names, flags) in KINDS.items():
        program = next(filter(None, map(shutil.which, names)), None)
        if program and os.path.exists(f'{at}/{kind}/cddp_mpi.so'):
            kinds.append((kind, [program, *flags], f'{at}/{kind}'))
    if not kinds:
        raise launch.Skip('built without an MPI, or its mpirun is missing (libopenmpi-dev or libmpich-dev, openmpi-bin or mpich)')
    return kinds


def environment(folder):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(('PET_', 'TORCHELASTIC_', 'CDDP_', 'SLURM_', 'OMPI_', 'PMI'))}
    return {**clean, 'CDDP_BACKEND': 'mpi', 'CDDP_MODULE_DIR': folder, 'MASTER_ADDR': '127.0.0.1',
            'MASTER_PORT': str(launch.free_port()), 'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
            'ASAN_OPTIONS': 'detect_leaks=0'}  # MPI's own


def mpirun(kind, ranks, *command):
    _, launcher, folder = kind
    return subprocess.run([*launcher, '-n', str(ranks), *command], env=environment(folder), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=launch.within(60), check=False)


def built(cddprun, *path):
    return os.path.join(os.path.dirname(os.path.dirname(cddprun)), *path)


def test_wine_has_the_bits_of_the_cpu_backend(cddprun):
    wine = built(cddprun, 'examples', 'wine', 'wine')
    kinds = found()
    with tempfile.TemporaryDirectory() as tmp:
        for ranks, flags in ((1, []), (2, ['--uneven', '5']), (2, ['--dtype', 'f64', '--accumulate', '2']),
                             (4, ['--compress', 'bf16']), (4, ['--dtype', 'f64'])):
            words = [wine, '--epochs', '4', *flags, '--weights-out']
            status, out, err = launch.run(cddprun, '--standalone', f'--nproc_per_node={ranks}', *words, f'{tmp}/cpu',
                                          env={'CDDP_BACKEND': 'cpu'})
            assert status == 0, (out, err)
            with open(f'{tmp}/cpu', encoding='ascii') as f:
                want = f.read()
            for kind in kinds:
                done = mpirun(kind, ranks, *words, f'{tmp}/{kind[0]}')
                assert done.returncode == 0 and 'on mpi' in done.stdout, (kind, ranks, flags, done)
                with open(f'{tmp}/{kind[0]}', encoding='ascii') as f:
                    assert f.read() == want, f'{kind[0]}, {ranks} ranks, {flags}: other weights'


def test_communicators_of_all_kinds_one_after_the_other_in_one_process(cddprun):
    for kind in found():
        for ranks in (1, 2, 3):
            done = mpirun(kind, ranks, built(cddprun, 'tests', 'integration', 'communicators'), *MODES)
            assert done.returncode == 0, (kind, ranks, done)


def test_results_do_not_depend_on_floating_point_state(cddprun):
    for kind in found():
        done = mpirun(kind, 2, built(cddprun, 'tests', 'integration', 'float_state'))
        assert done.returncode == 0, (kind, done)


def test_error_names_both_ranks_without_mpi_launcher(cddprun):
    for _, _, folder in found():
        env = {'CDDP_BACKEND': 'mpi', 'CDDP_MODULE_DIR': folder, 'OMPI_ALLOW_RUN_AS_ROOT': '1',
               'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1', 'ASAN_OPTIONS': 'detect_leaks=0'}
        # Two Open MPIs that were not started together make the same folder, and one fails if they do so at the same time.
        apart = ['sh', '-c', 'TMPDIR=$TMPDIR/of$RANK; export TMPDIR; mkdir "$TMPDIR" && exec "$0"']
        with launch.Job(cddprun, '--standalone', '--nproc_per_node=2', *apart, built(cddprun, 'examples', 'hello_ranks'), env=env) as job:
            status = job.finish()
            shutil.rmtree(job.tmp)  # Open MPI leaves a folder there
            os.mkdir(job.tmp)
        assert status != 0
        assert re.search(r'rank \d of 2 .*, but rank 0 of 1 in ', job.err), job.err
        assert 'start the program with the mpirun or mpiexec of that MPI' in job.err, job.err


def test_reports_ranks_that_contradict_launcher(cddprun):
    for kind in found():
        done = mpirun(kind, 1, 'env', 'RANK=0', 'WORLD_SIZE=2', 'TORCHELASTIC_USE_AGENT_STORE=False', 'CDDP_JOIN_TIMEOUT=3', 'sh', '-c',
                      '"$1" & RANK=1 "$1"; status=$?; wait; exit $status', 'sh', built(cddprun, 'examples', 'hello_ranks'))
        assert done.returncode != 0
        assert 'this process is rank 1 of 2 (RANK and WORLD_SIZE), but ' in done.stderr, done
        assert "RANK='0' and " in done.stderr and "SIZE='1': over MPI each rank" in done.stderr, done


def test_works_in_program_that_initialized_mpi(cddprun):
    for kind in found():
        for ranks, level in ((2, 'single'), (2, 'serialized'), (2, 'multiple'), (2, 'communicators'), (5, 'communicators')):
            done = mpirun(kind, ranks, built(cddprun, 'tests', 'integration', f'mpi_itself_{kind[0]}'), level)
            assert done.returncode == 0, (level, done)
            assert done.stdout.count('fine') == ranks, (level, done)


if __name__ == '__main__':
    launch.main()
