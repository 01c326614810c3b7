/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/base/host_id.h"

#include "common/cleanup.h"
#include "common/crc64.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns a number that stands for the running kernel. */
static uint64_t kernel_id(void)
{
    CDI_AUTOCLOSE int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    char text[256] = "";
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text);

    if (n <= 0) {
        (void)gethostname(text, sizeof text - 1);
        n = (ssize_t)strlen(text);
    }
    return cdi_crc64(0, text, (size_t)n);
}

void cdi_host_id(uint8_t id[CDI_HOST_ID])
{
    uint64_t parts[3] = {kernel_id(), 0, 0};
    struct stat st;

    if (stat("/proc/self/ns/net", &st) == 0) {
        parts[1] = (uint64_t)st.st_dev;
        parts[2] = (uint64_t)st.st_ino;
    }
    memcpy(id, parts, CDI_HOST_ID);
}
