/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where CPython keeps what a stack consists of. 3.9 to 3.12: offsets of members that a compiler prints for the headers
 * of these versions (Include/internal/pycore_runtime.h, pycore_interp.h, pycore_frame.h, Include/cpython/pystate.h,
 * frameobject.h, code.h, unicodeobject.h), the same on all 64-bit machines; the tests compare them with every
 * interpreter that they find. 3.13 and later state them at the start of _PyRuntime (_Py_DebugOffsets in
 * Include/internal/pycore_runtime.h, from 3.14 on pycore_debug_offsets.h): the tables have the place of each statement.
 */
#include "launcher/process/python_decode.h"

#include <string.h>

#define LAYOUT_MEMBER_MAX (1u << 21) /* bytes: PyInterpreterState and _PyRuntime are the largest structs */
#define COOKIE "xdebugpy"

static const struct python_layout old_layouts[] = {
    {
        .version = 0x0309,
        .interpreters_head = 32,
        .interp_threads = 8,
        .gil_holder = 360,
        .gil_locked = 368,
        .thread_next = 8,
        .thread_interp = 16,
        .thread_pthread = 176,
        .thread_frame = 24,
        .frame_back = 24,
        .frame_code = 32,
        .frame_instr = 104,
        .code_file = 104,
        .code_name = 112,
        .code_line = 40,
        .code_table = 120,
        .type = 8,
        .type_name = 24,
        .bytes_size = 16,
        .bytes_data = 32,
        .text_state = 32,
        .text_length = 16,
        .text_ascii = 48,
        .text_compact = 72,
        .text_kind_bit = 2,
    },
    {
        .version = 0x030A,
        .interpreters_head = 32,
        .interp_threads = 8,
        .gil_holder = 360,
        .gil_locked = 368,
        .thread_next = 8,
        .thread_interp = 16,
        .thread_pthread = 176,
        .thread_frame = 24,
        .frame_back = 24,
        .frame_code = 32,
        .frame_instr = 96,
        .code_file = 104,
        .code_name = 112,
        .code_line = 40,
        .code_table = 120,
        .type = 8,
        .type_name = 24,
        .bytes_size = 16,
        .bytes_data = 32,
        .text_state = 32,
        .text_length = 16,
        .text_ascii = 48,
        .text_compact = 72,
        .text_kind_bit = 2,
    },
    {
        .version = 0x030B,
        .interpreters_head = 40,
        .interp_threads = 16,
        .gil_holder = 368,
        .gil_locked = 376,
        .thread_next = 8,
        .thread_interp = 16,
        .thread_pthread = 152,
        .thread_native = 160,
        .thread_frame = 56,
        .cframe_current = 8,
        .frame_back = 48,
        .frame_code = 32,
        .frame_instr = 56,
        .code_file = 112,
        .code_name = 128,
        .code_line = 72,
        .code_table = 136,
        .code_bytes = 184,
        .type = 8,
        .type_name = 24,
        .bytes_size = 16,
        .bytes_data = 32,
        .text_state = 32,
        .text_length = 16,
        .text_ascii = 48,
        .text_compact = 72,
        .text_kind_bit = 2,
    },
    {
        .version = 0x030C,
        .interpreters_head = 40,
        .interp_threads = 72,
        .gil_holder = 1048,
        .gil_locked = 1056,
        .thread_next = 8,
        .thread_interp = 16,
        .thread_pthread = 136,
        .thread_native = 144,
        .thread_frame = 56,
        .frame_back = 8,
        .frame_code = 0,
        .frame_instr = 56,
        .code_file = 112,
        .code_name = 128,
        .code_line = 68,
        .code_table = 136,
        .code_bytes = 192,
        .type = 8,
        .type_name = 24,
        .bytes_size = 16,
        .bytes_data = 32,
        .text_state = 32,
        .text_length = 16,
        .text_ascii = 40,
        .text_compact = 56,
        .text_kind_bit = 2,
    },
};

/* Which words of _Py_DebugOffsets state the members, in one version. */
struct debug_words {
    uint32_t version;
    uint8_t interpreters_head, interp_next, interp_threads, gil_locked, gil_holder, thread_next, thread_interp,
        thread_frame, thread_pthread, thread_native, frame_back, frame_code, frame_instr, code_file, code_name,
        code_table, code_line, code_bytes, type, type_name, bytes_size, bytes_data, text_state, text_length, text_ascii;
};

static const struct debug_words debug_words[] = {
    {0x030D, 5, 8, 9, 17, 18, 21, 22, 23, 24, 25, 29, 30, 31, 35, 37, 38, 39, 43, 45, 47, 65, 66, 68, 69, 70},
    {0x030E, 5, 8, 9, 18, 19, 24, 25, 26, 27, 28, 32, 33, 34, 40, 42, 43, 44, 48, 51, 53, 75, 76, 78, 79, 80},
    {0x030F, 5, 8, 9, 18, 19, 24, 25, 26, 30, 31, 40, 41, 42, 48, 50, 51, 52, 56, 59, 61, 87, 88, 90, 91, 92},
};

/* Reads one member's place; false if none can be there. */
static bool layout_take(uint32_t *to, const uint64_t offsets[PYTHON_DEBUG_OFFSETS], uint8_t word)
{
    *to = (uint32_t)offsets[word];
    return offsets[word] < LAYOUT_MEMBER_MAX;
}

static bool layout_take_all(struct python_layout *out, const struct debug_words *w,
                            const uint64_t offsets[PYTHON_DEBUG_OFFSETS])
{
    const struct {
        uint32_t *to;
        uint8_t word;
    } members[] = {
        {&out->interpreters_head, w->interpreters_head},
        {&out->interp_next, w->interp_next},
        {&out->interp_threads, w->interp_threads},
        {&out->gil_holder, w->gil_holder},
        {&out->gil_locked, w->gil_locked},
        {&out->thread_next, w->thread_next},
        {&out->thread_interp, w->thread_interp},
        {&out->thread_pthread, w->thread_pthread},
        {&out->thread_native, w->thread_native},
        {&out->thread_frame, w->thread_frame},
        {&out->frame_back, w->frame_back},
        {&out->frame_code, w->frame_code},
        {&out->frame_instr, w->frame_instr},
        {&out->code_file, w->code_file},
        {&out->code_name, w->code_name},
        {&out->code_line, w->code_line},
        {&out->code_table, w->code_table},
        {&out->code_bytes, w->code_bytes},
        {&out->type, w->type},
        {&out->type_name, w->type_name},
        {&out->bytes_size, w->bytes_size},
        {&out->bytes_data, w->bytes_data},
        {&out->text_state, w->text_state},
        {&out->text_length, w->text_length},
        {&out->text_ascii, w->text_ascii},
    };

    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        if (!layout_take(members[i].to, offsets, members[i].word))
            return false;
    return true;
}

static cddp_status layout_from_debug(struct python_layout *out, const struct debug_words *w,
                                     const uint64_t offsets[PYTHON_DEBUG_OFFSETS], struct cdi_error *err)
{
    bool free_threaded = offsets[2] != 0;

    *out = (struct python_layout){.version = w->version};
    if (memcmp(offsets, COOKIE, sizeof COOKIE - 1) != 0 || offsets[1] >> 16 != w->version ||
        !layout_take_all(out, w, offsets))
        return cdi_fail(err, CDDP_E_UNSUPPORTED, "Python 3.%u states no layout of its memory that makes sense",
                        w->version & 0xFF);
    /* utf8_length and utf8 follow PyASCIIObject in PyCompactUnicodeObject. */
    out->text_compact = out->text_ascii + 16;
    /* Without a GIL, 3.14 has the whole first byte for `interned` (Include/cpython/unicodeobject.h). */
    out->text_kind_bit = free_threaded && w->version >= 0x030E ? 8 : 2;
    if (free_threaded)
        out->gil_holder = 0;
    return CDDP_OK;
}

cddp_status python_layout_of(struct python_layout *out, uint32_t version_hex,
                             const uint64_t offsets[PYTHON_DEBUG_OFFSETS], struct cdi_error *err)
{
    uint32_t version = version_hex >> 16;

    for (size_t i = 0; i < sizeof old_layouts / sizeof old_layouts[0]; i++) {
        if (old_layouts[i].version == version) {
            *out = old_layouts[i];
            return CDDP_OK;
        }
    }
    for (size_t i = 0; i < sizeof debug_words / sizeof debug_words[0]; i++)
        if (debug_words[i].version == version)
            return layout_from_debug(out, &debug_words[i], offsets, err);
    return cdi_fail(err, CDDP_E_UNSUPPORTED, "the memory layout of Python %u.%u is not known", version >> 8,
                    version & 0xFF);
}
