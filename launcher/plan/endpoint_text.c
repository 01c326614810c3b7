/* SPDX-License-Identifier: Apache-2.0 */
/* The text of an endpoint: HOST:PORT. */
#include "launcher/plan/endpoint.h"

#include "common/env.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

static cddp_status bad_endpoint(const char *text, const char *from, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_INVALID,
                    "%s '%.200s' is not HOST, HOST:PORT or [IPv6]:PORT with a port from 0 to 65535", from, text);
}

/* fe80::1%eth0 too. */
static bool is_ipv6(const char *host)
{
    char plain[INET6_ADDRSTRLEN + 1];
    size_t n = strcspn(host, "%");
    struct in6_addr a;

    if (n >= sizeof plain || strchr(host, ':') == NULL)
        return false;
    memcpy(plain, host, n);
    plain[n] = '\0';
    return inet_pton(AF_INET6, plain, &a) == 1;
}

bool endpoint_can_be_host(const char *host)
{
    if (strchr(host, ':') != NULL)
        return is_ipv6(host);
    return host[strcspn(host, " \t/,;@?#[]\\\"'")] == '\0';
}

cddp_status endpoint_parse(const char *text, const char *from, char *host, uint16_t *port, struct cdi_error *err)
{
    const char *whole = text, *end, *rest, *colon = strchr(text, ':');
    int64_t number = *port;

    if (text[0] == '[') {
        text++;
        end = strchr(text, ']');
        if (end == NULL || (end[1] != '\0' && end[1] != ':'))
            return bad_endpoint(whole, from, err);
        rest = end[1] == ':' ? end + 2 : NULL;
    } else if (colon != NULL && strchr(colon + 1, ':') == NULL) {
        end = colon;
        rest = colon + 1;
    } else { /* no colon, or so many that it is an IPv6 address */
        end = text + strlen(text);
        rest = NULL;
    }
    if (end == text || end - text > 255 || (rest != NULL && !cdi_parse_int(rest, 0, 65535, &number)))
        return bad_endpoint(whole, from, err);
    memcpy(host, text, (size_t)(end - text));
    host[end - text] = '\0';
    if (!endpoint_can_be_host(host))
        return bad_endpoint(whole, from, err);
    *port = (uint16_t)number;
    return CDDP_OK;
}
