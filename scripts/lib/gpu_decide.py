# SPDX-License-Identifier: Apache-2.0
"""The decisions of scripts/gpu-check: order and time limits of the parts, the meaning of their results, verdicts on
measurements. Values in, values out: no process, no clock, no GPU."""

RATIO_LIMIT = 1.02         # step time with the reducer to step time with bare ncclAllReduce
HOST_US = (20, 5)          # host time beyond that of bare ncclAllReduce: per step, per bucket
CLIP_HOST_US = 100         # host time of a clipping call that does not return the norm: the host does not wait for the GPU
HIDDEN_BELOW_BEST = 0.05   # share of the modelled wire that may be exposed beyond what no order could hide
LIBRARY_OFF = 0.03         # exposed communication by the library against that by step times, as a share of the backward pass
ERROR_SECONDS = 5          # until the survivors of a killed rank report an error
GPT_LOSS = 0.01            # relative difference of the first loss in bf16 from that in float32
CAPTURED_LOSS = 0.001      # relative difference of a loss with steps in a graph from that without
SILENT_SECONDS = 60        # without output: then a part hangs

# part: (seconds if each rank has a GPU, more seconds for each rank if ranks share a GPU)
# Ranks that share a GPU take turns of about 2 ms, so that each collective costs several of them.
LIMITS = {
    'facts': (40, 0), 'kernels': (60, 0), 'kernels_full': (60, 0), 'wine': (60, 60), 'hook': (40, 20), 'capture': (40, 20),
    'whole': (40, 20), 'mean': (40, 20), 'step': (120, 0), 'wire': (60, 0), 'gpt': (200, 0), 'train': (90, 0),
    'torch': (60, 0), 'death': (60, 20), 'memcheck': (60, 0), 'initcheck': (60, 0), 'conformance': (100, 40),
    'restart': (90, 45), 'host': (60, 20),
}
# What each took on an H100 with one rank, or two that share it (2026-11-26): for --plan.
ON_H100 = {
    'facts': 4, 'kernels': 4, 'kernels_full': 34, 'wine-1': 7, 'wine-2': 26, 'hook-1': 1, 'hook-2': 2, 'capture-1': 1, 'capture-2': 2,
    'whole-1': 1, 'whole-2': 3, 'mean-1': 1, 'mean-2': 2, 'step-1': 6, 'wire-1': 6, 'gpt-1': 84, 'train-1': 5, 'torch': 18, 'death-2': 2,
    'memcheck': 5, 'initcheck': 5, 'conformance-1': 15, 'conformance-2': 58, 'restart-2': 12, 'host-2': 38,
}
TIMED = ('step', 'wire', 'train', 'gpt')  # only if each rank has a GPU
WITHOUT_NCCL = ('facts', 'kernels', 'kernels_full', 'torch', 'memcheck', 'initcheck')
# No output until they end, and much slower than the others.
SLOW = ('memcheck', 'initcheck', 'gpt')


def part_name(part, ranks):
    return part if ranks is None else f'{part}-{ranks}'


def plan(ranks, gpus):
    """Returns [(part, ranks or None)], the most informative first: time may run out, and the machine may be lost."""
    several = sorted(n for n in ranks if n > 1)
    alone, pair, more = ([1] if 1 in ranks else []), several[:1], several[1:]

    def of(those, *parts):
        return [(part, n) for n in those for part in parts if part not in TIMED or n <= gpus]

    order = [('facts', None), ('kernels', None)]
    order += of(alone, 'hook', 'capture', 'whole', 'mean', 'step', 'wire', 'train', 'wine') + [('kernels_full', None)]
    order += of(pair, 'death', 'hook', 'capture', 'whole', 'mean', 'conformance', 'step', 'wire', 'train')
    order += [('memcheck', None), ('initcheck', None)]
    order += of(alone, 'gpt') + ([('torch', None)] if alone else []) + of(alone, 'conformance')
    order += of(pair, 'restart', 'host', 'wine', 'gpt')
    return order + of(more, 'death', 'hook', 'capture', 'whole', 'mean', 'conformance', *TIMED, 'wine')


def chosen(order, wanted):
    """Returns the entries of the plan that --part selects, by part or by name; all without --part."""
    return [(part, n) for part, n in order if not wanted or part in wanted or part_name(part, n) in wanted]


def limit(part, ranks, gpus):
    """Returns the time limit of the part in seconds."""
    base, more = LIMITS[part]
    return base + more * ranks if ranks is not None and ranks > gpus else base


def environment(ranks, gpus, given):
    """Returns the variables that ranks need if they share a GPU, unless they are in `given`. NCCL takes such ranks for
    separate hosts and uses sockets: here those of an interface that does not leave this node."""
    if ranks is None or ranks <= gpus:
        return {}
    wanted = {'CDDP_SHARE_GPU': '1', 'NCCL_SOCKET_IFNAME': 'lo', 'NCCL_SOCKET_FAMILY': 'AF_INET'}
    return {name: value for name, value in wanted.items() if name not in given}


def late(part, passed, failed, silent_s, ran_s, cut_by_whole):
    """Returns (status, message) for a part that has exceeded its time. `silent_s`: time since its last output."""
    so_far = f'{passed} {"case" if passed == 1 else "cases"} had passed'
    if failed > 0:
        return 'failed', f'{failed} failed before the time limit; {so_far}'
    too_long = SILENT_SECONDS if cut_by_whole else min(SILENT_SECONDS, ran_s)
    if part not in SLOW and silent_s >= too_long:
        return 'failed', f'it hangs: no output for {silent_s:.0f} s; {so_far}'
    return 'skipped', f'{"the total time is used up" if cut_by_whole else f"its limit of {ran_s:.0f} s is reached"}; {so_far}, none had failed'


def again(part, status, given, left_s):
    """Returns whether to run the part once more with the other kind of NCCL communicator."""
    return status == 'failed' and part not in WITHOUT_NCCL and 'NCCL_COMM_BLOCKING' not in given and left_s >= 10


def other_kind(nccl_version):
    """Returns (environment, its name) for the kind that libcddp does not choose by itself: from 2.23 on, and for an unknown
    version, the non-blocking one."""
    value = '1' if nccl_version and nccl_version < 22300 else '0'
    return {'CDDP_NCCL_BLOCKING': value}, f'CDDP_NCCL_BLOCKING={value}'


def describe_second_run(name, first, second):
    """Describes the second run of a part, with the other kind of communicator."""
    if second == 'passed':
        return f'with {name} it passes: the cause depends on the kind of NCCL communicator'
    if second == 'failed':
        return f'with {name} it fails as well'
    return f'with {name} it was {second}; the first run {first}'


def host_more(run):
    """Returns the median host time of the reducer's step beyond that of bare ncclAllReduce, in microseconds."""
    return run['host_us'][1] - run['bare_host_us'][1]


def host_allowed(buckets):
    return HOST_US[0] + HOST_US[1] * buckets


def judge_step(result):
    """Returns (step ratio, host us beyond bare, reason for failure or None) for the result of bench/gpu_step."""
    ratio = max(run['ratio'][1] for run in result['runs'] if run['work'] > 0)
    host = max(host_more(run) for run in result['runs'])
    allowed = host_allowed(result['buckets'])
    if ratio <= RATIO_LIMIT and host <= allowed:
        return ratio, host, None
    return ratio, host, (f'a step takes {ratio:.4f} times that of bare ncclAllReduce ({RATIO_LIMIT} allowed), '
                         f'and {host:.1f} us more host time ({allowed} allowed)')


def judge_clip(result):
    """Returns why clipping takes too much host time, or None, for the result of bench/gpu_step."""
    host = result['clip']['host_us'][1]
    return None if host <= CLIP_HOST_US else f'clipping takes {host:.1f} us of host time ({CLIP_HOST_US} allowed): it waits for the GPU'


def judge_train(result):
    """Returns why a step with clipping and optimizer takes too much host time, or None, for the result of bench/gpu_train.
    A host that waits for the GPU takes about as long as the step."""
    host, step = result['host_us'][1], result['step_ms'][1] * 1e3
    return None if host <= step / 2 else f'cddp_* calls take {host:.0f} us of a step of {step:.0f} us: the host waits'


def best_hidden(compute_ms, wire_ms):
    """Returns the share of the wire's time that can be hidden at all: bucket k is full after compute_ms[0..k], and takes
    wire_ms[k] after its predecessor."""
    full = sent = 0.0
    for compute, wire in zip(compute_ms, wire_ms):
        full += compute
        sent = max(full, sent) + wire
    return hidden(full, sent, sum(wire_ms))


def hidden(compute_ms, step_ms, wire_ms):
    """Returns the share of wire_ms that a step of step_ms overlaps with compute_ms."""
    shown = max(0.0, step_ms - compute_ms)
    return max(0.0, 1 - shown / wire_ms) if wire_ms > 0 else 1.0


def judge_wire(result):
    """Returns (share hidden, best possible share, reason for failure or None) for the result of bench/gpu_wire."""
    buckets = result['buckets']
    wire = [result['wire_us_per_bucket'] * 1e-3] * buckets
    best = best_hidden([result['compute_ms'][1] / buckets] * buckets, wire)
    share = hidden(result['compute_ms'][1], result['step_ms'][1], sum(wire))
    if share >= best - HIDDEN_BELOW_BEST:
        return share, best, None
    return share, best, f'{share:.1%} of the modelled wire is hidden, {best:.1%} could be'


def judge_library(result):
    """Returns (difference as a share of the backward pass, reason for failure or None) for bench/gpu_wire --plain: the library
    and the difference of step times agree about the exposed communication."""
    if result['counted_steps'] == 0:
        return None, 'cddp_ddp_get_stats() counts no step'
    exposed, longer, compute = result['exposed_ms'], result['longer_ms'], result['compute_ms'][1]
    off = (exposed - longer) / compute
    if not 0 <= exposed <= result['comm_ms']:
        return off, f'of {result["comm_ms"]:.3f} ms of communication {exposed:.3f} ms are exposed'
    if abs(off) <= LIBRARY_OFF:
        return off, None
    return off, (f'the library reports {exposed:.3f} ms of exposed communication, but a step takes {longer:.3f} ms longer than its '
                 f'backward pass of {compute:.3f} ms')


def gpt_figures(rows):
    """Returns what counts of the log lines of examples/gpt: the losses, and quartiles of tokens/s without the first steps,
    which allocate and load kernels."""
    rates = sorted(row['tokens_per_s'] for row in rows[min(3, len(rows) - 1):])
    return {'loss': [row['loss'] for row in rows], 'tokens_per_s': [rates[len(rates) * k // 4] for k in (1, 2, 3)]}


def judge_gpt(short, plain, captured):
    """Returns what is wrong with the losses of the GPT, or None. `short`: in float32; `captured`: None if it cannot be."""
    def differ(one, other):
        return abs(one - other) / abs(other)

    losses = plain['loss']
    if None in losses + short['loss']:
        return 'a loss is not a number'
    if differ(losses[0], short['loss'][0]) > GPT_LOSS:
        return f'the first loss is {losses[0]} in bf16, and {short["loss"][0]} in float32'
    if losses[-1] >= losses[0]:
        return f'the loss does not fall: {losses[0]} to {losses[-1]}'
    if captured:
        for step, (one, other) in enumerate(zip(captured['loss'], losses, strict=True), 1):
            if one is None or differ(one, other) > CAPTURED_LOSS:
                return f'the loss of step {step} is {one} captured, and {other} not'
    return None


def counted(parts):
    return {word: sum(part['status'] == word for part in parts) for word in ('passed', 'failed', 'skipped')}


def exit_status(count):
    return 1 if count['failed'] else 0
