/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the name of a signal, "SIGKILL" or "signal 42", to buf, and returns buf. */
#ifndef SIGNAME_H
#define SIGNAME_H

#include "common/signal_abbrev.h"

#include <stdio.h>
#include <string.h>

static inline const char *signame(int number, char *buf, size_t cap)
{
    const char *abbrev = cdi_signal_abbrev(number);

    if (abbrev != NULL)
        (void)snprintf(buf, cap, "SIG%s", abbrev);
    else
        (void)snprintf(buf, cap, "signal %d", number);
    return buf;
}

#endif
