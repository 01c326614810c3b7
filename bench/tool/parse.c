/* SPDX-License-Identifier: Apache-2.0 */
#include "parse.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool bench_parse_size(const char *text, size_t *bytes)
{
    static const char units[] = "KMGT";
    const char *unit;
    char *end;
    unsigned long long n;
    double part = 0;
    int shift = 0;

    errno = 0;
    if (!isdigit((unsigned char)*text))
        return false;
    n = strtoull(text, &end, 10);
    if (*end == '.') {
        double digit = 0.1;

        for (end++; isdigit((unsigned char)*end); end++) {
            part += digit * (*end - '0');
            digit /= 10;
        }
    }
    if (isalpha((unsigned char)*end) && (unit = strchr(units, toupper((unsigned char)*end))) != NULL) {
        shift = 10 * (int)(unit - units + 1);
        end++;
        end += *end == 'i';
        end += *end == 'B';
    }
    *bytes = ((size_t)n << shift) + (size_t)ldexp(part, shift);
    return *end == '\0' && errno == 0 && n < (SIZE_MAX / 4) >> shift;
}

bool bench_parse_int(const char *text, int least, int most, int *n)
{
    char *end;
    long v;

    errno = 0;
    v = strtol(text, &end, 0);
    *n = (int)v;
    return end != text && *end == '\0' && errno == 0 && v >= least && v <= most;
}

bool bench_parse_type(const char *text, int *type)
{
    if (strcmp(text, "all") == 0) {
        *type = -1;
        return true;
    }
    for (*type = 0; *type < bench_n_types; ++*type)
        if (strcmp(text, bench_types[*type].name) == 0)
            return true;
    return false;
}

bool bench_parse_op(const char *text, int *op)
{
    if (strcmp(text, "all") == 0) {
        *op = -1;
        return true;
    }
    for (*op = 0; *op < bench_n_ops; ++*op)
        if (strcmp(text, bench_ops[*op].name) == 0)
            return true;
    return false;
}

bool bench_parse_bits(const char *text, int least, int *n)
{
    char *end;
    unsigned long v;

    text += strspn(text, " ");
    errno = 0;
    v = strncasecmp(text, "0b", 2) == 0 ? strtoul(text + 2, &end, 2) : strtoul(text, &end, 0);
    *n = (int)(v & INT_MAX);
    return isdigit((unsigned char)*text) && end != text && *end == '\0' && errno == 0 && *n >= least;
}

bool bench_parse_kind(const char *text, const struct bench_kind **kind)
{
    *kind = NULL;
    for (int i = 0; i < bench_n_kinds; i++) {
        const char *name = bench_kinds[i].name, *rest = text + strlen(name);

        if (strncmp(text, name, strlen(name)) == 0 &&
            (*rest == '\0' || strcmp(rest, "_perf") == 0 || strcmp(rest, "_perf_mpi") == 0))
            *kind = &bench_kinds[i];
    }
    return *kind != NULL || strcmp(text, "all") == 0;
}

bool bench_parse_factor(const char *text, double *factor)
{
    char *end;

    *factor = strtod(text, &end);
    if (end == text || *end != '\0' || !(*factor >= 0 && *factor < 1e9))
        return false;
    if (*factor > 1)
        return true;
    if (*factor > 0 && *factor < 1)
        return false;
    *factor = 0;
    return true;
}
