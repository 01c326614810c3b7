/* SPDX-License-Identifier: Apache-2.0 */
#include "common/env.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *cdi_env_str(const char *name)
{
    const char *value = getenv(name);

    return value == NULL || *value == '\0' ? NULL : value;
}

bool cdi_env_has(const char *name)
{
    return cdi_env_str(name) != NULL;
}

bool cdi_parse_int(const char *text, int64_t min, int64_t max, int64_t *out)
{
    char *end;
    long long v;

    if ((*text < '0' || *text > '9') && *text != '-')
        return false;
    errno = 0;
    v = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || v < min || v > max)
        return false;
    *out = v;
    return true;
}

bool cdi_parse_size(const char *text, int64_t max, int64_t *out)
{
    static const char units[] = "KMG";
    const char *unit;
    char *end;
    long long v;

    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    v = strtoll(text, &end, 10);
    unit = *end == '\0' ? NULL : strchr(units, *end);
    if (unit != NULL && __builtin_mul_overflow(v, 1LL << 10 * (unit - units + 1), &v))
        return false;
    if (errno != 0 || end[unit != NULL] != '\0' || v < 1 || v > max)
        return false;
    *out = v;
    return true;
}

cddp_status cdi_env_int(const char *name, int64_t min, int64_t max, int64_t *out, struct cdi_error *err)
{
    const char *text = cdi_env_str(name);

    if (text == NULL)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "%s is not set", name);
    if (!cdi_parse_int(text, min, max, out))
        return cdi_fail(err, CDDP_E_INVALID, "%s='%.64s' is not a whole number from %" PRId64 " to %" PRId64, name,
                        text, min, max);
    return CDDP_OK;
}

cddp_status cdi_env_int_or(const char *name, int64_t min, int64_t max, int64_t fallback, int64_t *out,
                           struct cdi_error *err)
{
    if (!cdi_env_has(name)) {
        *out = fallback;
        return CDDP_OK;
    }
    return cdi_env_int(name, min, max, out, err);
}

bool cdi_parse_ports(const char *text, uint16_t *first, uint16_t *last)
{
    const char *dash = strchr(text, '-');
    char low[8];
    int64_t from, to;

    if (dash == NULL || (size_t)(dash - text) >= sizeof low)
        return false;
    memcpy(low, text, (size_t)(dash - text));
    low[dash - text] = '\0';
    if (!cdi_parse_int(low, 1, UINT16_MAX, &from) || !cdi_parse_int(dash + 1, from, UINT16_MAX, &to))
        return false;
    *first = (uint16_t)from;
    *last = (uint16_t)to;
    return true;
}
