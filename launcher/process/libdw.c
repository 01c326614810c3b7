/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/libdw.h"

#include <dlfcn.h>
#include <stdbool.h>

#define LIBRARY "libdw.so.1"
#define LIBRARY_CXX "libstdc++.so.6" /* its __cxa_demangle is part of the C++ ABI of Itanium */

static bool libdw_resolve(struct libdw *dw)
{
    void *at;

#define X(member, function)                           \
    if ((at = dlsym(dw->library, #function)) == NULL) \
        return false;                                 \
    *(void **)&dw->member = at;
    LIBDW_MAP(X)
#undef X
    return true;
}

static void find_demangle(struct libdw *dw)
{
    void *library = dlopen(LIBRARY_CXX, RTLD_LAZY | RTLD_LOCAL);

    if (library != NULL)
        *(void **)&dw->demangle = dlsym(library, "__cxa_demangle");
}

cddp_status libdw_open(struct libdw *dw, struct cdi_error *err)
{
    dw->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (dw->library == NULL)
        return cdi_fail(err, CDDP_E_UNSUPPORTED,
                        "%s is missing: install elfutils' library (Debian: libdw1, Fedora: elfutils-libs)", LIBRARY);
    if (!libdw_resolve(dw))
        return cdi_fail(err, CDDP_E_UNSUPPORTED, "%s is too old: install elfutils 0.170 or newer", LIBRARY);
    find_demangle(dw);
    return CDDP_OK;
}
