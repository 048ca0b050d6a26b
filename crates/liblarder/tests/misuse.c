/* Every call with wrong arguments: each returns an error, and the sanitizers see no wrong access. The Rust tests of the
 * crate have more cases. */
#include "larder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

static void expect(const char *what, int32_t expected, int32_t code) {
    char message[512];
    if (code != expected) {
        failures++;
        fprintf(stderr, "%s: %d, not %d\n", what, (int)code, (int)expected);
    } else if (larder_last_error(message, sizeof message, NULL) != LARDER_OK || message[0] == 0) {
        failures++;
        fprintf(stderr, "%s: no message\n", what);
    }
}

int main(void) {
    static const char config[] = "{\"nodes\": [\"a\", \"b\"]}";
    larder_dispatcher *d = NULL;
    larder_request request = {.target = 1};
    larder_decision decision = {0}, idle = {0};
    larder_node_spec spec = {.name = "a", .name_len = 1};
    larder_signal signal = {.signal = 99};
    larder_table_row row = {.target = 1, .node = 7};
    larder_node node = LARDER_NO_NODE;
    uint64_t target = 0;
    /* Bytes on the heap, so that a read beyond the end is seen. */
    char *bytes = calloc(1, 4);
    if (bytes == NULL || larder_create(config, sizeof config - 1, &d) != LARDER_OK) {
        return 1;
    }
    memcpy(bytes, "\xff\xfe\xfd\xfc", 4);
    expect("create null", LARDER_ERROR_POINTER, larder_create(NULL, 1, &d));
    expect("create without place", LARDER_ERROR_POINTER, larder_create(config, 1, NULL));
    larder_dispatcher *none = d;
    expect("create text", LARDER_ERROR_TEXT, larder_create(bytes, 4, &none));
    expect("create config", LARDER_ERROR_CONFIG, larder_create("policy = 1", 10, &none));
    if (none != NULL) {
        failures++;
    }
    expect("decide", LARDER_ERROR_POINTER, larder_decide(NULL, 1, &request, &decision));
    expect("decide", LARDER_ERROR_POINTER, larder_decide(d, 1, NULL, &decision));
    expect("decide", LARDER_ERROR_POINTER, larder_decide(d, 1, &request, NULL));
    expect("retry", LARDER_ERROR_NODE, larder_retry(d, 1, &request, &idle, 1, &decision));
    expect("done", LARDER_ERROR_NODE, larder_done(d, 1, &idle, NULL));
    expect("done", LARDER_ERROR_POINTER, larder_done(d, 1, NULL, NULL));
    expect("long_lived", LARDER_ERROR_NODE, larder_long_lived(d, 1, &idle));
    expect("add", LARDER_ERROR_JOIN, larder_node_add(d, 1, &spec, &node));
    expect("find", LARDER_ERROR_TEXT, larder_node_find(d, bytes, 4, &node));
    expect("find", LARDER_ERROR_NODE, larder_node_find(d, "c", 1, &node));
    expect("find", LARDER_ERROR_POINTER, larder_node_find(d, NULL, 1, &node));
    expect("state", LARDER_ERROR_NODE, larder_node_set_state(d, 1, 0, LARDER_NODE_UP));
    expect("weight", LARDER_ERROR_NODE, larder_node_set_weight(d, 1, 4000000000u, 1000));
    expect("backup", LARDER_ERROR_NODE, larder_node_set_backup(d, 1, 3, 1));
    if (larder_node_find(d, "a", 1, &node) != LARDER_OK) {
        return 1;
    }
    expect("state", LARDER_ERROR_RANGE, larder_node_set_state(d, 1, node, 200));
    expect("weight", LARDER_ERROR_RANGE, larder_node_set_weight(d, 1, node, 0));
    expect("backup", LARDER_ERROR_RANGE, larder_node_set_backup(d, 1, node, 2));
    expect("report", LARDER_ERROR_RANGE, larder_report(d, 1, node, &signal, 1));
    expect("report", LARDER_ERROR_RANGE, larder_report(d, 1, node, &signal, SIZE_MAX));
    expect("report", LARDER_ERROR_POINTER, larder_report(d, 1, node, NULL, 1));
    expect("event", LARDER_ERROR_RANGE, larder_cache_event(d, 1, node, 1, 9));
    expect("table", LARDER_ERROR_NODE, larder_set_table(d, 1, &row, 1));
    expect("target", LARDER_ERROR_POINTER, larder_target(NULL, 1, &target));
    expect("explain", LARDER_ERROR_BUFFER, larder_explain(d, 1, &request, bytes, 4, NULL));
    expect("status", LARDER_ERROR_BUFFER, larder_status(d, 1, bytes, 4, NULL));
    expect("save", LARDER_ERROR_BUFFER, larder_snapshot_save(d, bytes, 4, NULL));
    expect("load", LARDER_ERROR_SNAPSHOT, larder_snapshot_load(d, bytes, 4, NULL));
    expect("load", LARDER_ERROR_POINTER, larder_snapshot_load(d, NULL, 4, NULL));
    if (larder_last_error(bytes, 4, NULL) != LARDER_ERROR_BUFFER || larder_reason_name(200) != NULL) {
        failures++;
    }
    larder_destroy(NULL);
    larder_destroy(d);
    free(bytes);
    return failures != 0;
}
