#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory of examples/gpt: whole, with the optimizer divided, and with --fsdp; and a limit at which only a divided model trains.

The peak of the sum of the ranks' proportional set sizes (PSS, of /proc/PID/smaps_rollup), read while they train. Shared memory
counts once. What plain data parallelism holds beside weights, gradients and AdamW's averages are its activations; the rest of
--fsdp may be these states once, three layers' numbers for each rank, and a tenth.

The same size as a PyTorch module, where --torch-python has PyTorch: by cddp.FSDP, fully_shard, and DeepSpeed's stage 3. Beside each
peak stands that of a model of almost nothing, which is Python and its libraries.

--limit (as root): each rank gets a separate memory cgroup, as if it were a machine, smaller than the states of one rank. There
--ranks ranks with --fsdp train, and one rank does not.
"""
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import common
import fair
import fsdp

MIB = 1 << 20
MODES = {'DDP': [], 'stage 1': ['--divided'], 'stage 2': ['--fsdp=2'], 'stage 3': ['--fsdp']}


class Model:
    """The flags of one size, and what its states take."""

    def __init__(self, args):
        layers, width, vocab = args.layers, args.width, 256
        self.layer = 12 * width * width + 13 * width
        self.weights = layers * self.layer + (vocab + args.context) * width + 2 * width
        self.states = 16 * self.weights  # weights, gradients, two averages
        self.flags = ['--layers', str(layers), '--width', str(width), '--heads', str(args.heads), '--context', str(args.context),
                      '--steps', str(args.steps), '--eval-every', '0', '--sample', '0', '--log-every', '1']


def pss(pid):
    """Bytes; None: it has ended, or it is still the shell that becomes a rank."""
    with contextlib.suppress(OSError):
        if os.path.basename(os.readlink(f'/proc/{pid}/exe')).startswith(('gpt', 'python')):
            with open(f'/proc/{pid}/smaps_rollup', encoding='ascii') as f:
                return next(int(line.split()[1]) for line in f if line.startswith('Pss:')) * 1024
    return None


def train(args, model, text, ranks, flags, before=''):
    """Exit status, the peak over all ranks, and the output. before: shell that each rank runs first."""
    with tempfile.TemporaryDirectory() as folder:
        script = f'{before} echo $$ > {folder}/$RANK; exec "$@"'
        command = [common.cddprun(args.build), '--standalone', f'--nproc_per_node={ranks}', 'sh', '-c', script, 'sh',
                   os.path.join(args.build, 'examples', 'gpt', 'gpt'), *model.flags, '--batch', str(ranks * args.batch), '--text', text, *flags]
        return watch(folder, ranks, command)


def watch(folder, ranks, command, env=None):
    """Run it to the end; a rank's process id is in folder/RANK."""
    with open(f'{folder}/out', 'w+', encoding='utf-8', errors='replace') as out, \
            subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env) as job:
        peak = 0
        while job.poll() is None:
            time.sleep(0.1)
            pids = [path.read_text(encoding='ascii').strip() for path in pathlib.Path(folder).glob('[0-9]*')]
            now = [pss(pid) for pid in pids if pid]
            if len(now) == ranks and None not in now:
                peak = max(peak, sum(now))
        out.seek(0)
        return job.returncode, peak, out.read()


def measure_modules(args):
    """{side: bytes of all ranks}, of the PyTorch module; {}: there is no PyTorch."""
    found, losses = {}, []
    for name in [] if not common.torch_version(args.torch_python) else [name for name in fsdp.available(args) if name != 'DeepSpeed stage 3']:
        found[name] = {'version': fair.side(name).version}
        for what, layers, width, heads in ('base', 1, 64, 1), ('peak', args.layers, args.width, args.heads):
            with tempfile.TemporaryDirectory() as folder:
                flags = {'layers': layers, 'width': width, 'heads': heads, 'context': args.context, 'batch': args.batch, 'steps': args.steps, 'pids': folder}
                status, found[name][what], said = watch(folder, args.ranks, *fsdp.command(
                    args, fsdp.SIDES[name], [word for flag, value in flags.items() for word in (f'--{flag}', str(value))]))
            if status != 0 or not found[name][what]:
                sys.exit(f'{name}: exit status {status}\n{said}')
        losses.append(fsdp.line_of(said)['loss'])
        base, peak = (found[name][what] / MIB for what in ('base', 'peak'))
        print(f'  {name:26} {peak:8.0f} MiB, {base:.0f} of it without a model; loss {losses[-1] / args.ranks:.4f}', flush=True)
    if losses and max(losses) - min(losses) > 1e-3 * max(losses):  # DeepSpeed's AdamW is another one
        sys.exit(f'the losses of the modules differ, so this was not the same training: {losses}')
    fair.start_anew()  # cores and threads change no memory
    return found


def measure(args, model, text):
    """{mode: bytes of all ranks}; all must have had the same loss."""
    peaks, losses = {}, set()
    for mode, flags in MODES.items():
        status, peaks[mode], said = train(args, model, text, args.ranks, flags)
        lines = [line.split('  ')[1] for line in said.splitlines() if f'step {args.steps}/{args.steps}  loss' in line]
        if status != 0 or len(lines) != 1 or not peaks[mode]:
            sys.exit(f'{mode}: exit status {status}\n{said}')
        losses.add(lines[0])
        print(f'  {mode:8} {peaks[mode] / MIB:8.0f} MiB, {lines[0]}', flush=True)
    if len(losses) > 1:
        sys.exit('the losses differ, so this was not the same training')
    activations = peaks['DDP'] - args.ranks * model.states
    allowed = 1.1 * (model.states + args.ranks * 3 * 4 * model.layer)
    found = peaks['stage 3'] - activations
    print(f'{args.ranks} ranks: states {model.states / MIB:.0f} MiB for one, activations {activations / MIB:.0f} MiB for all;\n'
          f'stage 3 without them {found / MIB:.0f} MiB, of {allowed / MIB:.0f} MiB allowed: {"kept" if found <= allowed else "EXCEEDED"}')
    return {'weights': model.weights, 'states': model.states, 'peaks': peaks, 'activations': activations, 'stage_3': found,
            'allowed': allowed}, found <= allowed


@contextlib.contextmanager
def cgroups(ranks, limit):
    """A cgroup within our own for each rank, of version 2 or 1. Yields their parent; a rank enters $RANK of it."""
    lines = [line.split(':', 2) for line in pathlib.Path('/proc/self/cgroup').read_text(encoding='ascii').splitlines()]
    old = next((path for _, controllers, path in lines if 'memory' in controllers.split(',')), None)
    root, path, name = ('/sys/fs/cgroup/memory', old, 'memory.limit_in_bytes') if old else ('/sys/fs/cgroup', lines[-1][2], 'memory.max')
    parent = pathlib.Path(f'{root}{path}/cddp-fsdp-{os.getpid()}')
    made = []
    try:
        for folder in parent, *(parent / str(rank) for rank in range(ranks)):
            folder.mkdir()
            made.append(folder)
            if not old and folder == parent:
                (parent / 'cgroup.subtree_control').write_text('+memory', encoding='ascii')
            if folder != parent:
                (folder / name).write_text(str(limit), encoding='ascii')
        yield parent
    except OSError as why:
        sys.exit(f'cannot limit memory by a cgroup ({why}): run it as root, where cgroups are writable')
    finally:
        for folder in reversed(made):
            folder.rmdir()


def train_within(args, model, text):
    """Returns what happened, and whether it is what should."""
    limit = int(model.states * 0.8)
    found = {'limit': limit}
    for ranks, flags in (1, []), (1, ['--fsdp']), (args.ranks, ['--fsdp']):
        with cgroups(ranks, limit) as parent:
            status, peak, said = train(args, model, text, ranks, flags, f'echo $$ > {parent}/$RANK/cgroup.procs || exit 9;')
        done = f'step {args.steps}/{args.steps}' in said
        name = f'{ranks} rank{"s" if ranks > 1 else ""}{" ".join(["", *flags])}'
        found[name] = {'status': status, 'trained': done, 'peak': peak}
        why = '' if done else next((f': {line}' for line in said.splitlines() if 'SIGKILL' in line or 'memory' in line), f': {said[-300:]}')
        print(f'  {limit / MIB:.0f} MiB for each rank, {name}: {"trains" if done else "does not train"}{why}', flush=True)
    return found, [one['trained'] for one in found.values() if isinstance(one, dict)] == [False, False, True]


def main():
    words = common.parser(__doc__.splitlines()[0])
    words.add_argument('--layers', type=int, default=12, help='with the next two: 124M by default')
    words.add_argument('--width', type=int, default=768)
    words.add_argument('--heads', type=int, default=12)
    words.add_argument('--context', type=int, default=128)
    words.add_argument('--batch', type=int, default=1, help="a rank's sequences")
    words.add_argument('--steps', type=int, default=5)
    words.add_argument('--ranks', type=int, default=4)
    words.add_argument('--limit', action='store_true', help='also train within memory cgroups, as root')
    args = words.parse_args()
    args.build, args.rounds = os.path.abspath(args.build), None  # memory does not vary
    model = Model(args)
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, 'text')  # a short one, which is soon evaluated
        with open(os.path.join(common.ROOT, 'examples/gpt/data/kjv.txt'), 'rb') as f, open(text, 'wb') as to:
            to.write(f.read(100 * args.context))
        result = {'machine': common.machine(args), 'flags': model.flags, 'ranks': args.ranks}
        result['memory'], good = measure(args, model, text)
        result['modules'] = measure_modules(args)
        if args.limit:
            result['limited'], kept = train_within(args, model, text)
            good = good and kept
    common.write(args, 'fsdp_memory', result)
    sys.exit(0 if good else 'a figure is not what it should be')


if __name__ == '__main__':
    main()
