/* SPDX-License-Identifier: Apache-2.0 */
/* The first values of structs of the C API: a caller that sets what it needs and no more gets what it
 * expects. */
#include "check.h"

#include <headrace/c/agent.h>

#include <string.h>

enum { page_bytes = 4096 };
static const int64_t ten_seconds = 10000000000;

static headrace_page_list* page_of(headrace_agent* agent, const char* peer, uint32_t region) {
  headrace_page_spec spec;
  memset(&spec, 0, sizeof spec);
  spec.struct_size = sizeof spec;
  spec.form = HEADRACE_PAGES_UNIFORM;
  spec.region = region;
  spec.page_bytes = page_bytes;
  spec.count = 1;
  headrace_page_list* list = NULL;
  CHECK(headrace_agent_prepare(agent, peer, &spec, &list, fresh()) == 0);
  return list;
}

int main(void) {
  headrace_agent* agent = NULL;
  CHECK(headrace_agent_open("alone", NULL, &agent, fresh()) == 0);

  /* Neither a GPU nor a node is asked for. */
  headrace_allocate_options anywhere = HEADRACE_ALLOCATE_OPTIONS_INIT;
  CHECK(anywhere.struct_size == sizeof anywhere && anywhere.numa_node == -1 && anywhere.near_gpu == -1);
  uint32_t from = 0, to = 0;
  void* source = NULL;
  CHECK(headrace_agent_allocate(agent, page_bytes, &anywhere, &from, &source, fresh()) == 0);
  memset(source, 7, page_bytes);

  /* The descriptor is none, so that a path counts. */
  headrace_memory range = HEADRACE_MEMORY_INIT;
  CHECK(range.file_descriptor == -1);
  static unsigned char target[page_bytes];
  range.address = target;
  range.length = sizeof target;
  CHECK(headrace_agent_register(agent, &range, 1, NULL, &to, fresh()) == 0);

  /* No deadline. A zeroed struct ends the post at once. */
  headrace_request_part part;
  memset(&part, 0, sizeof part);
  part.struct_size = sizeof part;
  part.local = page_of(agent, NULL, from);
  part.remote = page_of(agent, "alone", to);
  const headrace_request_options made = HEADRACE_REQUEST_OPTIONS_INIT;
  headrace_request* request = NULL;
  CHECK(headrace_agent_make_request(agent, HEADRACE_OPERATION_WRITE, &part, 1, &made, &request, fresh()) ==
        0);
  const headrace_post_options posted = HEADRACE_POST_OPTIONS_INIT;
  CHECK(made.timeout_ns == -1 && posted.timeout_ns == -1);
  CHECK(headrace_request_post(request, &posted, fresh()) == 0);
  CHECK(headrace_request_wait(request, ten_seconds, fresh()) == 0);
  CHECK(target[0] == 7 && target[page_bytes - 1] == 7);

  headrace_request_free(request);
  headrace_page_list_free((headrace_page_list*)part.local);
  headrace_page_list_free((headrace_page_list*)part.remote);
  headrace_agent_close(agent);
  return 0;
}
