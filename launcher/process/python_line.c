/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of lines of code objects: CPython, Objects/lnotab_notes.txt (up to 3.9, and 3.10) and
 * Objects/locations.md (InternalDocs/code_objects.md; 3.11 and later).
 */
#include "launcher/process/python_decode.h"

#include <limits.h>

#define CODE_UNIT 2         /* bytes of an instruction */
#define LINE_NONE INT64_MIN /* these instructions have no line */

static int32_t line_checked(int64_t line)
{
    return line > 0 && line <= INT32_MAX ? (int32_t)line : 0;
}

/* Pairs: bytes of code, lines to add after them. */
static int32_t line_39(const uint8_t *table, size_t n, int64_t line, int64_t place)
{
    int64_t at = 0;

    for (size_t i = 0; i + 1 < n; i += 2) {
        at += table[i];
        if (at > place)
            break;
        line += (int8_t)table[i + 1];
    }
    return line_checked(line);
}

/* Pairs: bytes of code, lines to add before them; -128: they have none. */
static int32_t line_310(const uint8_t *table, size_t n, int64_t line, int64_t place)
{
    int64_t end = 0;

    for (size_t i = 0; i + 1 < n; i += 2) {
        int8_t more = (int8_t)table[i + 1];

        end += table[i];
        if (more != INT8_MIN)
            line += more;
        if (place < end)
            return more == INT8_MIN ? 0 : line_checked(line);
    }
    return 0;
}

/* A number of groups of six bits, the lowest first; the lowest bit of all is the sign. */
static int64_t line_signed(const uint8_t *table, size_t n, size_t i)
{
    uint64_t value = 0;

    for (uint32_t shift = 0; i < n && shift < 36; shift += 6) {
        value |= (uint64_t)(table[i] & 63) << shift;
        if ((table[i++] & 64) == 0)
            break;
    }
    return (value & 1) != 0 ? -(int64_t)(value >> 1) : (int64_t)(value >> 1);
}

/* How many lines the entry whose first byte is table[i] adds. */
static int64_t line_step(const uint8_t *table, size_t n, size_t i)
{
    uint32_t kind = table[i] >> 3 & 15;

    if (kind == 15)
        return LINE_NONE;
    if (kind >= 13)
        return line_signed(table, n, i + 1);
    return kind >= 10 ? (int64_t)kind - 10 : 0;
}

/* Entries, of which only the first byte has its highest bit set: a kind, and a number of 2-byte units of code. */
static int32_t line_311(const uint8_t *table, size_t n, int64_t line, int64_t place)
{
    int64_t end = 0;

    for (size_t i = 0; i < n;) {
        int64_t more = line_step(table, n, i);

        if ((table[i] & 128) == 0)
            return 0;
        end += 2 * ((table[i] & 7) + 1);
        if (more != LINE_NONE)
            line += more;
        if (place < end)
            return more == LINE_NONE ? 0 : line_checked(line);
        for (i++; i < n && (table[i] & 128) == 0; i++)
            ;
    }
    return 0;
}

int32_t python_line_of(uint32_t version, const uint8_t *table, size_t n, int32_t first_line, int64_t place)
{
    if (place < -CODE_UNIT) /* not in this code: a thread of a build without the GIL runs its own copy */
        return 0;
    if (place < 0)
        return line_checked(first_line);
    if (version <= 0x0309)
        return line_39(table, n, first_line, place);
    return version == 0x030A ? line_310(table, n, first_line, place) : line_311(table, n, first_line, place);
}
