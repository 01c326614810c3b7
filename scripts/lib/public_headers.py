# SPDX-License-Identifier: Apache-2.0
"""The public headers as one text: cddp.h with what it includes put in its place, for tools that read declarations."""
import re

INCLUDE = re.compile(r'^#include <(cddp/(?!status\.h|version\.h)[\w/]+\.h)>\n', re.M)
EXPERIMENTAL = re.compile(r'^#ifdef CDDP_EXPERIMENTAL\n(.*?)^#endif\n\n?', re.M | re.S)
FORMAT = re.compile(r'^/\* (?:In the order in which .*|clang-format .*) \*/\n', re.M)
INSIDE = re.compile(r'#ifdef __cplusplus\nextern "C" \{\n#endif\n(.*)#ifdef __cplusplus\n\}\n#endif\n', re.S)


def whole(root, experimental=True):
    """cddp.h and its parts as one header, which includes status.h and version.h only; or without the experimental ones."""
    text = (root / 'include/cddp/cddp.h').read_text(encoding='utf-8')
    text = EXPERIMENTAL.sub(r'\1' if experimental else '', text)
    first = INCLUDE.search(text)
    if not first:
        return text
    inside = ''.join(INSIDE.search((root / 'include' / one[1]).read_text(encoding='utf-8'))[1] for one in INCLUDE.finditer(text))
    rest = FORMAT.sub('', INCLUDE.sub('', text[first.start():]))
    head = FORMAT.sub('', text[:first.start()])
    return (head + '#include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n\n#ifdef __cplusplus\nextern "C" {\n#endif\n' + inside
            + '#ifdef __cplusplus\n}\n#endif\n' + rest)
