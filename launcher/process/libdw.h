/* SPDX-License-Identifier: Apache-2.0 */
/* elfutils' libdw, opened by name: cddprun runs without it. */
#ifndef LIBDW_H
#define LIBDW_H

#include "common/error.h"

#ifdef CDI_LIBDW

#include <dwarf.h>
#include <elfutils/libdwfl.h>
#include <stddef.h>

/* Its functions. */
struct libdw {
    void *library;
    char *(*demangle)(const char *name, char *buf, size_t *size, int *status); /* of C++; NULL: no libstdc++ here */
    __typeof__(&dwfl_begin) begin;
    __typeof__(&dwfl_end) end;
    __typeof__(&dwfl_linux_proc_report) report;
    __typeof__(&dwfl_report_end) report_end;
    __typeof__(&dwfl_linux_proc_find_elf) find_elf;
    __typeof__(&dwfl_linux_proc_attach) attach;
    __typeof__(&dwfl_attach_state) attach_state;
    __typeof__(&dwfl_thread_state_registers) set_registers;
    __typeof__(&dwfl_thread_state_register_pc) set_pc;
    __typeof__(&dwfl_getthread_frames) thread_frames;
    __typeof__(&dwfl_frame_pc) frame_pc;
    __typeof__(&dwfl_addrmodule) module_of;
    __typeof__(&dwfl_module_addrname) name_of;
    __typeof__(&dwfl_module_info) module_info;
    __typeof__(&dwfl_module_nextcu) next_unit;
    __typeof__(&dwarf_haspc) unit_has;
    __typeof__(&dwarf_getsrc_die) unit_line_at;
    __typeof__(&dwarf_linesrc) unit_line_file;
    __typeof__(&dwarf_lineno) unit_line_number;
    __typeof__(&dwfl_module_addrdie) unit_at;
    __typeof__(&dwarf_getscopes) scopes_at;
    __typeof__(&dwarf_getscopes_die) scopes_of;
    __typeof__(&dwarf_tag) tag_of;
    __typeof__(&dwarf_diename) name_of_scope;
    __typeof__(&dwarf_attr) attribute;
    __typeof__(&dwarf_attr_integrate) attribute_integrate;
    __typeof__(&dwarf_formstring) text_of;
    __typeof__(&dwarf_formudata) number_of;
    __typeof__(&dwarf_getsrcfiles) files_of;
    __typeof__(&dwarf_filesrc) file_of;
    __typeof__(&dwfl_errmsg) error_text;
};

/*
 * Opens the library, which then stays open for the life of the process: its caches do not expect to be unloaded. Any
 * thread. CDDP_E_UNSUPPORTED: it is missing, or too old.
 */
cddp_status libdw_open(struct libdw *dw, struct cdi_error *err);

#endif

#endif
