#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Launch alone: /bin/true on 1, 8 and 64 ranks under cddprun, MPICH's Hydra, Open MPI and torchrun, in turn, and the memory
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

RANKS = (1, 8, 64)
HANG_S = 20       # of cddprun, after which it fails
PEER_HANG_S = 5   # of a peer, without Python: its slowest run here is a tenth of this
FEW = ('torchrun', 'Open MPI')  # long, or hanging long
PROGRAM = '/bin/true'


def peers(args):
    """{name: command for a number of ranks}; a missing one is named."""
    found = {'cddprun': lambda n: [common.cddprun(args.build), '--standalone', f'--nproc_per_node={n}']}
    hydra, ompi = shutil.which('mpiexec.hydra'), shutil.which('mpirun.openmpi')
    if hydra:
        found['Hydra'] = lambda n: [hydra, '-n', str(n)]
    if ompi:
        found['Open MPI'] = lambda n: [ompi, '--allow-run-as-root', '--oversubscribe', '-n', str(n)]
    if common.torch_version(args.torch_python):
        found['torchrun'] = lambda n: [*common.torchrun(args.torch_python), '--no-python', '--standalone',
                                       f'--nproc_per_node={n}']
    for name, how in (('Hydra', 'scripts/setup --bench'), ('Open MPI', 'scripts/setup --bench'),
                      ('torchrun', '--torch-python')):
        if name not in found:
            print(f'{name} is skipped: it is not here ({how})')
    return found


def run(command, limit):
    """Seconds, or None: it did not end in time (Open MPI is known to hang now and then) and was killed."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)
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


def memory(command):
    """KiB, while its ranks sleep."""
    sleeper = shutil.which('sleep')
    process = subprocess.Popen([*command, sleeper, '30'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
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


def compare(args, found):
    result = {'machine': common.machine(args)}
    for ranks in RANKS:
        times = {name: [] for name in found}
        for pair in range(-1, args.pairs):
            for name, command in found.items():
                if name in FEW and pair >= args.few_pairs:
                    continue
                seconds = run([*command(ranks), PROGRAM], HANG_S if name in ('cddprun', 'torchrun') else PEER_HANG_S)
                if pair >= 0:
                    times[name].append(seconds)
        result[f'ranks_{ranks}'] = one = {}
        print(f'{PROGRAM} on {ranks} ranks')
        for name, values in times.items():
            ended = [v for v in values if v is not None]
            ratios = [v / ours for v, ours in zip(values, times['cddprun']) if v is not None and ours is not None]
            one[name] = {'s': values, 'hung': len(values) - len(ended), 'median_s': statistics.median(ended) if ended else None,
                         'ratio_median': statistics.median(ratios) if ratios else None}
            hung = f'   hung {one[name]["hung"]} of {len(values)}' if one[name]['hung'] else ''
            if not ended:
                print(f'  {name:10}{hung}')
                continue
            one[name] |= {'ratio_min': min(ratios), 'ratio_max': max(ratios)}
            print(f'  {name:10}{one[name]["median_s"] * 1000:10.1f} ms ({min(ended) * 1000:.1f} to {max(ended) * 1000:.1f})'
                  f'{one[name]["ratio_median"]:9.2f}x ({min(ratios):.2f} to {max(ratios):.2f}){hung}')
    print('memory of the biggest process, 8 ranks')
    result['memory_kib'] = {name: memory(command(8)) for name, command in found.items()}
    for name, size in result['memory_kib'].items():
        print(f'  {name:10}{size / 1024:10.1f} MiB{size / result["memory_kib"]["cddprun"]:9.1f}x')
    common.write(args, 'launch', result)


def hang(args, found):
    result, times = {'machine': common.machine(args)}, []
    for i in range(args.hang):
        seconds = run([*found['cddprun'](64), PROGRAM], HANG_S)
        if seconds is None:
            sys.exit(f'run {i + 1} of {args.hang} did not end within {HANG_S} s')
        times.append(seconds)
    print(f'{args.hang} runs of 64 ranks that end at once: none hung, none failed; {sum(times):.0f} s in all, '
          f'median {statistics.median(times) * 1000:.0f} ms, the slowest {max(times) * 1000:.0f} ms')
    result |= {'runs': args.hang, 'ranks': 64, 'hung': 0, 'failed': 0, 'median_s': statistics.median(times),
               'slowest_s': max(times), 's': times}
    common.write(args, 'launch_hang', result)


def main():
    words = common.parser(__doc__)
    words.add_argument('--pairs', type=int, default=20, help='runs of each')
    words.add_argument('--few-pairs', type=int, default=5, help='runs of torchrun and Open MPI, which are long or hang')
    words.add_argument('--hang', type=int, nargs='?', const=1000, metavar='N',
                       help='only look for runs that hang, in N (1000) runs of cddprun')
    args = words.parse_args()
    args.build = os.path.abspath(args.build)
    if args.hang:
        hang(args, peers(args))
    else:
        compare(args, peers(args))


if __name__ == '__main__':
    main()
