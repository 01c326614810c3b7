/* SPDX-License-Identifier: Apache-2.0 */
/* elfutils' libdw, opened by name: cddprun runs without it. */
#ifndef LIBDW_H
#define LIBDW_H

#include "common/error.h"

#include <dwarf.h>
#include <elfutils/libdwfl.h>
#include <stddef.h>

/* X(member, function of the library) */
#define LIBDW_MAP(X)                              \
    X(begin, dwfl_begin)                          \
    X(end, dwfl_end)                              \
    X(report, dwfl_linux_proc_report)             \
    X(report_end, dwfl_report_end)                \
    X(find_elf, dwfl_linux_proc_find_elf)         \
    X(attach, dwfl_linux_proc_attach)             \
    X(attach_state, dwfl_attach_state)            \
    X(set_registers, dwfl_thread_state_registers) \
    X(set_pc, dwfl_thread_state_register_pc)      \
    X(thread_frames, dwfl_getthread_frames)       \
    X(frame_pc, dwfl_frame_pc)                    \
    X(module_of, dwfl_addrmodule)                 \
    X(name_of, dwfl_module_addrname)              \
    X(module_info, dwfl_module_info)              \
    X(next_unit, dwfl_module_nextcu)              \
    X(unit_has, dwarf_haspc)                      \
    X(unit_line_at, dwarf_getsrc_die)             \
    X(unit_line_file, dwarf_linesrc)              \
    X(unit_line_number, dwarf_lineno)             \
    X(unit_at, dwfl_module_addrdie)               \
    X(scopes_at, dwarf_getscopes)                 \
    X(scopes_of, dwarf_getscopes_die)             \
    X(tag_of, dwarf_tag)                          \
    X(name_of_scope, dwarf_diename)               \
    X(attribute, dwarf_attr)                      \
    X(attribute_integrate, dwarf_attr_integrate)  \
    X(text_of, dwarf_formstring)                  \
    X(number_of, dwarf_formudata)                 \
    X(files_of, dwarf_getsrcfiles)                \
    X(file_of, dwarf_filesrc)                     \
    X(error_text, dwfl_errmsg)

struct libdw {
    void *library;
    char *(*demangle)(const char *name, char *buf, size_t *size, int *status); /* of C++; NULL: no libstdc++ here */
#define X(member, function) __typeof__(&(function)) member;                    /* NOLINT(bugprone-macro-parentheses) */
    LIBDW_MAP(X)
#undef X
};

/*
 * Opens the library, which then stays open for the life of the process: its caches do not expect to be unloaded. Any
 * thread. CDDP_E_UNSUPPORTED: it is missing, or too old.
 */
cddp_status libdw_open(struct libdw *dw, struct cdi_error *err);

#endif
