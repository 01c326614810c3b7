/* SPDX-License-Identifier: Apache-2.0 */
#include "common/address.h"

#include "common/env.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

void cdi_address_host(const struct sockaddr *a, char text[CDI_HOST_TEXT])
{
    char name[IF_NAMESIZE];
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;
    size_t len;

    text[0] = '\0';
    if (a->sa_family == AF_INET) {
        memcpy(&v4, a, sizeof v4);
        (void)inet_ntop(AF_INET, &v4.sin_addr, text, CDI_HOST_TEXT);
    }
    if (a->sa_family != AF_INET6)
        return;
    memcpy(&v6, a, sizeof v6);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
        (void)inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, CDI_HOST_TEXT);
        return;
    }
    (void)inet_ntop(AF_INET6, &v6.sin6_addr, text, CDI_HOST_TEXT);
    len = strlen(text);
    if (v6.sin6_scope_id != 0 && if_indextoname(v6.sin6_scope_id, name) != NULL)
        (void)snprintf(text + len, CDI_HOST_TEXT - len, "%%%s", name);
    else if (v6.sin6_scope_id != 0)
        (void)snprintf(text + len, CDI_HOST_TEXT - len, "%%%u", v6.sin6_scope_id);
}

uint16_t cdi_address_port(const struct sockaddr *a)
{
    struct sockaddr_in four; /* the port is at the same place in both */

    if (a->sa_family != AF_INET && a->sa_family != AF_INET6)
        return 0;
    memcpy(&four, a, sizeof four);
    return ntohs(four.sin_port);
}

void cdi_address_set_port(struct sockaddr *a, uint16_t port)
{
    _Static_assert(offsetof(struct sockaddr_in, sin_port) == offsetof(struct sockaddr_in6, sin6_port),
                   "the same place");
    port = htons(port);
    if (a->sa_family == AF_INET || a->sa_family == AF_INET6)
        memcpy((char *)a + offsetof(struct sockaddr_in, sin_port), &port, sizeof port);
}

bool cdi_address_is_loopback(const struct sockaddr *a)
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;

    if (a->sa_family == AF_INET) {
        memcpy(&v4, a, sizeof v4);
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    }
    if (a->sa_family != AF_INET6)
        return false;
    memcpy(&v6, a, sizeof v6);
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

void cdi_address_text(const struct sockaddr *a, char text[CDI_ADDRESS_TEXT])
{
    char host[CDI_HOST_TEXT];

    cdi_address_host(a, host);
    (void)snprintf(text, CDI_ADDRESS_TEXT, strchr(host, ':') != NULL ? "[%s]:%d" : "%s:%d",
                   host[0] != '\0' ? host : "?", cdi_address_port(a));
}

/* The number of an interface, from its name or its number. */
static bool parse_scope(const char *text, uint32_t *scope)
{
    int64_t number;

    *scope = if_nametoindex(text);
    if (*scope == 0 && cdi_parse_int(text, 1, UINT32_MAX, &number))
        *scope = (uint32_t)number;
    return *scope != 0;
}

bool cdi_address_parse(const char *text, struct cdi_address *a)
{
    char host[CDI_ADDRESS_TEXT];
    const char *colon = strrchr(text, ':');
    bool v6 = text[0] == '[';
    int64_t port;
    size_t len;
    char *scope;

    if (colon == NULL || !cdi_parse_int(colon + 1, 1, 65535, &port))
        return false;
    len = (size_t)(colon - text);
    if (len >= sizeof host || len < 2 || (v6 && text[len - 1] != ']'))
        return false;
    memset(a, 0, sizeof *a);
    memcpy(host, text + v6, len - 2 * v6);
    host[len - 2 * v6] = '\0';
    if (v6) {
        a->len = sizeof a->u.v6;
        a->u.v6.sin6_family = AF_INET6;
        a->u.v6.sin6_port = htons((uint16_t)port);
        scope = strchr(host, '%');
        if (scope != NULL && !parse_scope(scope + 1, &a->u.v6.sin6_scope_id))
            return false;
        if (scope != NULL)
            *scope = '\0';
        return inet_pton(AF_INET6, host, &a->u.v6.sin6_addr) == 1;
    }
    a->len = sizeof a->u.v4;
    a->u.v4.sin_family = AF_INET;
    a->u.v4.sin_port = htons((uint16_t)port);
    return inet_pton(AF_INET, host, &a->u.v4.sin_addr) == 1;
}

cddp_status cdi_address_without_port(const char *text, const char *host_setting, const char *port_setting,
                                     struct cdi_error *err)
{
    bool in_brackets = text[0] == '[';
    const char *from = in_brackets ? text + 1 : text, *end = from + strcspn(from, in_brackets ? "]" : ":"),
               *colon = in_brackets && *end == ']' ? end + 1 : end;

    if (end == from || end - from > 255 || *colon != ':' || colon[1] == '\0' ||
        colon[1 + strspn(colon + 1, "0123456789")] != '\0')
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID, "%s '%.200s' is an address with a port; give %s=%.*s and %s=%.20s",
                    host_setting, text, host_setting, (int)(end - from), from, port_setting, colon + 1);
}
