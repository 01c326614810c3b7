/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which people count names: node2 before node10. The one place that knows it. Pure, any thread. */
#ifndef CDI_COMMON_NATSORT_H
#define CDI_COMMON_NATSORT_H

/*
 * < 0, 0 or > 0 as strcmp does, but a run of digits counts as the number that it shows, however long. Names that differ
 * in leading zeros only (n1, n01) are ordered by their bytes: 0 means the same string. Bytes count as unsigned,
 * whatever the locale.
 */
int cdi_natsort_cmp(const char *a, const char *b);

#endif
