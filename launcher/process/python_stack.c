/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/python_stack.h"

#include "protocol/json_text.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 64
#define MAX_FRAMES 48

bool python_stack_is_python(pid_t pid)
{
    char path[64], line[PATH_MAX + 256];
    bool found = false;
    FILE *f;

    (void)snprintf(path, sizeof path, "/proc/%ld/maps", (long)pid);
    f = fopen(path, "re");
    if (f == NULL)
        return false;
    /* Modules such as _json.cpython-311.so do not begin like this. */
    while (!found && fgets(line, sizeof line, f) != NULL) {
        const char *slash = strrchr(line, '/');

        found = slash != NULL && (strncmp(slash, "/libpython3", strlen("/libpython3")) == 0 ||
                                  strncmp(slash, "/python", strlen("/python")) == 0);
    }
    (void)fclose(f);
    return found;
}

/* -------------------------------------------------------------------------------------------- what py-spy tells ----
 */

void python_stacks_release(struct python_stacks *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; i < s->n; i++)
        free(s->threads[i].frames);
    free(s->threads);
    *s = (struct python_stacks){0};
}

static void take_frame(json_t *json, struct python_frame *f)
{
    const char *file = json_line(json_object_get(json, "short_filename"));
    const json_int_t line = json_integer_value(json_object_get(json, "line"));

    json_cut(f->function, sizeof f->function, json_line(json_object_get(json, "name")));
    if (file == NULL)
        file = json_line(json_object_get(json, "filename"));
    if (file != NULL && strlen(file) >= sizeof f->file) {
        for (file += strlen(file) - (sizeof f->file - 1); ((unsigned char)*file & 0xC0) == 0x80; file++)
            ; /* not in the middle of a character */
    }
    json_cut(f->file, sizeof f->file, file);
    f->line = line > 0 && line <= INT32_MAX ? (int32_t)line : 0;
}

static bool take_thread(json_t *json, pid_t pid, uint32_t max_frames, struct python_thread *t)
{
    const json_t *frames = json_object_get(json, "frames");
    const json_int_t id = json_integer_value(json_object_get(json, "os_thread_id"));
    const char *name = json_line(json_object_get(json, "thread_name"));
    const size_t n = json_array_size(frames);

    *t = (struct python_thread){.native_id = id > 0 ? (uint64_t)id : 0,
                                .has_gil = json_is_true(json_object_get(json, "owns_gil")),
                                .cut = n > max_frames,
                                .n_frames = n > max_frames ? max_frames : (uint32_t)n};
    t->is_main = id > 0 ? id == pid : name != NULL && strcmp(name, "MainThread") == 0;
    if (!t->is_main)
        json_cut(t->name, sizeof t->name, name);
    t->frames = calloc(t->n_frames + 1u, sizeof *t->frames);
    for (uint32_t i = 0; t->frames != NULL && i < t->n_frames; i++)
        take_frame(json_array_get(frames, i), &t->frames[i]);
    return t->frames != NULL;
}

static int by_main_and_number(const void *a, const void *b)
{
    const struct python_thread *x = a, *y = b;

    if (x->is_main != y->is_main)
        return y->is_main - x->is_main;
    return (x->native_id > y->native_id) - (x->native_id < y->native_id);
}

static cddp_status take_threads(const json_t *list, pid_t pid, const struct python_stack_limits *limits,
                                struct python_stacks *out)
{
    const uint32_t max_threads = limits->max_threads != 0 ? limits->max_threads : MAX_THREADS;
    const uint32_t max_frames = limits->max_frames != 0 ? limits->max_frames : MAX_FRAMES;
    const size_t n = json_array_size(list);

    out->threads = calloc(n, sizeof *out->threads);
    if (out->threads == NULL)
        return CDDP_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        if (!take_thread(json_array_get(list, i), pid, max_frames, &out->threads[out->n]))
            return CDDP_E_NOMEM;
        if (out->threads[out->n].n_frames > 0)
            out->n++;
        else
            free(out->threads[out->n].frames);
    }
    qsort(out->threads, out->n, sizeof *out->threads, by_main_and_number);
    for (out->cut = out->n > max_threads; out->n > max_threads;)
        free(out->threads[--out->n].frames);
    return CDDP_OK;
}

cddp_status python_stacks_parse(const char *text, size_t n, pid_t pid, const struct python_stack_limits *limits,
                                struct python_stacks *out, struct cdi_error *err)
{
    static const struct python_stack_limits defaults = {0};
    json_t *list = json_loadb(text, n, JSON_DISABLE_EOF_CHECK, NULL);
    cddp_status st = CDDP_OK;

    *out = (struct python_stacks){0};
    if (!json_is_array(list))
        st = cdi_fail(err, CDDP_E_PROTOCOL, "py-spy has printed no JSON");
    else if (json_array_size(list) > 0 &&
             (st = take_threads(list, pid, limits == NULL ? &defaults : limits, out)) != CDDP_OK)
        st = cdi_fail(err, st, "out of memory");
    if (st == CDDP_OK && out->n == 0)
        st = cdi_fail(err, CDDP_E_NOT_FOUND, "none of its threads runs Python code");
    json_decref(list);
    return st;
}

/* ------------------------------------------------------------------------------------------------------ text ---- */

static bool is_same_frame(const struct python_frame *a, const struct python_frame *b)
{
    return a->line == b->line && strcmp(a->function, b->function) == 0 && strcmp(a->file, b->file) == 0;
}

static bool has_same_frames(const struct python_thread *a, const struct python_thread *b)
{
    if (a->n_frames != b->n_frames || a->cut != b->cut)
        return false;
    for (uint32_t i = 0; i < a->n_frames; i++)
        if (!is_same_frame(&a->frames[i], &b->frames[i]))
            return false;
    return true;
}

/* Is there an earlier thread with the same frames? Then this one stands in its line. */
static bool is_shown(const struct python_stacks *s, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (has_same_frames(&s->threads[k], &s->threads[i]))
            return true;
    return false;
}

static cddp_status put_thread_name(const struct python_thread *t, struct cdi_buf *out)
{
    cddp_status st = cdi_buf_printf(out, t->is_main ? "main thread" : "thread");

    if (st == CDDP_OK && !t->is_main && t->native_id != 0)
        st = cdi_buf_printf(out, " %" PRIu64, t->native_id);
    if (st == CDDP_OK && t->name[0] != '\0')
        st = cdi_buf_printf(out, " '%s'", t->name);
    if (st == CDDP_OK && t->has_gil)
        st = cdi_buf_printf(out, " with the GIL");
    return st;
}

static cddp_status put_threads(const struct python_stacks *s, uint32_t i, struct cdi_buf *out)
{
    cddp_status st = put_thread_name(&s->threads[i], out);

    for (uint32_t k = i + 1; st == CDDP_OK && k < s->n; k++) {
        if (!has_same_frames(&s->threads[i], &s->threads[k]))
            continue;
        st = cdi_buf_printf(out, ", ");
        if (st == CDDP_OK)
            st = put_thread_name(&s->threads[k], out);
    }
    return st == CDDP_OK ? cdi_buf_printf(out, ":\n") : st;
}

/* Writes a frame, once for all calls of a recursion at the same line. */
static cddp_status put_frame(const struct python_frame *f, uint32_t times, struct cdi_buf *out)
{
    cddp_status st = f->line > 0 ? cdi_buf_printf(out, "    %s (%s:%d)", f->function, f->file, f->line)
                                 : cdi_buf_printf(out, "    %s (%s)", f->function, f->file);

    if (st == CDDP_OK && times > 1)
        st = cdi_buf_printf(out, ", %u times", times);
    return st == CDDP_OK ? cdi_buf_printf(out, "\n") : st;
}

static cddp_status put_frames(const struct python_thread *t, struct cdi_buf *out)
{
    cddp_status st = CDDP_OK;

    for (uint32_t i = 0, end; st == CDDP_OK && i < t->n_frames; i = end) {
        for (end = i + 1; end < t->n_frames && is_same_frame(&t->frames[i], &t->frames[end]); end++)
            ;
        st = put_frame(&t->frames[i], end - i, out);
    }
    return st == CDDP_OK && t->cut ? cdi_buf_printf(out, "    ...\n") : st;
}

cddp_status python_stack_text(const struct python_stacks *s, struct cdi_buf *out)
{
    cddp_status st = CDDP_OK;

    for (uint32_t i = 0; st == CDDP_OK && i < s->n; i++) {
        const struct python_thread *t = &s->threads[i];

        if (is_shown(s, i))
            continue;
        st = put_threads(s, i, out);
        if (st == CDDP_OK)
            st = put_frames(t, out);
    }
    if (st == CDDP_OK && s->cut)
        st = cdi_buf_printf(out, "... and more threads\n");
    return st;
}
