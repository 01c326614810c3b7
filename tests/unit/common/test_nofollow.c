/* SPDX-License-Identifier: Apache-2.0 */
#include "common/nofollow.h"
#include "hygiene.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

CDI_SUITE(nofollow);

#define OTHER 12345 /* a user that is not this one */

Test(nofollow, links_of_others_in_a_directory_of_everybody)
{
    char dir[] = "/tmp/cddp-nofollow-XXXXXX";

    cr_assert_not_null(mkdtemp(dir));
    cr_assert_eq(chdir(dir), 0);
    cr_assert_eq(symlink("file", "link"), 0);
    cr_assert_eq(cdi_nofollow("file"), O_NOFOLLOW, "it may be planted until it is opened");
    cr_assert(!cdi_link_is_planted("file"));
    cr_assert_eq(chmod(dir, 01777), 0);
    cr_assert_eq(cdi_nofollow("link"), 0, "one's own");
    cr_assert_eq(cdi_nofollow("/dev/fd"), 0);
    if (geteuid() == 0) { /* which may give links away */
        char path[64];

        (void)snprintf(path, sizeof path, "%s/link", dir);
        cr_assert_eq(lchown("link", OTHER, OTHER), 0);
        cr_assert_eq(cdi_nofollow("link"), O_NOFOLLOW);
        cr_assert(cdi_nofollow(path) == O_NOFOLLOW && cdi_link_is_planted(path));
        cr_assert_eq(chown(dir, OTHER, OTHER), 0);
        cr_assert_eq(cdi_nofollow(path), 0, "the directory's owner may do anything there");
        cr_assert_eq(chown(dir, 0, 0), 0);
        cr_assert_eq(chmod(dir, 0755), 0);
        cr_assert_eq(cdi_nofollow("link"), 0, "nobody else can have put it there");
    }
    cr_assert_eq(unlink("link"), 0);
    cr_assert_eq(rmdir(dir), 0);
}
