/* SPDX-License-Identifier: Apache-2.0 */
/* Two agents in C: one owns a cache of pages, the other reads two of them and tells the owner.
 *
 *   gcc -I include examples/two_agents.c -L build/release/lib -lheadrace -Wl,-rpath,$PWD/build/release/lib
 */
#include <headrace/c/agent.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { page_bytes = 65536, cache_pages = 256 };
static const int64_t ten_seconds = 10000000000;

/* The last argument of each call. An example ends at its first error. */
static headrace_error* error;
static void must(int32_t code, const char* what) {
  if (code == 0) return;
  fprintf(stderr, "%s: %s: %s\n", what, headrace_code_name(code), headrace_error_message(error));
  exit(1);
}

static headrace_page_list* prepare(headrace_agent* agent, const char* peer, uint32_t region, uint64_t count) {
  headrace_page_spec spec = {.struct_size = sizeof spec,
                             .form = HEADRACE_PAGES_UNIFORM,
                             .region = region,
                             .count = count,
                             .page_bytes = page_bytes};
  headrace_page_list* pages = NULL;
  must(headrace_agent_prepare(agent, peer, &spec, &pages, &error), "prepare");
  return pages;
}

int main(void) {
  headrace_agent *prefill = NULL, *decode = NULL;
  must(headrace_agent_open("prefill", NULL, &prefill, &error), "open prefill");
  must(headrace_agent_open("decode", NULL, &decode, &error), "open decode");

  /* The owner: memory from allocate has the fastest path on one host. */
  uint32_t cache = 0, mine = 0;
  void* memory = NULL;
  must(headrace_agent_allocate(prefill, (uint64_t)cache_pages * page_bytes, NULL, &cache, &memory, &error),
       "allocate");
  for (int page = 0; page < cache_pages; ++page)
    memset((char*)memory + (size_t)page * page_bytes, page, page_bytes);

  /* The reader: any memory that it has. */
  static unsigned char slots[4 * page_bytes];
  headrace_memory range = HEADRACE_MEMORY_INIT;
  range.address = slots;
  range.length = sizeof slots;
  must(headrace_agent_register(decode, &range, 1, NULL, &mine, &error), "register");

  /* The metadata travels in any way that you like. */
  headrace_bytes* metadata = NULL;
  must(headrace_agent_export_metadata(prefill, NULL, &metadata, &error), "export");
  must(headrace_agent_import_metadata(decode, headrace_bytes_data(metadata), headrace_bytes_size(metadata),
                                      NULL, &error),
       "import");
  headrace_bytes_free(metadata);

  /* Prepare once. Each request then picks pages by index. */
  headrace_page_list* local = prepare(decode, NULL, mine, 4);
  headrace_page_list* remote = prepare(decode, "prefill", cache, cache_pages);
  const uint32_t to[] = {0, 1}, from[] = {7, 3};
  headrace_request_part part = {.struct_size = sizeof part,
                                .local = local,
                                .remote = remote,
                                .local_index = to,
                                .remote_index = from,
                                .count = 2};
  headrace_request* request = NULL;
  must(headrace_agent_make_request(decode, HEADRACE_OPERATION_READ, &part, 1, NULL, &request, &error),
       "make a request");
  headrace_post_options options = HEADRACE_POST_OPTIONS_INIT;
  options.notification = "took pages 7 and 3";
  options.notification_size = strlen("took pages 7 and 3");
  options.has_notification = 1;
  options.timeout_ns = ten_seconds;
  must(headrace_request_post(request, &options, &error), "post");
  must(headrace_request_wait(request, ten_seconds, &error), "wait");
  if (slots[0] != 7 || slots[page_bytes] != 3) return 1;

  headrace_notifications* taken = NULL;
  must(headrace_agent_wait_notification(prefill, NULL, NULL, ten_seconds, &taken, &error), "wait");
  printf("prefill: %s says: %s\n", headrace_notifications_peer(taken, 0),
         headrace_notifications_payload(taken, 0, NULL));

  headrace_notifications_free(taken);
  headrace_request_free(request);
  headrace_page_list_free(remote);
  headrace_page_list_free(local);
  headrace_agent_close(decode);
  headrace_agent_close(prefill);
  return 0;
}
