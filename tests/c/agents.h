/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs in C share that use agents: agents of this process, their memory, and how they meet. */
#ifndef HEADRACE_TESTS_AGENTS_H
#define HEADRACE_TESTS_AGENTS_H

#include "check.h"

#include <headrace/c/agent.h>

#include <string.h>

enum { pages = 8, page_bytes = 4096 };
enum { invalid_argument = 2, canceled = 6 }; /* codes of errors */

#define SIZED(type, name)           \
  type name;                        \
  memset(&(name), 0, sizeof(name)); \
  (name).struct_size = sizeof(name)

static const int64_t ten_seconds = 10000000000;

static inline headrace_agent* open_agent(const char* name) {
  const char* backends[] = {"shm", "tcp", "posix", NULL};
  SIZED(headrace_agent_options, options);
  options.backends = backends;
  options.listen = "127.0.0.1:0";
  headrace_agent* agent = NULL;
  CHECK(headrace_agent_open(name, &options, &agent, fresh()) == 0);
  return agent;
}

static inline headrace_page_spec uniform(uint32_t region) {
  SIZED(headrace_page_spec, spec);
  spec.form = HEADRACE_PAGES_UNIFORM;
  spec.region = region;
  spec.page_bytes = page_bytes;
  spec.count = pages;
  return spec;
}

static inline headrace_page_list* prepare(headrace_agent* agent, const char* peer, uint32_t region) {
  const headrace_page_spec spec = uniform(region);
  headrace_page_list* list = NULL;
  CHECK(headrace_agent_prepare(agent, peer, &spec, &list, fresh()) == 0);
  CHECK(headrace_page_list_count(list) == pages && headrace_page_list_bytes(list) == pages * page_bytes);
  return list;
}

static inline uint32_t register_bytes(headrace_agent* agent, void* memory, uint64_t length,
                                      const char* name) {
  SIZED(headrace_memory, range);
  range.address = memory;
  range.length = length;
  SIZED(headrace_register_options, options);
  options.name = name;
  options.note = "uint8";
  uint32_t region = 0;
  CHECK(headrace_agent_register(agent, &range, 1, &options, &region, fresh()) == 0);
  return region;
}

static inline void meet(headrace_agent* agent, headrace_agent* peer) {
  headrace_bytes* metadata = NULL;
  CHECK(headrace_agent_export_metadata(peer, NULL, &metadata, fresh()) == 0);
  SIZED(headrace_import_report, report);
  CHECK(headrace_agent_import_metadata(agent, headrace_bytes_data(metadata), headrace_bytes_size(metadata),
                                       &report, fresh()) == 0);
  CHECK(strcmp(report.peer, headrace_agent_name(peer)) == 0);
  CHECK(report.incarnation == headrace_agent_incarnation(peer) && report.restarted == 0);
  headrace_bytes_free(metadata);
}

#endif
