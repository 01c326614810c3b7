/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the system calls in which programs wait, by this machine's numbers. Pure. */
#ifndef SYSCALL_NAME_H
#define SYSCALL_NAME_H

#include <stdbool.h>

/* Returns the name, such as "read"; NULL: it is none of those. */
const char *syscall_name(long number);
/* Is its first argument a descriptor? false for a number without a name here. */
bool syscall_takes_fd(long number);

#endif
