/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internet addresses with a port, and their text: "10.0.0.1:4000", "[fd00::1]:4000", "[fe80::1%eth0]:4000". A
 * link-local address means nothing without its interface, so the text keeps it.
 */
#ifndef CDI_ADDRESS_H
#define CDI_ADDRESS_H

#include "common/error.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define CDI_HOST_TEXT 64    /* "ipv6%interface" */
#define CDI_ADDRESS_TEXT 80 /* "[ipv6%interface]:port" */

struct cdi_address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage room;
    } u;
    socklen_t len; /* 0: none */
};

/* Prints the host of an IPv4 or IPv6 address; "" for another family. */
void cdi_address_host(const struct sockaddr *a, char text[CDI_HOST_TEXT]);
/* Prints an IPv4 or IPv6 address with its port. An IPv4 address mapped into IPv6 is printed as the IPv4 address. */
void cdi_address_text(const struct sockaddr *a, char text[CDI_ADDRESS_TEXT]);
/* Return and set the port of an IPv4 or IPv6 address; 0 and nothing for another family. */
uint16_t cdi_address_port(const struct sockaddr *a);
void cdi_address_set_port(struct sockaddr *a, uint16_t port);
/* Returns whether it is an address of the loopback interface. */
bool cdi_address_is_loopback(const struct sockaddr *a);
/* Reads such a text into *a. Returns false if it is not a numeric address with a port from 1 to 65535. */
bool cdi_address_parse(const char *text, struct cdi_address *a);
/*
 * Checks a host name or an address that a setting gives. Returns CDDP_OK; CDDP_E_INVALID if it has a port, too, such as
 * "node1:4000" or "[::1]:4000": the message names the settings for both.
 */
cddp_status cdi_address_without_port(const char *text, const char *host_setting, const char *port_setting,
                                     struct cdi_error *err);

#endif
