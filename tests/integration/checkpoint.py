#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""wine --save and --resume through cddprun: a resumed run ends as an undisturbed one, bit for bit, whatever stopped it.

    checkpoint.py CDDPRUN [--slow] [TEST...]; wine is taken from CDDPRUN's build folder.
"""
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, Skip, run, wait_for
from saved import Saved

NOT_WRITTEN = r"wine: rank [01]: checkpoint '\S+/checkpoint-\d+.cddp' \(\d+ bytes\) was not written: "


class Place(Saved):
    """With a file of metrics, too."""

    def __init__(self, folder):
        super().__init__(folder)
        self.metrics = self.folder / 'metrics'

    def flags(self, epochs, *more):
        return ['--epochs', str(epochs), '--metrics', str(self.metrics), '--weights-out', str(self.weights), *more]

    def saving(self, every=50):
        return ['--save', str(self.dir), '--resume', str(self.dir), '--save-every', str(every)]

    def result(self):
        return self.metrics.read_text(), self.weights.read_text()

    def checkpoints(self):
        """Oldest first; their epochs, of three steps each: 142 rows for two ranks in batches of 32."""
        return [step // 3 for step in self.steps()]


place = Place.place


def wine(cddprun):
    return os.path.join(os.path.dirname(cddprun), '..', 'examples', 'wine', 'wine')


def train(cddprun, flags, ranks=2, status=0):
    got, out, err = run(cddprun, '--standalone', f'--nproc_per_node={ranks}', wine(cddprun), *flags)
    assert got == status, (got, out, err)
    return out, err


def undisturbed(cddprun, epochs, *more):
    with place() as p:
        train(cddprun, p.flags(epochs, *(flag for flag in more if flag != '--save-background')))
        return p.result()


def test_a_resumed_run_equals_an_undisturbed_one(cddprun):
    for dtype in 'f32', 'f64':
        with place() as p:
            out, _ = train(cddprun, [*p.flags(60, '--dtype', dtype), *p.saving()])
            assert f'no checkpoint in {p.dir}: training from the start' in out, out
            assert p.checkpoints() == [50, 60]
            out, _ = train(cddprun, [*p.flags(100, '--dtype', dtype), *p.saving()])
            assert f'resumed from {p.dir} after epoch 60' in out, out
            assert p.checkpoints() == [60, 100]
            assert p.result() == undisturbed(cddprun, 100, '--dtype', dtype)
            # Once more: nothing is left to do, and the result is the same.
            again, _ = train(cddprun, [*p.flags(100, '--dtype', dtype), *p.saving()])
            assert 'nothing is left to train' in again, again
            assert re.search(r'train loss .* steps', again)[0] == re.search(r'train loss .* steps', out)[0]
            assert p.result() == undisturbed(cddprun, 100, '--dtype', dtype)


def test_sharded_optimizer_resumes_with_other_ranks(cddprun):
    results = []
    for zero in [], ['--zero']:
        with place() as p:
            for epochs, ranks in (4, 2), (7, 4), (9, 1), (12, 2):
                train(cddprun, [*p.flags(epochs, *zero), *p.saving()], ranks)
            results.append(p.result())
    assert results[0] == results[1]


def test_powersgd_resumes_with_its_error_feedback(cddprun):
    """From step 11 on: it begins after ten. The newest checkpoint of the first run goes, the one before is used."""
    for more in ('--no-shuffle', '--seed', '3'), ('--dtype', 'f64', '--save-background'), ('--zero', '--clip', '0.5'):
        with place() as p:
            flags = ['--compress', 'powersgd', '--batch-size', '20', *more]
            out, _ = train(cddprun, [*p.flags(6, *flags), *p.saving(1000), '--save-steps', '7'])
            p.files()[-1].unlink()
            assert p.steps()[-1] == 21, (p.steps(), out)
            out, _ = train(cddprun, [*p.flags(12, *flags), *p.saving(1000)])
            assert ', step 21\n' in out, out
            assert p.result() == undisturbed(cddprun, 12, *flags)
            out, _ = train(cddprun, [*p.flags(20, *flags), *p.saving(1000)], ranks=3)
            assert 'after epoch 12' in out and float(re.search('train loss ([0-9.]+)', out)[1]) < 0.75, out
    with place() as p:
        train(cddprun, [*p.flags(2), *p.saving()])
        _, err = train(cddprun, [*p.flags(3, '--compress', 'powersgd'), *p.saving()], status=1)
        assert "item 'reducer': it was saved from a reducer without PowerSGD, and this one has it" in err, err


def test_a_run_that_does_not_resume_leaves_another_runs_checkpoints(cddprun):
    with place() as p:
        train(cddprun, [*p.flags(20), *p.saving(10)])
        before = {f: f.read_bytes() for f in p.files()}
        for more in [], ['--save-background'], ['--resume', str(p.folder / 'other')]:
            _, err = train(cddprun, ['--epochs', '5', '--save', str(p.dir), '--save-every', '1', *more], status=1)
            assert f'--save {p.dir} holds a checkpoint of step 60: add --resume {p.dir}, save into another directory, or remove it' \
                in err, err
            assert {f: f.read_bytes() for f in p.files()} == before


def test_a_restarted_worker_that_does_not_resume_leaves_its_first_lifes_checkpoints(cddprun):
    with place() as p:
        script = f'echo $$ > {p.folder}/pid.$RANK.$TORCHELASTIC_RESTART_COUNT; exec "$@"'
        with Job(cddprun, '--standalone', '--nproc_per_node=2', '--max_restarts=1', 'sh', '-c', script, 'sh', wine(cddprun),
                 '--epochs', '100000', '--save', str(p.dir)) as job:
            wait_for('a checkpoint', p.checkpoints)
            os.kill(int((p.folder / 'pid.1.0').read_text()), signal.SIGKILL)
            status = job.finish()
        assert status == 1 and (p.folder / 'pid.1.1').exists(), (status, job.out, job.err)
        last = re.search(r'holds a checkpoint of step (\d+)', job.err)
        assert last and p.steps()[-1] == int(last[1]), (job.err, p.steps())


def test_restarted_job_equals_an_undisturbed_one(cddprun):
    epochs = 1000
    for victim in 0, 1:
        with place() as p:
            script = f'echo $$ > {p.folder}/pid.$RANK.$TORCHELASTIC_RESTART_COUNT; exec "$@"'
            with Job(cddprun, '--standalone', '--nproc_per_node=2', '--max_restarts=1', 'sh', '-c', script, 'sh',
                     wine(cddprun), *p.flags(epochs), *p.saving()) as job:
                wait_for('a checkpoint', p.checkpoints)
                os.kill(int((p.folder / f'pid.{victim}.0').read_text()), signal.SIGKILL)
                status = job.finish()
                assert status == 0, (status, job.out, job.err)
                assert (p.folder / f'pid.{victim}.1').exists(), 'it was not restarted'
                after = re.search(r'resumed from \S+ after epoch (\d+)', job.out)
                assert after and 50 <= int(after[1]) < epochs and int(after[1]) % 50 == 0, job.out
            assert p.result() == undisturbed(cddprun, epochs)


def test_run_stopped_in_mid_epoch_resumes_with_next_batch(cddprun):
    """The newest checkpoint of a whole run is taken away, so that the one before is from the middle of an epoch."""
    for more in (), ('--accumulate', '2', '--batch-size', '8'), ('--drop-last', '--dtype', 'f64', '--seed', '5'):
        if '--accumulate' in more and os.environ.get('CDDP_BACKEND') == 'nccl':
            continue  # wine does it on the CPU only
        with place() as p:
            saving = [*p.saving(1000), '--save-steps', '4', '--save-background']
            train(cddprun, [*p.flags(7, '--batch-size', '10', *more), *saving])
            p.files()[-1].unlink()
            step, per_epoch = p.steps()[-1], 5 if '--accumulate' in more else 8
            assert step % 4 == 0 and step % per_epoch != 0, step
            out, _ = train(cddprun, [*p.flags(9, '--batch-size', '10', *more), *saving])
            assert f'after epoch {step // per_epoch}, step {step}\n' in out, out
            assert p.result() == undisturbed(cddprun, 9, '--batch-size', '10', *more)


def test_another_world_size_resumes_in_mid_epoch(cddprun):
    """What two ranks have left of an epoch, three or five share; the step after which it was is not trained again."""
    for ranks in 1, 3, 5:
        with place() as p:
            train(cddprun, [*p.flags(2), *p.saving(1000), '--save-steps', '2'])
            p.files()[-1].unlink()
            assert p.steps()[-1] == 4, p.steps()
            p.metrics.write_text('')
            # 64 of 142 were taken; the other 78 are one batch for three and five ranks, and three for one.
            out, _ = train(cddprun, [*p.flags(2), '--resume', p.dir], ranks=ranks)
            assert 'after epoch 1, step 4\n' in out and f' {4 + (3 if ranks == 1 else 1)} steps ' in out, out
            loss = json.loads(p.metrics.read_text().splitlines()[-1])
            assert loss['epoch'] == 1 and len(loss['rank_loss']) == ranks and 0.3 < loss['loss'] < 1.2, loss


def test_stopped_run_loses_no_step(cddprun):
    cases = (signal.SIGTERM,), (signal.SIGINT, '--save-background'), (signal.SIGTERM, '--accumulate', '2', '--batch-size', '8'), \
        (signal.SIGTERM, '--uneven', '10'), (signal.SIGTERM, '--zero')
    for number, *more in cases:
        if os.environ.get('CDDP_BACKEND') == 'nccl' and more and more[0] not in ('--save-background', '--zero'):
            continue  # wine does it on the CPU only
        with place() as p:
            saving = p.saving(10**6)
            with Job(cddprun, '--standalone', '--nproc_per_node=2', wine(cddprun), *p.flags(10**6, *more), *saving) as job:
                wait_for('some epochs', lambda: p.metrics.exists() and p.metrics.read_text().count('\n') > 5)
                job.process.send_signal(number)
                assert job.finish() == 0, (job.out, job.err)
            assert f'stopped on purpose by {signal.Signals(number).name} to cddprun' in job.err, job.err
            left = re.search(rf'wine: asked to stop; saved in {p.dir} after epoch (\d+), step (\d+)\n', job.out)
            assert left and p.steps() == [int(left[2])], (job.out, job.err, p.steps())
            epochs = int(left[1]) + 3
            out, _ = train(cddprun, [*p.flags(epochs, *more), *saving])
            assert f'after epoch {left[1]}, step {left[2]}\n' in out, out
            if '--uneven' in more:  # each rank has its own averages there, and rank 0's are saved
                assert int(left[2]) == 3 * int(left[1]), left[0]
            else:
                assert p.result() == undisturbed(cddprun, epochs, *more), (more, out)


def test_single_stopped_worker_saves(cddprun):
    """A batch system's signal to one worker stops all of them, and the job has ended well."""
    with place() as p:
        with Job(cddprun, '--standalone', '--nproc_per_node=2', wine(cddprun), *p.flags(10**6), *p.saving(10**6)) as job:
            wait_for('some epochs', lambda: p.metrics.exists() and p.metrics.read_text().count('\n') > 5)
            os.kill(job.workers()[-1], signal.SIGTERM)
            assert job.finish() == 0, (job.out, job.err)
        assert 'asked to stop; saved in' in job.out and len(p.steps()) == 1, (job.out, p.steps())


def test_a_run_that_does_not_save_ends_at_once(cddprun):
    with place() as p:
        with Job(cddprun, '--standalone', '--nproc_per_node=2', wine(cddprun), *p.flags(10**6)) as job:
            wait_for('some epochs', lambda: p.metrics.exists() and p.metrics.read_text().count('\n') > 5)
            job.process.send_signal(signal.SIGTERM)
            assert job.finish() == 143 and 'saved' not in job.out, (job.out, job.err)


def test_rejects_another_sampler_seed_in_mid_epoch(cddprun):
    with place() as p:
        train(cddprun, [*p.flags(2), *p.saving(1000), '--save-steps', '2'])
        train(cddprun, [*p.flags(3, '--seed', '9'), '--resume', p.dir])  # after a whole epoch it may change
        p.files()[-1].unlink()
        _, err = train(cddprun, [*p.flags(3, '--seed', '9'), '--resume', p.dir], status=1)
        assert 'the middle of an epoch shuffled by seed 0, and is now shuffled by seed 9' in err, err
        _, err = train(cddprun, ['--save-steps', '2', '--uneven', '1', '--save', p.dir], status=1)
        assert '--save-steps is for ranks that take equally many steps' in err, err


def test_a_checkpoint_loads_under_another_world_size(cddprun):
    with place() as p:
        train(cddprun, [*p.flags(50), *p.saving()])
        saved = p.weights.read_text()
        out, _ = train(cddprun, [*p.flags(50), *p.saving()], ranks=3)  # nothing to train: the weights as they were
        assert 'wine: 3 ranks' in out and 'nothing is left to train' in out and p.weights.read_text() == saved
        for ranks in 3, 1, 4:
            out, _ = train(cddprun, [*p.flags(60 + ranks), '--resume', p.dir], ranks=ranks)
            assert 'after epoch 50' in out, out
            lines = p.metrics.read_text().splitlines()
            assert [int(re.match(r'{"epoch":(\d+)', line)[1]) for line in lines] == list(range(60 + ranks))
            assert float(re.search('train loss ([0-9.]+)', out)[1]) < 0.2, out


def test_rejects_another_type_by_name(cddprun):
    with place() as p:
        train(cddprun, [*p.flags(2), *p.saving()])
        before = p.files()[0].read_bytes()
        _, err = train(cddprun, [*p.flags(4, '--dtype', 'f64'), *p.saving()], status=1)
        assert f'the checkpoint in {p.dir} is of float32 and this run of float64; use --dtype f32' in err, err
        assert p.files()[0].read_bytes() == before


def test_sigkill_in_mid_save_leaves_a_readable_directory(cddprun):
    """Saving after every epoch, rank 0 spends most of its time in there."""
    kill_in_mid_save(cddprun)


def test_sigkill_while_a_thread_saves_leaves_a_readable_directory(cddprun):
    kill_in_mid_save(cddprun, '--save-background')


def kill_in_mid_save(cddprun, *more):
    epochs, kills, in_mid_save, last, rng = 200000, 0, 0, 0, random.Random(1)
    with place() as p:
        script = f'echo $$ > {p.folder}/pid.$RANK; exec "$@"'
        while kills < 12 or in_mid_save == 0:
            assert kills < 60, 'no kill fell into a save'
            began = time.time()
            with Job(cddprun, '--standalone', '--nproc_per_node=2', 'sh', '-c', script, 'sh', wine(cddprun),
                     *p.flags(epochs), *p.saving(1), *more) as job:
                wait_for('a new checkpoint', lambda: p.files() and p.checkpoints()[-1] > last + 2)
                time.sleep(rng.random() / 100)  # where the kill falls is what varies
                os.kill(int((p.folder / 'pid.0').read_text()), signal.SIGKILL)
                status = job.finish()
                assert status == 128 + 9, (status, job.out, job.err)
                assert 'damaged' not in job.err, job.err
                assert kills == 0 or int(re.search(r'after epoch (\d+)', job.out)[1]) >= last > 0, (job.out, last)
            kills += 1
            in_mid_save += bool(p.unfinished())
            last = p.checkpoints()[-1]
            assert time.time() - began < launch.DEADLINE
        out, err = train(cddprun, [*p.flags(last + 10), *p.saving(1)])
        assert 'damaged' not in err and f'after epoch {last}' in out, (out, err)
        assert not p.unfinished()
        assert p.result() == undisturbed(cddprun, last + 10)


def test_reports_damaged_checkpoint_and_uses_previous(cddprun):
    def cut(path):
        os.truncate(path, path.stat().st_size - 100)

    def flip(path):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)

    def empty(path):
        path.write_bytes(b'')

    want = undisturbed(cddprun, 30)
    for damage, says in (cut, 'it has [0-9]+ of its [0-9]+ bytes'), (flip, "the checksum of item '[a-z.]+' is wrong"), \
            (empty, 'it does not start like a checkpoint'):
        with place() as p:
            train(cddprun, [*p.flags(30), *p.saving(10)])
            assert p.checkpoints() == [20, 30]
            damage(p.files()[-1])
            out, err = train(cddprun, [*p.flags(30), *p.saving(10)])
            assert re.search(rf"wine: checkpoint '{p.files()[-1]}' is damaged: {says} \(1 damaged, passed over\)", err), err
            assert 'after epoch 20' in out and p.result() == want, out


def test_no_complete_checkpoint_is_an_error(cddprun):
    with place() as p:
        train(cddprun, [*p.flags(20), *p.saving(10)])
        for file in p.files():
            os.truncate(file, 50)
        _, err = train(cddprun, [*p.flags(20), *p.saving(10)], status=1)
        assert re.search(r'none of the 2 checkpoints in \S+ is whole; the newest: checkpoint \S+060.cddp. is damaged', err), err


def test_a_file_size_limit_is_an_error_that_leaves_the_older_checkpoints(cddprun):
    """The limit is set in the middle of the job: shared memory, made at its start, counts as a file, too."""
    with place() as p:
        script = f"trap '' XFSZ; echo $$ > {p.folder}/pid.$RANK; exec \"$@\""
        with Job(cddprun, '--standalone', '--nproc_per_node=2', 'sh', '-c', script, 'sh', wine(cddprun), '--epochs',
                 '200000', *p.saving(1)) as job:
            wait_for('two checkpoints', lambda: len(p.checkpoints()) >= 2)
            resource.prlimit(int((p.folder / 'pid.0').read_text()), resource.RLIMIT_FSIZE, (8192, 8192))
            status = job.finish()
        assert status == 1 and re.search(NOT_WRITTEN + 'File too large', job.err), (status, job.out, job.err)
        assert not p.unfinished()
        last = p.checkpoints()[-1]
        assert p.checkpoints() == [last - 1, last]
        _, err = train(cddprun, [*p.flags(last + 5), *p.saving(1)])
        assert 'damaged' not in err, err
        assert p.weights.read_text() == undisturbed(cddprun, last + 5)[1]


def test_a_full_disk_is_an_error_that_leaves_the_older_checkpoint(cddprun):
    with place() as p:
        p.dir.mkdir()
        mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=20k', 'tmpfs', p.dir], capture_output=True, text=True,
                                 check=False)
        if mounted.returncode != 0:
            raise Skip(f'a small file system cannot be mounted here: {mounted.stderr.strip()}')
        try:
            want = undisturbed(cddprun, 40)
            train(cddprun, [*p.flags(10), *p.saving(10)])
            before = {f: f.read_bytes() for f in p.files()}
            _, err = train(cddprun, ['--epochs', '40', *p.saving(10)], status=1)
            assert re.search(NOT_WRITTEN + 'No space left on device', err), err
            assert {f: f.read_bytes() for f in p.files()} == before and len(before) == 1
            assert not p.unfinished()
            subprocess.run(['mount', '-o', 'remount,size=1m', p.dir], check=True)
            train(cddprun, [*p.flags(40), *p.saving(10)])
            assert p.result() == want
        finally:
            subprocess.run(['umount', p.dir], check=True)


if __name__ == '__main__':
    launch.main()
