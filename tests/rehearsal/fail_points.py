#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A call of the driver or of NCCL fails on one rank: the job ends soon, with an error message, and never by a crash.

fail_points.py CDDPRUN REDUCER_RANKS [--all]    --all: every call that the module makes, several times
"""
import argparse
import os
import subprocess
import sys
import time

LIMIT_S = 20.0
DRIVER_ERROR, NCCL_ERRORS = 999, (1, 6)
# Call -> the numbers of those that fail. It is made at least this often.
QUICK = {'cuMemAlloc': [1], 'cuEventRecord': [30], 'cuStreamWaitEvent': [30], 'cuLaunchKernel': [3], 'cuMemcpyDtoHAsync': [3],
         'cuCtxPushCurrent': [30],
         'ncclCommInitRankConfig': [1], 'ncclAllReduce': [1, 10], 'ncclGroupEnd': [2], 'ncclCommWindowRegister': [1]}
ALL = {'cuDeviceGet': [1], 'cuDeviceGetName': [1], 'cuDevicePrimaryCtxRetain': [1], 'cuStreamCreateWithPriority': [1, 2],
       'cuEventCreate': [1, 3, 30], 'cuEventRecord': [1, 3, 30], 'cuEventQuery': [1, 3, 30], 'cuStreamWaitEvent': [1, 3, 30],
       'cuMemAlloc': [1, 3, 30], 'cuMemHostAlloc': [1, 3, 30], 'cuMemcpyHtoDAsync': [1, 3, 30], 'cuMemcpyDtoHAsync': [1, 3, 30],
       'cuMemsetD8Async': [1, 3], 'cuLibraryLoadData': [1], 'cuLibraryGetKernel': [1, 3], 'cuKernelGetFunction': [1, 3],
       'cuLaunchKernel': [1, 3, 30], 'cuCtxPushCurrent': [5, 30], 'cuStreamSynchronize': [1, 3, 30], 'ncclCommInitRankConfig': [1],
       'ncclAllReduce': [1, 2, 10], 'ncclBroadcast': [1, 2, 10], 'ncclGroupEnd': [1, 2, 10],
       'ncclCommGetAsyncError': [1, 2, 10], 'ncclCommWindowRegister': [1, 2]}
# Functions of newer versions; the environment selects the version of the stand-in.
SINCE = {'ncclCommWindowRegister': 22703}


def there(call):
    version = int(os.environ.get('CDDP_STANDIN_NCCL_VERSION') or 99999)
    return version >= SINCE.get(call, 0)


def check(cddprun, program, call, nth, code):
    """Returns the error, or ''."""
    plant = f'if [ $RANK = 1 ]; then export CDDP_STANDIN_FAIL={call}:{nth}:{code}; fi; exec "$0" mean'
    began = time.monotonic()
    try:
        done = subprocess.run([cddprun, '--standalone', '--nproc_per_node=2', 'sh', '-c', plant, program], check=False,
                              env=os.environ, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f'did not end within {LIMIT_S:.0f} s'
    text = done.stdout + done.stderr
    if done.returncode != 1:
        return f'exit status {done.returncode} after {time.monotonic() - began:.1f} s:\n{text[-1500:]}'
    if 'last error: ' not in text or ('the CUDA driver reports' not in text and 'NCCL reports' not in text):
        return f'no error message about it:\n{text[-1500:]}'
    return ''


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('cddprun')
    parser.add_argument('program')
    parser.add_argument('--all', action='store_true')
    args = parser.parse_args()
    bad = n = 0
    calls = {call: numbers for call, numbers in (ALL if args.all else QUICK).items() if there(call)}
    for call, numbers in calls.items():
        for nth in numbers:
            for code in NCCL_ERRORS if call.startswith('nccl') else (DRIVER_ERROR,):
                wrong = check(args.cddprun, args.program, call, nth, code)
                n += 1
                if wrong:
                    bad += 1
                    print(f'FAILED: call {nth} of {call} fails with {code}: {wrong}', flush=True)
    print(f'{n - bad} of {n} failing calls ended the job with an error message')
    sys.exit(1 if bad else 0)


if __name__ == '__main__':
    main()
