/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses ports as the tests in C do, prints them, and keeps them until its standard input ends: port_holder N. */
#include "port.h"

int main(int argc, char **argv)
{
    long n = argc > 1 ? strtol(argv[1], NULL, 10) : 1;
    char byte;

    for (long i = 0; i < n; i++)
        printf("%d\n", free_port());
    (void)fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        continue;
    port_release();
    return 0;
}
