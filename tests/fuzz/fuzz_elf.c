/* SPDX-License-Identifier: Apache-2.0 */
/* A file that a process has mapped and that is named like Python. */
#include "launcher/process/python_symbols.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct python_image image = {.path = "/python3", .start = 0x10000};
    struct python_symbols symbols;
    struct cdi_error err = {.status = CDDP_OK};
    static int fd = -1;

    if (fd < 0)
        fd = memfd_create("elf", 0);
    if (fd < 0 || ftruncate(fd, 0) != 0 || (size > 0 && pwrite(fd, data, size, 0) != (ssize_t)size))
        abort();
    if (python_symbols_in(fd, &image, &symbols, &err) == CDDP_OK ? symbols.runtime == 0 : err.msg[0] == '\0')
        abort();
    return 0;
}
