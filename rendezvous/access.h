/* SPDX-License-Identifier: Apache-2.0 */
/* Which clients may use, without proving the auth token, services whose protocols cannot carry a proof. */
#ifndef RDZV_ACCESS_H
#define RDZV_ACCESS_H

/* For PyTorch's store protocol and for HTTP. */
enum rdzv_access {
    RDZV_ACCESS_AUTO,  /* without a token every client; with one this node, and addresses of authenticated agents */
    RDZV_ACCESS_NEVER, /* no client */
    RDZV_ACCESS_ANY,   /* every client */
};

#endif
