#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""embed.py FILE NAME OUT: write FILE as a C source with `const unsigned char NAME[]` and `const size_t NAME_bytes`."""
import sys


def main():
    path, name, out = sys.argv[1:]
    with open(path, 'rb') as source:
        data = source.read()
    lines = [','.join(map(str, data[at:at + 32])) for at in range(0, len(data), 32)]
    with open(out, 'w', encoding='ascii') as target:
        target.write('/* Made from a binary file by scripts/lib/embed.py. */\n#include <stddef.h>\n\n'
                     f'extern const unsigned char {name}[];\nextern const size_t {name}_bytes;\n\n'
                     f'const unsigned char {name}[] __attribute__((aligned(64))) = {{\n' + ',\n'.join(lines)
                     + f'}};\nconst size_t {name}_bytes = sizeof {name};\n')


if __name__ == '__main__':
    main()
