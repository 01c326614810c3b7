/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of etcd: the first byte selects the request and the status. The election goes on with any answer. */
#include "launcher/etcd/etcd_json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int statuses[] = {200, 200, 400, 404};
    struct elect_answer a;
    struct elect e;
    struct elect_actions todo;
    char text[400], token[ETCD_TOKEN_MAX] = "";
    enum elect_ask ask;
    int status;

    if (size < 1)
        return 0;
    ask = (enum elect_ask)(data[0] % 8);
    status = statuses[data[0] / 8 % 4];
    etcd_read_answer(ask, status, (const char *)data + 1, size - 1, &a, text);
    if (a.failed && (a.text == NULL || memchr(text, '\0', sizeof text) == NULL))
        abort();
    if (a.host.is && !a.host.foreign && (a.host.port == 0 || a.host.addr[0] == '\0'))
        abort();
    elect_init(&e, 15000, INT64_MAX, "etcd", "key");
    elect_handle(&e, &(struct elect_event){.kind = ELECT_EV_START}, 0, &todo);
    elect_handle(&e, &(struct elect_event){.kind = ELECT_EV_ANSWER, .answer = &a}, 10, &todo);
    (void)etcd_wants_token(status, (const char *)data + 1, size - 1);
    if (etcd_read_token(status, (const char *)data + 1, size - 1, token, &a, text) && strpbrk(token, "\r\n") != NULL)
        abort();
    return 0;
}
