/* SPDX-License-Identifier: Apache-2.0 */
/* Names and lines of the source for the addresses of frames. */
#include "launcher/process/unwind.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/visible.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------------------------------- names ---- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

/* Appends a name of the process's own. */
static cddp_status append_name(struct cdi_buf *out, const char *before, const char *name)
{
    char text[200];

    (void)cdi_visible_line(text, sizeof text, name, strlen(name));
    return cdi_buf_printf(out, "%s%s", before, text);
}

/* FUNCTION(), or FUNCTION(TYPES) of C++. A part that a compiler has moved or copied has the name of the whole. */
static cddp_status append_function(const struct unwind *u, const char *symbol, struct cdi_buf *out)
{
    static const char *const parts[] = {".cold", ".part.", ".constprop.", ".isra.", ".lto_priv."};
    CDI_AUTOFREE char *function = strdup(symbol), *plain = NULL;
    cddp_status st;
    int result;

    if (function == NULL)
        return CDDP_E_NOMEM;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char *part = strstr(function, parts[i]);

        if (part != NULL && part != function)
            *part = '\0';
    }
    if (u->dw.demangle != NULL && strncmp(function, "_Z", 2) == 0)
        plain = u->dw.demangle(function, NULL, NULL, &result);
    st = append_name(out, " ", plain != NULL ? plain : function);
    if (st == CDDP_OK && (plain == NULL || strchr(plain, '(') == NULL))
        st = cdi_buf_append(out, "()", 2);
    return st;
}

/* ----------------------------------------------------------------------------------------------------- lines ---- */

struct place {
    const char *file; /* NULL: not known */
    int line;
};

/* Where an address is in the source. */
struct source {
    struct place at;
    bool is_inlined;
    const char *inlined;  /* the innermost function that is inlined there; NULL: not known */
    struct place call_at; /* and where the whole function calls it, or calls the one that calls it */
};

/*
 * The unit of the source that has this address. The table of addresses (.debug_aranges) also answers for gaps after a
 * unit, and clang does not write it.
 */
static Dwarf_Die *unit_of(const struct unwind *u, Dwfl_Module *module, uint64_t pc, Dwarf_Addr *bias)
{
    Dwarf_Die *unit = cdi_now_ns() >= u->deadline_ns ? NULL : u->dw.unit_at(module, pc, bias);

    if (unit != NULL && u->dw.unit_has(unit, pc - *bias) == 1)
        return unit;
    for (unit = NULL; cdi_now_ns() < u->deadline_ns;) {
        unit = u->dw.next_unit(module, unit, bias);
        if (unit == NULL || u->dw.unit_has(unit, pc - *bias) == 1)
            return unit;
    }
    return NULL;
}

static const char *scope_name(const struct unwind *u, Dwarf_Die *scope)
{
    Dwarf_Attribute memory;
    const char *name = u->dw.text_of(u->dw.attribute_integrate(scope, DW_AT_linkage_name, &memory));

    return name != NULL ? name : u->dw.name_of_scope(scope);
}

/* The place of the call by which a function was inlined. */
static struct place place_of_call(const struct unwind *u, Dwarf_Die *unit, Dwarf_Die *scope)
{
    Dwarf_Attribute memory;
    Dwarf_Files *files;
    Dwarf_Word file, line;

    if (u->dw.number_of(u->dw.attribute(scope, DW_AT_call_file, &memory), &file) != 0 ||
        u->dw.number_of(u->dw.attribute(scope, DW_AT_call_line, &memory), &line) != 0 ||
        u->dw.files_of(unit, &files, NULL) != 0)
        return (struct place){.file = NULL};
    return (struct place){.file = u->dw.file_of(files, file, NULL, NULL), .line = (int)line};
}

static void find_inlined(const struct unwind *u, Dwarf_Die *unit, Dwarf_Addr at, struct source *out)
{
    CDI_AUTOFREE Dwarf_Die *scopes = NULL, *around = NULL;
    const int n = u->dw.scopes_at(unit, at, &scopes);
    int i = 0, n_around;

    while (i < n && u->dw.tag_of(&scopes[i]) != DW_TAG_subprogram &&
           u->dw.tag_of(&scopes[i]) != DW_TAG_inlined_subroutine)
        i++;
    if (i >= n || u->dw.tag_of(&scopes[i]) != DW_TAG_inlined_subroutine)
        return;
    out->is_inlined = true;
    out->inlined = scope_name(u, &scopes[i]);
    n_around =
        u->dw.scopes_of(&scopes[i], &around); /* scopes goes on with those around the inlined function's source */
    for (int k = 0; k < n_around && u->dw.tag_of(&around[k]) != DW_TAG_subprogram; k++)
        if (u->dw.tag_of(&around[k]) == DW_TAG_inlined_subroutine)
            out->call_at = place_of_call(u, unit, &around[k]);
}

/* What the program's debugging information has, if there is time to look for it. */
static void find_source(const struct unwind *u, Dwfl_Module *module, uint64_t pc, struct source *out)
{
    Dwarf_Addr bias = 0;
    Dwarf_Die *unit = unit_of(u, module, pc, &bias);
    Dwarf_Line *line = unit == NULL ? NULL : u->dw.unit_line_at(unit, pc - bias);

    *out = (struct source){.is_inlined = false};
    if (line == NULL || u->dw.unit_line_number(line, &out->at.line) != 0)
        return;
    out->at.file = u->dw.unit_line_file(line, NULL, NULL);
    if (out->at.file != NULL && cdi_now_ns() < u->deadline_ns)
        find_inlined(u, unit, pc - bias, out);
}

static cddp_status append_place(const struct place *p, struct cdi_buf *out)
{
    cddp_status st = append_name(out, " at ", base_name(p->file));

    return st == CDDP_OK ? cdi_buf_printf(out, ":%d", p->line) : st;
}

/* `, inlined NAME() at FILE:LINE`: after the function itself, since a report may cut a long line. */
static cddp_status append_inlined(const struct unwind *u, const struct source *s, struct cdi_buf *out)
{
    cddp_status st = cdi_buf_printf(out, ", inlined");

    if (st == CDDP_OK && s->inlined != NULL)
        st = append_function(u, s->inlined, out);
    return st == CDDP_OK ? append_place(&s->at, out) : st;
}

cddp_status unwind_name(void *arg, uint64_t pc, struct cdi_buf *out)
{
    const struct unwind *u = arg;
    Dwfl_Module *module = u->dw.module_of(u->dwfl, pc);
    const char *function = module == NULL ? NULL : u->dw.name_of(module, pc), *mapped = NULL;
    Dwarf_Addr start = 0;
    const struct place *own;
    struct source source;
    cddp_status st;

    if (module == NULL)
        return cdi_buf_printf(out, " 0x%" PRIx64, pc);
    find_source(u, module, pc, &source);
    mapped = u->dw.module_info(module, NULL, &start, NULL, NULL, NULL, NULL, NULL);
    own = source.is_inlined ? &source.call_at : &source.at;
    st = function == NULL ? cdi_buf_printf(out, " 0x%" PRIx64, pc) : append_function(u, function, out);
    if (st == CDDP_OK && own->file != NULL)
        st = append_place(own, out);
    else if (st == CDDP_OK && mapped != NULL)
        st = append_name(out, " in ", base_name(mapped));
    if (st == CDDP_OK && function == NULL && own->file == NULL)
        st = cdi_buf_printf(out, "+0x%" PRIx64, pc - start); /* for addr2line */
    return st == CDDP_OK && source.is_inlined ? append_inlined(u, &source, out) : st;
}
