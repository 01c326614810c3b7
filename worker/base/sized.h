/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs that cross the border between a program and this library. Each begins with `size_t size`, which the program
 * sets to sizeof, and grows at its end only, so that the two may have been built with headers of different versions: as
 * copy_struct_from_user and copy_struct_to_user have it in Linux. Pure, apart from the memory of a list.
 *
 * `name` is the struct's name in C, for the error message; `bytes` is its size in this library. What the program's is
 * too short for counts as zero. What it has beyond the library's must be zero: else CDDP_E_UNSUPPORTED with the offset.
 * CDDP_E_INVALID: no struct, or a size that no struct has, since it was not set.
 */
#ifndef CDI_BASE_SIZED_H
#define CDI_BASE_SIZED_H

#include "common/error.h"

#include <stddef.h>

/* What a size can be: at least one member beside it (so that the size of a pointer is none), without a rest. */
#define CDI_SIZED_MIN ((size_t)16)
#define CDI_SIZED_MAX ((size_t)4096)
#define CDI_SIZED_STEP ((size_t)8)

/* The program's struct `from` becomes the library's at `to`, whose size is `bytes` then. On failure nothing changes. */
cddp_status cdi_sized_get(void *to, size_t bytes, const void *from, const char *name, struct cdi_error *err);

/*
 * The same for n of them in an array: a copy that is to be freed, of n = 0 as well. The size of the first one is the
 * distance from each to the next, and the others have the same. NULL: *err, which is not NULL here, says why; also
 * CDDP_E_NOMEM.
 */
void *cdi_sized_get_list(size_t bytes, const void *from, size_t n, const char *name, struct cdi_error *err);

/* May `to` be filled in? Before anything is done whose result it is for. */
cddp_status cdi_sized_check(const void *to, const char *name, struct cdi_error *err);

/* The library's struct `from` to the program's `to`, which was checked: as much as both have. `to` keeps its size. */
void cdi_sized_put(void *to, const void *from, size_t bytes);

#endif
