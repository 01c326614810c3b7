/* SPDX-License-Identifier: Apache-2.0 */
/* Natural sort order: node2 before node10. Pure, any thread. */
#ifndef CDI_COMMON_NATSORT_H
#define CDI_COMMON_NATSORT_H

/*
 * Returns < 0, 0 or > 0 as strcmp does, but compares runs of digits, of any length, as numbers. Names that differ in
 * leading zeros only (n1, n01) are ordered by their bytes: 0 means the same string. Bytes are unsigned in all locales.
 */
int cdi_natsort_cmp(const char *a, const char *b);

#endif
