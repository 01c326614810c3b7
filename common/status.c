/* SPDX-License-Identifier: Apache-2.0 */
/* Names and texts of status.h. */
#include "common/status.h"

const char *cdi_status_text(cddp_status status)
{
    switch ((int)status) {
#define TEXT(name, number, text) \
    case number:                 \
        return text;
        CDDP_STATUS_MAP(TEXT)
#undef TEXT
    default:
        return "unknown status";
    }
}

const char *cdi_status_name(cddp_status status)
{
    switch ((int)status) {
#define NAME(name, number, text) \
    case number:                 \
        return "CDDP_" #name;
        CDDP_STATUS_MAP(NAME)
#undef NAME
    default:
        return "CDDP_UNKNOWN";
    }
}
