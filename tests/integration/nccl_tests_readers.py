# SPDX-License-Identifier: Apache-2.0
"""Readers of nccl-tests' output, each by a rule that programs in the wild apply to it. They know nothing of cddp-bench.

- columns(): by the names in the head, counted from the end, between the last line with "out-of-place" and "Out of bounds
  values"; a line with other than the expected words ends it (microsoft/superbenchmark, cuda_nccl_bw_performance.py).
- lines(): 13 columns, of which times and bandwidths are digits and a point, both out of place and in place; other text is
  passed over.
- summary(): "Avg bus bandwidth" by its last word, as awk '{print $NF}' (FlagOpen/FlagPerf, main.sh), and "Out of bounds
  values : 0 OK".
- devices(), config(): the lines about ranks, sizes and iterations.
"""
import re


def columns(text):
    """[(size, time out of place, busbw out of place, time in place, busbw in place)]"""
    lines = text.splitlines()
    begin = max(i for i, line in enumerate(lines) if 'out-of-place' in line)
    end = max(i for i, line in enumerate(lines) if 'Out of bounds values' in line)
    rows, at = [], None
    for line in lines[begin + 1:end]:
        words = line.lstrip('#').split()
        if 'time' in words and 'busbw' in words:
            names = words
            at = [names.index('size')] + [i - len(names) for i, name in enumerate(names) if name in ('time', 'busbw')]
        elif line.startswith('#'):
            continue
        elif at and len(words) >= 10:
            rows.append(tuple(float(words[i]) for i in at))
        else:
            break
    return rows


NUMBER = r'([\d.]+)'
LINE = re.compile(r'\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)' + rf'\s+{NUMBER}\s+{NUMBER}\s+{NUMBER}\s+(\S+)' * 2 + r'\s*')


def lines(text):
    found = []
    for match in filter(None, map(LINE.fullmatch, text.splitlines())):
        size, count, kind, op, root = match.group(1, 2, 3, 4, 5)
        found.append({'size': int(size), 'count': int(count), 'type': kind, 'redop': op, 'root': int(root),
                      'out': [*map(float, match.group(6, 7, 8)), match[9]], 'in': [*map(float, match.group(10, 11, 12)), match[13]]})
    return found


def summary(text):
    """(mean bus bandwidth, are all values right) of each table"""
    means = [float(line.split()[-1]) for line in text.splitlines() if '# Avg bus bandwidth' in line]
    right = [how == 'OK' for how in re.findall(r'Out of bounds values\s*:\s*\d+\s*(\w+)', text)]
    return list(zip(means, right, strict=True))


def devices(text):
    return re.findall(r'^#\s+Rank\s+(\d+)\s+Group\s+(\d+)\s+Pid\s+(\d+)\s+on\s+(\S+)\s+device\s+(\d+)\s+\[[^\]]+\]\s+(.+?)\s*$', text, re.M)


def config(text):
    """nThread, nGpus, minBytes, maxBytes, warmup iters, iters"""
    return tuple(map(int, re.search(r'nThread\s+(\d+)\s+nGpus\s+(\d+)\s+minBytes\s+(\d+)\s+maxBytes\s+(\d+).*'
                                    r'warmup iters:\s*(\d+)\s+iters:\s*(\d+)', text).groups()))


# In the format of nccl-tests' src/util.cu: the control that the readers read what they are for.
SAMPLE = '''\
# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   6899 on    node-235 device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    37.71    0.00    0.00       0    33.46    0.00    0.00       0
  8589934592    2147483648     float     sum      -1  2225678    3.86    6.76       0  2225678    3.86    6.76     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 3.38123
#
'''
