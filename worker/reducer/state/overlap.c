/* SPDX-License-Identifier: Apache-2.0 */
/* Sorts the addresses once: memory that overlaps is then side by side. */
#include "worker/reducer/state/overlap.h"

#include "common/cleanup.h"

#include <stdint.h>
#include <stdlib.h>

enum what { DATA, GRAD, BUFFER };

/* The bytes [begin, end) of parameter, or buffer, i. */
struct range {
    uintptr_t begin, end;
    enum what what;
    size_t i;
    const cddp_param *of;
};

static struct range range_of(const cddp_param *p, enum what what, size_t i)
{
    uintptr_t at = (uintptr_t)(what == GRAD ? p->grad : p->data);
    size_t bytes = p->count * cddp_dtype_size(what == GRAD ? p->grad_dtype : p->dtype);

    return (struct range){
        .begin = at, .end = at + bytes < at ? UINTPTR_MAX : at + bytes, .what = what, .i = i, .of = p};
}

static int by_address(const void *a, const void *b)
{
    const struct range *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    if (x->what != y->what)
        return x->what < y->what ? -1 : 1;
    return (x->i > y->i) - (x->i < y->i);
}

/* Returns true if b is the memory of a: the data of two parameters, of which one update is one update of both. */
static bool is_tied(const struct range *a, const struct range *b)
{
    return a->what == DATA && b->what == DATA && a->begin == b->begin && a->of->count == b->of->count &&
           a->of->dtype == b->of->dtype;
}

static cddp_status name_overlap(const struct range *a, const struct range *b, struct cdi_error *err)
{
    static const char *const kinds[] = {"the data of parameter", "the gradient of parameter", "buffer"};
    const char *remedy = a->what == BUFFER || b->what == BUFFER ? "a buffer needs memory without parameters"
                         : a->what != b->what                   ? "each needs its own memory"
                         : a->what == GRAD
                             ? "each parameter needs its own gradient; tied parameters with one gradient are one "
                               "parameter: pass it once"
                             : "tied parameters have the same address, count and type; of fused ones pass either the "
                               "whole or the parts";
    uintptr_t end = a->end < b->end ? a->end : b->end;

    return cdi_fail(err, CDDP_E_INVALID, "%s %zu '%.100s' and %s %zu '%.100s' share %zu bytes of memory: %s",
                    kinds[a->what], a->i, a->of->name, kinds[b->what], b->i, b->of->name, (size_t)(end - b->begin),
                    remedy);
}

/* Records that parameter i is tied to `first`; `last` is the one before i. */
static cddp_status tie(struct cdi_ddp_tied *out, size_t n, size_t first, size_t last, size_t i, struct cdi_error *err)
{
    if (out->first == NULL) {
        out->first = calloc(n + 1, sizeof *out->first); /* never 0 bytes, for which calloc may return NULL */
        out->next = calloc(n + 1, sizeof *out->next);
        if (out->first == NULL || out->next == NULL)
            return cdi_fail(err, CDDP_E_NOMEM, "no memory for the list of %zu tied parameters", n);
        for (size_t k = 0; k < n; k++) {
            out->first[k] = k;
            out->next[k] = n;
        }
    }
    out->first[i] = first;
    out->next[last] = i;
    return CDDP_OK;
}

cddp_status cdi_overlap_find(struct cdi_ddp_tied *out, const cddp_param *params, size_t n, const cddp_param *buffers,
                             size_t n_buffers, struct cdi_error *err)
{
    CDI_AUTOFREE struct range *r = calloc(2 * n + n_buffers + 1, sizeof *r);
    const struct range *model = NULL, *buffer = NULL, *last = NULL; /* those that end last, of parameters and buffers */
    size_t n_ranges = 0;

    if (r == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory to compare %zu parameters", n);
    for (size_t i = 0; i < n; i++) {
        r[n_ranges++] = range_of(&params[i], DATA, i);
        if (params[i].grad != NULL)
            r[n_ranges++] = range_of(&params[i], GRAD, i);
    }
    for (size_t i = 0; i < n_buffers; i++)
        r[n_ranges++] = range_of(&buffers[i], BUFFER, i);
    qsort(r, n_ranges, sizeof *r, by_address);
    for (size_t k = 0; k < n_ranges; k++) {
        bool is_buffer = r[k].what == BUFFER, tied = model != NULL && is_tied(model, &r[k]);

        if (model != NULL && r[k].begin < model->end && !tied)
            return name_overlap(model, &r[k], err);
        if (buffer != NULL && r[k].begin < buffer->end && !is_buffer)
            return name_overlap(buffer, &r[k], err);
        if (tied && tie(out, n, model->i, last->i, r[k].i, err) != CDDP_OK)
            return err->status;
        if (is_buffer)
            buffer = buffer == NULL || r[k].end > buffer->end ? &r[k] : buffer;
        else
            last = &r[k];
        if (!is_buffer && !tied)
            model = &r[k];
    }
    return CDDP_OK;
}

void cdi_overlap_release(struct cdi_ddp_tied *tied)
{
    free(tied->first);
    free(tied->next);
}
