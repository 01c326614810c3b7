/* SPDX-License-Identifier: Apache-2.0 */
/* Must be caught: two threads that write one variable (ThreadSanitizer). */
#include <pthread.h>

static int shared;

static void *count(void *arg)
{
    for (int i = 0; i < 10000; i++)
        shared++;
    return arg;
}

int main(void)
{
    pthread_t other;

    if (pthread_create(&other, NULL, count, NULL) != 0)
        return 0;
    (void)count(NULL);
    (void)pthread_join(other, NULL);
    return 0;
}
