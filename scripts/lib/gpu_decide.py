# SPDX-License-Identifier: Apache-2.0
"""What scripts/gpu-check decides: which parts in which order, how long each may take, what its end means, what a
measurement is worth. Values in, values out: no process, no clock, no GPU."""

RATIO_LIMIT = 1.02         # of a step with the reducer to one with bare ncclAllReduce
HOST_US = (20, 5)          # beyond what bare ncclAllReduce takes of the host: per step, per bucket
CLIP_HOST_US = 100         # of a call that clips without telling the norm: the host does not wait for the GPU
HIDDEN_BELOW_BEST = 0.05   # share of the modelled wire that may show beside what no order could hide
ERROR_SECONDS = 5          # until the survivors of a killed rank have an error
SILENT_SECONDS = 60        # after so long without a word a part hangs

# part: (seconds on GPUs of its own, seconds more for each rank where ranks share a GPU)
# Ranks that share a GPU take turns of some 2 ms, so that each collective costs several of them.
LIMITS = {
    'facts': (40, 0), 'kernels': (60, 0), 'wine': (60, 60), 'hook': (40, 20), 'capture': (40, 20),
    'mean': (40, 20), 'step': (120, 0), 'wire': (60, 0),
    'train': (90, 0), 'torch': (60, 0), 'death': (60, 20), 'memcheck': (60, 0), 'initcheck': (60, 0), 'conformance': (100, 40),
    'restart': (90, 45), 'host': (60, 20),
}
TIMED = ('step', 'wire', 'train')  # by ranks with a GPU of their own
WITHOUT_NCCL = ('facts', 'kernels', 'torch')
# They say nothing until they end, and slow everything down by much.
SLOW = ('memcheck', 'initcheck')


def part_name(part, ranks):
    return part if ranks is None else f'{part}-{ranks}'


def plan(ranks, gpus):
    """[(part, ranks or None)], the most telling first: time may run out."""
    several = sorted(n for n in ranks if n > 1)
    alone = [1] if 1 in ranks else []

    def of(n, *parts):
        return [(part, n) for part in parts if part not in TIMED or n <= gpus]

    order = [('facts', None), ('kernels', None)]
    for n in alone:
        order += of(n, 'wine', 'hook', 'capture', 'mean', *TIMED) + [('torch', None)]
    for n in several[:1]:
        order += of(n, 'wine', 'hook', 'capture', 'mean', *TIMED, 'death')
    order += [('memcheck', None), ('initcheck', None)]
    for n in alone + several[:1]:
        order += of(n, 'conformance')
    for n in several[:1]:
        order += of(n, 'restart', 'host')
    for n in several[1:]:
        order += of(n, 'wine', 'hook', 'capture', 'mean', *TIMED, 'death', 'conformance')
    return order


def chosen(order, wanted):
    """Those of the plan that --part names, by part or by name; all if it names none."""
    return [(part, n) for part, n in order if not wanted or part in wanted or part_name(part, n) in wanted]


def limit(part, ranks, gpus):
    """Seconds that the part may take."""
    base, more = LIMITS[part]
    return base + more * ranks if ranks is not None and ranks > gpus else base


def environment(ranks, gpus, given):
    """What ranks that share a GPU need beside `given`, which comes first. They are hosts to NCCL, so it takes sockets,
    and those of an interface that leads to nobody but this machine."""
    if ranks is None or ranks <= gpus:
        return {}
    wanted = {'CDDP_SHARE_GPU': '1', 'NCCL_SOCKET_IFNAME': 'lo', 'NCCL_SOCKET_FAMILY': 'AF_INET'}
    return {name: value for name, value in wanted.items() if name not in given}


def late(part, passed, failed, silent_s, ran_s, cut_by_whole):
    """(status, sentence) of a part that was not done in time. `silent_s`: since it last said something."""
    so_far = f'{passed} {"case" if passed == 1 else "cases"} had passed'
    if failed > 0:
        return 'failed', f'{failed} failed before its time was up; {so_far}'
    too_long = SILENT_SECONDS if cut_by_whole else min(SILENT_SECONDS, ran_s)
    if part not in SLOW and silent_s >= too_long:
        return 'failed', f'it hangs: nothing for {silent_s:.0f} s; {so_far}'
    return 'skipped', f'{"the time is up" if cut_by_whole else f"its {ran_s:.0f} s are up"}; {so_far}, none had failed'


def again(part, status, given, left_s):
    """Whether to run the part once more with the other kind of NCCL's communicators."""
    return status == 'failed' and part not in WITHOUT_NCCL and 'NCCL_COMM_BLOCKING' not in given and left_s >= 10


def other_kind(nccl_version):
    """(the environment, its name) of the kind that libcddp does not take by itself: from 2.23 on, and where the version is
    not known, that is the non-blocking one."""
    value = '1' if nccl_version and nccl_version < 22300 else '0'
    return {'CDDP_NCCL_BLOCKING': value}, f'CDDP_NCCL_BLOCKING={value}'


def told_again(name, first, second):
    """A sentence about the part's second run, with the other kind of communicators."""
    if second == 'passed':
        return f'with {name} it passes: the fault is in what the kind of NCCL\'s communicators changes'
    if second == 'failed':
        return f'with {name} it fails as well'
    return f'with {name} it was {second}; the first run {first}'


def host_more(run):
    """Median host time of the reducer's step beyond that of bare ncclAllReduce, in microseconds."""
    return run['host_us'][1] - run['bare_host_us'][1]


def host_allowed(buckets):
    return HOST_US[0] + HOST_US[1] * buckets


def judge_step(result):
    """(step ratio, host us beyond bare, why it is too much or None) of what bench/gpu_step said."""
    ratio = max(run['ratio'][1] for run in result['runs'] if run['work'] > 0)
    host = max(host_more(run) for run in result['runs'])
    allowed = host_allowed(result['buckets'])
    if ratio <= RATIO_LIMIT and host <= allowed:
        return ratio, host, None
    return ratio, host, (f'a step takes {ratio:.4f} of bare ncclAllReduce\'s ({RATIO_LIMIT} allowed), '
                         f'{host:.1f} us more of the host ({allowed} allowed)')


def judge_clip(result):
    """Why clipping takes too much of the host, or None: of what bench/gpu_step said."""
    host = result['clip']['host_us'][1]
    return None if host <= CLIP_HOST_US else f'clipping takes {host:.1f} us of the host ({CLIP_HOST_US} allowed): it waits'


def judge_train(result):
    """Why a step with clipping and optimizer takes too much of the host, or None: of what bench/gpu_train said. One that
    waits for the GPU takes about as long as the step."""
    host, step = result['host_us'][1], result['step_ms'][1] * 1e3
    return None if host <= step / 2 else f'cddp_* calls take {host:.0f} us of a step of {step:.0f} us: the host waits'


def best_hidden(compute_ms, wire_ms):
    """The share of the wire's time that can be hidden at all: bucket k is full after compute_ms[0..k], and takes
    wire_ms[k] behind its predecessor."""
    full = sent = 0.0
    for compute, wire in zip(compute_ms, wire_ms):
        full += compute
        sent = max(full, sent) + wire
    return hidden(full, sent, sum(wire_ms))


def hidden(compute_ms, step_ms, wire_ms):
    """The share of wire_ms that a step of step_ms hides behind compute_ms."""
    shown = max(0.0, step_ms - compute_ms)
    return max(0.0, 1 - shown / wire_ms) if wire_ms > 0 else 1.0


def judge_wire(result):
    """(share hidden, best possible share, why it is too little or None) of what bench/gpu_wire said."""
    buckets = result['buckets']
    wire = [result['wire_us_per_bucket'] * 1e-3] * buckets
    best = best_hidden([result['compute_ms'][1] / buckets] * buckets, wire)
    share = hidden(result['compute_ms'][1], result['step_ms'][1], sum(wire))
    if share >= best - HIDDEN_BELOW_BEST:
        return share, best, None
    return share, best, f'{share:.1%} of the modelled wire is hidden, {best:.1%} could be'


def counted(parts):
    return {word: sum(part['status'] == word for part in parts) for word in ('passed', 'failed', 'skipped')}


def exit_status(count):
    return 1 if count['failed'] else 0
