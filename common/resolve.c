/* SPDX-License-Identifier: Apache-2.0 */
#include "common/resolve.h"

#include <netdb.h>
#include <string.h>
#include <strings.h>

bool cdi_is_localhost(const char *host)
{
    static const char name[] = "localhost";
    size_t len = strlen(host), n = sizeof name - 1;

    if (len > 0 && host[len - 1] == '.') /* the root's dot */
        len--;
    if (len < n || strncasecmp(host + len - n, name, n) != 0)
        return false;
    return len == n || host[len - n - 1] == '.';
}

int cdi_resolve(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    struct addrinfo loopback = *hints;
    int rc = getaddrinfo(host, service, hints, out);

    if (rc == 0 || rc == EAI_MEMORY || rc == EAI_SYSTEM || !cdi_is_localhost(host))
        return rc;
    /* With neither a host nor AI_PASSIVE, getaddrinfo returns the loopback addresses without a query. */
    loopback.ai_flags = (loopback.ai_flags & ~AI_PASSIVE) | AI_NUMERICSERV;
    return getaddrinfo(NULL, service != NULL ? service : "0", &loopback, out);
}

bool cdi_is_repeated(const struct addrinfo *list, const struct addrinfo *entry)
{
    for (; list != NULL && list != entry; list = list->ai_next)
        if (list->ai_addrlen == entry->ai_addrlen && memcmp(list->ai_addr, entry->ai_addr, entry->ai_addrlen) == 0)
            return true;
    return false;
}
