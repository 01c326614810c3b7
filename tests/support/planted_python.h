/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a made-up Python 3.11 with two threads, and access to such memory that checks every address. */
#ifndef CDI_TEST_PLANTED_PYTHON_H
#define CDI_TEST_PLANTED_PYTHON_H

#include "launcher/process/python_decode.h"

#include <string.h>

#define PLANTED_BASE 0x10000u
#define PLANTED_SIZE 0x4000u

/* Places in the memory, from its beginning. */
#define PLANTED_RUNTIME 0x000u
#define PLANTED_INTERP 0x400u
#define PLANTED_THREAD 0x600u /* the main thread */
#define PLANTED_OTHER 0x800u  /* the one that was started later */
#define PLANTED_CFRAME 0xA00u
#define PLANTED_FRAME 0xB00u /* the innermost of 4, each of 0x80 bytes */
#define PLANTED_CODE 0x1000u /* of 4, each of 0x100 bytes */
#define PLANTED_TYPE 0x1500u
#define PLANTED_TEXT 0x1800u /* of 8, each of 0x200 bytes */
#define PLANTED_TABLE 0x2800u

struct planted {
    const uint8_t *bytes;
    size_t n;
    size_t reads_left;
};

static inline bool planted_read(void *arg, uint64_t at, void *to, size_t n)
{
    struct planted *p = arg;

    if (p->reads_left == 0 || at < PLANTED_BASE || at - PLANTED_BASE > p->n || n > p->n - (at - PLANTED_BASE))
        return false;
    p->reads_left--;
    if (n > 0)
        memcpy(to, p->bytes + (at - PLANTED_BASE), n);
    return true;
}

static inline void planted_put(uint8_t *memory, uint32_t at, uint64_t value)
{
    memcpy(memory + at, &value, sizeof value);
}

static inline void planted_put_int(uint8_t *memory, uint32_t at, uint32_t value)
{
    memcpy(memory + at, &value, sizeof value);
}

/* An ASCII text as a str of 3.11. */
static inline void planted_put_text(uint8_t *memory, uint32_t at, const char *text)
{
    planted_put(memory, at + 16, strlen(text));
    planted_put_int(memory, at + 32, 1u << 2 | 3u << 5); /* kind 1, compact, ascii */
    memcpy(memory + at + 48, text, strlen(text) + 1);
}

static inline void planted_put_code(uint8_t *memory, uint32_t i, const char *name, const char *file)
{
    static const uint8_t lines[] = {0x80 | 13 << 3 | 3, 4, 0x80 | 11 << 3 | 7, 0, 0}; /* 4 units at +2, 8 at +1 */
    uint32_t code = PLANTED_CODE + i * 0x100, text = PLANTED_TEXT + i * 0x400, table = PLANTED_TABLE + i * 0x40;

    planted_put(memory, code + 8, PLANTED_BASE + PLANTED_TYPE);
    planted_put_int(memory, code + 72, 10 * (i + 1)); /* the first line */
    planted_put(memory, code + 112, PLANTED_BASE + text + 0x200);
    planted_put(memory, code + 128, PLANTED_BASE + text);
    planted_put(memory, code + 136, PLANTED_BASE + table);
    planted_put_text(memory, text, name);
    planted_put_text(memory, text + 0x200, file);
    planted_put(memory, table + 16, sizeof lines);
    memcpy(memory + table + 32, lines, sizeof lines);
}

/* The main thread is in inner (line 13), called by outer (22), called by <module> (33); the other one in wait (42). */
static inline void planted_make(uint8_t memory[PLANTED_SIZE])
{
    static const char *const names[] = {"inner", "outer", "<module>", "Event.wait"};
    static const char *const files[] = {"train.py", "/x/lib/python3.11/site-packages/torch/nn.py", "train.py",
                                        "/usr/lib/python3.11/threading.py"};
    static const uint32_t places[] = {8, 0, 16, 2};

    memset(memory, 0, PLANTED_SIZE);
    planted_put(memory, PLANTED_RUNTIME + 40, PLANTED_BASE + PLANTED_INTERP);
    planted_put(memory, PLANTED_RUNTIME + 368, PLANTED_BASE + PLANTED_OTHER);
    planted_put_int(memory, PLANTED_RUNTIME + 376, 1);
    planted_put(memory, PLANTED_INTERP + 16, PLANTED_BASE + PLANTED_OTHER);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t thread = i == 0 ? PLANTED_THREAD : PLANTED_OTHER, cframe = PLANTED_CFRAME + i * 0x40;

        planted_put(memory, thread + 8, i == 0 ? 0 : PLANTED_BASE + PLANTED_THREAD);
        planted_put(memory, thread + 16, PLANTED_BASE + PLANTED_INTERP);
        planted_put(memory, thread + 152, 0x7000 + i);
        planted_put(memory, thread + 160, 100 + i);
        planted_put(memory, thread + 56, PLANTED_BASE + cframe);
        planted_put(memory, cframe + 8, PLANTED_BASE + PLANTED_FRAME + (i == 0 ? 0 : 3 * 0x80));
    }
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t frame = PLANTED_FRAME + i * 0x80;

        planted_put(memory, frame + 48, i < 2 ? PLANTED_BASE + frame + 0x80 : 0);
        planted_put(memory, frame + 32, PLANTED_BASE + PLANTED_CODE + i * 0x100);
        planted_put(memory, frame + 56, PLANTED_BASE + PLANTED_CODE + i * 0x100 + 184 + places[i]);
        planted_put_code(memory, i, names[i], files[i]);
    }
    planted_put(memory, PLANTED_TYPE + 24, PLANTED_BASE + PLANTED_TYPE + 0x40);
    memcpy(memory + PLANTED_TYPE + 0x40, "code", 5);
}

#endif
