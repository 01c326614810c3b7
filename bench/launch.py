#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Launch alone: how long cddprun and torchrun take to start /bin/true on 2 and on 8 ranks, and to end."""
import common


def main():
    args = common.arguments(__doc__.splitlines()[0])
    result = {'machine': common.machine(args)}
    rows = []
    for ranks in (2, 8):
        flags = ['--standalone', f'--nproc_per_node={ranks}']
        ours = [common.cddprun(args.build), *flags, '/bin/true']
        theirs = [*common.torchrun(args.torch_python), '--no-python', *flags, '/bin/true']
        print(f'/bin/true on {ranks} ranks')
        result[f'ranks_{ranks}'] = common.interleaved(args.pairs, lambda: common.timed(ours)[0],
                                                      lambda: common.timed(theirs)[0])
        rows.append((f'/bin/true, {ranks} ranks', result[f'ranks_{ranks}']))
    common.table(rows)
    common.write(args, 'launch', result)


if __name__ == '__main__':
    main()
