/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/pty.h"

#include "common/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define COLUMNS_LEAST 20 /* fewer are of no use to a program that draws */

static int make_raw(int fd)
{
    struct termios t;

    if (tcgetattr(fd, &t) != 0)
        return errno;
    cfmakeraw(&t);
    return tcsetattr(fd, TCSANOW, &t) == 0 ? 0 : errno;
}

int pty_open(int ends[2])
{
    CDI_AUTOCLOSE int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), worker = -1;
    int error;

    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
        return errno;
    /* By the master: /dev/pts of a container may belong to another instance. */
    worker = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (worker < 0)
        return errno;
    error = make_raw(worker);
    if (error != 0)
        return error;
    ends[0] = cdi_steal_fd(&master);
    ends[1] = cdi_steal_fd(&worker);
    return 0;
}

void pty_resize(int fd, uint32_t front)
{
    struct winsize size;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || (size.ws_col == 0 && size.ws_row == 0))
        return;
    if (size.ws_col >= front + COLUMNS_LEAST)
        size.ws_col = (unsigned short)(size.ws_col - front);
    (void)ioctl(fd, TIOCSWINSZ, &size);
}
