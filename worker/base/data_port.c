/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/base/data_port.h"

#include "common/cleanup.h"
#include "common/env.h"

#include <errno.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#define DATA_PORTS_ENV "CDDP_DATA_PORTS"

/* Returns 0, or an errno. A port of a range may still have the last round's connections, which do not matter. */
static int tcp_listen(const struct cdi_address *a, int *out)
{
    CDI_AUTOCLOSE int fd = socket(a->u.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int reuse = a->u.v4.sin_port != 0; /* at the same offset in both families */

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse) != 0 ||
        bind(fd, &a->u.any, a->len) != 0 || listen(fd, CDI_DATA_BACKLOG) != 0)
        return errno;
    *out = cdi_steal_fd(&fd);
    return 0;
}

cddp_status cdi_data_listen(struct cdi_address *a, int rank, int *out, struct cdi_error *err)
{
    const char *range = cdi_env_str(DATA_PORTS_ENV);
    uint16_t first = 0, last = 0;
    unsigned n;
    int why = EADDRINUSE;
    char text[CDI_ADDRESS_TEXT];

    if (range != NULL && !cdi_parse_ports(range, &first, &last))
        return cdi_fail(err, CDDP_E_INVALID, DATA_PORTS_ENV "='%.64s' is not a range of ports such as 30000-30099",
                        range);
    n = (unsigned)(last - first) + 1;
    for (unsigned i = 0; i < n && why == EADDRINUSE; i++) {
        a->u.v4.sin_port = htons((uint16_t)(first + ((unsigned)rank + i) % n));
        why = tcp_listen(a, out);
    }
    if (why == 0 && getsockname(*out, &a->u.any, &a->len) != 0) {
        why = errno;
        (void)close(*out);
        *out = -1;
    }
    if (why == 0)
        return CDDP_OK;
    if (range != NULL && why == EADDRINUSE)
        return cdi_fail(err, CDDP_E_SYSTEM,
                        "all ports of " DATA_PORTS_ENV "=%.64s are in use on this node; each worker needs one for each "
                        "of its communicators: give a larger range (--data_ports)",
                        range);
    cdi_address_text(&a->u.any, text);
    return cdi_fail_errno(err, why, "cannot listen on %s for the other nodes", text);
}
