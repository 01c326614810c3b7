#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libcddp(7), on stdout: what the library is, and its functions by header.

    api_man.py VERSION DATE HEADER...
"""
import pathlib
import re
import sys

FUNCTION = re.compile(r'^CDDP_API\s[^;]*?\b(cddp_\w+)\(', re.M)
HEAD = r'''.TH LIBCDDP 7 "{date}" "cddprun {version}" "Miscellaneous Information"
.SH NAME
libcddp \- data\-parallel training for C, C++ and CUDA programs
.SH SYNOPSIS
.nf
.B #include <cddp/cddp.h>
.PP
.B cc train.c $(pkg\-config \-\-cflags \-\-libs cddp)
.fi
.SH DESCRIPTION
libcddp averages the gradients of the processes of a job while the backward pass runs.
A launcher such as
.BR cddprun (1)
starts the program once per rank.
.PP
The headers describe every function: what it does, its errors, and the threads that may call it.
.I <cddp/cddp.h>
includes the others. It begins with an overview and an example.
The sources contain docs/api.md, which lists the functions, a tutorial, and docs/index.md, which lists all documents.
.PP
Functions that can fail return CDDP_OK or a negative status.
.BR cddp_last_error ()
returns the error message of the calling thread.
.SH FUNCTIONS
'''
TAIL = r'''.SH SEE ALSO
.BR cddprun (1),
.BR pkg\-config (1),
.BR cddp\-rendezvous (8)
'''

if __name__ == '__main__':
    print(HEAD.format(version=sys.argv[1], date=sys.argv[2]), end='')
    for path in map(pathlib.Path, sys.argv[3:]):
        names = FUNCTION.findall(path.read_text(encoding='utf-8'))
        if names:
            print(f'.TP\n.I <cddp/{path.name}>\n' + ',\n'.join(f'.BR {name} ()' for name in names))
    print(TAIL, end='')
