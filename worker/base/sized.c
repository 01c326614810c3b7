/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/base/sized.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static size_t size_of(const void *p)
{
    size_t size;

    memcpy(&size, p, sizeof size);
    return size;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

cddp_status cdi_sized_check(const void *to, const char *name, struct cdi_error *err)
{
    size_t size;

    if (to == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s is NULL", name);
    size = size_of(to);
    if (size < CDI_SIZED_MIN || size > CDI_SIZED_MAX || size % CDI_SIZED_STEP != 0)
        return cdi_fail(err, CDDP_E_INVALID, "%s.size is %zu, so it is not set: write .size = sizeof(%s)", name, size,
                        name);
    return CDDP_OK;
}

/* Checks that the program, built with a newer header, uses no member that this library does not have. */
static cddp_status sized_check_tail(const char *p, size_t bytes, const char *name, struct cdi_error *err)
{
    for (size_t at = bytes; at < size_of(p); at++)
        if (p[at] != 0)
            return cdi_fail(
                err, CDDP_E_UNSUPPORTED,
                "%s is not zero at offset %zu, but this libcddp has only its first %zu bytes: the program was "
                "built with a newer header, and uses a member that this version does not have",
                name, at, bytes);
    return CDDP_OK;
}

static void sized_fill(char *to, size_t bytes, const char *from)
{
    size_t both = smaller(bytes, size_of(from));

    memcpy(to, from, both);
    memset(to + both, 0, bytes - both);
    memcpy(to, &bytes, sizeof bytes);
}

cddp_status cdi_sized_get(void *to, size_t bytes, const void *from, const char *name, struct cdi_error *err)
{
    if (cdi_sized_check(from, name, err) != CDDP_OK)
        return CDDP_E_INVALID;
    if (sized_check_tail(from, bytes, name, err) != CDDP_OK)
        return CDDP_E_UNSUPPORTED;
    sized_fill(to, bytes, from);
    return CDDP_OK;
}

/* Checks each element in place. The first one's size is valid. */
static cddp_status sized_check_list(const char *from, size_t stride, size_t bytes, size_t n, const char *name,
                                    struct cdi_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *p = from + i * stride;

        if (size_of(p) != stride)
            return cdi_fail(err, CDDP_E_INVALID,
                            "%s: size is %zu in element %zu, but %zu in element 0: write .size = sizeof(%s) in each",
                            name, size_of(p), i, stride, name);
        if (sized_check_tail(p, bytes, name, err) != CDDP_OK) {
            (void)cdi_error_wrap(err, "element %zu", i);
            return CDDP_E_UNSUPPORTED;
        }
    }
    return CDDP_OK;
}

void *cdi_sized_get_list(size_t bytes, const void *from, size_t n, const char *name, struct cdi_error *err)
{
    size_t stride = bytes;
    char *list;

    if (n > 0 && cdi_sized_check(from, name, err) != CDDP_OK)
        return NULL;
    if (n > 0)
        stride = size_of(from);
    if (n > PTRDIFF_MAX / (stride > bytes ? stride : bytes)) {
        (void)cdi_fail(err, CDDP_E_INVALID, "%s: an array of %zu is more than memory can hold", name, n);
        return NULL;
    }
    if (sized_check_list(from, stride, bytes, n, name, err) != CDDP_OK)
        return NULL;
    list = malloc((n == 0 ? 1 : n) * bytes);
    if (list == NULL)
        (void)cdi_fail(err, CDDP_E_NOMEM, "out of memory for a copy of %zu of %s", n, name);
    for (size_t i = 0; list != NULL && i < n; i++)
        sized_fill(list + i * bytes, bytes, (const char *)from + i * stride);
    return list;
}

void cdi_sized_put(void *to, const void *from, size_t bytes)
{
    size_t both = smaller(bytes, size_of(to));

    memcpy((char *)to + sizeof both, (const char *)from + sizeof both, both - sizeof both);
}
