#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every answer under "Questions" in docs/slurm.md, on a real Slurm. A question without a test, and a test without its
question, fail.

    SLURM_TESTBED=PROGRAM faq.py CDDPRUN [TEST...]
"""
import os
import re
import shlex
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import wait_for

import bed
from bed import LONG, Folder, finish, script_in, show, slurm, submit

ELSEWHERE = {  # answers that other files test
    'How does a job save before its time limit, or when it is preempted?': ('slurm.py', 'test_job_near_time_limit_is_requeued'),
    'How soon is a crashed node noticed?': ('slurm.py', 'crashed'),
    'Can the number of nodes change?': ('slurm.py', 'test_elastic_job_continues_when_node_leaves'),
    'Does the job end with its first node?': ('templates.py', 'test_second_job_grows_the_first_and_either_may_go'),
    'Do arrays and several steps collide?': ('templates.py', 'test_steps_run_side_by_side_on_their_own_nodes'),
    'Do heterogeneous jobs work?': ('slurm.py', 'heterogeneous'),
    'Can a job be suspended?': ('slurm.py', 'suspended'),
    'Is shared memory charged to every rank?': ('../integration/memory_of_ranks.c', 'main'),
    'The site requires one task for each GPU. What now?': ('slurm.py', 'test_more_tasks_per_node_are_one_cddprun_with_all_their_gpus'),
}


def test_every_question_has_a_test(cddprun):
    here = os.path.dirname(__file__)
    text = (bed.ROOT / 'docs' / 'slurm.md').read_text()
    questions = set(re.findall('^### (.*)$', text.split('\n## Questions\n')[1].split('\n## ')[0], re.M))
    tested = {f.__doc__.strip() for n, f in globals().items() if n.startswith('test_') and f.__doc__}
    for question, (file, name) in ELSEWHERE.items():
        begins = f'def {name}(' if file.endswith('.py') else f'int {name}('
        assert begins in open(os.path.join(here, file), encoding='utf-8').read(), (question, file, name)
    assert len(questions) >= 15 and questions == tested | set(ELSEWHERE), questions ^ (tested | set(ELSEWHERE))


def fails(folder, cddprun, line, said, **how):
    job = submit(folder, cddprun, script=script_in(folder, line), **how)
    end, status = finish(job, folder)
    assert end == 'FAILED' and status != 0, (end, status, folder.out())
    assert re.search(said, folder.out()), folder.out()


def test_node_rank_expanded_by_batch_shell(cddprun):
    """Why is SLURM_NODEID 0 on every node?"""
    with Folder() as folder:
        fails(folder, cddprun, f'exec srun --kill-on-bad-exit=1 {shlex.quote(cddprun)} --node_rank $SLURM_NODEID true',
              'cddprun: .*--node_rank.*SLURM_NODEID')


def test_two_launchers_on_a_node(cddprun):
    """How many tasks does a node need?"""
    with Folder() as folder:
        fails(folder, cddprun, f'exec srun --ntasks=4 --ntasks-per-node=2 --kill-on-bad-exit=1 {shlex.quote(cddprun)} true',
              r'cddprun: .*more than one cddprun on a node.*srun --ntasks-per-node=1', flags=['--ntasks-per-node=2'])


def test_forgotten_srun(cddprun):
    """Why does only the first node start?"""
    with Folder() as folder:
        fails(folder, cddprun, f'exec {shlex.quote(cddprun)} --nproc_per_node=2 true', 'cddprun: .*srun')


def test_loopback_in_hosts(cddprun):
    """What if a node's name leads to 127.0.1.1?"""
    with Folder() as folder:
        hosts = folder.path / 'hosts'
        lie = (f'sed "s/^[^ \\t]*\\([ \\t].*\\b$(hostname)\\b\\)/127.0.1.1\\1/" /etc/hosts >{hosts}.$(hostname) && '
               f'mount --bind {hosts}.$(hostname) /etc/hosts && exec "$@"')
        line = f"exec srun --kill-on-bad-exit=1 unshare --mount sh -c '{lie}' sh {shlex.quote(cddprun)} --rdzv_conf=join_timeout=20 true"
        fails(folder, cddprun, line, r'cddprun: .*node1.*127\.0\.1\.1')


def test_srun_from_login_node(cddprun):
    """Does it work without scontrol, and by srun from the login node?"""
    with Folder() as folder:
        only = folder.path / 'bin'
        only.mkdir()
        for name in 'sh', 'echo':
            (only / name).symlink_to(f'/bin/{name}')
        out = slurm('srun', '--nodes=2', '--ntasks-per-node=1', f'--export=ALL,PATH={only}', cddprun, 'sh', '-c', 'echo rank $RANK of $WORLD_SIZE')
        assert sorted(re.findall(r'rank (\d) of 2', out)) == ['0', '1'], out


def test_port_in_use(cddprun):
    """What if another job has the port?"""
    with Folder() as folder:
        taken = ('import re,socket,subprocess,sys,os\n'
                 'if os.environ["SLURM_NODEID"] != "0": os.execv(sys.argv[1], [sys.argv[1], "sh", "-c", "echo port $MASTER_PORT"])\n'
                 'out = subprocess.run([sys.argv[1], "--dry_run", "true"], capture_output=True, text=True).stderr\n'
                 's = socket.socket(); s.bind(("", int(re.search(r"port (\\d+)", out)[1]))); s.listen(); s.set_inheritable(True)\n'
                 'os.execv(sys.argv[1], [sys.argv[1], "sh", "-c", "echo port $MASTER_PORT"])\n')
        program = folder.path / 'taken.py'
        program.write_text(taken)
        job = submit(folder, cddprun, script=script_in(folder, f'exec srun --kill-on-bad-exit=1 {sys.executable} {program} {shlex.quote(cddprun)}'))
        assert finish(job, folder) == ('COMPLETED', 0), folder.out()
        first = int(re.search(r'rendezvous at node1, port (\d+)', folder.out())[1])
        used = {int(n) for n in re.findall(r'\] port (\d+)', folder.out())}
        assert len(used) == 1 and first < used.pop() < first + 4, folder.out()


def test_signal_of_the_user(cddprun):
    """Does USR1 end the job?"""
    program = 'trap "echo heard; exit 0" USR1; touch up.$RANK; while :; do sleep 0.1; done'
    with Folder() as folder:
        job = submit(folder, cddprun, 'sh', '-c', program)
        wait_for('four ranks', lambda: len(list(folder.path.glob('up.*'))) == 4, LONG, folder.out)
        slurm('scancel', '--signal=USR1', job)
        assert finish(job, folder) == ('COMPLETED', 0), folder.out()
        # From Slurm and from cddprun: a rank that the first one finds in its handler hears both.
        assert set(re.findall(r'\[(\d)\] heard', folder.out())) == set('0123'), folder.out()


def test_time_to_save(cddprun):
    """How long may saving take?"""
    program = 'trap "sleep 2; touch saved.$RANK; exit 0" TERM; touch up.$RANK; while :; do sleep 0.1; done'
    with Folder() as folder:
        job = submit(folder, cddprun, 'sh', '-c', program, env={'SAVE_SECONDS': '20'})
        wait_for('four ranks', lambda: len(list(folder.path.glob('up.*'))) == 4, LONG, folder.out)
        slurm('scancel', job)
        assert finish(job, folder)[0] == 'CANCELLED', folder.out()
        assert len(list(folder.path.glob('saved.*'))) == 4, folder.out()


def test_cores(cddprun):
    """Why does a worker have one core only?"""
    with Folder() as folder:
        job = submit(folder, cddprun, 'sh', '-c', 'echo cores $SLURM_CPUS_PER_TASK $SRUN_CPUS_PER_TASK', flags=['--cpus-per-task=6'])
        assert finish(job, folder) == ('COMPLETED', 0) and folder.out().count('cores 6 6') == 4, folder.out()


def test_status_of_a_failed_job(cddprun):
    """Which status has a job that fails?"""
    with Folder() as folder:
        job = submit(folder, cddprun, 'sh', '-c', '[ $RANK = 3 ] && exit 5; exec sleep 60')
        assert finish(job, folder) == ('FAILED', 5), show(job)
        assert re.search(r'rank 3 \(pid \d+ on node2\) exited with status 5', folder.out()), folder.out()
        assert 'queued again' not in folder.out(), show(job) + folder.out()  # Slurm itself may, if it could not start it


if __name__ == '__main__':
    bed.main({})
