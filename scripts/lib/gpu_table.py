# SPDX-License-Identifier: Apache-2.0
"""The output of scripts/gpu-check: a line at the end of each part, and the table. Report in, text out."""
import itertools


def line_of(part):
    """Returns status and time of a part; after a failure also its reason, and the result of the second run."""
    line = f'{part["name"]:<16}{part["status"]:<9}{part["seconds"]:>7.1f} s'
    if part['status'] != 'failed':
        return line
    lines = [line, *part['reason'].splitlines(), *part.get('nccl_warnings', [])]
    if 'again' in part:
        lines.append(part['again']['told'])
        lines += part['again'].get('reason', '').splitlines()[:3]
    return '\n    '.join(lines)


def of_steps(detail):
    runs = [f'{one["op"]}{" with work" if one["work"] else ""} {one["ratio"][1]:.3f} '
            f'({one["reducer_ms"][1]:.3f} ms, host {one["host_us"][1]:.0f} us, bare {one["bare_host_us"][1]:.0f})'
            for one in detail['runs']]
    clip = f'clipping {detail["clip"]["ms"][1]:.3f} ms, host {detail["clip"]["host_us"][1]:.0f} us'
    others = [f'with CDDP_TIMING={how} {one["step_ratio"]:.3f}, host {one["host_us_more"]:.0f} us more than bare'
              for how in ('off', 'all') if (one := detail.get('timing_' + how))]
    return f'{detail["buckets"]} buckets; reducer / bare: {"; ".join([*runs, clip, *others])}'


def of_facts(detail):
    nccl, host = detail.get('nccl', {}), detail.get('host_us', {})
    window = nccl.get('non_blocking', {}).get('window', {})
    words = [f'CUDA {detail.get("driver_cuda", "?")}, NCCL {nccl.get("version", "?")}']
    if window:
        words.append(f'registering a window returns {window["returned"]} and gives the window '
                     f'{"at once" if window["there_at_once"] else "later"}')
    words += [f'{name} {value:.1f} us' for name, value in host.items()
              if name in ('cuEventRecord', 'cuLaunchKernel', 'cuStreamWriteValue32') and isinstance(value, float)]
    return '; '.join(words)


def of_torch(detail):
    text = (f'PyTorch {detail["torch"]}: a step {detail["ddp_ms"][1]:.3f} ms, host {detail["host_us_more"]:.0f} us more than '
            f'without DDP, {detail["peak_mib"]:.0f} MiB')
    if 'libcddp' in detail:
        text += f'; libcddp {detail["libcddp"]["reducer_ms"][1]:.3f} ms, host {detail["libcddp"]["host_us"][1]:.0f} us'
    return text


def of_death(detail):
    return f'errors after {max(detail["seconds"].values())} s: {detail["sentence"]}'


# (a key that only the details of one kind of part have, their text)
def gpt_text(d):
    """Tokens/s of each way, and what PyTorch's are."""
    ways = {'uncaptured': d['bf16'], 'captured': d['captured']}
    ours = '; '.join(f'{name} {way["tokens_per_s"][1]:.0f}' if isinstance(way, dict) else f'{name}: {way}' for name, way in ways.items())
    if isinstance(d['pytorch'], str):
        theirs = d['pytorch']
    else:
        theirs = '; '.join(f'{name} {way["tokens_per_s"]:.0f}' if 'error' not in way else f'{name}: {way["error"]}'
                           for name, way in ((name, d['pytorch'][name]) for name in ('eager', 'compiled')))
    return f'GPT in bf16, tokens/s: {ours}. PyTorch: {theirs}'


TEXTS = [
    ('gpt', gpt_text),
    ('driver_lacks', of_facts),
    ('under_sanitizer', lambda d: f'{d["under_sanitizer"]} comparisons, no error'),
    ('comparisons', lambda d: f'{d["comparisons"]} comparisons; GB/s: ' + ', '.join(
        f'{key[:-5]} {value:.0f}' for key, value in d.items() if key.endswith('_gb_s'))),
    ('hidden', lambda d: f'{d["hidden"]:.1%} of the wire hidden, {d["best"]:.1%} possible; host {d["host_us"][1]:.0f} us per step'),
    ('trained', lambda d: f'{d["buckets"]} buckets: a step {d["step_ms"][1]:.3f} ms, host {d["host_us"][1]:.0f} us; during a checkpoint '
                          f'{d["step_ms_during_save"][1]:.3f} ms, its call {d["save_call_ms"]:.1f} ms'),
    ('torch', of_torch),
    ('runs', of_steps),
    ('sentence', of_death),
    ('resumed_after_epoch', lambda d: f'resumed after epoch {d["resumed_after_epoch"]}, '
                                      f'{d["seconds_from_death_to_resumed"]} s after the death; the same final weights'),
    ('largest_difference', lambda d: 'largest difference to PyTorch: ' + ', '.join(
        f'{k} {v:.1e}' for k, v in d['largest_difference'].items()) +
        (f'; with PowerSGD, clipping and sharding, to the CPU {d["powersgd_differs_from_cpu"]:.1e}' if 'powersgd_differs_from_cpu' in d else '')),
    ('met', lambda d: f'{d["buckets"]} buckets: host {d["host_us"]:.0f} us per step, {d["host_us_more"]:.0f} more than bare, '
                      f'{"below" if d["met"] else "above"} the {d["host_us_allowed"]} us of a rank with a GPU to itself; '
                      f'non-blocking {d["host_us_non_blocking"]:.0f} us'),
    ('captured', lambda d: f'{d["captured"]} modes of capture, {d["launches"]} launches of {d["buckets"]} buckets each'),
    ('whole', lambda d: f'{d["whole"]} steps of {d["buckets"]} buckets, captured and not: the same bits' + (
        f'; {d["step_ms"][1]:.3f} ms captured, {d["step_ms"][0]:.3f} ms not; host {d["host_us"][1]:.0f} and {d["host_us"][0]:.0f} us'
        if d['timed'] else '')),
    ('hooks', lambda d: f'{d["hooks"]} hooks, {d["steps"]} steps of {d["buckets"]} buckets each'),
    ('means', lambda d: f'{d["means"]} kinds of gradients, largest error {d["worst"]:.2f} of the allowed one'),
    ('passed', lambda d: f'{d["passed"]} cases, {d["skipped"]} skipped'),
]


def marks(order, measured, seconds):
    """Returns what has run after the times for which a machine may be there. A part that was not measured takes its limit."""
    def ended(times, by):
        names = [name for (name, _), end in zip(order, itertools.accumulate(times)) if end <= by]
        return (len(names), f', up to {names[-1]}' if len(names) < len(order) else '') if names else (0, '')

    lines, limits = [], [limit for _, limit in order]
    for minutes in 5, 10, 15:
        by = min(60 * minutes, seconds)
        n, last = ended([measured.get(name, limit) for name, limit in order], by)
        sure, last_sure = ended(limits, by)
        lines.append(f'after {minutes:>2} min: {n} of {len(order)} parts{last}; if each takes as long as it may {sure}{last_sure}'
                     + (f' (it ends after {seconds:.0f} s: --seconds)' if by < 60 * minutes else ''))
    return lines


def plan(order, measured, seconds):
    """Returns the text of --plan. order: [(name, limit in seconds)]; measured: {name: seconds}; seconds: the total limit. A part
    that was not measured counts as nothing in the sum."""
    lines, total = ['part              on an H100    so far    at most'], 0
    for name, limit in order:
        took = measured.get(name)
        if total <= seconds < total + (took or 0):
            lines.append(f'--- {seconds:.0f} s (--seconds) end about here')
        total += took or 0
        lines.append(f'{name:<16}{took if took is not None else "?":>10} s {total:>7} s {limit:>8} s')
    return '\n'.join([*lines, '', *marks(order, measured, seconds)])


def summary(part):
    """Returns the last column of the table."""
    if part['status'] == 'skipped':
        return part['reason'].splitlines()[0] if part['reason'] else ''
    if part['status'] == 'failed':
        again = f' ({part["again"]["told"]})' if 'again' in part else ''
        return part['reason'].splitlines()[0] + again
    detail = part.get('detail', {})
    text = next((text for key, text in TEXTS if key in detail), None)
    return text(detail) if text else '; '.join(detail.get('said', []))


def table(report):
    lines = ['', f'{report["card"]} x {report["gpus"]}, driver {report["driver"] or "?"}, {report["date"]}']
    lines += [f'  {key:<18}{value}' for key, value in report['versions'].items() if value]
    lines.append('')
    lines += [f'{part["name"]:<16}{part["status"]:<9}{part["seconds"]:>7.1f} s  {summary(part)}' for part in report['parts']]
    count = report['count']
    lines += ['', f'{count["passed"]} passed, {count["failed"]} failed, {count["skipped"]} skipped']
    return '\n'.join(lines)
