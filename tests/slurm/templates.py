#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The templates of scripts/slurm beside train.sbatch (slurm.py), each on a real Slurm.

    SLURM_TESTBED=PROGRAM templates.py CDDPRUN [TEST...]
"""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import wait_for

import bed
from bed import (LONG, Folder, ended_well, finish, let_end, script_in, show, slurm, state, submit, template, train,
                 train_until_told, wait_for_checkpoint, weights, wine)


def test_every_template_is_checked_by_shellcheck(cddprun):
    if not shutil.which('shellcheck'):
        raise launch.Skip('shellcheck is not installed')
    scripts = sorted(bed.ROOT.glob('scripts/slurm/*.s*'))
    assert len(scripts) >= 8, scripts
    done = subprocess.run(['shellcheck', *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_templates_say_how_they_are_used(cddprun):
    with Folder() as folder:
        for name in 'train', 'elastic', 'sweep', 'steps', 'container', 'grow':
            job = submit(folder, cddprun, script=template(f'{name}.sbatch'), nodes=1)
            assert finish(job) == ('FAILED', 2), show(job)
            assert f'scripts/slurm/{name}.sbatch ' in (folder.path / f'job-{job}.out').read_text(), folder.out()


def test_elastic_job_near_time_limit_is_requeued(cddprun):
    with Folder() as folder:
        job = submit(folder, cddprun, *train_until_told(folder, cddprun), script=template('elastic.sbatch'),
                     env={'NPROC_PER_NODE': '1', 'MIN_NODES': '1'})
        wait_for_checkpoint(folder)
        slurm('scancel', '--batch', '--signal=USR1', job)
        epochs = bed.start_again(folder, job)
        ended_well(folder, cddprun, job, 2, epochs, 'the job is queued again', 'resumed')


def test_sweep_trains_once_for_each_line(cddprun):
    runs = ['--epochs 10', '--epochs 20 --lr 0.1', '--epochs 30']
    with Folder() as folder:
        (folder.path / 'runs.txt').write_text('\n'.join(runs) + '\n')
        job = submit(folder, cddprun, 'runs.txt', wine(cddprun), '--save', 'run-{}', '--weights-out', 'weights-{}', nodes=1,
                     script=template('sweep.sbatch'), flags=['--array=1-4%2'])
        for i in range(1, 4):
            assert finish(f'{job}_{i}') == ('COMPLETED', 0), folder.out()
            assert list((folder.path / f'run-{i}').glob('checkpoint-*')), i
        assert (folder.path / 'weights-1').read_bytes() == weights(cddprun, 2, 10)
        assert (folder.path / 'weights-3').read_bytes() == weights(cddprun, 2, 30)
        assert finish(f'{job}_4') == ('FAILED', 2), show(job)
        assert 'runs.txt has no line 4' in folder.out(), folder.out()


def test_task_of_sweep_that_is_preempted_is_queued_again(cddprun):
    with Folder() as folder:
        words = train_until_told(folder, cddprun)
        (folder.path / 'runs.txt').write_text('--save-every 20\n')
        job = submit(folder, cddprun, 'runs.txt', *words, nodes=1, script=template('sweep.sbatch'), flags=['--array=1'])
        wait_for_checkpoint(folder)
        bed.preempt(folder)
        epochs = bed.start_again(folder, f'{job}_1')
        ended_well(folder, cddprun, f'{job}_1', 2, epochs, 'resumed')


def test_steps_run_one_after_another_until_one_fails(cddprun):
    with Folder() as folder:
        job = submit(folder, cddprun, 'sh -c "touch first.$RANK"', 'sh -c "cp first.$((3 - RANK)) second.$RANK && exit 7"', 'touch never',
                     script=template('steps.sbatch'))
        assert finish(job) == ('FAILED', 7), folder.out()
        assert len(list(folder.path.glob('first.*'))) == 4 and list(folder.path.glob('second.*')), folder.out()
        assert not (folder.path / 'never').exists()


def test_steps_run_side_by_side_on_their_own_nodes(cddprun):
    """Each waits until the other one runs, too; so they do not run one after the other."""
    wait = 'while [ ! -e up.{} ]; do sleep 0.1; done'
    with Folder() as folder:
        commands = [f"sh -c 'hostname >on.{me}.$RANK; touch up.{me}; {wait.format(other)}'" for me, other in (('a', 'b'), ('b', 'a'))]
        job = submit(folder, cddprun, *commands, script=template('steps.sbatch'), nodes=4, env={'PARALLEL': '1'})
        assert finish(job) == ('COMPLETED', 0), folder.out()
        on = {p.name[3:]: p.read_text().strip() for p in folder.path.glob('on.*')}
        assert on == {'a.0': 'node1', 'a.1': 'node1', 'a.2': 'node2', 'a.3': 'node2',
                      'b.0': 'node3', 'b.1': 'node3', 'b.2': 'node4', 'b.3': 'node4'}, on


def test_one_of_several_steps_fails(cddprun):
    with Folder() as folder:
        job = submit(folder, cddprun, 'true', 'sh -c "exit 5"', script=template('steps.sbatch'), env={'PARALLEL': '1'})
        assert finish(job) == ('FAILED', 5), folder.out()
        job = submit(folder, cddprun, 'true', 'true', 'true', script=template('steps.sbatch'), env={'PARALLEL': '1'})
        assert finish(job) == ('FAILED', 2) and '3 programs side by side need 3 nodes' in folder.out(), folder.out()


def test_interactive_starts_one_program(cddprun):
    out = slurm('env', f'CDDPRUN={cddprun}', 'NPROC_PER_NODE=2', template('interactive.sh'), '--quiet', '--nodes=3', '--',
                'sh', '-c', 'echo rank $RANK of $WORLD_SIZE')
    assert sorted(re.findall(r'rank (\d) of 6', out)) == list('012345'), out


def test_interactive_shell_trains_as_often_as_wanted(cddprun):
    with Folder() as folder:
        typed = folder.path / 'typed'
        typed.write_text("train sh -c 'echo first $RANK' </dev/null\ntrain sh -c 'echo second $RANK' </dev/null\nexit 3\n")
        out = slurm('env', f'CDDPRUN={cddprun}', 'NPROC_PER_NODE=1', 'sh', '-c',
                    f'{template("interactive.sh")} --quiet --nodes=2 <{typed}; echo status $?')
        assert re.findall(r'(first|second|status) (\d)', out)[-1] == ('status', '3'), out
        assert sorted(re.findall(r'\] (first|second) (\d)', out)) == [('first', '0'), ('first', '1'), ('second', '0'), ('second', '1')]


APPTAINER = r'''#!/bin/bash
# Does with namespaces what "apptainer exec" does with the flags that the template uses: the image is the root.
set -e
[ "$1" = exec ] && shift
while :; do
    case $1 in
    --nv) touch "$PWD/nv"; shift ;;
    --bind) bind=$2; shift 2 ;;
    --pwd) pwd=$2; shift 2 ;;
    -*) echo "apptainer: no such flag: $1" >&2; exit 255 ;;
    *) break ;;
    esac
done
image=$1; shift
exec unshare --mount --propagation=private bash -c '
    set -e
    root=$1 bind=$2 pwd=$3; shift 3
    for d in usr lib lib64 bin proc sys dev; do [ ! -e "/$d" ] || { mkdir -p "$root/$d"; mount --rbind "/$d" "$root/$d"; }; done
    mkdir -p "$root/tmp" "$root/etc" "$root$bind" "$root/opt/cddp"; touch "$root/etc/hosts"
    mount --bind "$CDDP_BUILD" "$root/opt/cddp"; mount --bind "$bind" "$root$bind"; mount --bind /etc/hosts "$root/etc/hosts"
    exec chroot "$root" sh -c "cd \"\$1\" && shift && exec \"\$@\"" sh "$pwd" "$@"' - "$image" "$bind" "$pwd" "$@"
'''


def test_container_has_one_cddprun_for_each_node(cddprun):
    """A stand-in for apptainer: it changes the root, and keeps the environment, the network and the signals."""
    build = os.path.realpath(os.path.join(os.path.dirname(cddprun), '..'))
    with Folder() as folder:
        program = folder.path / 'bin' / 'apptainer'
        program.parent.mkdir()
        program.write_text(APPTAINER)
        program.chmod(0o755)
        image = folder.path / 'image'
        image.mkdir()
        env = {'PATH': f'{program.parent}:{os.environ["PATH"]}', 'CDDP_BUILD': build, 'CDDPRUN': '/opt/cddp/launcher/cddprun'}
        job = submit(folder, cddprun, image, '/opt/cddp/examples/wine/wine', *train(50), env=env, script=template('container.sbatch'),
                     flags=['--gres=gpu:1'])
        ended_well(folder, cddprun, job, 4, 50, rf'Slurm step {job}\.0\.0: 2 nodes')
        assert (folder.path / 'nv').exists()
        job = submit(folder, cddprun, image, 'sh', '-c', '[ ! -e /etc/passwd ] && exit 6', env=env, script=template('container.sbatch'))
        assert finish(job) == ('FAILED', 6), folder.out()
        job = submit(folder, cddprun, image, 'true', env={**env, 'RUNTIME': 'docker'}, script=template('container.sbatch'))
        assert finish(job) == ('FAILED', 2) and "RUNTIME is 'docker'" in folder.out(), folder.out()


def test_container_gives_pyxis_its_flags(cddprun):
    """A stand-in for srun shows what pyxis, a plugin of srun, would get."""
    with Folder() as folder:
        program = folder.path / 'bin' / 'srun'
        program.parent.mkdir()
        program.write_text('#!/bin/sh\nfor word; do echo "word $word"; done\n')
        program.chmod(0o755)
        job = submit(folder, 'cddprun', 'train.sqsh', './train', '--lr', '0.1', script=template('container.sbatch'),
                     env={'RUNTIME': 'pyxis', 'PATH': f'{program.parent}:{os.environ["PATH"]}'})
        assert finish(job) == ('COMPLETED', 0), folder.out()
        words = re.findall('^word (.*)', folder.out(), re.M)
        at = words.index('--container-image=train.sqsh')
        assert words[at + 1:] == [f'--container-mounts={folder.path}:{folder.path}', f'--container-workdir={folder.path}', 'cddprun',
                                  '--nproc_per_node=2', '--shutdown_timeout=25', '--stop_exit_code=143', './train', '--lr', '0.1'], words


class Rendezvous:
    """rendezvous.sh on the login node, for the length of a block."""

    def __init__(self, folder, cddprun):
        self.env = {'RENDEZVOUS_DIR': folder.path / 'rendezvous', 'PORT': launch.free_port(),
                    'CDDP_RENDEZVOUS': os.path.join(os.path.dirname(cddprun), '..', 'rendezvous', 'cddp-rendezvous')}

    def do(self, word, **how):
        return slurm('env', *(f'{k}={v}' for k, v in self.env.items()), template('rendezvous.sh'), word, **how)

    def pid(self):
        return int((self.env['RENDEZVOUS_DIR'] / 'pid').read_text())

    def __enter__(self):
        self.name = re.fullmatch(r'RENDEZVOUS=(\S+)\n', self.do('start'))[1]
        return self

    def __exit__(self, kind, *_):
        self.do('stop', check=False)
        if kind:  # it would wait for the jobs of the test that has failed
            os.kill(self.pid(), 9)
        wait_for('the end of the server', lambda: launch.state(self.pid()) in (None, 'Z', 'X'))


def test_rendezvous_starts_once_and_stops(cddprun):
    with Folder() as folder, Rendezvous(folder, cddprun) as server:
        assert 'cddp-rendezvous' in launch.exe(server.pid())
        again = slurm('sh', '-c', f'{" ".join(f"{k}={v}" for k, v in server.env.items())} {template("rendezvous.sh")} start 2>&1; echo $?')
        assert again == f'rendezvous.sh: it is running already (pid {server.pid()})\n1\n', again


def grow(folder, cddprun, server, words=None, **how):
    return submit(folder, cddprun, *(words or train_until_told(folder, cddprun)), script=template('grow.sbatch'),
                  env={'NPROC_PER_NODE': '1', 'RENDEZVOUS': server.name, 'RUN': 'run7'}, **how)


def ranks(folder, n):
    wait_for(f'{n} ranks', lambda: re.findall(r'wine: (\d+) ranks?\b', folder.out())[-1:] == [str(n)], LONG, folder.out)


def test_second_job_grows_the_first_and_either_may_go(cddprun):
    """The first job, whose nodes would host the rendezvous otherwise, is the one that goes."""
    with Folder() as folder, Rendezvous(folder, cddprun) as server:
        first = grow(folder, cddprun, server, nodes=1)
        wait_for_checkpoint(folder)
        second = grow(folder, cddprun, server, nodes=2)
        ranks(folder, 3)
        slurm('scancel', first)
        ranks(folder, 2)
        assert finish(first)[0] == 'CANCELLED' and state(second)[0] == 'RUNNING', folder.out()
        slurm('scancel', second)
        assert finish(second)[0] == 'CANCELLED'
        epochs = let_end(folder)
        third = grow(folder, cddprun, server, [wine(cddprun), *train(epochs)], nodes=2)  # the run goes on with whatever comes
        assert finish(third, folder) == ('COMPLETED', 0), folder.out()
        assert re.findall(r'resumed', (folder.path / f'job-{third}.out').read_text()), folder.out()


def test_jobs_survive_a_new_rendezvous(cddprun):
    with Folder() as folder, Rendezvous(folder, cddprun) as server:
        job = grow(folder, cddprun, server, nodes=2)
        wait_for_checkpoint(folder)
        os.kill(server.pid(), 9)
        wait_for('the end of the server', lambda: launch.state(server.pid()) in (None, 'Z', 'X'))
        server.do('start')
        let_end(folder, more=2000)
        assert finish(job, folder) == ('COMPLETED', 0), folder.out()
        assert 'will try to rejoin for' in folder.out() and 'resumed' in folder.out(), folder.out()


if __name__ == '__main__':
    bed.main({})
