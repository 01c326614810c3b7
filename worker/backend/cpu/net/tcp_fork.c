/* SPDX-License-Identifier: Apache-2.0 */
/* Closes inherited sockets in a forked child. A child that only calls exec loses them anyway (O_CLOEXEC). */
#include "worker/backend/cpu/net/tcp.h"

#include <pthread.h>
#include <unistd.h>

/* The connections of this process: of its communicators and their parts. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cdi_tcp *first;

static void close_one(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

static void close_both(struct cdi_link *l)
{
    close_one(&l->data);
    close_one(&l->control);
}

static void close_sockets(struct cdi_tcp *tcp)
{
    for (int i = 0; i < cdi_tcp_n_links(tcp); i++) {
        struct cdi_link *l = cdi_tcp_nth_link(tcp, i);

        if (l != NULL)
            close_both(l);
    }
    close_one(&tcp->dialled);
    for (int i = 0; i < CDI_TCP_PENDING; i++)
        close_one(&tcp->listener.pending[i].fd);
    for (int i = 0; i < tcp->listener.n_fds; i++)
        close_one(&tcp->listener.fd[i]);
    tcp->listener.n_fds = 0;
}

/* All locks are held during the fork: the child has a consistent state, and can use the locks. */
static void tcp_fork_prepare(void)
{
    (void)pthread_mutex_lock(&lock);
    for (struct cdi_tcp *tcp = first; tcp != NULL; tcp = tcp->other)
        (void)pthread_mutex_lock(&tcp->lock);
}

static void tcp_fork_parent(void)
{
    for (struct cdi_tcp *tcp = first; tcp != NULL; tcp = tcp->other)
        (void)pthread_mutex_unlock(&tcp->lock);
    (void)pthread_mutex_unlock(&lock);
}

static void tcp_fork_child(void)
{
    for (struct cdi_tcp *tcp = first; tcp != NULL; tcp = tcp->other)
        close_sockets(tcp);
    tcp_fork_parent();
}

static void register_handlers(void)
{
    (void)pthread_atfork(tcp_fork_prepare, tcp_fork_parent,
                         tcp_fork_child); /* out of memory: the child keeps the sockets */
}

void cdi_tcp_fork_register(struct cdi_tcp *tcp)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, register_handlers);
    (void)pthread_mutex_lock(&lock);
    tcp->other = first;
    first = tcp;
    (void)pthread_mutex_unlock(&lock);
}

void cdi_tcp_fork_unregister(struct cdi_tcp *tcp)
{
    (void)pthread_mutex_lock(&lock);
    for (struct cdi_tcp **p = &first; *p != NULL; p = &(*p)->other)
        if (*p == tcp) {
            *p = tcp->other;
            break;
        }
    (void)pthread_mutex_unlock(&lock);
}
