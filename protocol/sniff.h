/* SPDX-License-Identifier: Apache-2.0 */
/* Detects the protocol of a connection, one of three, from its first bytes. Pure. */
#ifndef CDI_SNIFF_H
#define CDI_SNIFF_H

#include <stddef.h>

enum cdi_sniff {
    CDI_SNIFF_UNDECIDED, /* more bytes are needed; never after 16 bytes */
    CDI_SNIFF_STORE,     /* c10d.h; nothing is to be skipped */
    CDI_SNIFF_CONTROL,   /* frame.h; the opening is not skipped */
    CDI_SNIFF_HTTP,
    CDI_SNIFF_GARBAGE,
};

enum cdi_sniff cdi_sniff(const void *bytes, size_t len);

#endif
