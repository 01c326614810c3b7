/* SPDX-License-Identifier: Apache-2.0 */
/* Which errors of an address leave the next one to try. */
#include "common/clock.h"
#include "common/dial.h"
#include "hygiene.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

CDI_SUITE(dial);

#define NO_FAMILY (AF_MAX + 1) /* as IPv6 is where the kernel has none */

Test(dial, family_that_the_kernel_lacks_is_an_address_that_does_not_answer)
{
    const struct sockaddr a = {.sa_family = NO_FAMILY};
    struct cdi_dial d = {.fd = -1, .peer = "a server"};
    struct cdi_error err;

    cdi_buf_init(&d.in, 0);
    cdi_buf_init(&d.out, 0);
    cr_assert_eq(cdi_dial_connect(&d, &a, sizeof a, cdi_now_ms() + 1000, &err), CDDP_E_IO);
    cr_assert_eq(err.os_error, EAFNOSUPPORT);
    cr_assert_str_eq(err.msg, strerror(EAFNOSUPPORT));
    cr_assert_eq(d.fd, -1);
}

Test(dial, port_without_a_listener_is_refused)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct cdi_dial d = {.fd = -1, .peer = "a server"};
    socklen_t len = sizeof a;
    struct cdi_error err;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    cdi_buf_init(&d.in, 0);
    cdi_buf_init(&d.out, 0);
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0); /* a port, but no listener */
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    cr_assert_eq(cdi_dial_connect(&d, (struct sockaddr *)&a, sizeof a, cdi_now_ms() + 1000, &err), CDDP_E_IO);
    cr_assert_eq(err.os_error, ECONNREFUSED);
    cr_assert_eq(d.fd, -1);
    (void)close(fd);
}
