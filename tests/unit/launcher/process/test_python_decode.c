/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "planted_python.h"

CDI_SUITE(python_decode);

static uint8_t memory[PLANTED_SIZE];
static struct python_stacks s;
static struct cdi_error err;

static cddp_status decode(const struct python_stack_limits *limits)
{
    static const struct python_stack_limits defaults = {0};
    struct planted p = {.bytes = memory, .n = sizeof memory, .reads_left = 1000000};
    const struct python_memory m = {.read = planted_read, .arg = &p};
    struct python_layout l;

    cr_assert_eq(python_layout_of(&l, 0x030B07F0, NULL, &err), CDDP_OK);
    python_stacks_release(&s);
    return python_decode(&m, &l, PLANTED_BASE + PLANTED_RUNTIME, limits != NULL ? limits : &defaults, &s, &err);
}

static void check_frame(const struct python_thread *t, uint32_t i, const char *function, const char *file, int32_t line)
{
    cr_assert_lt(i, t->n_frames);
    cr_assert_str_eq(t->frames[i].function, function);
    cr_assert_str_eq(t->frames[i].file, file);
    cr_assert_eq(t->frames[i].line, line, "%s: %d", function, t->frames[i].line);
}

Test(python_decode, reads_threads_and_frames)
{
    planted_make(memory);
    cr_assert_eq(decode(NULL), CDDP_OK, "%s", err.msg);
    cr_assert_eq(s.n, 2);
    cr_assert(s.threads[0].has_gil && !s.threads[1].has_gil && !s.cut);
    cr_assert_eq(s.threads[0].native_id, 101);
    cr_assert_eq(s.threads[1].pthread, 0x7000);
    check_frame(&s.threads[0], 0, "Event.wait", "threading.py", 42);
    cr_assert_eq(s.threads[1].n_frames, 3);
    check_frame(&s.threads[1], 0, "inner", "train.py", 13);
    check_frame(&s.threads[1], 1, "outer", "torch/nn.py", 22);
    check_frame(&s.threads[1], 2, "<module>", "train.py", 33);
    python_stacks_release(&s);
}

Test(python_decode, keeps_innermost_frames_and_oldest_thread)
{
    const struct python_stack_limits few = {.max_frames = 2, .max_threads = 1};

    planted_make(memory);
    cr_assert_eq(decode(&few), CDDP_OK, "%s", err.msg);
    cr_assert(s.n == 1 && s.cut && s.threads[0].native_id == 100);
    cr_assert(s.threads[0].n_frames == 2 && s.threads[0].cut);
    check_frame(&s.threads[0], 1, "outer", "torch/nn.py", 22);
    python_stacks_release(&s);
}

Test(python_decode, skips_frames_of_the_interpreter)
{
    planted_make(memory);
    planted_put(memory, PLANTED_FRAME + 0x80 + 32, PLANTED_BASE + PLANTED_TYPE); /* no code object: its type is 0 */
    cr_assert_eq(decode(NULL), CDDP_OK);
    cr_assert_eq(s.threads[1].n_frames, 2);
    check_frame(&s.threads[1], 1, "<module>", "train.py", 33);
    planted_put(memory, PLANTED_FRAME + 0x80 + 32, 0);
    cr_assert_eq(decode(NULL), CDDP_OK);
    cr_assert_eq(s.threads[1].n_frames, 2);
    python_stacks_release(&s);
}

Test(python_decode, ends_circles)
{
    planted_make(memory);
    planted_put(memory, PLANTED_FRAME + 2 * 0x80 + 48, PLANTED_BASE + PLANTED_FRAME); /* of frames */
    cr_assert_eq(decode(NULL), CDDP_OK);
    cr_assert(s.threads[1].n_frames == 48 && s.threads[1].cut);
    planted_make(memory);
    planted_put(memory, PLANTED_FRAME + 32, 0); /* of frames without code */
    planted_put(memory, PLANTED_FRAME + 48, PLANTED_BASE + PLANTED_FRAME);
    cr_assert_eq(decode(NULL), CDDP_OK);
    cr_assert(s.threads[1].n_frames == 0 && s.threads[1].cut);
    planted_make(memory);
    planted_put(memory, PLANTED_THREAD + 8, PLANTED_BASE + PLANTED_OTHER); /* of threads */
    cr_assert_eq(decode(NULL), CDDP_E_PROTOCOL);
    planted_make(memory);
    planted_put(memory, PLANTED_INTERP, PLANTED_BASE + PLANTED_INTERP); /* of interpreters */
    cr_assert_eq(decode(NULL), CDDP_E_PROTOCOL);
    python_stacks_release(&s);
}

Test(python_decode, rejects_what_makes_no_sense)
{
    static const uint32_t pointers[] = {PLANTED_RUNTIME + 40, PLANTED_INTERP + 16, PLANTED_OTHER + 16,
                                        PLANTED_OTHER + 8};
    static const uint64_t values[] = {1, PLANTED_BASE + PLANTED_SIZE, PLANTED_BASE + PLANTED_SIZE - 4, UINT64_MAX,
                                      UINT64_MAX / 2};

    for (size_t i = 0; i < sizeof pointers / sizeof pointers[0]; i++) {
        for (size_t k = 0; k < sizeof values / sizeof values[0]; k++) {
            planted_make(memory);
            planted_put(memory, pointers[i], values[k]);
            cr_assert_eq(decode(NULL), CDDP_E_PROTOCOL, "%zu %zu", i, k);
        }
    }
    planted_make(memory);
    planted_put(memory, PLANTED_RUNTIME + 40, 0);
    cr_assert_eq(decode(NULL), CDDP_E_NOT_FOUND);
    planted_make(memory);
    memcpy(memory + PLANTED_TYPE + 0x40, "cod3", 5); /* nothing is a code object */
    cr_assert_eq(decode(NULL), CDDP_E_NOT_FOUND);
    planted_make(memory);
    planted_put(memory, PLANTED_TEXT + 16, 5000); /* a name that is too long is taken for garbage */
    planted_put(memory, PLANTED_OTHER + 56, 0);
    cr_assert_eq(decode(NULL), CDDP_E_PROTOCOL);
    python_stacks_release(&s);
}

Test(python_decode, reads_other_letters_and_hides_control_characters)
{
    const uint32_t text = PLANTED_TEXT;
    const uint16_t two[] = {'a', 0x4E2D, 0x1B, 0xE9, 0xD800};
    const uint32_t four[] = {0x1F600, 'b', 0x110000, 0x85, 0xFFFFFFFF};
    const uint8_t one[] = {'c', 0xE9, 0x7F, '\n', 'd'};

    planted_make(memory);
    planted_put(memory, text + 16, 5);
    planted_put_int(memory, text + 32, 2u << 2 | 1u << 5);
    memcpy(memory + text + 72, two, sizeof two);
    cr_assert_eq(decode(NULL), CDDP_OK);
    cr_assert_str_eq(s.threads[1].frames[0].function, "a\344\270\255?\303\251?");
    planted_put_int(memory, text + 32, 4u << 2 | 1u << 5);
    memcpy(memory + text + 72, four, sizeof four);
    cr_assert_eq(decode(NULL), CDDP_OK);
    cr_assert_str_eq(s.threads[1].frames[0].function, "\360\237\230\200b???");
    planted_put_int(memory, text + 32, 1u << 2 | 1u << 5);
    memcpy(memory + text + 72, one, sizeof one);
    cr_assert_eq(decode(NULL), CDDP_OK);
    cr_assert_str_eq(s.threads[1].frames[0].function, "c\303\251??d");
    python_stacks_release(&s);
}

Test(python_decode, cuts_long_texts)
{
    char name[300];
    const size_t kept = PYTHON_FUNCTION - 1;

    planted_make(memory);
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    planted_put_text(memory, PLANTED_TEXT, name); /* the file's text follows after 0x200 bytes */
    cr_assert_eq(decode(NULL), CDDP_OK);
    cr_assert_eq(strlen(s.threads[1].frames[0].function), kept);
    memcpy(name + sizeof name - 10, "/train.py", 10);
    planted_put_text(memory, PLANTED_TEXT + 0x200, name);
    cr_assert_eq(decode(NULL), CDDP_OK);
    cr_assert_eq(strlen(s.threads[1].frames[0].file), PYTHON_FILE - 1);
    cr_assert_str_eq(s.threads[1].frames[0].file + PYTHON_FILE - 1 - 9, "/train.py");
    python_stacks_release(&s);
}

Test(python_decode, reads_stated_layout_and_rejects_a_bad_one)
{
    uint64_t offsets[PYTHON_DEBUG_OFFSETS] = {0};
    struct python_layout l;

    cr_assert_eq(python_layout_of(&l, 0x030D00F0, offsets, &err), CDDP_E_UNSUPPORTED); /* no cookie */
    memcpy(offsets, "xdebugpy", 8);
    cr_assert_eq(python_layout_of(&l, 0x030D00F0, offsets, &err), CDDP_E_UNSUPPORTED); /* another version */
    offsets[1] = 0x030D00F0;
    for (uint32_t i = 3; i < PYTHON_DEBUG_OFFSETS; i++)
        offsets[i] = 8 * i;
    cr_assert_eq(python_layout_of(&l, 0x030D00F0, offsets, &err), CDDP_OK);
    cr_assert(l.interpreters_head == 40 && l.frame_back == 29 * 8 && l.text_compact == l.text_ascii + 16);
    cr_assert(l.gil_holder == 18 * 8 && l.text_kind_bit == 2);
    offsets[1] = 0x030E00F0;
    offsets[2] = 1; /* free-threaded */
    cr_assert_eq(python_layout_of(&l, 0x030E00F0, offsets, &err), CDDP_OK);
    cr_assert(l.gil_holder == 0 && l.text_kind_bit == 8);
    offsets[43] = UINT64_MAX;
    cr_assert_eq(python_layout_of(&l, 0x030E00F0, offsets, &err), CDDP_E_UNSUPPORTED);
    cr_assert_eq(python_layout_of(&l, 0x030800F0, offsets, &err), CDDP_E_UNSUPPORTED);
    cr_assert_not_null(strstr(err.msg, "Python 3.8"), "%s", err.msg);
    cr_assert_eq(python_layout_of(&l, 0x031000F0, offsets, &err), CDDP_E_UNSUPPORTED);
}

Test(python_decode, reads_tables_of_lines)
{
    static const uint8_t old[] = {6, 1, 50, 2, 10, 0xFF}, middle[] = {6, 1, 50, 0x80, 10, 0xFF};
    static const uint8_t new[] = {0x80 | 10 << 3 | 1, 0, 0, 0xF8, 0x80 | 14 << 3 | 0, 0x42, 0x01, 0, 0, 0,
                                  0x80 | 13 << 3 | 0, 3};

    cr_assert_eq(python_line_of(0x0309, old, sizeof old, 10, 0), 10);
    cr_assert_eq(python_line_of(0x0309, old, sizeof old, 10, 6), 11);
    cr_assert_eq(python_line_of(0x0309, old, sizeof old, 10, 56), 13);
    cr_assert_eq(python_line_of(0x0309, old, sizeof old, 10, 1000), 12);
    cr_assert_eq(python_line_of(0x030A, middle, sizeof middle, 10, 5), 11);
    cr_assert_eq(python_line_of(0x030A, middle, sizeof middle, 10, 6), 0); /* no line */
    cr_assert_eq(python_line_of(0x030A, middle, sizeof middle, 10, 56), 10);
    cr_assert_eq(python_line_of(0x030A, middle, sizeof middle, 10, 66), 0); /* after the end */
    cr_assert_eq(python_line_of(0x030B, new, sizeof new, 10, 3), 10);
    cr_assert_eq(python_line_of(0x030B, new, sizeof new, 10, 4), 0);
    cr_assert_eq(python_line_of(0x030D, new, sizeof new, 10, 6), 43); /* + (2 | 1 << 6) / 2 */
    cr_assert_eq(python_line_of(0x030F, new, sizeof new, 10, 8), 42); /* - 1 */
    cr_assert_eq(python_line_of(0x030B, new, sizeof new, 10, 10), 0);
    cr_assert_eq(python_line_of(0x030B, new, sizeof new, 10, -2), 10); /* not begun */
    cr_assert_eq(python_line_of(0x030B, NULL, 0, 10, 0), 0);
}

/* Whatever a byte of the memory is, reading ends, and texts are texts. */
Test(python_decode, survives_any_byte)
{
    static const uint8_t values[] = {0, 1, 0x7F, 0x80, 0xFF};

    for (uint32_t at = 0; at < PLANTED_TABLE + 0x100; at++) {
        planted_make(memory);
        memory[at] = values[at % sizeof values];
        (void)decode(NULL);
        for (uint32_t i = 0; i < s.n; i++)
            for (uint32_t k = 0; k < s.threads[i].n_frames; k++)
                for (const char *c = s.threads[i].frames[k].function; *c != '\0'; c++)
                    cr_assert((unsigned char)*c >= 0x20, "byte %u", at);
    }
    python_stacks_release(&s);
}
