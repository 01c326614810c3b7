# SPDX-License-Identifier: Apache-2.0
"""The rules of a comparison. Each side's cores and threads are read while it runs; a run in which one side has fewer cores ends.

A side is a library with its launcher. Its processes carry a mark in their environment, which they inherit, so they are found
whoever started them. side(NAME).watch() wraps a run; common.write() checks all sides and stores what was read.
"""
import contextlib
import datetime
import os
import statistics
import sys
import threading
import time

MARK = 'CDDP_BENCH_SIDE'
FIRST_S, AGAIN_S = 0.01, 0.25  # how often ranks are looked for, and then read again
STEADY, STEADY_S = 5, 0.05     # ranks with fewer cores than this process are read so often, which must agree
LEAST_ROUNDS = 7
OLD_DAYS = 2 * 365
# Year and month of the releases that are compared with, by how name and version begin.
RELEASED = {'Open MPI 4.1.4': '2022-05', 'Open MPI 5.0.11': '2026-09', 'MPICH 4.0.2': '2022-04', 'MPICH 5.0.2': '2026-09',
            'Intel MPI 2021.19': '2026-10', 'PyTorch 2.13': '2026-07', 'PyTorch 2.14': '2026-07', 'PyTorch 2.15': '2026-10',
            'DeepSpeed 0.19.8': '2026-10', 'Redis 7.0.15': '2024-01'}
# What changes how a side runs, even where the benchmark does not set it.
TOLD = ('OMP_', 'KMP_', 'MKL_', 'OPENBLAS_', 'OMPI_', 'PRTE_', 'PMIX_', 'UCX_', 'MPIR_', 'MPICH_', 'HYDRA_', 'I_MPI_', 'FI_', 'CCL_', 'GLOO_',
        'TORCH_', 'CDDP_')
HIDDEN = ('CDDP_BENCH_', 'CDDP_TEST_')


class Unfair(SystemExit):
    """The run is refused; the text says which side has fewer cores."""


def quartiles(values):
    """The first, the median and the third; of one value three times that."""
    values = list(values)
    return values * 3 if len(values) == 1 else statistics.quantiles(values, n=4, method='inclusive')


def spread(values):
    low, middle, high = quartiles(values)
    return {'median': middle, 'quartiles': [low, high], 'min': min(values), 'max': max(values)}


def speedup(ours, theirs):
    """How many times as fast we are, round by round: what disturbs the machine disturbs both of a round. Below 1 the peer is faster."""
    ratios = [b / a for a, b in zip(ours, theirs) if a and b]
    return {**spread(ratios), 'rounds': ratios} if ratios else None


def speedup_text(one):
    return f'{one["median"]:.2f} ({one["quartiles"][0]:.2f} to {one["quartiles"][1]:.2f})' if one else '-'


def turns(sides, k):
    """The sides in the order of round k, which alternates."""
    return list(sides) if k % 2 == 0 else list(sides)[::-1]


def age(version, today=None):
    """'' or why a figure beside this version, which begins with the product's name, needs a word."""
    at = [date for begins, date in RELEASED.items() if (version + '.').startswith((begins + '.', begins + '+', begins + ','))]
    if not at:
        return 'its age is not known'
    days = (today or datetime.date.today()) - datetime.date.fromisoformat(f'{at[0]}-01')
    return f'of {at[0]}, older than two years' if days.days > OLD_DAYS else ''


def plain(word):
    """A word of a command without the paths of this machine."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for path, short in ((here, '.'), (cache(), 'CACHE'), (os.path.expanduser('~'), '~')):
        word = word.replace(path, short)
    return word


def cache():
    return os.path.join(os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache'), 'cddp-bench')


def cores_of(text):
    """'0-2,5' as {0, 1, 2, 5}"""
    found = set()
    for part in text.split(','):
        first, _, last = part.partition('-')
        found |= set(range(int(first), int(last or first) + 1))
    return found


def cores_of_thread(pid, task):
    with open(f'/proc/{pid}/task/{task}/status', encoding='ascii', errors='replace') as file:
        return next(line.split()[1] for line in file if line.startswith('Cpus_allowed_list:'))


def read(pid):
    """What a process may use: cores of its main thread, and how many threads may use which; None: it has ended."""
    try:
        threads = {}
        for task in os.listdir(f'/proc/{pid}/task'):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, StopIteration):  # this thread has ended
                cores = cores_of_thread(pid, task)
                threads[cores] = threads.get(cores, 0) + 1
        return {'cores': cores_of_thread(pid, pid), 'threads': dict(sorted(threads.items()))}
    except (OSError, StopIteration):
        return None


def read_all(pids):
    found = [read(pid) for pid in pids]
    return sorted(found, key=str) if found and all(found) else None


def runs(pid, program, mark):
    """Is it a process of this run, of that program (a binary, or a script of an interpreter), and not its launcher?"""
    try:
        with open(f'/proc/{pid}/environ', 'rb') as file:
            if mark not in file.read().split(b'\0'):
                return False
        exe = os.path.realpath(f'/proc/{pid}/exe')
        if not os.path.basename(exe).startswith('python') or not program.endswith('.py'):
            return exe == os.path.realpath(program)
        with open(f'/proc/{pid}/cmdline', 'rb') as file:
            words = [os.fsdecode(word) for word in file.read().split(b'\0')[1:] if word]
        return next((word for word in words if not word.startswith('-')), None) == program
    except OSError:
        return False


class Side:
    """What one side's runs were given: `seen` has each pattern once, with the number of runs."""

    def __init__(self, name, version):
        self.name, self.version, self.seen, self.commands, self.env = name, version, [], [], {}

    def told(self, ranks, before, after):
        """Store a reading: read() of each rank."""
        for one in self.seen:
            if (one['ranks'], one['before'], one['after']) == (ranks, before, after):
                one['runs'] += 1
                return
        self.seen.append({'ranks': ranks, 'before': before, 'after': after, 'runs': 1})

    def started(self, command, env):
        command = [plain(word) for word in command]
        if command not in self.commands and len(self.commands) < 16:
            self.commands.append(command)
        self.env.update({name: plain(value) for name, value in env.items() if name.startswith(TOLD) and not name.startswith(HIDDEN)})

    @contextlib.contextmanager
    def watch(self, command, program, ranks, env=None):
        """Yields the environment to run the command with. As soon as so many ranks of the program run, they are read, and again until they end."""
        env = dict(os.environ if env is None else env)
        self.started(command, env)
        env[MARK] = f'{os.getpid()}-{time.monotonic_ns()}'
        over, readings = threading.Event(), []
        thread = threading.Thread(target=follow, args=(over, f'{MARK}={env[MARK]}'.encode(), program, ranks, readings), daemon=True)
        thread.start()
        try:
            yield env
        finally:
            over.set()
            thread.join()
        if readings:
            self.told(ranks, readings[0], readings[-1] if len(readings) > 1 else None)


def follow(over, mark, program, ranks, readings):
    pids = []
    while len(pids) < ranks and not over.wait(FIRST_S):
        pids = [pid for pid in map(int, filter(str.isdigit, os.listdir('/proc'))) if runs(pid, program, mark)]
    while now := steady(over, pids):
        readings[1:] = [now] if readings else []
        if not readings:
            readings.append(now)
        if over.wait(AGAIN_S):
            return


def steady(over, pids):
    """read_all(), but not of a moment: hwloc binds a thread to each core in turn to look at it, and libcddp to leave another rank's."""
    own = os.sched_getaffinity(0)
    same, last = 0, None
    while same < STEADY and (now := read_all(pids)):
        cores = [one['cores'] for one in now]
        if all(cores_of(one) == own for one in cores):
            return now
        same, last = (same + 1 if cores == last else 1), cores
        if over.wait(STEADY_S):
            return None
    return now


sides, loads = {}, [os.getloadavg()[0]]


def side(name, version=''):
    """The side of that name, made if it is new."""
    one = sides.setdefault(name, Side(name, version))
    one.version = version or one.version
    return one


def leave_out(name):
    """For a peer that failed."""
    sides.pop(name, None)


def start_anew():
    """For a second result of the same process."""
    sides.clear()
    loads[:] = [os.getloadavg()[0]]


def crowding(ranks):
    """The most ranks per core: of all sets of cores that a rank is confined to, how many ranks are confined to a part of it."""
    sets = [cores_of(one['cores']) for one in ranks]
    return max(sum(other <= one for other in sets) / len(one) for one in sets)


def can_use(ranks):
    """The number of cores of all ranks together, and what it comes to for the worst of them."""
    return len(set().union(*(cores_of(one['cores']) for one in ranks))), crowding(ranks)


def check():
    """Ends the run if a side has fewer cores than another one, with as many ranks; or if a side was never read."""
    for one in sides.values():
        if not one.seen:
            raise Unfair(f'refused: no process of {one.name} was seen, so nothing is known of its cores; is a run too short?')
    for count in {seen['ranks'] for one in sides.values() for seen in one.seen}:
        found = [(can_use(ranks), one.name, ranks) for one in sides.values() for seen in one.seen if seen['ranks'] == count
                 for ranks in (seen['before'], seen['after']) if ranks]
        most, least = max(use[0] for use, _, _ in found), min(use[1] for use, _, _ in found)
        best = next(name for use, name, _ in found if use[0] == most)
        for (cores, crowd), name, ranks in found:
            if cores < most or crowd > least:
                each = ', '.join(f'{one["cores"]}' for one in ranks)
                raise Unfair(f'refused: {name} has fewer cores than {best}: its {count} ranks may use {each} ({crowd:g} ranks on the fullest core; '
                             f'{least:g} elsewhere). Start it without binding, or all sides with the same')


def record(rounds=None):
    """What the result says of the sides; check() comes first."""
    check()
    told = {}
    for one in sides.values():
        told[one.name] = {'version': one.version, 'age': age(one.version) if one.version else '', 'cores_and_threads': one.seen,
                          'commands': one.commands, 'env': one.env}
        if told[one.name]['age']:
            print(f'note: {one.name}, {one.version}: {told[one.name]["age"]}', file=sys.stderr)
    return {'sides': told, 'load_before_and_after': [loads[0], os.getloadavg()[0]], **({'n_rounds': rounds} if rounds else {})}
