#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpu_image.py FATBIN CODE...: the image holds machine code for each CODE (sm_90), and PTX of the oldest and the newest.

PTX of the newest serves GPUs that come later; PTX of the oldest those between, of a kind that this nvcc did not know.
"""
import struct
import sys

MAGIC, PTX, MACHINE = 0xBA55ED50, 1, 2


def entries(data):
    """(kind, architecture) of each part: of each the header's length, the payload's, and at 28 the architecture."""
    at = 0
    while at < len(data):
        magic, _, header, size = struct.unpack_from('<IHHQ', data, at)
        assert magic == MAGIC, f'{magic:#x} at {at} is not the beginning of a fatbin'
        at += header
        end = at + size
        while at < end:
            kind, _, header, payload = struct.unpack_from('<HHIQ', data, at)
            yield kind, struct.unpack_from('<I', data, at + 28)[0]
            at += header + payload


def main():
    path, *codes = sys.argv[1:]
    asked = sorted(int(code[3:]) for code in codes)
    with open(path, 'rb') as image:
        found = list(entries(image.read()))
    machine = sorted(arch for kind, arch in found if kind == MACHINE)
    ptx = sorted(arch for kind, arch in found if kind == PTX)
    assert machine == asked, f'machine code for {machine}, asked for {asked}'
    assert ptx == sorted({asked[0], asked[-1]}), f'PTX of {ptx}, wanted that of {asked[0]} and {asked[-1]}'
    print(f'machine code for {machine}, PTX of {ptx}')


if __name__ == '__main__':
    main()
