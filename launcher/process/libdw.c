/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/libdw.h"

#ifdef CDI_LIBDW

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define LIBRARY "libdw.so.1"
#define LIBRARY_CXX "libstdc++.so.6" /* its __cxa_demangle is part of the C++ ABI of Itanium */

static bool libdw_resolve(struct libdw *dw)
{
    static const char *const names[] = {
        "dwfl_begin",
        "dwfl_end",
        "dwfl_linux_proc_report",
        "dwfl_report_end",
        "dwfl_linux_proc_find_elf",
        "dwfl_linux_proc_attach",
        "dwfl_attach_state",
        "dwfl_thread_state_registers",
        "dwfl_thread_state_register_pc",
        "dwfl_getthread_frames",
        "dwfl_frame_pc",
        "dwfl_addrmodule",
        "dwfl_module_addrname",
        "dwfl_module_info",
        "dwfl_module_nextcu",
        "dwarf_haspc",
        "dwarf_getsrc_die",
        "dwarf_linesrc",
        "dwarf_lineno",
        "dwfl_module_addrdie",
        "dwarf_getscopes",
        "dwarf_getscopes_die",
        "dwarf_tag",
        "dwarf_diename",
        "dwarf_attr",
        "dwarf_attr_integrate",
        "dwarf_formstring",
        "dwarf_formudata",
        "dwarf_getsrcfiles",
        "dwarf_filesrc",
        "dwfl_errmsg",
    };
    void *found[sizeof names / sizeof names[0]];

    _Static_assert(sizeof found == sizeof *dw - offsetof(struct libdw, begin), "a name for each function");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if ((found[i] = dlsym(dw->library, names[i])) == NULL)
            return false;
    memcpy((char *)dw + offsetof(struct libdw, begin), found, sizeof found);
    return true;
}

static void find_demangle(struct libdw *dw)
{
    void *library = dlopen(LIBRARY_CXX, RTLD_LAZY | RTLD_LOCAL), *found = NULL;

    if (library != NULL)
        found = dlsym(library, "__cxa_demangle");
    memcpy((char *)dw + offsetof(struct libdw, demangle), &found, sizeof found);
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

#else

typedef int libdw_is_not_used; /* C has no empty sources */

#endif
