#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/slurm/train.sbatch on a real Slurm of four nodes, each a separate host.

    SLURM_TESTBED=PROGRAM slurm.py CDDPRUN [--slow] [TEST...]
    SLURM_TESTBED=PROGRAM slurm.py CDDPRUN --full[=RUNS] [CASE...]

The first runs tests once each, with short ways to the same ends: it takes a minute. The second runs the cases of a
job's life RUNS times (10), as they happen on a cluster, and prints a table. README.md says what PROGRAM must do. wine
is taken from CDDPRUN's build folder.
"""
import collections
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, run, wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / 'scripts' / 'slurm' / 'train.sbatch'
BED = os.environ.get('SLURM_TESTBED', '')
N_NODES = 4
LONG = 180  # seconds for what Slurm does when it finds the time


def wine(cddprun):
    return os.path.join(os.path.dirname(cddprun), '..', 'examples', 'wine', 'wine')


def bed(*words, check=True):
    done = subprocess.run([BED, *map(str, words)], capture_output=True, text=True, timeout=60, check=False,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0 or not check, (words, done.stdout, done.stderr)
    return done.stdout


class Folder(tempfile.TemporaryDirectory):
    """Where a job writes; its output is in out()."""

    def __enter__(self):
        self.path = pathlib.Path(super().__enter__())
        return self

    def out(self):
        return ''.join(p.read_text() for p in sorted(self.path.glob('job-*.out')))


def slurm(*words, **how):
    return bed('run', '--', *words, **how)


def submit(folder, cddprun, *words, env=None, script=TEMPLATE, nodes=2, flags=()):
    """The job's number. The job's variables are sbatch's own, plus env."""
    # Slurm sends SIGCONT to every process soon after SIGTERM. It takes back the SIGSTOP by which a leak checker attaches.
    sanitizer = ':'.join(filter(None, (os.environ.get('ASAN_OPTIONS'), 'detect_leaks=0')))
    more = {'CDDPRUN': cddprun, 'NPROC_PER_NODE': '2', 'ASAN_OPTIONS': sanitizer, **(env or {})}
    out = slurm('env', *(f'{k}={v}' for k, v in more.items()), 'sbatch', '--parsable', f'--nodes={nodes}',
                f'--chdir={folder.path}', f'--output={folder.path}/job-%j.out', *flags, script, *words)
    return int(out.strip().split(';')[0])


def show(job):
    return slurm('scontrol', 'show', 'job', job)


def state(job):
    """'RUNNING', 'PENDING' and so on, and how often it was queued again."""
    text = show(job)
    return re.search(r'JobState=(\w+)', text)[1], int(re.search(r'Restarts=(\d+)', text)[1])


def finish(job):
    """Wait; 'COMPLETED', 'FAILED', 'CANCELLED' and the exit status."""
    launch.wait_for(f'the end of job {job}', lambda: state(job)[0] not in ('RUNNING', 'PENDING', 'COMPLETING'), LONG,
                    lambda: show(job))
    text = show(job)
    return re.search(r'JobState=(\w+)', text)[1], int(re.search(r'ExitCode=(\d+):', text)[1])


def wait_for_checkpoint(folder):
    wait_for('a checkpoint', lambda: list(folder.path.glob('ck/checkpoint-*.cddp')), LONG, folder.out)


def this_slurm():
    """In the environment of its processes; no other Slurm on this node has the same."""
    return f'SLURM_CONF={slurm("printenv", "SLURM_CONF").strip()}'.encode()


def managers(job):
    """Slurm's own processes that look after the job's steps: their remaining messages are about its former run."""
    wanted = this_slurm()
    found = []
    for path in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            if (path / 'cmdline').read_bytes().startswith(f'slurmstepd: [{job}.'.encode()) and wanted in (path / 'environ').read_bytes():
                found.append(path.name)
        except OSError:
            pass
    return found


def start_again(folder, job, times=1):
    """
    Wait until the job is queued again, and do not wait the two minutes that Slurm gives it. But slurmd refuses what was
    allowed in the second in which it killed the job, or before ("already killed, do not launch batch job"): it compares
    whole seconds. Returns the epoch after which a wine that trains until it is stopped ends now.
    """
    wait_for(f'job {job} to be queued again', lambda: state(job) == ('PENDING', times) and not managers(job), LONG,
             lambda: show(job) + folder.out())
    epochs = let_end(folder)
    slurm('scontrol', 'update', f'job={job}', 'StartTime=now+3seconds')
    return epochs


def train(epochs):
    """Words for a wine that saves, goes on from what it finds, and leaves its weights."""
    return ['--epochs', epochs, '--save', 'ck', '--resume', 'ck', '--save-every', '25', '--weights-out', 'weights']


def train_until_told(folder, cddprun):
    """The same for a wine that does not finish before let_end(), however slow this node is."""
    (folder.path / 'epochs').write_text('1000000\n')
    return ['sh', '-c', 'read epochs <epochs; exec "$@" --epochs "$epochs"', 'sh', wine(cddprun), *train(1)]


def let_end(folder, more=100):
    """The next run of this job, or its next round, ends that many epochs after the last printed one; returns which."""
    epochs = more + max((int(n) for n in re.findall(r'epoch (\d+)/', folder.out())), default=0)
    (folder.path / 'epochs').write_text(f'{epochs}\n')
    return epochs


weights_of = {}  # by (ranks, epochs), of runs that nothing happened to


def weights(cddprun, ranks, epochs):
    if (ranks, epochs) not in weights_of:
        with Folder() as folder:
            path = folder.path / 'weights'
            with Job(cddprun, '--standalone', f'--nproc_per_node={ranks}', wine(cddprun), '--epochs', str(epochs),
                     '--weights-out', str(path)) as job:
                assert job.finish(LONG) == 0, job.err
            weights_of[ranks, epochs] = path.read_bytes()
    return weights_of[ranks, epochs]


def ended_well(folder, cddprun, job, ranks, epochs, *said):
    status = finish(job)
    assert status == ('COMPLETED', 0), (status, folder.out())
    for text in said:
        assert re.search(text, folder.out(), re.M), (text, folder.out())
    assert (folder.path / 'weights').read_bytes() == weights(cddprun, ranks, epochs), 'the weights are others'


RESUMED = r'resumed'


def preempted(cddprun, full):
    """Slurm sends TERM to the steps only; the script has to stay until the job is queued again."""
    nodes = 4 if full else 2
    with Folder() as folder:
        job = submit(folder, cddprun, *train_until_told(folder, cddprun), env={'NPROC_PER_NODE': '1'}, nodes=nodes)
        wait_for_checkpoint(folder)
        urgent = int(slurm('sbatch', '--parsable', '--partition=urgent', f'--nodes={N_NODES}', '--exclusive',
                           f'--output={folder.path}/urgent.out', f'--chdir={folder.path}', '--wrap', 'echo urgent'))
        assert finish(urgent) == ('COMPLETED', 0)
        epochs = start_again(folder, job)
        ended_well(folder, cddprun, job, nodes, epochs, 'another job preempts this one', RESUMED)


def requeued(cddprun, full):
    nodes = 4 if full else 2
    with Folder() as folder:
        job = submit(folder, cddprun, *train_until_told(folder, cddprun), env={'NPROC_PER_NODE': '1'}, nodes=nodes)
        wait_for_checkpoint(folder)
        slurm('scontrol', 'requeue', job)
        epochs = start_again(folder, job)
        ended_well(folder, cddprun, job, nodes, epochs, RESUMED, rf'Slurm step {job}\.0\.1')


def time_limit(cddprun, full):
    """
    Slurm is coarse: at a limit of 1 minute it signals 12 to 22 s after the start, so a life has to be longer than that
    on a calm machine, too. In short, scancel signals.
    """
    nodes, epochs = (4, 15000) if full else (2, None)
    flags = ['--time=1', '--signal=B:USR1@50'] if full else []
    words = [wine(cddprun), *train(epochs)] if full else None
    with Folder() as folder:
        job = submit(folder, cddprun, *(words or train_until_told(folder, cddprun)), env={'NPROC_PER_NODE': '1'}, nodes=nodes,
                     flags=flags)
        wait_for_checkpoint(folder)
        if not full:
            slurm('scancel', '--batch', '--signal=USR1', job)
        told = start_again(folder, job)
        for times in range(2, 20):
            wait_for('the end of this life', lambda n=times: state(job) == ('PENDING', n) or state(job)[0] == 'COMPLETED', LONG,
                     lambda: show(job) + folder.out())
            if state(job)[0] == 'COMPLETED':
                break
            start_again(folder, job, times)
        ended_well(folder, cddprun, job, nodes, epochs or told, 'the time limit is near', RESUMED)
        assert 'User defined signal' not in folder.out(), folder.out()


def marks(job, node):
    """The mark in the environment of a job's processes on a node. Other Slurms here may have a job of that number."""
    return {f'SLURM_JOB_ID={job}'.encode(), f'SLURMD_NODENAME={node}'.encode(), this_slurm()}


def crash(job, node):
    """Power is off: the links go down first, so that the death of its processes is not noticed."""
    wanted = marks(job, node)
    spaces = collections.defaultdict(list)
    found = None
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            space = os.readlink(f'/proc/{pid}/ns/net')
            spaces[space].append(int(pid))
            if wanted <= set(pathlib.Path(f'/proc/{pid}/environ').read_bytes().split(b'\0')):
                found = space
        except OSError:
            pass
    assert found and found != os.readlink('/proc/self/ns/net'), found
    inside = ['nsenter', '-t', str(spaces[found][0]), '-n', 'ip']
    for line in subprocess.check_output([*inside, '-o', 'link'], text=True).splitlines():
        name = line.split(': ')[1].split('@')[0]
        if name != 'lo':
            subprocess.check_call([*inside, 'link', 'set', name, 'down'])
    for pid in spaces[found]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def crashed(cddprun, _):
    """Without --wait srun would wait until slurmctld gives the node up: 300 s, and all others idle."""
    nodes = 3
    with Folder() as folder:
        try:
            job = submit(folder, cddprun, *train_until_told(folder, cddprun), nodes=nodes, env={'NPROC_PER_NODE': '1'})
            wait_for_checkpoint(folder)
            crash(job, 'node2')
            wait_for('the other nodes to be free', lambda: state(job)[1] == 1, LONG, lambda: show(job) + folder.out())
            slurm('scontrol', 'update', 'nodename=node2', 'state=down', 'reason=crashed')
            epochs = start_again(folder, job)
            ended_well(folder, cddprun, job, nodes, epochs, 'a node does not answer', RESUMED, r'node\[1,3-4\]')
        finally:
            bed('up', '--netns', N_NODES)


def array(cddprun, full):
    """The last task of an array has the number of the whole array, and the others must not hear of what it asks for."""
    with Folder() as folder:
        script = folder.path / 'each.sh'
        script.write_text('[ "$SLURM_ARRAY_TASK_ID" != 0 ] || exit 0\nexec sleep 300\n')
        job = submit(folder, cddprun, 'sh', script, env={'NPROC_PER_NODE': '1'}, nodes=1, flags=['--array=0-1'])
        wait_for('task 0 to end', lambda: state(f'{job}_0')[0] == 'COMPLETED', LONG, lambda: show(job))
        wait_for('task 1 to run', lambda: state(f'{job}_1')[0] == 'RUNNING', LONG, lambda: show(job))
        wait_for('its step', lambda: slurm('squeue', '--noheader', f'--steps={job}_1.0').strip(), LONG)
        slurm('scancel', '--batch', '--signal=USR1', f'{job}_1')
        wait_for('task 1 to be queued again', lambda: state(f'{job}_1') == ('PENDING', 1), LONG, lambda: show(job))
        assert state(f'{job}_0') == ('COMPLETED', 0), show(job)
        slurm('scancel', job)


def tasks_per_node(cddprun, full):
    """As sites ask for that count a task for each GPU."""
    nodes, epochs = (4, 800) if full else (2, 100)
    with Folder() as folder:
        job = submit(folder, cddprun, 'sh', '-c', f'echo $CUDA_VISIBLE_DEVICES >gpus.$GROUP_RANK; exec {shlex.quote(wine(cddprun))} "$@"', 'sh',
                     *train(epochs), env={'NPROC_PER_NODE': '1'}, nodes=nodes,
                     flags=['--ntasks-per-node=2', '--cpus-per-task=2', '--gpus-per-task=2'])
        ended_well(folder, cddprun, job, nodes, epochs, rf'Slurm step {job}\.0\.0: {nodes} nodes')
        for i in range(nodes):
            assert (folder.path / f'gpus.{i}').read_text() == '0,1,2,3\n'


def suspended(cddprun, _):
    """Longer than the lease (15 s): time in which no process of the job ran does not count."""
    nodes, epochs = 4, 1500
    with Folder() as folder:
        job = submit(folder, cddprun, wine(cddprun), *train(epochs), env={'NPROC_PER_NODE': '1'}, nodes=nodes)
        wait_for_checkpoint(folder)
        slurm('scontrol', 'suspend', job)
        time.sleep(20)  # the time itself is tested
        slurm('scontrol', 'resume', job)
        ended_well(folder, cddprun, job, nodes, epochs)
        assert 'resumed' not in folder.out() and state(job)[1] == 0, folder.out()


def heterogeneous(cddprun, _):
    """Components that are not in the order of their names. Slurm starts such jobs every 30 s only."""
    with Folder() as folder:
        script = folder.path / 'job.sh'
        script.write_text('#!/bin/bash\n#SBATCH --nodes=1 -w node3\n#SBATCH hetjob\n#SBATCH --nodes=2 -w node1,node2\n'
                          f'srun --het-group=0,1 {shlex.quote(cddprun)} --nproc_per_node=1 sh -c \'echo $RANK $MASTER_ADDR $(hostname)\'\n')
        job = int(slurm('sbatch', '--parsable', f'--chdir={folder.path}', f'--output={folder.path}/job-%j.out', script))
        assert finish(job) == ('COMPLETED', 0), folder.out()
        assert 'node 0; rendezvous at node3' in folder.out(), folder.out()
        assert re.search(r'\[0\] 0 \S+ node3', folder.out()), folder.out()


def leave(job, node):
    """TERM to the cddprun of one node, as before its maintenance."""
    wanted = marks(job, node)
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            mine = wanted <= set(pathlib.Path(f'/proc/{pid}/environ').read_bytes().split(b'\0'))
            names = [pathlib.Path(f'/proc/{p}/comm').read_text().strip() for p in (pid, launch.parent(int(pid)))]
        except OSError:
            continue
        if mine and names[0] == 'cddprun' != names[1]:
            os.kill(int(pid), signal.SIGTERM)
            return
    raise AssertionError(f'no cddprun on {node}')


def elastic(cddprun, _):
    """A node leaves; its status is not the job's."""
    with Folder() as folder:
        job = submit(folder, cddprun, *train_until_told(folder, cddprun), nodes=3, flags=['--no-kill'],
                     env={'NPROC_PER_NODE': '1', 'NNODES': '2:'})
        wait_for_checkpoint(folder)
        epochs = let_end(folder, more=5000)  # more than it trains until the node is gone
        leave(job, 'node3')
        end, status = finish(job)
        assert re.search(r'the job continues with 2 nodes', folder.out()) and f'epoch {epochs}/{epochs}' in folder.out(), folder.out()
        assert (end, status) == ('COMPLETED', 0), (end, status, folder.out())


CASES = {'preempted': preempted, 'requeued': requeued, 'time limit': time_limit, 'crashed node': crashed,
         'tasks per node given': tasks_per_node, 'suspended 20 s': suspended,
         'elastic, a node leaves': elastic, 'array': array, 'heterogeneous': heterogeneous}


def test_preempted_job_is_requeued(cddprun):
    preempted(cddprun, False)


def test_requeued_job_resumes_from_checkpoint(cddprun):
    requeued(cddprun, False)


def test_job_near_time_limit_is_requeued(cddprun):
    time_limit(cddprun, False)


def test_array_task_is_requeued_alone(cddprun):
    array(cddprun, False)


def test_more_tasks_per_node_are_one_cddprun_with_all_their_gpus(cddprun):
    tasks_per_node(cddprun, False)


def test_elastic_job_continues_when_node_leaves(cddprun):
    elastic(cddprun, False)


def test_the_template_trains_to_the_bits_of_four_ranks_on_one_node(cddprun):
    for dtype in 'f32', 'f64':
        with Folder() as folder:
            def flags(name):
                return ['--dtype', dtype, '--metrics', folder.path / f'metrics.{name}', '--weights-out',
                        folder.path / f'weights.{name}']
            status = finish(submit(folder, cddprun, wine(cddprun), *flags('slurm')))
            assert status == ('COMPLETED', 0), (status, folder.out())
            assert re.search(r'cddprun: Slurm step \d+\.0\.0: 2 nodes \(node\[1-2\]\), this is node 0', folder.out()), folder.out()
            assert 'wine: 4 ranks' in folder.out(), folder.out()
            one = run(cddprun, '--standalone', '--nproc_per_node=4', wine(cddprun), *map(str, flags('one')))
            assert one[0] == 0, one
            for what in 'metrics', 'weights':
                assert (folder.path / f'{what}.slurm').read_bytes() == (folder.path / f'{what}.one').read_bytes(), what


def test_a_failing_rank_ends_the_job_with_its_status(cddprun):
    with Folder() as folder:
        script = '[ $RANK = 3 ] && exit 5; exec sleep 60'
        status = finish(submit(folder, cddprun, 'sh', '-c', script))
        assert status == ('FAILED', 5), (status, folder.out())
        assert re.search(r'rank 3 \(pid \d+ on node2\) exited with status 5', folder.out()), folder.out()


def test_scancel_leaves_nothing_on_any_node(cddprun):
    with Folder() as folder:
        # Grandchildren in separate sessions, too: those escape Slurm where it knows a job by its ancestry only.
        script = f'setsid sleep 1000 & touch {folder.path}/up.$RANK; sleep 1000'
        mark = f'{os.getpid()}-slurm-{time.monotonic_ns()}'
        job = submit(folder, cddprun, 'sh', '-c', script, env={launch.MARK: mark})
        wait_for('four ranks', lambda: len(list(folder.path.glob('up.*'))) == 4)
        assert len(launch.marked(mark)) >= 12  # agents and guards, shells, sleepers
        slurm('scancel', job)
        status = finish(job)[0]
        assert status == 'CANCELLED', (status, folder.out())
        assert launch.marked(mark) == [], launch.marked(mark)


def script_in(folder, line):
    path = folder.path / 'job.sh'
    path.write_text(f'#!/bin/bash\n#SBATCH --ntasks-per-node=1\n{line}\n')
    return path


def test_reports_forgotten_srun(cddprun):
    with Folder() as folder:
        script = script_in(folder, f'exec {shlex.quote(cddprun)} --nproc_per_node=2 true')
        end, status = finish(submit(folder, cddprun, script=script))
        assert end == 'FAILED' and status != 0, (end, status, folder.out())
        assert re.search('cddprun: .*srun', folder.out()), folder.out()


def test_reports_node_rank_expanded_by_batch_shell(cddprun):
    with Folder() as folder:
        script = script_in(folder, f'exec srun --kill-on-bad-exit=1 {shlex.quote(cddprun)} --node_rank $SLURM_NODEID true')
        end, status = finish(submit(folder, cddprun, script=script))
        assert end == 'FAILED' and status != 0, (end, status, folder.out())
        assert re.search('cddprun: .*--node_rank.*SLURM_NODEID', folder.out()), folder.out()


def skip(why):
    print(f'1..0 # SKIP {why}')
    sys.exit(0)


def run_full(runs):
    cddprun, *names = sys.argv[1:]
    counts = {name: 0 for name in names or CASES}
    for name in counts:
        for i in range(runs):
            began = time.monotonic()
            try:
                CASES[name](os.path.abspath(cddprun), True)
                counts[name] += 1
                print(f'{name} {i + 1}: ok, {time.monotonic() - began:.0f} s', flush=True)
            except Exception:  # one bad run must not hide the others
                print(f'{name} {i + 1}: FAILED\n{traceback.format_exc()}', flush=True)
                slurm('scancel', '--state=PENDING,RUNNING,SUSPENDED', '--user=root', check=False)
                bed('up', '--netns', N_NODES)
    print('\n| case | runs | ok |\n| --- | --- | --- |')
    for name, ok in counts.items():
        print(f'| {name} | {runs} | {ok} |')
    return 0 if all(ok == runs for ok in counts.values()) else 1


def main():
    if not BED:
        skip('SLURM_TESTBED does not name a program that starts a Slurm (tests/slurm/README.md)')
    if os.getuid() != 0:
        skip('Slurm nodes with separate addresses need root')
    for program in 'slurmctld', 'slurmd', 'munged', 'ip':
        if not shutil.which(program, path=os.environ['PATH'] + ':/usr/sbin:/sbin'):
            skip(f'there is no {program}')
    with tempfile.TemporaryDirectory(prefix='cddp-slurm-') as folder:
        os.chmod(folder, 0o755)  # munge wants its socket within everybody's reach
        os.environ.update({'SLURM_TESTBED_DIR': os.path.join(folder, 'bed'), 'NETNS_TESTBED': f'cddp{os.getpid()}'})
        try:
            bed('up', '--netns', N_NODES)
            full = [word for word in sys.argv if word.startswith('--full')]
            if full:
                sys.argv.remove(full[0])
                sys.exit(run_full(int(full[0].partition('=')[2] or 10)))
            launch.main()
        finally:
            bed('down', check=False)


if __name__ == '__main__':
    main()
