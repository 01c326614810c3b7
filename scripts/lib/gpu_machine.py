# SPDX-License-Identifier: Apache-2.0
"""The node of scripts/gpu-check: its files and GPUs, and commands that run within the time limits of a part."""
import glob
import gzip
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import find_cuda
import gpu_decide

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OWN = ('PET_', 'TORCHELASTIC_', 'CDDP_', 'SLURM_', 'MASTER_', 'RANK', 'WORLD_SIZE', 'LOCAL_', 'GROUP_')
NO_GPU = 77
LOG_BYTES = 128 << 10      # kept of NCCL's log of one part
SMI_S = 10                 # for nvidia-smi to say why it lists no GPU


class Skip(Exception):
    """A part that cannot run here, or exceeded its time; the text is the reason."""


class Failed(Exception):
    """A part that ran and failed; the text is the reason."""


def need(condition, text):
    if not condition:
        raise Failed(text)


def tail(text, lines=25):
    return '\n'.join(text.strip().splitlines()[-lines:])


class Clock:
    """The time limits of the whole run, and of the current part."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds
        self.start_part(seconds)

    def start_part(self, seconds):
        self.began = time.monotonic()
        self.part_end = self.began + seconds

    def left(self, most=float('inf')):
        """Returns the seconds that the next step may take."""
        return max(0.1, min(most, min(self.end, self.part_end) - time.monotonic()))

    def whole_left(self):
        return self.end - time.monotonic()

    def raise_late(self, part, passed, failed, heard, said):
        """Raises Skip or Failed for a part that has exceeded its time; `heard`: the time of its last output."""
        now = time.monotonic()
        status, why = gpu_decide.late(part, passed, failed, now - max(heard, self.began), now - self.began,
                                      self.end <= self.part_end)
        raise (Skip if status == 'skipped' else Failed)(why if status == 'skipped' else f'{why}\n{tail(said)}')


class Child:
    """A running command and its output with times: [(when, line)]."""

    def __init__(self, command, environment):
        self.lines, self.out_lines, self.err_lines = [], [], []
        self.heard = time.monotonic()
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, text=True, errors='replace',
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        self.readers = [threading.Thread(target=self.read, args=way, daemon=True)
                        for way in ((self.process.stdout, self.out_lines), (self.process.stderr, self.err_lines))]
        for reader in self.readers:
            reader.start()

    def read(self, source, kept):
        with source:
            for line in source:
                self.heard = time.monotonic()
                kept.append(line.rstrip('\n'))
                self.lines.append((self.heard, kept[-1]))

    def finish_reading(self):
        for reader in self.readers:
            reader.join(timeout=10)  # a grandchild that has left the session may hold the pipe

    def out(self):
        return '\n'.join(self.out_lines)

    def said(self):
        return '\n'.join(line for _, line in self.lines)

    def end(self):
        """Ends the command and all that it has started: on SIGTERM cddprun ends its ranks, too."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, sign)
                try:
                    self.process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    continue
        self.finish_reading()


class Machine:
    """The paths of files, the GPUs, and the environment of every command."""

    def __init__(self, args):
        self.build, self.standin, self.quick = args.build, args.standin, args.quick or args.standin
        self.clock = Clock(args.seconds)
        self.part, self.ranks, self.more, self.results, self.logs = '', None, {}, {}, None
        self.cddprun = self.built('launcher/cddprun')
        self.wine = self.built('examples/wine/wine')
        self.found = find_cuda.find('')
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(OWN)}
        self.environment |= {'CDDP_BACKEND': 'nccl', 'CDDP_MODULE_DIR': self.built('worker/backend/nccl')}
        self.environment.setdefault('NCCL_DEBUG', 'WARN')
        libraries = os.path.join(ROOT, 'lib')  # of a bundle
        if os.path.isdir(libraries):
            self.environment['LD_LIBRARY_PATH'] = os.pathsep.join(
                filter(None, [libraries, os.environ.get('LD_LIBRARY_PATH')]))
        if self.standin:
            library = self.built('tests/standin/libcddp_standin.so')
            twins = [self.built('tests/rehearsal/libwine_twin.so'), self.built('tests/rehearsal/libdelay_twin.so'),
                     self.built('tests/rehearsal/libgpt_twin.so')]
            self.environment |= {'CDDP_CUDA_LIBRARY': library, 'CDDP_NCCL_LIBRARY': library, 'CDDP_CUBLAS_LIBRARY': library,
                                 'CDDP_STANDIN_KERNELS': ':'.join(twins),
                                 'CDDP_STANDIN_DEVICES': '1', 'CDDP_STANDIN_DELAY': 'none'}
            # Faults that a test has planted for the stand-in.
            self.environment |= {k: v for k, v in os.environ.items() if k.startswith('CDDP_STANDIN_')}
            self.gpus = [{'name': 'stand-in'}]
            self.held = []
        else:
            self.gpus = gpus()
            if args.nccl or self.found['nccl_library']:
                self.environment['CDDP_NCCL_LIBRARY'] = args.nccl or self.found['nccl_library']
            if self.found.get('cublas_library'):
                self.environment['CDDP_CUBLAS_LIBRARY'] = self.found['cublas_library']
            self.held = hold(nodes())

    def built(self, path):
        path = os.path.join(self.build, path)
        need(os.path.exists(path), f'{path} is missing: build it (meson setup build, ninja -C build), or use a bundle')
        return path

    def start_part(self, part, ranks, more):
        """Starts a part: later commands belong to it, within its limit, with `more` in their environment."""
        self.part, self.ranks, self.more = part, ranks, more
        self.clock.start_part(gpu_decide.limit(part, ranks, len(self.gpus)))

    def environment_now(self):
        logs = {}
        if self.logs:
            subsystems = 'INIT,REG,ALLOC' if self.part in ('step', 'host', 'wire') else 'INIT,REG,TUNING,ALLOC'
            logs = {'NCCL_DEBUG': 'INFO', 'NCCL_DEBUG_SUBSYS': subsystems,
                    'NCCL_DEBUG_FILE': os.path.join(self.logs, '%h.%p')}
        shared = gpu_decide.environment(self.ranks, len(self.gpus), os.environ)
        return self.environment | shared | logs | self.more

    def run(self, command, good=None, bad=None, environment=None):
        """Runs a command to its end and returns its stdout. Raises Skip or Failed if it fails, or exceeds the time of the
        part; then the lines that match `good` and `bad` are counted."""
        child = Child(command, environment or self.environment_now())
        try:
            child.process.wait(timeout=self.clock.left())
        except subprocess.TimeoutExpired:
            child.end()
            said = child.said()
            passed, failed = (len(re.findall(word, said, re.M)) if word else 0 for word in (good, bad))
            self.clock.raise_late(self.part, passed, failed, child.heard, said)
        child.finish_reading()
        said = child.said()
        if child.process.returncode == NO_GPU:
            raise Skip(tail(said, 1))
        first = next((line for line in (child.err_lines or child.out_lines) if line.strip()), 'no output')
        need(child.process.returncode == 0,
             f'exit status {child.process.returncode}: {first}\n{" ".join(command)}\n{tail(said)}')
        return child.out()

    def collect_logs(self, name, into):
        """Appends NCCL's log files of this part to the one log, which is compressed, and returns the warnings in them."""
        warnings = []
        with gzip.open(into, 'at', encoding='utf-8') as log:
            for path in sorted(glob.glob(os.path.join(self.logs, '*'))):
                with open(path, encoding='utf-8', errors='replace') as source:
                    text = source.read()
                os.unlink(path)
                warnings += [line for line in text.splitlines() if 'NCCL WARN' in line]
                log.write(f'=== {name} {os.path.basename(path)}\n{text[:LOG_BYTES]}\n')
        return warnings[-5:]


# --- The node ---------------------------------------------------------------------------------------------------------


def nodes():
    return sorted(path for path in glob.glob('/dev/nvidia*') if re.fullmatch(r'/dev/nvidia\d+', path))


def hold(paths):
    """Opens the GPUs' device files and returns their descriptors. Without persistence mode the driver unloads the state of a
    GPU when its last client has gone, and the next client pays seconds for it; an open file is a client."""
    held = []
    for path in paths:
        try:
            held.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            pass
    return held


def smi(*words):
    tool = shutil.which('nvidia-smi') or '/usr/local/nvidia/bin/nvidia-smi'
    return find_cuda.output(tool, *words)


def why_none():
    """Returns why gpus() found none."""
    tool = shutil.which('nvidia-smi')
    if not tool:
        return 'nvidia-smi is not on the PATH, and there is no /dev/nvidia0'
    try:
        done = subprocess.run([tool, '-L'], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors='replace', timeout=SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as why:
        return f'{tool}: {why}'
    return f'{tool} lists none, with exit status {done.returncode}: {tail(done.stdout + done.stderr, 3) or "no output"}'


def gpus():
    """Returns the GPUs that the driver's own tool lists, otherwise those that have device files."""
    fields = ['name', 'driver_version', 'pci.bus_id', 'memory.total', 'compute_cap']
    said = smi(f'--query-gpu={",".join(fields)}', '--format=csv,noheader')
    listed = [dict(zip(fields, (word.strip() for word in line.split(',')))) for line in said.splitlines() if line.strip()]
    return listed or [{'name': 'unknown'} for _ in nodes()]


def last_line(*command):
    lines = find_cuda.output(*command).strip().splitlines()
    return lines[-1].strip() if lines else ''


def find_sanitizer():
    places = [shutil.which('compute-sanitizer') or '', '/usr/local/cuda/bin/compute-sanitizer']
    places += glob.glob('/opt/nvidia/compute-sanitizer/compute-sanitizer')
    places += glob.glob('/usr/local/cuda*/compute-sanitizer/compute-sanitizer')
    return next((path for path in places if path and os.access(path, os.X_OK)), '')


def versions(machine):
    sanitizer = find_sanitizer()
    return {
        'cddprun': find_cuda.output('env', f'LD_LIBRARY_PATH={machine.environment.get("LD_LIBRARY_PATH", "")}',
                                    machine.cddprun, '--version').strip(),
        'commit': commit(),
        'nccl_library': machine.environment.get('CDDP_NCCL_LIBRARY', 'libnccl.so.2, found by the loader'),
        'nccl_header': machine.found['nccl_version'],
        'cuda_header': machine.found['cuda_version'],
        'nvcc': ' '.join(filter(None, [machine.found['nvcc_version'], machine.found['nvcc']])),
        'cublas': machine.found['cublas_library'],
        'compute_sanitizer': last_line(sanitizer, '--version') if sanitizer else '',
        'kernel': os.uname().release,
        'python': sys.version.split()[0],
    }


def commit():
    noted = os.path.join(ROOT, 'commit')
    if os.path.exists(noted):
        with open(noted, encoding='ascii') as source:
            return source.read().strip()
    return find_cuda.output('git', '-C', ROOT, 'rev-parse', '--short=12', 'HEAD').strip()


def interfaces():
    """Returns {name: state and addresses}, from `ip` if it is installed."""
    lines = find_cuda.output('ip', '-br', 'a').splitlines()
    if lines:
        return {line.split()[0]: ' '.join(line.split()[1:]) for line in lines if line.strip()}
    return {name: '' for _, name in socket.if_nameindex()}


def text_of(path):
    try:
        with open(path, encoding='utf-8', errors='replace') as source:
            return source.read().strip()
    except OSError:
        return ''


def shared_memory():
    try:
        there = os.statvfs('/dev/shm')
    except OSError:
        return 'none'
    return f'{there.f_bavail * there.f_frsize >> 20} of {there.f_blocks * there.f_frsize >> 20} MiB free'


def limits():
    names = {'open files': resource.RLIMIT_NOFILE, 'locked memory': resource.RLIMIT_MEMLOCK, 'stack': resource.RLIMIT_STACK,
             'address space': resource.RLIMIT_AS, 'processes': resource.RLIMIT_NPROC}
    return {name: ['unlimited' if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which)]
            for name, which in names.items()}


def surroundings(machine):
    """Returns the properties of the node, beside the GPU, that influence CUDA and NCCL: for information only."""
    wanted = re.compile(r'persistence|compute mode|mig mode|current.*mig|fabric|cuda version|ecc mode|addressing mode', re.I)
    asked = [' '.join(line.split()) for line in smi('-q').splitlines() if wanted.search(line)]
    return {
        'nvidia_smi': list(dict.fromkeys(asked)),
        'topology': smi('topo', '-m').splitlines(),
        'driver': text_of('/proc/driver/nvidia/version').splitlines(),
        'hmm': text_of('/sys/module/nvidia_uvm/parameters/uvm_disable_hmm'),
        'mps': os.environ.get('CUDA_MPS_PIPE_DIRECTORY', '') or os.path.exists('/tmp/nvidia-mps/control'),
        'held_open': len(machine.held),
        'cores': len(os.sched_getaffinity(0)),
        'load': os.getloadavg(),
        'dev_shm': shared_memory(),
        'limits': limits(),
        'interfaces': interfaces(),
        'environment': {k: v for k, v in os.environ.items() if k.startswith(('NCCL_', 'CUDA_', 'NVIDIA_'))},
    }


def log_folder(out):
    """Creates the folder for NCCL's logs during a part: below --out, since they may be large."""
    os.makedirs(out, exist_ok=True)
    return tempfile.mkdtemp(prefix='nccl-', dir=out)
