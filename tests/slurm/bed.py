# SPDX-License-Identifier: Apache-2.0
"""A real Slurm of four nodes for the tests of this folder: its jobs, and faults. README.md describes the program in
SLURM_TESTBED.
"""
import collections
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
BED = os.environ.get('SLURM_TESTBED', '')
N_NODES = 4
LONG = int(os.environ.get('SLURM_TEST_LONG', 180))  # seconds for what Slurm does when it finds the time


def template(name):
    return ROOT / 'scripts' / 'slurm' / name


def wine(cddprun):
    return os.path.join(os.path.dirname(cddprun), '..', 'examples', 'wine', 'wine')


def control(*words, check=True):
    done = subprocess.run([BED, *map(str, words)], capture_output=True, text=True, timeout=60, check=False,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0 or not check, (words, done.stdout, done.stderr)
    return done.stdout


def up():
    """Start the Slurm, or start it afresh."""
    control('up', '--netns', N_NODES)


class Folder(tempfile.TemporaryDirectory):
    """Where a job writes; its output is in out()."""

    def __enter__(self):
        self.path = pathlib.Path(super().__enter__())
        return self

    def out(self):
        return ''.join(p.read_text() for p in sorted(self.path.glob('job-*.out')))


def slurm(*words, **how):
    return control('run', '--', *words, **how)


def submit(folder, cddprun, *words, env=None, script=template('train.sbatch'), nodes=2, flags=()):
    """The job's number. The job's variables are sbatch's own, plus env."""
    # Slurm sends SIGCONT to every process soon after SIGTERM. It takes back the SIGSTOP by which a leak checker attaches.
    sanitizer = ':'.join(filter(None, (os.environ.get('ASAN_OPTIONS'), 'detect_leaks=0')))
    more = {'CDDPRUN': cddprun, 'NPROC_PER_NODE': '2', 'ASAN_OPTIONS': sanitizer, **(env or {})}
    out = slurm('env', *(f'{k}={v}' for k, v in more.items()), 'sbatch', '--parsable', f'--nodes={nodes}',
                f'--chdir={folder.path}', f'--output={folder.path}/job-%j.out', *flags, script, *words)
    return int(out.strip().split(';')[0])


def script_in(folder, line):
    path = folder.path / 'job.sh'
    path.write_text(f'#!/bin/bash\n#SBATCH --ntasks-per-node=1\n{line}\n')
    return path


def show(job):
    return slurm('scontrol', 'show', 'job', job)


def state(job):
    """'RUNNING', 'PENDING' and so on, and how often it was queued again."""
    text = show(job)
    return re.search(r'JobState=(\w+)', text)[1], int(re.search(r'Restarts=(\d+)', text)[1])


def finish(job, folder=None):
    """Wait; 'COMPLETED', 'FAILED', 'CANCELLED' and the exit status."""
    launch.wait_for(f'the end of job {job}', lambda: state(job)[0] not in ('RUNNING', 'PENDING', 'COMPLETING'), LONG,
                    lambda: show(job) + (folder.out() if folder else ''))
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


def preempt(folder):
    """Run an urgent job on all nodes, to its end."""
    job = int(slurm('sbatch', '--parsable', '--partition=urgent', f'--nodes={N_NODES}', '--exclusive',
                    f'--output={folder.path}/urgent.out', f'--chdir={folder.path}', '--wrap', 'echo urgent'))
    assert finish(job) == ('COMPLETED', 0)


def wait_until_queued(folder, job, times=1):
    wait_for(f'job {job} to be queued again', lambda: state(job) == ('PENDING', times) and not managers(job), LONG,
             lambda: show(job) + folder.out())


def start_again(folder, job, times=1):
    """
    Wait until the job is queued again, and do not wait the two minutes that Slurm gives it. But slurmd refuses what was
    allowed in the second in which it killed the job, or before ("already killed, do not launch batch job"): it compares
    whole seconds. Returns the epoch after which a wine that trains until it is stopped ends now.
    """
    wait_until_queued(folder, job, times)
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
    status = finish(job, folder)
    assert status == ('COMPLETED', 0), (status, folder.out())
    for text in said:
        assert re.search(text, folder.out(), re.M), (text, folder.out())
    assert (folder.path / 'weights').read_bytes() == weights(cddprun, ranks, epochs), 'the weights are others'


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


def skip(why):
    print(f'1..0 # SKIP {why}')
    sys.exit(0)


def run_full(cases, runs):
    cddprun, *names = sys.argv[1:]
    counts = {name: 0 for name in names or cases}
    for name in counts:
        for i in range(runs):
            began = time.monotonic()
            try:
                cases[name](os.path.abspath(cddprun), True)
                counts[name] += 1
                print(f'{name} {i + 1}: ok, {time.monotonic() - began:.0f} s', flush=True)
            except Exception:  # one bad run must not hide the others
                print(f'{name} {i + 1}: FAILED\n{traceback.format_exc()}', flush=True)
                slurm('scancel', '--state=PENDING,RUNNING,SUSPENDED', '--user=root', check=False)
                up()
    print('\n| case | runs | ok |\n| --- | --- | --- |')
    for name, ok in counts.items():
        print(f'| {name} | {runs} | {ok} |')
    return 0 if all(ok == runs for ok in counts.values()) else 1


def main(cases):
    """Start a Slurm and run the tests of the program; with --full, cases, whose names are keys."""
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
        os.environ.setdefault('NETNS_SUBNET', f'10.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}')
        try:
            up()
            full = [word for word in sys.argv if word.startswith('--full')]
            if full:
                sys.argv.remove(full[0])
                sys.exit(run_full(cases, int(full[0].partition('=')[2] or 10)))
            launch.main()
        finally:
            control('down', check=False)
