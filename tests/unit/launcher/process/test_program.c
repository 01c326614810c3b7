/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/process/program.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

CDI_SUITE(program);

/* A small whole program file: three headers, a loader's name, a dynamic section, its strings. */
struct small {
    ElfW(Ehdr) head;
    ElfW(Phdr) load, interp, dynamic;
    ElfW(Dyn) entries[8];
    char loader[32], strings[128];
};

#define BASE 0x400000u
#define AT(member) (BASE + offsetof(struct small, member))

static void make(struct small *s, const char *first, const char *second)
{
    size_t n = 1;

    memset(s, 0, sizeof *s);
    memcpy(s->head.e_ident, ELFMAG, SELFMAG);
    s->head.e_ident[EI_CLASS] = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;
    s->head.e_ident[EI_DATA] = __BYTE_ORDER == __LITTLE_ENDIAN ? ELFDATA2LSB : ELFDATA2MSB;
    s->head.e_phoff = offsetof(struct small, load);
    s->head.e_phentsize = sizeof s->load;
    s->head.e_phnum = 3;
    s->load = (ElfW(Phdr)){.p_type = PT_LOAD, .p_vaddr = BASE, .p_filesz = sizeof *s, .p_memsz = sizeof *s};
    s->interp = (ElfW(Phdr)){.p_type = PT_INTERP, .p_offset = offsetof(struct small, loader), .p_filesz = 32};
    s->dynamic =
        (ElfW(Phdr)){.p_type = PT_DYNAMIC, .p_offset = offsetof(struct small, entries), .p_filesz = sizeof s->entries};
    (void)snprintf(s->loader, sizeof s->loader, "/lib/ld.so.1");
    s->entries[0] = (ElfW(Dyn)){.d_tag = DT_NEEDED, .d_un.d_val = n};
    n += (size_t)snprintf(s->strings + n, sizeof s->strings - n, "%s", first) + 1;
    s->entries[1] = (ElfW(Dyn)){.d_tag = DT_NEEDED, .d_un.d_val = n};
    (void)snprintf(s->strings + n, sizeof s->strings - n, "%s", second);
    s->entries[2] = (ElfW(Dyn)){.d_tag = DT_STRTAB, .d_un.d_ptr = AT(strings)};
    s->entries[3] = (ElfW(Dyn)){.d_tag = DT_STRSZ, .d_un.d_val = sizeof s->strings};
}

/* By a file in memory: a disk would take most of the time. */
static bool read_bytes(const void *bytes, size_t n, struct program_facts *facts)
{
    int fd = memfd_create("program", MFD_CLOEXEC);
    char name[64];
    bool known;

    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, bytes, n), (ssize_t)n);
    (void)snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    known = program_read(name, facts);
    (void)close(fd);
    return known;
}

Test(program, finds_mpi_and_libcddp_in_needed_libraries)
{
    static const struct {
        const char *first, *second, *mpi;
        bool cddp;
    } cases[] = {{"libc.so.6", "libmpi.so.40", "libmpi.so.40", false},
                 {"libmpich.so.12", "libc.so.6", "libmpich.so.12", false},
                 {"libmpi_mpifh.so.40", "libmpi.so.40", "libmpi_mpifh.so.40", false},
                 {"libcddp.so.0", "libmpi.so.12", "libmpi.so.12", true},
                 {"libcddp.so.0", "libc.so.6", "", true},
                 {"libmpir.so.3", "libmpc.so.3", "", false}};
    struct program_facts facts;
    struct small s;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make(&s, cases[i].first, cases[i].second);
        cr_assert(read_bytes(&s, sizeof s, &facts));
        cr_expect_str_eq(facts.mpi, cases[i].mpi);
        cr_expect_eq(facts.cddp, cases[i].cddp);
        cr_expect_str_eq(facts.interpreter, "/lib/ld.so.1");
        cr_expect_not(facts.script);
    }
    cr_assert(program_read("/proc/self/exe", &facts));
    cr_assert_str_eq(facts.mpi, "");
    cr_assert_not_null(strstr(facts.interpreter, "ld"), "%s", facts.interpreter);
}

Test(program, reads_interpreter_of_script)
{
    struct program_facts facts;
    char path[64];

    cr_assert(read_bytes("#!/no/such -x\necho\n", 19, &facts));
    cr_assert_str_eq(facts.interpreter, "/no/such");
    cr_assert(facts.script && !facts.carriage_return);
    cr_assert(read_bytes("#! /bin/sh\r\necho\r\n", 18, &facts));
    cr_assert_str_eq(facts.interpreter, "/bin/sh");
    cr_assert(facts.script && facts.carriage_return);
    cr_assert(read_bytes("#!", 2, &facts));
    cr_assert_str_eq(facts.interpreter, "");
    cr_assert(read_bytes("#!\n", 3, &facts));
    cr_assert_not(read_bytes("echo\n", 5, &facts));
    cr_assert_not(read_bytes("", 0, &facts));
    cr_assert_not(program_read("/no/such", &facts));
    cr_assert_not(program_read("/tmp", &facts));
    (void)snprintf(path, sizeof path, "/tmp/cdi-program-%d", (int)getpid());
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_not(program_read(path, &facts));
    (void)unlink(path);
    cr_assert_not(program_read("/dev/zero", &facts));
}

/* Of any file it returns, with names that end and are in the file; sanitizers see the rest. */
Test(program, survives_broken_files, .timeout = 120)
{
    struct program_facts facts;
    struct small whole, s;
    uint64_t dice = 88172645463325252u;

    make(&whole, "libmpi.so.40", "libc.so.6");
    for (size_t n = 0; n < sizeof whole; n++)
        (void)read_bytes(&whole, n, &facts);
    for (int round = 0; round < 20000; round++) {
        s = whole;
        for (int k = 0; k <= round % 4; k++) {
            size_t at;

            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            at = dice % sizeof s;
            if (dice >> 60 < 8) /* a byte, or eight that make a huge or negative number */
                ((unsigned char *)&s)[at] = (unsigned char)(dice >> 32);
            else
                memset((unsigned char *)&s + at / 8 * 8, dice >> 60 < 12 ? 0xff : 0x7f,
                       at / 8 * 8 + 8 <= sizeof s ? 8 : 1);
        }
        (void)read_bytes(&s, sizeof s, &facts);
        cr_assert_lt(strnlen(facts.mpi, sizeof facts.mpi), sizeof facts.mpi);
        cr_assert_lt(strnlen(facts.interpreter, sizeof facts.interpreter), sizeof facts.interpreter);
    }
}

Test(program, finds_mpi_and_libcddp_in_maps)
{
    static const struct {
        const char *line, *mpi;
        bool cddp;
    } cases[] = {
        {"7f00-7f10 r-xp 00000000 08:01 9   /usr/lib/x86_64-linux-gnu/libmpi.so.40.30.4\n", "libmpi.so.40.30.4", false},
        {"7f00-7f10 r--p 00000000 08:01 9   /a b/libmpich.so.12 (deleted)\n", "libmpich.so.12", false},
        {"7f00-7f10 r--p 00000000 08:01 9   /opt/lib/libcddp.so.0.1.0\n", "", true},
        {"7f00-7f10 r--p 00000000 08:01 9   /opt/lib/cddp/mpich/cddp_mpi.so\n", "", true},
        {"7f00-7f10 r--p 00000000 08:01 9   /data/libmpi.so/weights\n", "", false},
        {"7f00-7f10 rw-p 00000000 00:00 0   [heap]\n", "", false},
        {"7f00-7f10 rw-p 00000000 00:00 0 \n", "", false},
        {"/", "", false},
        {"", "", false},
    };
    char longest[2 * PROGRAM_NAME_MAX] = "/libmpi.so.";

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct program_facts facts = {.cddp = false};

        program_take_map(&facts, cases[i].line);
        cr_assert_str_eq(facts.mpi, cases[i].mpi, "%s", cases[i].line);
        cr_assert_eq(facts.cddp, cases[i].cddp, "%s", cases[i].line);
    }
    memset(longest + strlen(longest), 'x', PROGRAM_NAME_MAX);
    for (int shorter = 0; shorter < 2; shorter++) {
        struct program_facts facts = {.cddp = false};

        program_take_map(&facts, longest);
        cr_assert_eq(strlen(facts.mpi), shorter == 0 ? 0 : PROGRAM_NAME_MAX - 1, "%s", facts.mpi);
        longest[PROGRAM_NAME_MAX] = '\0';
    }
}
