/* SPDX-License-Identifier: Apache-2.0 */
/* Scope-bound release of memory and descriptors, and the transfer of ownership. */
#ifndef CDI_CLEANUP_H
#define CDI_CLEANUP_H

#include <stdlib.h>
#include <unistd.h>

static inline void cdi_auto_free_(void *p)
{
    free(*(void **)p);
}

static inline void cdi_auto_close_(const int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
}

/* CDI_AUTOFREE char *s = strdup(...); freed when s leaves its scope. */
#define CDI_AUTOFREE __attribute__((cleanup(cdi_auto_free_)))
/* CDI_AUTOCLOSE int fd = open(...); closed when fd leaves its scope, unless negative. */
#define CDI_AUTOCLOSE __attribute__((cleanup(cdi_auto_close_)))

/* Takes a pointer out of a CDI_AUTOFREE variable: return cdi_steal(&s). */
#define cdi_steal(p)                         \
    __extension__({                          \
        __typeof__(*(p)) cdi_stolen_ = *(p); \
        *(p) = NULL;                         \
        cdi_stolen_;                         \
    })

static inline int cdi_steal_fd(int *fd)
{
    int stolen = *fd;

    *fd = -1;
    return stolen;
}

#endif
