/* SPDX-License-Identifier: Apache-2.0 */
/* What a forked child does with the sockets that it inherits. One that only execs loses them anyway (O_CLOEXEC). */
#include "worker/backend/cpu/net/tcp.h"

#include <pthread.h>
#include <unistd.h>

/* The connections of this process: of its communicator, and of parts of it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cdi_tcp *first;

static void close_one(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

static void close_link(struct cdi_link *l)
{
    close_one(&l->data);
    close_one(&l->control);
}

static void close_sockets(struct cdi_tcp *tcp)
{
    close_link(&tcp->prev);
    close_link(&tcp->next);
    for (int r = 0; r < tcp->size; r++)
        if (tcp->pair[r] != NULL)
            close_link(tcp->pair[r]);
    for (int i = 0; i < CDI_TCP_WAITING; i++)
        close_one(&tcp->door.waiting[i].fd);
    for (int i = 0; i < tcp->door.n_listeners; i++)
        close_one(&tcp->door.listener[i]);
    tcp->door.n_listeners = 0;
}

/* All locks are held over the fork: the child finds everything whole, and can use the locks. */
static void before_fork(void)
{
    (void)pthread_mutex_lock(&lock);
    for (struct cdi_tcp *tcp = first; tcp != NULL; tcp = tcp->other)
        (void)pthread_mutex_lock(&tcp->lock);
}

static void in_parent(void)
{
    for (struct cdi_tcp *tcp = first; tcp != NULL; tcp = tcp->other)
        (void)pthread_mutex_unlock(&tcp->lock);
    (void)pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    for (struct cdi_tcp *tcp = first; tcp != NULL; tcp = tcp->other)
        close_sockets(tcp);
    in_parent();
}

static void ask_to_be_told(void)
{
    (void)pthread_atfork(before_fork, in_parent, in_child); /* out of memory: as without it */
}

void cdi_heir_begin(struct cdi_tcp *tcp)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, ask_to_be_told);
    (void)pthread_mutex_lock(&lock);
    tcp->other = first;
    first = tcp;
    (void)pthread_mutex_unlock(&lock);
}

void cdi_heir_end(struct cdi_tcp *tcp)
{
    (void)pthread_mutex_lock(&lock);
    for (struct cdi_tcp **p = &first; *p != NULL; p = &(*p)->other)
        if (*p == tcp) {
            *p = tcp->other;
            break;
        }
    (void)pthread_mutex_unlock(&lock);
}
