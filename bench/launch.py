#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Launch alone: /bin/true on 1, 8 and 64 ranks under cddprun, the MPIs' launchers and torchrun, in turn, and the memory
that each launcher's biggest process needs. A peer's run that takes longer than a few seconds is killed and counted as hung.
--hang [N] instead: N runs (1,000) of 64 ranks that end at once under cddprun; none may hang or fail."""
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time

import common
import fair
import peers

RANKS = (1, 8, 64)
HANG_S = 20       # of cddprun, after which it fails
PEER_HANG_S = 5   # of a peer, without Python: its slowest run here is a tenth of this
IMPORT = 'the import of torchrun alone'
PROGRAM = '/bin/true'


def launchers(args):
    """{name: (command for a number of ranks and a program, environment)}; a missing one is named."""
    found = {'cddprun': lambda n, *program: ([common.cddprun(args.build), '--standalone', f'--nproc_per_node={n}', *program], dict(os.environ))}
    for one in peers.chosen(args.peers):
        if one.why:
            print(f'{one.name} is skipped: {one.why}')
            continue
        found[peers.title(one)] = lambda n, *program, one=one: one.command(n, program)
        fair.side(peers.title(one), peers.title(one))
    version = common.torch_version(args.torch_python)
    if version:
        found['torchrun'] = lambda n, *program: ([*common.torchrun(args.torch_python), '--no-python', '--standalone', f'--nproc_per_node={n}', *program],
                                                 dict(os.environ))
        found[IMPORT] = lambda n, *program: ([args.torch_python, '-c', 'import torch.distributed.run'], dict(os.environ))
        fair.side('torchrun', f'PyTorch {version}')
    else:
        print('torchrun is skipped: it is not here (bench/peers.py install torch)')
    return found


def run(command, env, limit):
    """Seconds, or None: it did not end in time (Open MPI is known to hang now and then) and was killed."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True, start_new_session=True, env=env)
    try:
        _, said = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return None
    if process.returncode != 0:
        sys.exit(f'exit status {process.returncode}: {" ".join(command)}\n{said}')
    return time.monotonic() - began


def children(pid):
    try:
        with open(f'/proc/{pid}/task/{pid}/children', encoding='ascii') as f:
            return [int(word) for word in f.read().split()]
    except OSError:
        return []


def resident_kib(pid, program):
    """Of the biggest process of a launcher: those below it that do not run the program."""
    try:
        with open(f'/proc/{pid}/cmdline', 'rb') as f:
            own = program.encode() != f.read().split(b'\0')[0]
        with open(f'/proc/{pid}/status', encoding='ascii') as f:
            size = next((int(line.split()[1]) for line in f if line.startswith('VmHWM')), 0)
    except OSError:
        return 0
    return max([size if own else 0, *(resident_kib(child, program) for child in children(pid))])


def memory(name, launcher, ranks):
    """KiB, while its ranks sleep; meanwhile they are read."""
    sleeper = shutil.which('sleep')
    command, env = launcher(ranks, sleeper, '30')
    with fair.side(name).watch(command, sleeper, ranks, env) as env:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=env)
        most, settled = 0, 0
        while settled < 20 and process.poll() is None:  # a second without growth
            time.sleep(0.05)
            now = resident_kib(process.pid, sleeper)
            settled, most = (settled + 1, most) if now <= most and now > 0 else (0, max(now, most))
        process.terminate()
        killer = threading.Timer(20, process.kill)
        killer.start()
        process.wait()
        killer.cancel()
    return most


def memories(found, ranks):
    """Also what is read of each side, since /bin/true ends too soon: before the times are taken, and after."""
    sizes = {name: memory(name, launcher, ranks) for name, launcher in found.items() if name != IMPORT}
    fair.check()
    return sizes


def compare(args, found):
    result = {'machine': common.machine(args), 'memory_kib': memories(found, 8)}
    for ranks in RANKS:
        times = {name: [] for name in found}
        for k in range(-1, args.rounds):
            for name in fair.turns(found, k):
                seconds = run(*found[name](ranks, PROGRAM), HANG_S if name in ('cddprun', 'torchrun', IMPORT) else PEER_HANG_S)
                if k >= 0:
                    times[name].append(seconds)
        result[f'ranks_{ranks}'] = one = {}
        print(f'{PROGRAM} on {ranks} ranks')
        for name, values in times.items():
            ended = [v for v in values if v is not None]
            one[name] = {'s': values, 'hung': len(values) - len(ended), 'median_s': statistics.median(ended) if ended else None,
                         'speedup': fair.speedup(times['cddprun'], values)}
            print(f'  {name:32}' + (f'{one[name]["median_s"] * 1000:10.1f} ms   {fair.speedup_text(one[name]["speedup"])}' if ended else '') +
                  (f'   hung {one[name]["hung"]} of {len(values)}' if one[name]['hung'] else ''))
    memories(found, 8)
    print('memory of the biggest process, 8 ranks')
    for name, size in result['memory_kib'].items():
        print(f'  {name:32}{size / 1024:10.1f} MiB{size / result["memory_kib"]["cddprun"]:9.1f}x')
    common.write(args, 'launch', result)


def hang(args, found):
    result, times = {'machine': common.machine(args)}, []
    memories(found, 64)
    for i in range(args.hang):
        seconds = run(*found['cddprun'](64, PROGRAM), HANG_S)
        if seconds is None:
            sys.exit(f'run {i + 1} of {args.hang} did not end within {HANG_S} s')
        times.append(seconds)
    print(f'{args.hang} runs of 64 ranks that end at once: none hung, none failed; {sum(times):.0f} s in all, '
          f'median {statistics.median(times) * 1000:.0f} ms, the slowest {max(times) * 1000:.0f} ms')
    result |= {'runs': args.hang, 'ranks': 64, 'hung': 0, 'failed': 0, 'median_s': statistics.median(times),
               'slowest_s': max(times), 's': times}
    common.write(args, 'launch_hang', result)


def main():
    words = common.parser(__doc__, rounds=15)
    words.add_argument('--peers', help=f'MPIs to compare with, of {", ".join(peers.MPIS)}', default=peers.CURRENT)
    words.add_argument('--hang', type=int, nargs='?', const=1000, metavar='N',
                       help='only look for runs that hang, in N (1000) runs of cddprun')
    args = words.parse_args()
    args.build = os.path.abspath(args.build)
    found = launchers(args)
    if args.hang:
        args.rounds = None
        fair.start_anew()
        hang(args, {'cddprun': found['cddprun']})
    else:
        compare(args, found)


if __name__ == '__main__':
    main()
