/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payloads of RECORDS, CLOCK and TIME: decoded records encode, and decode to the same again; the lines of a trace
 * made from them are whole, and the file ends as it should.
 */
#include "protocol/records.h"
#include "watch/trace/trace_format.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_same(const struct cdi_records *a, const struct cdi_records *b)
{
    if (a->n_colls != b->n_colls || a->n_steps != b->n_steps || a->n_events != b->n_events ||
        a->n_names != b->n_names || a->round != b->round || a->offset_ns != b->offset_ns ||
        a->n_before != b->n_before || memcmp(a->colls, b->colls, a->n_colls * sizeof *a->colls) != 0 ||
        memcmp(a->steps, b->steps, a->n_steps * sizeof *a->steps) != 0)
        abort();
}

/* Adds the records twice, with a clock and without one. */
static void write_trace(const struct cdi_records *r)
{
    const struct trace_clock clocks[] = {{.known = false},
                                         {.known = true, .shift_ns = r->offset_ns, .bound_ns = r->bound_ns}};
    struct trace_format *t;
    struct cdi_buf out;

    cdi_buf_init(&out, 64 * 1024);
    if (trace_format_create(&t, r->host, NULL) != CDDP_OK)
        abort();
    trace_format_head(t, &out);
    for (size_t i = 0; i < 2; i++) {
        trace_format_records(t, r, &clocks[i], &out);
        if (out.len < 2 || memcmp(cdi_buf_data(&out) + out.len - 2, ",\n", 2) != 0)
            abort();
    }
    cdi_buf_consume(&out, out.len);
    trace_format_tail(t, &out);
    if (out.len < 5 || memcmp(cdi_buf_data(&out) + out.len - 5, "}}\n]\n", 5) != 0)
        abort();
    trace_format_destroy(t);
    cdi_buf_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cdi_records r, again;
    struct cdi_clock_time t;
    int64_t asked;
    size_t len;
    char *text;

    (void)cdi_clock_decode_ask(data, size, &asked);
    (void)cdi_clock_decode_time(data, size, &t);
    if (cdi_records_decode(data, size, &r, NULL) != CDDP_OK)
        return 0;
    text = cdi_records_encode(&r, &len);
    if (text == NULL || cdi_records_decode(text, len, &again, NULL) != CDDP_OK)
        abort();
    check_same(&r, &again);
    write_trace(&r);
    free(text);
    cdi_records_release(&r);
    cdi_records_release(&again);
    return 0;
}
