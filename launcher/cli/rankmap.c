/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/cli/rankmap.h"

#include "launcher/cli/options.h"

#include <string.h>

/* Reads the decimal number at *p, which moves past it; -1: there is none, or it is too large for a local rank. */
static int64_t read_rank(const char **p)
{
    int64_t v = 0;
    const char *first = *p;

    for (; **p >= '0' && **p <= '9' && v < OPTIONS_MAX_PROCS; (*p)++)
        v = v * 10 + (**p - '0');
    return *p == first || v >= OPTIONS_MAX_PROCS ? -1 : v;
}

static bool is_streams(char c)
{
    return c >= '0' && c <= '3';
}

/* One "RANK:STREAMS" at *p, which moves to its end. */
static bool read_entry(const char **p, int64_t *rank, unsigned *streams)
{
    *rank = read_rank(p);
    if (*rank < 0 || (*p)[0] != ':' || !is_streams((*p)[1]))
        return false;
    *streams = (unsigned)((*p)[1] - '0');
    *p += 2;
    return true;
}

cddp_status rankmap_check(const char *map, const char *from, struct cdi_error *err)
{
    const char *p = map;
    int64_t rank;
    unsigned streams;

    if (is_streams(map[0]) && map[1] == '\0')
        return CDDP_OK;
    while (read_entry(&p, &rank, &streams)) {
        if (*p == '\0')
            return CDDP_OK;
        if (*p++ != ',')
            break;
    }
    return cdi_fail(err, CDDP_E_INVALID,
                    "%s '%.64s' is neither 0 (none), 1 (stdout), 2 (stderr) or 3 (both) nor a list of them by local "
                    "rank, such as 0:1,12:3",
                    from, map);
}

unsigned rankmap_streams(const char *map, uint32_t local_rank)
{
    unsigned found = 0, streams = 0;
    int64_t rank = -1;

    if (map[1] == '\0')
        return (unsigned)(map[0] - '0');
    for (const char *p = map; read_entry(&p, &rank, &streams) && *p != '\0'; p++)
        found = rank == (int64_t)local_rank ? streams : found;
    return rank == (int64_t)local_rank ? streams : found;
}

bool rankmap_any(const char *map)
{
    if (map[1] == '\0')
        return map[0] != '0';
    for (const char *p = map; (p = strchr(p, ':')) != NULL; p++)
        if (p[1] != '0')
            return true;
    return false;
}

cddp_status rankset_check(const char *set, const char *from, struct cdi_error *err)
{
    for (const char *p = set; read_rank(&p) >= 0; p++) {
        if (*p == '\0')
            return CDDP_OK;
        if (*p != ',')
            break;
    }
    return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' is not a list of numbers, such as 0,4", from, set);
}

bool rankset_has(const char *set, uint32_t local_rank)
{
    for (const char *p = set; p != NULL && *p != '\0'; p += *p == ',')
        if (read_rank(&p) == (int64_t)local_rank)
            return true;
    return set == NULL;
}

unsigned rankmap_filters(const char *filters, char *words)
{
    unsigned n = 0;
    char *out = words, *first = words;

    for (const char *p = filters;; p++) {
        if (p[0] == ',' && p[1] == ',') {
            *out++ = ',';
            p++;
        } else if (*p == ',' || *p == '\0') {
            if (out > first) {
                *out++ = '\0';
                n++;
            }
            first = out;
            if (*p == '\0')
                return n;
        } else {
            *out++ = *p;
        }
    }
}
