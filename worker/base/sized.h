/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs that pass between a program and this library. Each begins with `size_t size`, which the program sets to
 * sizeof, and grows at its end only. So the two may have been built with headers of different versions, as with
 * copy_struct_from_user and copy_struct_to_user in Linux. Pure, apart from the memory of a list.
 *
 * `name` is the struct's name in C, for the error message; `bytes` is its size in this library. Members beyond the
 * program's size count as zero. Bytes beyond the library's size must be zero: otherwise CDDP_E_UNSUPPORTED with the
 * offset. CDDP_E_INVALID: NULL, or a size that was not set, as no struct has it.
 */
#ifndef CDI_BASE_SIZED_H
#define CDI_BASE_SIZED_H

#include "common/error.h"

#include <stddef.h>

/* Valid sizes: at least one member besides it, so that the size of a pointer is invalid, and a multiple of the step. */
#define CDI_SIZED_MIN ((size_t)16)
#define CDI_SIZED_MAX ((size_t)4096)
#define CDI_SIZED_STEP ((size_t)8)

/* Copies the program's struct `from` to the library's `to`, whose size becomes `bytes`. Changes nothing on failure. */
cddp_status cdi_sized_get(void *to, size_t bytes, const void *from, const char *name, struct cdi_error *err);

/*
 * Returns a copy of an array of n structs, which the caller frees, also for n = 0. The size of the first one is the
 * distance from each to the next, and all have the same size. Returns NULL after an error, which *err (not NULL)
 * describes; it may also be CDDP_E_NOMEM.
 */
void *cdi_sized_get_list(size_t bytes, const void *from, size_t n, const char *name, struct cdi_error *err);

/* Checks that `to` can be filled in. Called before the work whose result it gets. */
cddp_status cdi_sized_check(const void *to, const char *name, struct cdi_error *err);

/* Copies the library's struct `from` to the program's `to`, which was checked, as far as both reach. `to` keeps its
 * size. */
void cdi_sized_put(void *to, const void *from, size_t bytes);

#endif
