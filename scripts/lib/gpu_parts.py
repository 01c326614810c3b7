# SPDX-License-Identifier: Apache-2.0
"""The parts of scripts/gpu-check. Each gets the machine and a number of ranks (None if there is no choice), and returns the
details for the report, or raises Skip or Failed. Its docstring describes what it tests."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import find_cuda
import gpu_decide
import gpu_machine
from gpu_machine import ROOT, Child, Skip, need, tail


def json_line(said, begins):
    """Returns the JSON object in the line with `begins`: cddprun may have prefixed it with a rank."""
    line = next((line for line in said.splitlines() if begins in line), '')
    need(line, f'no result:\n{tail(said)}')
    return json.loads(line[line.index(begins):])


def ranked(machine, ranks, *command):
    return [machine.cddprun, '--standalone', f'--nproc_per_node={ranks}', *command]


def facts(machine, _ranks):
    """properties of the GPU, driver, NCCL and node, and the host time of their calls"""
    return json_line(machine.run([machine.built('tests/gpu/facts')]), '{"driver_lacks"') | {
        'surroundings': gpu_machine.surroundings(machine)}


def kernels(machine, _ranks):
    """every kernel against its twin on the host, bit for bit, on short arrays"""
    return json.loads(machine.run([machine.built('tests/gpu/kernels'), '--quick']))


def kernels_full(machine, _ranks):
    """the same on arrays of all lengths, and the memory bandwidth of each kernel"""
    return json.loads(machine.run([machine.built('tests/gpu/kernels'), *(['--quick'] if machine.quick else [])]))


def conformance(machine, ranks):
    """the suite that every backend must pass"""
    said = machine.run([machine.built('tests/conformance/test_conformance'), f'nccl:{ranks}'],
                       good=r'^ok (?!.*# SKIP)', bad=r'^not ok ')
    skipped = len(re.findall(r'^ok .*# SKIP', said, re.M))
    passed = len(re.findall(r'^ok ', said, re.M)) - skipped
    need(passed > 0 and not re.search(r'^not ok', said, re.M), f'{passed} passed, {skipped} skipped\n{tail(said)}')
    return {'passed': passed, 'skipped': skipped}


def wine(machine, ranks):
    """Wine against PyTorch's losses and weights, float32 and float64, reproducible bit for bit; PowerSGD and sharding against the CPU"""
    data = os.path.join(ROOT, 'tests', 'data', 'wine')
    said = machine.run([sys.executable, os.path.join(ROOT, 'tests', 'reference', 'check_wine.py'), machine.cddprun,
                        machine.wine, data, '--ranks', str(ranks), '--brief'], good=r'^ok ', bad=r'^FAILED')
    worst = {}
    for dtype, text in re.findall(r'^ok .*_(f32|f64)[^:\n]*: (largest.*)$', said, re.M):
        worst[dtype] = max([worst.get(dtype, 0.0), *map(float, re.findall(r'(\d\.\de[-+]\d+)[,) ]', text.split('(')[0]))])
    need(sorted(worst) == ['f32', 'f64'], f'no comparison:\n{tail(said)}')
    both = re.search(r'^ok .*CPU and GPU differ by (\S+) in a loss, (\S+) in a', said, re.M)
    need(both, f'no comparison with the CPU:\n{tail(said)}')
    return {'largest_difference': worst, 'powersgd_differs_from_cpu': max(map(float, both.groups()))}


def capture(machine, ranks):
    """a step captured into a graph in each mode, launched alternately with other steps: every mean of every launch"""
    return json_line(machine.run(ranked(machine, ranks, machine.built('tests/gpu/capture'))), '{"captured"')


def whole(machine, ranks):
    """whole steps, with clipping and AdamW divided among the ranks, captured and not: the same bits, and the time of each"""
    size = ['8', '3000'] if machine.standin else ['50', '262144'] if ranks <= len(machine.gpus) else ['20', '65536']
    result = json_line(machine.run(ranked(machine, ranks, machine.built('tests/gpu/whole'), *size)), '{"whole"')
    need(result['ranks'] == ranks, f'{result["ranks"]} ranks, not {ranks}')
    return result | {'timed': ranks <= len(machine.gpus) and not machine.standin}


def hook(machine, ranks):
    """communication hooks with their own kernels, on the stream that they get: every mean of every step"""
    return json_line(machine.run(ranked(machine, ranks, machine.built('tests/gpu/hook'))), '{"hooks"')


def mean(machine, ranks):
    """means of every type, inside and outside of the arena, sent in their own type and compressed: errors within the bounds of cddp.h"""
    result = json_line(machine.run(ranked(machine, ranks, machine.built('tests/gpu/mean'))), '{"means"')
    need(result['ranks'] == ranks, f'{result["ranks"]} ranks, not {ranks}')
    return result


# --- Ranks that die ---------------------------------------------------------------------------------------------------


class Training:
    """Wine under cddprun, with the pids of its ranks."""

    def __init__(self, machine, ranks, folder, flags, *words):
        script = f'echo $$ > {folder}/pid.$RANK.$TORCHELASTIC_RESTART_COUNT; exec "$@"'
        self.machine, self.folder, self.metrics = machine, folder, os.path.join(folder, 'metrics')
        self.seen = 0
        self.child = Child([machine.cddprun, '--standalone', f'--nproc_per_node={ranks}', *flags, 'sh', '-c', script, 'sh',
                            machine.wine, '--metrics', self.metrics, *words], machine.environment_now())

    def wait_for(self, what, condition):
        """Waits until the condition holds. Raises Skip or Failed if the job, or the time of the part, ends before."""
        clock = self.machine.clock
        while not condition():
            need(self.child.process.poll() is None, f'the job ended before {what}:\n{tail(self.child.said())}')
            self.epochs()
            if clock.left() <= 0.1:
                clock.raise_late(self.machine.part, self.seen, 0, self.child.heard, f'no {what}\n{self.child.said()}')
            time.sleep(0.01)

    def epochs(self):
        try:
            with open(self.metrics, encoding='ascii') as source:
                n = source.read().count('\n')
        except OSError:
            n = 0
        if n != self.seen:
            self.seen, self.child.heard = n, time.monotonic()
        return n

    def kill(self, rank):
        """Kills the rank at an arbitrary moment of a step, since training does not pause. Returns the time."""
        with open(os.path.join(self.folder, f'pid.{rank}.0'), encoding='ascii') as source:
            pid = int(source.read())
        os.kill(pid, 9)
        return time.monotonic()

    def finish(self):
        clock = self.machine.clock
        while True:
            try:
                return self.child.process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                self.epochs()
            if clock.left() <= 0.1:
                clock.raise_late(self.machine.part, self.seen, 0, self.child.heard, f'not finished\n{self.child.said()}')


def death(machine, ranks):
    """a rank killed in mid-step: the others return an error that names it"""
    victim = ranks - 1
    with tempfile.TemporaryDirectory() as folder:
        job = Training(machine, ranks, folder, ['--on_failure=wait'], '--epochs', '1000000')
        try:
            job.wait_for('three epochs', lambda: job.epochs() >= 3)
            killed = job.kill(victim)
            status = job.finish()
        finally:
            job.child.end()
    need(status != 0, f'cddprun returned exit status 0:\n{tail(job.child.said())}')
    seconds = {}
    for when, line in job.child.lines:
        match = re.search(r'wine: rank (\d+): (.*)', line)
        if match and when >= killed:
            need(f'rank {victim}' in match[2], f'the error does not name rank {victim}: {line}')
            seconds.setdefault(int(match[1]), when - killed)
    need(len(seconds) == ranks - 1, f'{len(seconds)} of {ranks - 1} survivors reported an error:\n{tail(job.child.said())}')
    limit = gpu_decide.ERROR_SECONDS
    need(max(seconds.values()) <= limit, f'the errors arrived after {seconds} s, the limit is {limit} s')
    sentence = next(line for when, line in job.child.lines if when >= killed and 'wine: rank' in line)
    return {'seconds': {str(rank): round(value, 3) for rank, value in sorted(seconds.items())}, 'sentence': sentence}


def restart(machine, ranks):
    """the same with --max_restarts=1: the group restarts and training resumes from the checkpoint"""
    epochs = '200'
    with tempfile.TemporaryDirectory() as folder:
        saved, weights = os.path.join(folder, 'checkpoints'), os.path.join(folder, 'weights')
        job = Training(machine, ranks, folder, ['--max_restarts=1'], '--epochs', epochs, '--save', saved, '--resume',
                       saved, '--weights-out', weights)
        try:
            job.wait_for('a checkpoint', lambda: glob.glob(os.path.join(saved, '*.cddp')))
            killed = job.kill(ranks - 1)
            status = job.finish()
        finally:
            job.child.end()
        said = job.child.said()
        need(status == 0, f'exit status {status}:\n{tail(said)}')
        resumed = next(((when, int(match[1])) for when, line in job.child.lines
                        if (match := re.search(r'resumed from \S+ after epoch (\d+)', line))), None)
        need(resumed is not None and resumed[1] > 0, f'the job did not resume:\n{tail(said)}')
        plain = os.path.join(folder, 'plain')
        machine.run(ranked(machine, ranks, machine.wine, '--epochs', epochs, '--weights-out', plain))
        with open(weights, 'rb') as one, open(plain, 'rb') as other:
            need(one.read() == other.read(), 'the final weights differ from those of an undisturbed run')
    return {'resumed_after_epoch': resumed[1], 'seconds_from_death_to_resumed': round(resumed[0] - killed, 3)}


# --- What is timed ----------------------------------------------------------------------------------------------------

SMALL = ['--kib', '1024', '--bucket-kib', '256']
NO_LIMITS = 'not applied: times on the stand-in do not represent a GPU'


def run_steps(machine, ranks, sizes, more=None):
    """Returns the result of bench/gpu_step, and the host time that the reducer may take beyond bare ncclAllReduce."""
    sizes = [*SMALL, '--pairs', '5', '--work', '1'] if machine.quick else sizes
    said = machine.run(ranked(machine, ranks, machine.built('bench/gpu_step'), *sizes),
                       environment=machine.environment_now() | (more or {}))
    result = json_line(said, '{"card"')
    return result | {'host_us_allowed': gpu_decide.host_allowed(result['buckets'])}


def step(machine, ranks):
    """the reducer compared with bare ncclAllReduce of the same buckets: step time and host time; and the cost of clipping"""
    result = run_steps(machine, ranks, [])
    ratio, more, slow = gpu_decide.judge_step(result)
    # By default few steps are measured, which medians do not show: what each of those costs, and a step without.
    for how in 'off', 'all':
        other = gpu_decide.judge_step(run_steps(machine, ranks, [], {'CDDP_TIMING': how}))
        result['timing_' + how] = dict(zip(('step_ratio', 'host_us_more'), other))
    why = '; '.join(filter(None, [slow, gpu_decide.judge_clip(result)]))
    result |= {'step_ratio': ratio, 'host_us_more': more}
    if machine.standin:
        return result | {'limits': NO_LIMITS}
    need(not why, f'{why}: {json.dumps(result)}')
    return result


def host(machine, ranks):
    """host time beyond bare ncclAllReduce with peers, for both kinds of communicators; ranks may share a GPU"""
    sizes = ['--kib', '102400', '--bucket-kib', '25600', '--pairs', '15']
    result = run_steps(machine, ranks, sizes, {'CDDP_NCCL_BLOCKING': '1'})
    other = run_steps(machine, ranks, sizes, {'CDDP_NCCL_BLOCKING': '0'})
    more = max(gpu_decide.host_more(run) for run in result['runs'])
    # For information only: ranks that share a GPU and its host are not a realistic job.
    return {key: result[key] for key in ('ranks', 'buckets', 'host_us_allowed')} | {
        'host_us': max(run['host_us'][1] for run in result['runs']), 'host_us_more': more,
        'host_us_non_blocking': max(run['host_us'][1] for run in other['runs']),
        'met': more <= result['host_us_allowed']}


def wire(machine, ranks):
    """what a step hides of a modelled wire of 8 ranks at 50 GB/s after each all-reduce; without it what the library reports"""
    sizes = [*SMALL, '--steps', '5', '--gb-s', '1'] if machine.quick else []
    result = json_line(machine.run(ranked(machine, ranks, machine.built('bench/gpu_wire'), *sizes)), '{"card"')
    share, best, why = gpu_decide.judge_wire(result)
    plain = json_line(machine.run(ranked(machine, ranks, machine.built('bench/gpu_wire'), *sizes, '--plain'),
                                  environment=machine.environment_now() | {'CDDP_TIMING': 'all'}), '{"card"')
    off, wrong = gpu_decide.judge_library(plain)
    result |= {'hidden': round(share, 4), 'best': round(best, 4), 'library_off': off,
               'library': {key: plain[key] for key in ('counted_steps', 'longer_ms', 'exposed_ms', 'comm_ms', 'compute_ms')}}
    if machine.standin:
        need(plain['counted_steps'] > 0, 'cddp_ddp_get_stats() counts no step')
        return result | {'limits': NO_LIMITS}
    why = '; '.join(filter(None, [why, wrong]))
    need(not why, f'{why}: {json.dumps(result)}')
    return result


def train(machine, ranks):
    """clipping and AdamW on the GPU without a wait of the host; a checkpoint during training, and its content"""
    sizes = [*SMALL, '--steps', '5', '--work', '1'] if machine.quick else []
    with tempfile.TemporaryDirectory() as folder:
        command = ranked(machine, ranks, machine.built('bench/gpu_train'), '--dir', os.path.join(folder, 'saved'), *sizes)
        result = json_line(machine.run(command), '{"trained"')
    if machine.standin:
        return result | {'limits': NO_LIMITS}
    why = gpu_decide.judge_train(result)
    need(why is None, f'{why}: {json.dumps(result)}')
    return result


def find_torch():
    """Returns a Python that has PyTorch with CUDA; '' if there is none."""
    pythons = dict.fromkeys(filter(None, [sys.executable, shutil.which('python3'), shutil.which('python')]))
    return next((path for path in pythons if find_cuda.output(path, '-c', 'import torch; print(torch.version.cuda)')
                 .strip() not in ('', 'None')), '')


def torch(machine, _ranks):
    """PyTorch's DistributedDataParallel on the same GPU with the same buckets: step time, host time, memory"""
    if machine.standin:
        raise Skip('PyTorch cannot use the stand-in')
    script = os.path.join(ROOT, 'scripts', 'lib', 'torch_ddp.py')
    python = find_torch()
    if not python:
        raise Skip('PyTorch with CUDA is not installed')
    plain = {k: v for k, v in os.environ.items() if not k.startswith(gpu_machine.OWN)}
    result = json_line(machine.run([python, script, *(['--quick'] if machine.quick else [])], environment=plain), '{"torch"')
    ours = machine.results.get('step-1', {}).get('runs', [])
    mean = next((run for run in ours if run['op'] == 'mean' and run['work'] == result['work']), None)
    return result | ({'libcddp': {key: mean[key] for key in ('reducer_ms', 'host_us')}} if mean else {})


# --- GPT --------------------------------------------------------------------------------------------------------------

GPT = {'config': [256, 1024, 12, 12, 768], 'batch': 32, 'micro': 16, 'steps': 20}  # 124M, but for its tokens
GPT_SMALL = {'config': [256, 16, 1, 2, 16], 'batch': 4, 'micro': 2, 'steps': 8}


def run_gpt(machine, ranks, folder, size, *words):
    """Trains examples/gpt. Returns {'loss': of each step, 'tokens_per_s': median after the first steps}."""
    log = os.path.join(folder, 'log')
    _, context, layers, heads, width = size['config']
    shape = {'context': context, 'layers': layers, 'heads': heads, 'width': width, 'batch': size['batch'], 'micro': size['micro'],
             'steps': size['steps'], 'log-every': 1, 'eval-every': 0, 'sample': 0, 'warmup': 0, 'lr': 0.0006, 'log': log}
    if machine.quick:  # the end of training evaluates a tenth of the text
        shape['text'] = os.path.join(folder, 'text')
        with open(machine.built('examples/gpt/data/kjv.txt'), 'rb') as whole, open(shape['text'], 'wb') as part:
            part.write(whole.read(2000))
    flags = [word for name, value in shape.items() for word in (f'--{name}', str(value))]
    said = machine.run(ranked(machine, ranks, machine.built('examples/gpt/gpt'), '--device', 'gpu', *flags, *words))
    with open(log, encoding='ascii') as lines:
        rows = [row for row in map(json.loads, lines) if 'loss' in row]
    os.unlink(log)
    need(len(rows) >= 2, f'{len(rows)} steps in the log:\n{tail(said)}')
    return gpu_decide.gpt_figures(rows)


def gpt(machine, ranks):
    """the GPT of examples/gpt in bf16: losses, tokens/s captured and not, and PyTorch's DDP of the same model, eager and compiled"""
    size = GPT_SMALL if machine.quick else GPT
    can_capture = '--graph ' in machine.run([machine.built('examples/gpt/gpt'), '--help'])
    with tempfile.TemporaryDirectory() as folder:
        short = run_gpt(machine, ranks, folder, size | {'steps': 2}, '--dtype', 'float32')
        plain = run_gpt(machine, ranks, folder, size, '--dtype', 'bf16')
        captured = run_gpt(machine, ranks, folder, size, '--dtype', 'bf16', '--graph') if can_capture else None
    result = {'gpt': size, 'ranks': ranks, 'bf16': plain, 'captured': captured or 'examples/gpt has no flag --graph',
              'pytorch': torch_gpt(machine, size) if ranks == 1 else 'measured with one rank only'}
    why = gpu_decide.judge_gpt(short, plain, captured)
    need(not why, f'{why}: {json.dumps(result)}')
    return result | ({'limits': NO_LIMITS} if machine.standin else {})


def torch_gpt(machine, size):
    """Returns PyTorch's figures for the same model, or why there are none. They are for comparison, and fail nothing."""
    python = '' if machine.standin else find_torch()
    if not python:
        return 'PyTorch cannot use the stand-in' if machine.standin else 'PyTorch with CUDA is not installed'
    plain = {k: v for k, v in os.environ.items() if not k.startswith(gpu_machine.OWN)}
    script = os.path.join(ROOT, 'scripts', 'lib', 'torch_gpt.py')
    words = [f'--{name}={",".join(map(str, value)) if name == "config" else value}' for name, value in size.items()]
    try:
        return json_line(machine.run([python, script, *words, f'--seconds={max(5.0, machine.clock.left() / 5):.0f}'], environment=plain),
                         '{"torch"')
    except (gpu_machine.Failed, Skip) as why:
        return str(why)


# --- compute-sanitizer ------------------------------------------------------------------------------------------------


def sanitize(machine, tool):
    sanitizer = gpu_machine.find_sanitizer()
    if machine.standin:
        raise Skip('the stand-in has no GPU code to check')
    if not sanitizer:
        raise Skip('compute-sanitizer is not installed')
    # The kernels' own test: a program with NCCL has the tool patch NCCL's whole image, and runs few of our kernels.
    # Errors of driver calls are not reported: the library asks for functions that a driver may lack, and goes on without them.
    said = machine.run([sanitizer, '--tool', tool, *(['--report-api-errors', 'no'] if tool == 'memcheck' else []),
                        '--error-exitcode', '9', machine.built('tests/gpu/kernels'), '--quick'])
    result = json_line(said, '{"card"')
    return {'said': re.findall(r'=+ .*(?:ERROR|error).*', said)[-1:], 'under_sanitizer': result['comparisons']}


def memcheck(machine, _ranks):
    """compute-sanitizer memcheck on every kernel"""
    return sanitize(machine, 'memcheck')


def initcheck(machine, _ranks):
    """compute-sanitizer initcheck on every kernel: none reads uninitialised memory"""
    return sanitize(machine, 'initcheck')


PARTS = {part.__name__: part for part in (facts, kernels, kernels_full, conformance, wine, hook, capture, whole, mean, death, restart, step, host, wire, train, torch, gpt,
                                          memcheck, initcheck)}
