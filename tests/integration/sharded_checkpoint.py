#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that all ranks write: loaded by any number of ranks, with or without divided parameters, bit for bit.

    sharded_checkpoint.py CDDPRUN [TEST...]

The larger test of kills: KILLS=500 sharded_checkpoint.py CDDPRUN test_a_kill_leaves_a_whole_checkpoint
"""
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, Skip, run, wait_for
from saved import Saved

LAST = 12  # steps of an uninterrupted run


def program(cddprun):
    return os.path.join(os.path.dirname(cddprun), '..', 'tests', 'integration', 'sharded_checkpoint')


class Place(Saved):
    def step(self, number):
        return self.dir / f'checkpoint-{number:020}.cddp'


place = Place.place


def train(cddprun, p, ranks, stage, steps, how='', status=0):
    got, out, err = run(cddprun, '--standalone', f'--nproc_per_node={ranks}', program(cddprun), p.dir, str(stage), str(steps),
                        p.weights, how)
    assert got == status, (got, out, err)
    return out + err


def uninterrupted(cddprun, steps=LAST):
    with place() as p:
        train(cddprun, p, 1, 0, steps)
        return p.weights.read_bytes()


def test_any_ranks_and_stage_load_it(cddprun):
    """Saved by 4, 3, 2 and 1 ranks, in one file or sharded, in the background or not; 0: whole parameters."""
    runs = (4, 3, 'bn'), (3, 2, ''), (2, 0, 's'), (1, 3, 'bn'), (4, 0, ''), (3, 3, 's'), (5, 2, ''), (1, 0, 's'), (3, 0, 'bsn'), (2, 3, 'b'), \
        (4, 2, ''), (1, 3, '')
    assert len(runs) == LAST
    with place() as p:
        for step, (ranks, stage, how) in enumerate(runs, 1):
            out = train(cddprun, p, ranks, stage, step, how)
            assert f'loaded step {step - 1}; damaged: \n' in out or step == 1, (step, out)
            assert p.steps() == [step - 1, step][step == 1:], (step, p.steps())
            shards = sorted(f.name for f in p.step(step).iterdir()) if p.step(step).is_dir() else []
            whole = stage == 0 and 's' not in how
            assert shards == ([] if whole else ['index', *(f'shard-{r}-of-{ranks}' for r in range(ranks))]), (step, shards)
        assert not p.unfinished()
        assert p.weights.read_bytes() == uninterrupted(cddprun)


def test_parameters_without_their_optimizer_are_where_it_goes_on(cddprun):
    want = uninterrupted(cddprun, 3)
    for ranks, stage in (1, 3), (3, 2):
        with place() as p:
            train(cddprun, p, ranks, stage, 3, 'p')
            assert p.weights.read_bytes() == want, (ranks, stage)


def test_one_that_is_not_whole_is_named_and_passed_over(cddprun):
    def missing(folder, shard):
        shard.unlink()

    def cut(folder, shard):
        os.truncate(shard, 1000)

    def flip(folder, shard):
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 4
        shard.write_bytes(data)

    def foreign(folder, shard):
        shutil.copy(folder.parent / folder.name.replace('2.cddp', '1.cddp') / shard.name, shard)

    def no_index(folder, shard):
        (folder / 'index').unlink()

    cases = (missing, r"\S+2.cddp' is damaged: the file of rank 1, 'shard-1-of-3', is missing"), \
        (cut, r"\S+/shard-1-of-3' is damaged: it has 1000 of its \d+ bytes"), \
        (flip, r"\S+/shard-1-of-3' is damaged: the checksum of item '[a-z0-9_.]+' is wrong"), \
        (foreign, r"\S+2.cddp' is damaged: the file of rank 1, 'shard-1-of-3', is of another checkpoint"), \
        (no_index, r"\S+2.cddp/index' cannot be opened")
    want = uninterrupted(cddprun, 3)
    with place() as made:
        train(cddprun, made, 3, 3, 2, 'e')
        for damage, says in cases:
            with place() as p:
                shutil.copytree(made.dir, p.dir)
                damage(p.step(2), p.step(2) / 'shard-1-of-3')
                out = train(cddprun, p, 2, 3, 3)
                assert re.search(rf"loaded step 1; damaged: checkpoint '{says}", out), (damage.__name__, out)
                assert p.weights.read_bytes() == want and p.steps() == [1, 3], (damage.__name__, p.steps())
        shutil.rmtree(made.step(1))
        (made.step(2) / 'shard-2-of-3').unlink()
        out = train(cddprun, made, 3, 3, 3, status=3)
        assert 'none of the 1 checkpoints' in out and "the file of rank 2, 'shard-2-of-3', is missing" in out, out


def test_mistakes_are_named(cddprun):
    with place() as p:
        train(cddprun, p, 2, 3, 1, 'r')
        assert p.steps() == [1] and not p.unfinished()


def test_a_run_that_starts_anew_removes_nothing(cddprun):
    with place() as p:
        train(cddprun, p, 2, 3, 2, 'e')
        p.weights = p.folder / 'other'
        (p.folder / 'away').mkdir()
        p.step(1).rename(p.folder / 'away' / p.step(1).name)
        p.step(2).rename(p.folder / 'away' / p.step(2).name)
        with Job(cddprun, '--standalone', '--nproc_per_node=2', program(cddprun), p.dir, '3', '1000000', p.weights, 'e') as job:
            wait_for('a checkpoint', lambda: len(p.steps()) > 1)
            p.step(1000000).mkdir()
            for f in (p.folder / 'away' / p.step(2).name).iterdir():
                shutil.copy(f, p.step(1000000))
            assert job.finish() != 0, (job.out, job.err)
        assert 'the checkpoint of step 1000000 there was neither loaded nor saved by this run' in job.err, job.err
        assert (p.step(1000000) / 'shard-1-of-2').exists()


def test_the_same_step_is_replaced_in_both_ways(cddprun):
    """A file by a folder, a folder by a folder, a folder by a file."""
    with place() as p:
        for stage, how in (0, ''), (0, 'os'), (3, 'o'), (0, 'o'), (2, 'ob'), (0, 'o'):
            train(cddprun, p, 2, stage, 1, how)
            assert p.steps() == [1] and p.step(1).is_dir() == (stage > 0 or 's' in how), (stage, how)
            assert not p.unfinished(), p.unfinished()
        assert p.weights.read_bytes() == uninterrupted(cddprun, 1)


def test_a_full_disk_on_one_rank_fails_all_and_leaves_the_older(cddprun):
    for how in 'e', 'eb':
        with place() as p:
            script = f"trap '' XFSZ; echo $$ > {p.folder}/pid.$RANK; exec \"$@\""
            with Job(cddprun, '--standalone', '--nproc_per_node=3', 'sh', '-c', script, 'sh', program(cddprun), p.dir, '3', '1000000',
                     p.weights, how) as job:
                wait_for('two checkpoints', lambda: len(p.steps()) >= 2)
                resource.prlimit(int((p.folder / 'pid.1').read_text()), resource.RLIMIT_FSIZE, (8192, 8192))
                assert job.finish() != 0, (job.out, job.err)
            assert re.search(r"rank \d: save: .*'shard-1-of-3' \(\d+ bytes\) was not written: File too large", job.err), job.err
            assert not p.unfinished() and len(p.steps()) == 2, (p.unfinished(), p.steps())
            last = p.steps()[-1]
            assert f'loaded step {last}; damaged: \n' in train(cddprun, p, 2, 3, last + 1)


def test_a_disk_without_room_is_an_error_that_leaves_the_older(cddprun):
    with place() as p:
        p.dir.mkdir()
        mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', p.dir], capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            raise Skip(f'a small file system cannot be mounted here: {mounted.stderr.strip()}')
        try:
            train(cddprun, p, 3, 3, 1)
            for how in '', 'b':
                out = train(cddprun, p, 3, 3, 2, how, status=4 if how == '' else 1)
                assert 'No space left on device' in out, out
                assert p.steps() == [1] and not p.unfinished(), (p.steps(), p.unfinished())
            subprocess.run(['mount', '-o', 'remount,size=10m', p.dir], check=True)
            train(cddprun, p, 2, 0, LAST)
            assert p.weights.read_bytes() == uninterrupted(cddprun)
        finally:
            subprocess.run(['umount', p.dir], check=True)


def test_a_kill_leaves_a_whole_checkpoint(cddprun):
    """Each save of a step; the moment of the kill, and the rank, are what varies."""
    kills, in_mid_save, last, rng = 0, 0, 0, random.Random(1)
    wanted, enough = int(os.environ.get('KILLS', '10')), int(os.environ.get('KILLS', '0')) * 3 // 5
    with place() as p:
        script = f'echo $$ > {p.folder}/pid.$RANK; exec "$@"'
        while kills < wanted or in_mid_save < max(enough, 1):
            assert kills < 60 + 2 * wanted, (kills, in_mid_save)
            ranks, stage, how = rng.choice([2, 3, 4]), rng.choice([2, 3]), rng.choice(['e', 'eb'])
            with Job(cddprun, '--standalone', f'--nproc_per_node={ranks}', 'sh', '-c', script, 'sh', program(cddprun), p.dir, str(stage),
                     '1000000', p.weights, how) as job:
                wait_for('a new checkpoint', lambda: p.steps() and p.steps()[-1] > last + 1)
                time.sleep(rng.random() / 50)
                os.kill(int((p.folder / f'pid.{rng.randrange(ranks)}').read_text()), signal.SIGKILL)
                assert job.finish() != 0, (job.out, job.err)
            if kills > 0:
                loaded = re.search(r'loaded step (\d+); damaged: (.*)', job.out)
                assert loaded and int(loaded[1]) == last and loaded[2] == '', (job.out, job.err, last)
            kills += 1
            in_mid_save += bool(p.unfinished())
            last = p.steps()[-1]
        out = train(cddprun, p, 2, 3, last + 1)
        assert f'loaded step {last}; damaged: \n' in out and not p.unfinished(), (out, last)
        print(f'# {kills} kills, {in_mid_save} of them in an open write')
        assert p.weights.read_bytes() == uninterrupted(cddprun, last + 1)


if __name__ == '__main__':
    launch.main()
