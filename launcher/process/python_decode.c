/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/python_decode.h"

#include "common/cleanup.h"

#include <stdlib.h>
#include <string.h>

#define INTERPRETERS_MAX 16
#define THREADS_MAX 4096
#define DEPTH_MAX 20000  /* frames of one thread that are followed */
#define TABLE_MAX 262144 /* bytes of a table of lines */
#define TRIES 8          /* of a thread whose frames change while they are read */
#define TEXT_MAX 4096    /* characters of a name; a longer one is taken for garbage */
#define SHIM_FILE "<shim>"
#define TYPE_CODE "code"   /* tp_name of PyCode_Type */
#define GIL_RUNTIME 0x030B /* up to this version the GIL is the runtime's */

struct decode {
    const struct python_memory *m;
    const struct python_layout *l;
    uint64_t runtime, code_type; /* the latter is 0 until a code object was seen */
    uint32_t max_threads, max_frames;
    bool no_memory;
    bool broken; /* some thread could not be followed to its end */
    uint8_t table[TABLE_MAX];
};

static bool decode_read(const struct decode *d, uint64_t at, void *to, size_t n)
{
    return at != 0 && at <= UINT64_MAX - n && d->m->read(d->m->arg, at, to, n);
}

/* Reads a pointer or a size at base + offset. */
static bool decode_word(const struct decode *d, uint64_t base, uint32_t offset, uint64_t *value)
{
    return base != 0 && base <= UINT64_MAX / 2 && decode_read(d, base + offset, value, sizeof *value);
}

static bool decode_int(const struct decode *d, uint64_t base, uint32_t offset, int32_t *value)
{
    return base != 0 && base <= UINT64_MAX / 2 && decode_read(d, base + offset, value, sizeof *value);
}

/* ---------------------------------------------------------------------------------------------------- texts ---- */

/* Writes one character as UTF-8; question marks stand for control characters and invalid ones. Returns its length. */
static size_t decode_put_char(char out[4], uint32_t c)
{
    if (c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0xD800 && c < 0xE000) || c > 0x10FFFF)
        c = '?';
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 63));
        out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}

static uint32_t decode_char_at(const uint8_t *bytes, size_t i, uint32_t kind)
{
    uint16_t two;
    uint32_t four;

    if (kind == 1)
        return bytes[i];
    if (kind == 2) {
        memcpy(&two, bytes + 2 * i, sizeof two);
        return two;
    }
    memcpy(&four, bytes + 4 * i, sizeof four);
    return four;
}

/* Writes as many characters as have room, with the final NUL. */
static void decode_utf8(const uint8_t *bytes, size_t n, uint32_t kind, char *out, size_t cap)
{
    size_t used = 0;

    for (size_t i = 0; i < n; i++) {
        char c[4];
        size_t len = decode_put_char(c, decode_char_at(bytes, i, kind));

        if (used + len >= cap)
            break;
        memcpy(out + used, c, len);
        used += len;
    }
    out[used] = '\0';
}

/* Reads a str object: its beginning, or its end. */
static bool decode_text(const struct decode *d, uint64_t str, bool end, char *out, size_t cap)
{
    const struct python_layout *l = d->l;
    uint8_t bytes[4 * PYTHON_FILE];
    uint32_t state, kind, flags;
    uint64_t length, data, skip = 0;
    size_t n;

    if (!decode_word(d, str, l->text_length, &length) || length > TEXT_MAX ||
        !decode_read(d, str + l->text_state, &state, sizeof state))
        return false;
    kind = state >> l->text_kind_bit & 7;
    flags = state >> (l->text_kind_bit + 3); /* compact, then ascii */
    if ((kind != 1 && kind != 2 && kind != 4) || (flags & 1) == 0)
        return false;
    n = length < cap - 1 ? (size_t)length : cap - 1;
    if (end)
        skip = length - n;
    data = str + ((flags & 2) != 0 ? l->text_ascii : l->text_compact) + skip * kind;
    if (n > sizeof bytes / 4 || (n > 0 && !decode_read(d, data, bytes, n * kind)))
        return false;
    decode_utf8(bytes, n, kind, out, cap);
    return true;
}

/* Cuts the folder of installed packages, or of the standard library. The rest identifies the file. */
static void decode_shorten(char *path)
{
    static const char *const folders[] = {"/site-packages/", "/dist-packages/"};
    char *hit;

    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        hit = strstr(path, folders[i]);
        if (hit != NULL) {
            hit += strlen(folders[i]);
            memmove(path, hit, strlen(hit) + 1);
            return;
        }
    }
    hit = strstr(path, "/lib/python3.");
    if (hit != NULL)
        hit = strchr(hit + sizeof "/lib/", '/');
    if (hit == NULL)
        return;
    hit++;
    memmove(path, hit, strlen(hit) + 1);
}

/* --------------------------------------------------------------------------------------------------- frames ---- */

/* Is this a code object? Its type has that name. */
static bool decode_is_code(struct decode *d, uint64_t object)
{
    char text[sizeof TYPE_CODE];
    uint64_t type, name;

    if (!decode_word(d, object, d->l->type, &type))
        return false;
    if (d->code_type != 0)
        return type == d->code_type;
    if (!decode_word(d, type, d->l->type_name, &name) || !decode_read(d, name, text, sizeof text) ||
        memcmp(text, TYPE_CODE, sizeof text) != 0)
        return false;
    d->code_type = type;
    return true;
}

/* The place of the instruction in the code, in bytes. */
static bool decode_place(const struct decode *d, uint64_t frame, uint64_t code, int64_t *place)
{
    uint64_t instr;
    int32_t index;

    if (d->l->code_bytes == 0) {
        if (!decode_int(d, frame, d->l->frame_instr, &index))
            return false;
        *place = d->l->version >= 0x030A ? 2 * (int64_t)index : index;
        return true;
    }
    if (!decode_word(d, frame, d->l->frame_instr, &instr))
        return false;
    *place = (int64_t)(instr - (code + d->l->code_bytes));
    return true;
}

static void decode_line(struct decode *d, uint64_t frame, uint64_t code, struct python_frame *out)
{
    const struct python_layout *l = d->l;
    uint64_t table, n;
    int32_t first;
    int64_t place;

    out->line = 0;
    if (!decode_int(d, code, l->code_line, &first) || !decode_place(d, frame, code, &place) ||
        !decode_word(d, code, l->code_table, &table) || !decode_word(d, table, l->bytes_size, &n))
        return;
    if (n > sizeof d->table)
        n = sizeof d->table;
    if (decode_read(d, table + l->bytes_data, d->table, (size_t)n))
        out->line = python_line_of(l->version, d->table, (size_t)n, first, place);
}

static bool decode_frame(struct decode *d, uint64_t frame, uint64_t code, struct python_frame *out)
{
    uint64_t name, file;

    if (!decode_word(d, code, d->l->code_name, &name) || !decode_word(d, code, d->l->code_file, &file) ||
        !decode_text(d, name, false, out->function, sizeof out->function) ||
        !decode_text(d, file, true, out->file, sizeof out->file))
        return false;
    decode_shorten(out->file);
    decode_line(d, frame, code, out);
    return true;
}

/* Adds a frame to the thread, which has room for as many as are wanted. */
static bool decode_add(struct decode *d, struct python_thread *t, uint64_t frame, uint64_t code)
{
    if (t->frames == NULL)
        t->frames = calloc(d->max_frames, sizeof *t->frames);
    if (t->frames == NULL) {
        d->no_memory = true;
        return false;
    }
    if (!decode_frame(d, frame, code, &t->frames[t->n_frames]))
        return false;
    /* 3.12 has a code object for the interpreter's own frames (Python/ceval.c, _PyEval_EvalFrameDefault). */
    t->n_frames += strcmp(t->frames[t->n_frames].file, SHIM_FILE) != 0;
    return true;
}

/*
 * Follows the frames of a thread from the innermost. A frame without a code object is one of the interpreter itself
 * (FRAME_OWNED_BY_CSTACK, FRAME_OWNED_BY_INTERPRETER). The lowest bits of the pointer to the code are flags from 3.14.
 */
static bool decode_frames(struct decode *d, struct python_thread *t, uint64_t frame)
{
    for (uint32_t depth = 0; frame != 0; depth++) {
        uint64_t code;

        if (depth == DEPTH_MAX || !decode_word(d, frame, d->l->frame_code, &code))
            return false;
        code &= ~(uint64_t)7;
        if (code != 0 && decode_is_code(d, code)) {
            if (t->n_frames == d->max_frames) {
                t->cut = true;
                return true;
            }
            if (!decode_add(d, t, frame, code))
                return false;
        }
        if (!decode_word(d, frame, d->l->frame_back, &frame))
            return false;
    }
    return true;
}

/* -------------------------------------------------------------------------------------------------- threads ---- */

/* The innermost frame of a thread; 0: it runs no Python code. */
static bool decode_innermost(const struct decode *d, uint64_t state, uint64_t *frame)
{
    if (!decode_word(d, state, d->l->thread_frame, frame))
        return false;
    /* 3.11 and 3.12 have a _PyCFrame between; a thread that is just starting has none yet. */
    return (d->l->version != 0x030B && d->l->version != 0x030C) || *frame == 0 ||
           decode_word(d, *frame, d->l->cframe_current, frame);
}

/* A thread whose frames cannot be followed to their end keeps those that were read in the last try. */
static bool decode_thread(struct decode *d, uint64_t state, uint64_t interp, struct python_thread *t)
{
    const struct python_layout *l = d->l;
    uint64_t back, frame;

    if (!decode_word(d, state, l->thread_interp, &back) || back != interp ||
        !decode_word(d, state, l->thread_pthread, &t->pthread))
        return false;
    if (l->thread_native != 0 && !decode_word(d, state, l->thread_native, &t->native_id))
        return false;
    for (int i = 0; i < TRIES && !d->no_memory; i++) {
        t->n_frames = 0;
        t->cut = false;
        if (decode_innermost(d, state, &frame) && decode_frames(d, t, frame))
            return true;
    }
    t->cut = true;
    d->broken = true;
    return !d->no_memory;
}

/* Which thread holds the GIL; 0: none, or not known. */
static uint64_t decode_gil(const struct decode *d, uint64_t interp)
{
    uint64_t base = d->l->version <= GIL_RUNTIME ? d->runtime : interp, holder;
    int32_t locked;

    if (d->l->gil_holder == 0 || !decode_int(d, base, d->l->gil_locked, &locked) || locked != 1 ||
        !decode_word(d, base, d->l->gil_holder, &holder))
        return 0;
    return holder;
}

static bool decode_interpreter(struct decode *d, uint64_t interp, struct python_stacks *out)
{
    uint64_t state, holder = decode_gil(d, interp);

    if (!decode_word(d, interp, d->l->interp_threads, &state))
        return false;
    for (uint32_t n = 0; state != 0; n++) {
        struct python_thread *t = &out->threads[out->n];

        if (n == THREADS_MAX)
            return false;
        if (out->n == d->max_threads) {
            /* The oldest thread, the main one, is last: it replaces the youngest that was kept. */
            out->cut = true;
            t = &out->threads[out->n - 1];
            free(t->frames);
        } else {
            out->n++;
        }
        *t = (struct python_thread){.has_gil = state == holder};
        if (!decode_thread(d, state, interp, t) || !decode_word(d, state, d->l->thread_next, &state))
            return false;
    }
    return true;
}

static bool decode_all(struct decode *d, struct python_stacks *out)
{
    uint64_t interp;

    if (!decode_word(d, d->runtime, d->l->interpreters_head, &interp))
        return false;
    for (uint32_t n = 0; interp != 0; n++)
        if (n == INTERPRETERS_MAX || !decode_interpreter(d, interp, out) ||
            !decode_word(d, interp, d->l->interp_next, &interp))
            return false;
    return true;
}

void python_stacks_release(struct python_stacks *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; i < s->n; i++)
        free(s->threads[i].frames);
    free(s->threads);
    *s = (struct python_stacks){0};
}

cddp_status python_decode(const struct python_memory *m, const struct python_layout *l, uint64_t runtime,
                          const struct python_stack_limits *limits, struct python_stacks *out, struct cdi_error *err)
{
    CDI_AUTOFREE struct decode *d = calloc(1, sizeof *d);
    uint32_t n_frames = 0;
    bool ok;

    *out = (struct python_stacks){0};
    if (d == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    d->m = m;
    d->l = l;
    d->runtime = runtime;
    d->max_threads = limits->max_threads > 0 && limits->max_threads < THREADS_MAX ? limits->max_threads : 64;
    d->max_frames = limits->max_frames > 0 && limits->max_frames < DEPTH_MAX ? limits->max_frames : 48;
    out->threads = calloc(d->max_threads, sizeof *out->threads);
    ok = out->threads != NULL && decode_all(d, out);
    for (uint32_t i = 0; out->threads != NULL && i < out->n; i++)
        n_frames += out->threads[i].n_frames;
    if (d->no_memory || out->threads == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    out->torn = d->broken;
    if (!ok || (d->broken && n_frames == 0))
        return cdi_fail(err, CDDP_E_PROTOCOL, "its Python data cannot be followed, or changes too fast");
    return n_frames > 0 ? CDDP_OK : cdi_fail(err, CDDP_E_NOT_FOUND, "none of its threads runs Python code");
}
