/* SPDX-License-Identifier: Apache-2.0 */
/* A number of bytes for people. Pure. */
#ifndef CDI_SIZE_TEXT_H
#define CDI_SIZE_TEXT_H

#include <stdio.h>

#define CDI_SIZE_TEXT 32 /* bytes, NUL included */

/* Writes "512 B", "4.0 KiB" or "25 MiB", and returns text. */
static inline const char *cdi_size_text(char text[CDI_SIZE_TEXT], double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t i = 0;

    for (; bytes >= 1024 && i + 1 < sizeof units / sizeof units[0]; i++)
        bytes /= 1024;
    (void)snprintf(text, CDI_SIZE_TEXT, i > 0 && bytes < 10 ? "%.1f %s" : "%.0f %s", bytes, units[i]);
    return text;
}

#endif
