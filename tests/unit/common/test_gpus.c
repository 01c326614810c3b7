/* SPDX-License-Identifier: Apache-2.0 */
#include "common/gpus.h"

#include "hygiene.h"

#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

CDI_SUITE(gpus);

static const struct cdi_gpu four[] = {{.uuid = "GPU-aa110000-0000"},
                                      {.uuid = "GPU-aa220000-0000"},
                                      {.uuid = "GPU-bb330000-0000"},
                                      {.uuid = "GPU-cc440000-0000"}};

/* Returns the devices that a value shows of the four, such as "2 0". */
static const char *shows(const char *variable)
{
    static char text[64];
    int shown[8];
    size_t n = cdi_gpus_visible(variable, four, 4, shown, 8), at = 0;

    text[0] = '\0';
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, i > 0 ? " %d" : "%d", shown[i]);
    return text;
}

Test(gpus, numbers_select_and_order_devices)
{
    cr_assert_str_eq(shows(NULL), "0 1 2 3");
    cr_assert_str_eq(shows("2"), "2");
    cr_assert_str_eq(shows("3,1,0"), "3 1 0");
    cr_assert_str_eq(shows(" 1, 2"), "1 2");
    cr_assert_str_eq(shows("1gpu,2"), "1 2");
}

Test(gpus, invalid_entry_ends_the_list)
{
    cr_assert_str_eq(shows(""), "");
    cr_assert_str_eq(shows("-1"), "");
    cr_assert_str_eq(shows("NoDevFiles"), "");
    cr_assert_str_eq(shows("0,-1,2"), "0");
    cr_assert_str_eq(shows("0,4,1"), "0");
    cr_assert_str_eq(shows("0,,1"), "0");
    cr_assert_str_eq(shows("1,99999999999999999999"), "1");
    cr_assert_str_eq(shows("0,GPU-bb,1"), "0", "kinds do not mix");
}

Test(gpus, device_named_twice_empties_the_list)
{
    cr_assert_str_eq(shows("0,1,0"), "");
    cr_assert_str_eq(shows("GPU-bb,GPU-bb33"), "");
}

Test(gpus, accepts_the_beginning_of_one_uuid)
{
    cr_assert_str_eq(shows("GPU-cc,GPU-aa2"), "3 1");
    cr_assert_str_eq(shows("GPU-CC44"), "3");
    cr_assert_str_eq(shows("GPU-cc,GPU-aa,GPU-bb"), "3", "two begin with GPU-aa");
    cr_assert_str_eq(shows("GPU-dd,GPU-bb"), "");
    cr_assert_str_eq(shows("GPU-bb,1"), "2");
}

Test(gpus, shows_only_the_first_mig_instance)
{
    cr_assert_str_eq(shows("MIG-5c89852c-d268-c3f3,MIG-22"), "-1");
    cr_assert_str_eq(shows("MIG-GPU-aa110000-0000/1/0"), "-1");
}

Test(gpus, accepts_any_uuid_if_none_is_known)
{
    const struct cdi_gpu unknown[2] = {{.numa_node = -1}, {.numa_node = -1}};
    int shown[4];

    cr_assert_eq(cdi_gpus_visible("GPU-1,GPU-2,GPU-3", unknown, 2, shown, 4), 2);
    cr_assert_eq(shown[0], -1);
    cr_assert_eq(cdi_gpus_visible("GPU-1", unknown, 0, shown, 4), 0);
    cr_assert_eq(cdi_gpus_visible("MIG-1", unknown, 0, shown, 4), 0);
    cr_assert_eq(cdi_gpus_visible(NULL, unknown, 2, shown, 1), 1, "no more than the room allows");
}

Test(gpus, normalizes_pci_addresses)
{
    char pci[16];

    cr_assert(cdi_gpu_pci(pci, "0000:3B:00.0"));
    cr_assert_str_eq(pci, "0000:3b:00.0");
    cr_assert(cdi_gpu_pci(pci, "00000001:AF:1F.7"));
    cr_assert_str_eq(pci, "0001:af:1f.7");
    cr_assert_not(cdi_gpu_pci(pci, ""));
    cr_assert_not(cdi_gpu_pci(pci, "3b:00.0"));
    cr_assert_not(cdi_gpu_pci(pci, "0000:3b:00.0x"));
    cr_assert_not(cdi_gpu_pci(pci, "12345678:00:00.0"), "a domain of 16 bits");
    cr_assert_not(cdi_gpu_pci(pci, "version"));
}

static int remove_entry(const char *path, const struct stat *sb, int type, struct FTW *where)
{
    (void)sb, (void)type, (void)where;
    return remove(path);
}

/* Writes a file of an emulated node, with the folders above it. */
static void put(const char *root, const char *path, const char *text)
{
    char full[512];
    FILE *f;

    (void)snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; *p != '\0'; p++)
        if (*p == '/') {
            *p = '\0';
            (void)mkdir(full, 0700);
            *p = '/';
        }
    f = fopen(full, "we");
    cr_assert_not_null(f, "%s", full);
    cr_assert_geq(fputs(text, f), 0);
    cr_assert_eq(fclose(f), 0);
}

static void put_card(const char *root, const char *pci, const char *uuid, int minor, int node)
{
    char path[128], text[512];

    (void)snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/information", pci);
    (void)snprintf(text, sizeof text,
                   "Model: \t\t NVIDIA H200\nIRQ:   \t\t 0\nGPU UUID: \t %s\nVideo BIOS: \t 96.00\nBus Type: \t PCIe\n"
                   "DMA Size: \t 52 bits\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Excluded:\t No\n",
                   uuid, pci, minor);
    put(root, path, text);
    (void)snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", pci);
    (void)snprintf(text, sizeof text, "%d\n", node);
    put(root, path, text);
}

Test(gpus, reads_cards_in_the_order_of_their_addresses)
{
    char root[] = "/tmp/cdi-gpus-XXXXXX";
    struct cdi_gpu gpu[4];

    cr_assert_not_null(mkdtemp(root));
    cr_assert_eq(cdi_gpus_read(root, gpu, 4), 0);
    put_card(root, "0000:af:00.0", "GPU-22", 0, 1);
    put_card(root, "0000:3b:00.0", "GPU-11", 1, -1);
    put_card(root, "0000:d8:00.0", "GPU-????????", 2, 1);
    cr_assert_eq(cdi_gpus_read(root, gpu, 4), 3, "no nodes yet: the driver is believed");
    cr_assert_eq(cdi_gpus_read(root, gpu, 2), 2, "no more than the room allows");
    cr_assert_eq(cdi_gpus_read(root, gpu, 4), 3);
    cr_assert_str_eq(gpu[0].pci, "0000:3b:00.0");
    cr_assert_str_eq(gpu[0].uuid, "GPU-11");
    cr_assert_str_eq(gpu[0].model, "NVIDIA H200");
    cr_assert_eq(gpu[0].numa_node, -1);
    cr_assert_eq(gpu[1].numa_node, 1);
    cr_assert_str_eq(gpu[2].uuid, "", "not known yet");
    put(root, "/dev/nvidia1", "");
    put(root, "/dev/nvidiactl", "");
    put(root, "/dev/nvidia-uvm", "");
    cr_assert_eq(cdi_gpus_read(root, gpu, 4), 1, "a container keeps the cards whose nodes it has");
    cr_assert_str_eq(gpu[0].pci, "0000:3b:00.0");
    cr_assert_eq(nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}

Test(gpus, counts_device_files_without_driver_information)
{
    char root[] = "/tmp/cdi-gpus-XXXXXX";
    struct cdi_gpu gpu[4];

    cr_assert_not_null(mkdtemp(root));
    put(root, "/dev/nvidia0", "");
    put(root, "/dev/nvidia3", "");
    put(root, "/dev/nvidiactl", "");
    cr_assert_eq(cdi_gpus_read(root, gpu, 4), 2);
    cr_assert_str_eq(gpu[1].uuid, "");
    cr_assert_str_eq(gpu[1].pci, "");
    cr_assert_eq(gpu[1].numa_node, -1);
    cr_assert_eq(nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}
