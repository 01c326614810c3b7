/* SPDX-License-Identifier: Apache-2.0 */
#include "common/address.h"

#include "common/env.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void address_text_v4(const void *ip, in_port_t port, char text[CDI_ADDRESS_TEXT])
{
    char host[INET_ADDRSTRLEN] = "?";

    (void)inet_ntop(AF_INET, ip, host, sizeof host);
    (void)snprintf(text, CDI_ADDRESS_TEXT, "%s:%d", host, ntohs(port));
}

void cdi_address_text(const struct sockaddr *a, char text[CDI_ADDRESS_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;

    if (a->sa_family != AF_INET6) {
        memcpy(&v4, a, sizeof v4);
        address_text_v4(&v4.sin_addr, v4.sin_port, text);
        return;
    }
    memcpy(&v6, a, sizeof v6);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
        address_text_v4(&v6.sin6_addr.s6_addr[12], v6.sin6_port, text);
        return;
    }
    (void)inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
    (void)snprintf(text, CDI_ADDRESS_TEXT, "[%s]:%d", host, ntohs(v6.sin6_port));
}

bool cdi_address_parse(const char *text, struct cdi_address *a)
{
    char host[CDI_ADDRESS_TEXT];
    const char *colon = strrchr(text, ':');
    bool v6 = text[0] == '[';
    int64_t port;
    size_t len;

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
        return inet_pton(AF_INET6, host, &a->u.v6.sin6_addr) == 1;
    }
    a->len = sizeof a->u.v4;
    a->u.v4.sin_family = AF_INET;
    a->u.v4.sin_port = htons((uint16_t)port);
    return inet_pton(AF_INET, host, &a->u.v4.sin_addr) == 1;
}
