/* SPDX-License-Identifier: Apache-2.0 */
/* The C API of agents, compiled as C: two agents of this process, and what they refuse. */
#include "agents.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------- what works */

static atomic_int dones, drops, arrived;

static void done(void* context, int32_t code, uint64_t page) {
  CHECK(context == &dones && code == 0 && page == HEADRACE_NO_SUCH_PAGE);
  atomic_fetch_add(&dones, 1);
}
static void drop(void* context) {
  (void)context;
  atomic_fetch_add(&drops, 1);
}
static void took(void* context, const char* peer, const void* payload, uint64_t size) {
  CHECK(context == &arrived && strcmp(peer, "left") == 0 && size == 3 && memcmp(payload, "hi\0", 3) == 0);
  atomic_fetch_add(&arrived, 1);
}

/* Waits for the callback thread, for at most ten seconds. */
static int reaches(atomic_int* value, int wanted) {
  for (int i = 0; i < 10000 && atomic_load(value) < wanted; ++i) poll(NULL, 0, 1);
  return atomic_load(value) == wanted;
}

static headrace_request* make_read(headrace_agent* agent, headrace_page_list* local,
                                   headrace_page_list* remote) {
  static const uint32_t to[] = {0, 1, 2}, from[] = {7, 0, 3};
  SIZED(headrace_request_part, part);
  part.local = local;
  part.remote = remote;
  part.local_index = to;
  part.remote_index = from;
  part.count = 3;
  headrace_request* request = NULL;
  CHECK(headrace_agent_make_request(agent, HEADRACE_OPERATION_READ, &part, 1, NULL, &request, fresh()) == 0);
  return request;
}

static void a_read_moves_the_pages_that_its_indices_name(headrace_agent* left, headrace_agent* right) {
  static unsigned char mine[pages * page_bytes];
  uint32_t theirs = 0;
  void* memory = NULL;
  SIZED(headrace_register_options, named);
  named.name = "cache";
  SIZED(headrace_allocate_options, allocate);
  allocate.numa_node = allocate.near_gpu = -1;
  allocate.registration = &named;
  CHECK(headrace_agent_allocate(right, pages * page_bytes, &allocate, &theirs, &memory, fresh()) == 0);
  for (int page = 0; page < pages; ++page)
    memset((char*)memory + (size_t)page * page_bytes, 'a' + page, page_bytes);
  const uint32_t region = register_bytes(left, mine, sizeof mine, "mine");
  meet(left, right);

  headrace_page_list* local = prepare(left, NULL, region);
  headrace_page_list* remote = prepare(left, "right", theirs);
  headrace_request* request = make_read(left, local, remote);
  headrace_page_list_free(local);
  headrace_page_list_free(remote);
  const headrace_callback callback = {&dones, drop};
  headrace_request_on_done(request, done, callback);
  SIZED(headrace_post_options, options);
  options.notification = "took it";
  options.notification_size = 7;
  options.has_notification = 1;
  options.timeout_ns = ten_seconds;
  CHECK(headrace_request_post(request, &options, fresh()) == 0);
  CHECK(headrace_request_wait(request, ten_seconds, fresh()) == 0);
  CHECK(headrace_request_state(request) == HEADRACE_STATE_DONE);
  CHECK(mine[0] == 'h' && mine[page_bytes] == 'a' && mine[2 * page_bytes + 4095] == 'd');
  CHECK(reaches(&dones, 1) && headrace_request_error(request, fresh()) == 0);

  SIZED(headrace_request_times, times);
  CHECK(headrace_request_get_times(request, &times, fresh()) == 0);
  CHECK(times.pages == 3 && times.bytes == 3 * page_bytes && times.posts == 1);
  headrace_bytes* out = NULL;
  CHECK(headrace_request_parts(request, &out, fresh()) == 0);
  CHECK(strstr(headrace_bytes_data(out), "\"peer\":\"right\"") != NULL);
  CHECK(strstr(headrace_bytes_data(out), "\"state\":\"done\"") != NULL);
  headrace_bytes_free(out);
  CHECK(headrace_request_explain(request, &out, fresh()) == 0);
  CHECK(strstr(headrace_bytes_data(out), "read of 3 pages") != NULL);
  headrace_bytes_free(out);
  SIZED(headrace_cost, cost);
  CHECK(headrace_request_cost(request, &cost, fresh()) == 0);
  headrace_request_free(request);
  CHECK(reaches(&drops, 1));

  headrace_notifications* taken = NULL;
  CHECK(headrace_agent_wait_notification(right, "left", "took", ten_seconds, &taken, fresh()) == 0);
  uint64_t size = 0;
  CHECK(headrace_notifications_count(taken) == 1);
  CHECK(memcmp(headrace_notifications_payload(taken, 0, &size), "took it", 7) == 0 && size == 7);
  CHECK(strcmp(headrace_notifications_peer(taken, 0), "left") == 0);
  CHECK(headrace_notifications_peer(taken, 1) == NULL);
  headrace_notifications_free(taken);

  headrace_mapping* mapping = NULL;
  CHECK(headrace_agent_map(left, "right", theirs, -1, ten_seconds, &mapping, fresh()) == 0);
  CHECK(*(char*)headrace_mapping_address(mapping) == 'a' && headrace_mapping_alive(mapping) == 1);
  CHECK(headrace_mapping_length(mapping) == pages * page_bytes && headrace_mapping_read_only(mapping) == 0);
  headrace_mapping_free(mapping);
}

static void every_form_of_pages_says_the_same(headrace_agent* agent) {
  static unsigned char memory[pages * page_bytes];
  const uint32_t region = register_bytes(agent, memory, sizeof memory, NULL);
  headrace_page rows[2] = {{region, 0, 512}, {region, 8192, 512}};
  headrace_address_page addresses[2] = {{(uint64_t)(uintptr_t)memory, 512},
                                        {(uint64_t)(uintptr_t)memory + 8192, 512}};
  static const int64_t offsets[] = {0, 8192}, length = 512;
  headrace_page_spec specs[4];
  memset(specs, 0, sizeof specs);
  for (int i = 0; i < 4; ++i) {
    specs[i].struct_size = sizeof specs[i];
    specs[i].form = i;
    specs[i].region = region;
    specs[i].count = 2;
  }
  specs[HEADRACE_PAGES_ROWS].rows = rows;
  specs[HEADRACE_PAGES_ADDRESSES].rows = addresses;
  specs[HEADRACE_PAGES_COLUMNS].offsets = (headrace_page_column){offsets, 8};
  specs[HEADRACE_PAGES_COLUMNS].lengths = (headrace_page_column){&length, 0};
  specs[HEADRACE_PAGES_UNIFORM].stride = 8192;
  specs[HEADRACE_PAGES_UNIFORM].page_bytes = 512;
  for (int i = 0; i < 4; ++i) {
    headrace_page_list* list = NULL;
    CHECK(headrace_agent_prepare(agent, NULL, &specs[i], &list, fresh()) == 0);
    CHECK(headrace_page_list_count(list) == 2 && headrace_page_list_bytes(list) == 1024);
    headrace_page_list_free(list);
  }
  headrace_page_spec view = specs[HEADRACE_PAGES_UNIFORM];
  view.dimensions = 2;
  view.item_bytes = 2;
  view.shape[0] = 4, view.shape[1] = 64;
  view.strides[0] = 256, view.strides[1] = 2;
  headrace_page_list* list = NULL;
  CHECK(headrace_agent_prepare(agent, NULL, &view, &list, fresh()) == 0);
  headrace_page_list_free(list);
  CHECK(headrace_agent_deregister(agent, &region, 1, ten_seconds, fresh()) == 0);
}

static void messages_and_lists_cross(headrace_agent* left, headrace_agent* right) {
  meet(left, right);
  const headrace_callback callback = {&arrived, NULL};
  headrace_agent_on_notification(right, took, callback);
  CHECK(headrace_agent_notify(left, "right", "hi\0", 3, fresh()) == 0);
  CHECK(reaches(&arrived, 1));
  headrace_agent_on_notification(right, NULL, (headrace_callback){NULL, NULL});

  headrace_regions* regions = NULL;
  CHECK(headrace_agent_peer_region(left, "right", "cache", &regions, fresh()) == 0);
  SIZED(headrace_region, region);
  CHECK(headrace_regions_get(regions, 0, &region, fresh()) == 0);
  CHECK(strcmp(region.name, "cache") == 0 && region.length == pages * page_bytes && region.read_only == 0);
  CHECK(headrace_regions_get(regions, 1, &region, fresh()) == 2);
  headrace_regions_free(regions);
  CHECK(headrace_agent_regions(right, &regions, fresh()) == 0 && headrace_regions_count(regions) == 1);
  headrace_regions_free(regions);

  headrace_bytes* json = NULL;
  CHECK(headrace_agent_peers(left, &json, fresh()) == 0);
  CHECK(strstr(headrace_bytes_data(json), "\"name\":\"right\"") != NULL);
  headrace_bytes_free(json);
  CHECK(headrace_agent_backends(left, &json, fresh()) == 0);
  CHECK(strstr(headrace_bytes_data(json), "\"name\":\"shm\"") != NULL);
  headrace_bytes_free(json);
  CHECK(headrace_agent_telemetry(left, &json, fresh()) == 0);
  CHECK(strstr(headrace_bytes_data(json), "\"requests.done\"") != NULL);
  headrace_bytes_free(json);
  CHECK(headrace_list_options(NULL, &json, fresh()) == 0);
  CHECK(strstr(headrace_bytes_data(json), "tcp.sockets") != NULL);
  headrace_bytes_free(json);
}

static void check_note(headrace_regions* regions, const void* note, uint64_t size) {
  SIZED(headrace_region, region);
  CHECK(headrace_regions_get(regions, headrace_regions_count(regions) - 1, &region, fresh()) == 0);
  CHECK(region.note_size == size && memcmp(region.note, note, size) == 0 && region.note[size] == 0);
  headrace_regions_free(regions);
}

static void a_note_goes_with_its_size(headrace_agent* left, headrace_agent* right) {
  static unsigned char memory[page_bytes];
  SIZED(headrace_memory, range);
  range.address = memory;
  range.length = sizeof memory;
  SIZED(headrace_register_options, options);
  options.name = "noted";
  options.note = "a\0b";
  for (options.note_size = 0; options.note_size <= 3; options.note_size += 3) {
    const uint64_t size = options.note_size == 0 ? 1 : 3; /* up to the first zero, or all */
    uint32_t region = 0;
    CHECK(headrace_agent_register(right, &range, 1, &options, &region, fresh()) == 0);
    meet(left, right);
    headrace_regions* regions = NULL;
    CHECK(headrace_agent_regions(right, &regions, fresh()) == 0);
    check_note(regions, options.note, size);
    CHECK(headrace_agent_peer_region(left, "right", "noted", &regions, fresh()) == 0);
    check_note(regions, options.note, size);
    CHECK(headrace_agent_deregister(right, &region, 1, ten_seconds, fresh()) == 0);
  }
  options.note = NULL;
  uint32_t region = 0;
  CHECK(headrace_agent_register(right, &range, 1, &options, &region, fresh()) == invalid_argument);
  CHECK(strcmp(text(), "note is NULL") == 0);
}

static void reached(void* context) { atomic_fetch_add((atomic_int*)context, 1); }

static void a_counter_counts_posts_after_their_bytes(headrace_agent* left, headrace_agent* right) {
  static unsigned char source[pages * page_bytes], target[pages * page_bytes];
  static atomic_int calls;
  memset(source, 5, sizeof source);
  const uint32_t from = register_bytes(left, source, sizeof source, NULL);
  const uint32_t to = register_bytes(right, target, sizeof target, "counted");
  meet(left, right);
  headrace_counter* counter = NULL;
  CHECK(headrace_agent_counter(right, 3, 1, &counter, fresh()) == 0 && headrace_counter_value(counter) == 0);
  headrace_counter_word* word = NULL;
  CHECK(headrace_counter_get_word(counter, -1, &word, fresh()) == 0);
  int32_t descriptor = -1;
  CHECK(headrace_counter_event_fd(counter, 2, &descriptor, fresh()) == 0);
  CHECK(headrace_counter_on_reached(counter, 2, reached, (headrace_callback){&calls, NULL}, fresh()) == 0);
  CHECK(headrace_counter_on_reached(counter, 2, NULL, (headrace_callback){NULL, NULL}, fresh()) == 2);
  headrace_page_list* local = prepare(left, NULL, from);
  headrace_page_list* remote = prepare(left, "right", to);
  SIZED(headrace_request_part, part);
  part.local = local;
  part.remote = remote;
  headrace_request* request = NULL;
  CHECK(headrace_agent_make_request(left, HEADRACE_OPERATION_WRITE, &part, 1, NULL, &request, fresh()) == 0);
  SIZED(headrace_post_options, options);
  options.timeout_ns = -1;
  options.has_immediate = 1;
  options.immediate = 3;
  options.scope = 1;
  CHECK(headrace_counter_wait(counter, 1, 0, fresh()) == 5);
  for (int i = 0; i < 2; ++i) {
    CHECK(headrace_request_post(request, &options, fresh()) == 0);
    CHECK(headrace_request_wait(request, ten_seconds, fresh()) == 0);
  }
  CHECK(headrace_counter_wait(counter, 2, ten_seconds, fresh()) == 0 && target[sizeof target - 1] == 5);
  CHECK(headrace_counter_value(counter) == 2 && *headrace_counter_word_address(word) == 2);
  struct pollfd readable = {descriptor, POLLIN, 0};
  CHECK(poll(&readable, 1, 10000) == 1 && close(descriptor) == 0);
  CHECK(reaches(&calls, 1));
  headrace_request_free(request);
  headrace_page_list_free(remote);
  headrace_page_list_free(local);
  headrace_counter_free(counter);
  CHECK(*headrace_counter_word_address(word) == 2);
  headrace_counter_word_free(word);
  CHECK(headrace_agent_deregister(left, &from, 1, ten_seconds, fresh()) == 0);
  CHECK(headrace_agent_deregister(right, &to, 1, ten_seconds, fresh()) == 0);
}

static void metadata_travels_by_socket(headrace_agent* left, headrace_agent* right) {
  CHECK(headrace_agent_forget(left, "right", fresh()) == 0);
  SIZED(headrace_import_report, report);
  CHECK(headrace_agent_fetch_metadata(left, headrace_agent_listen_address(right), ten_seconds, &report,
                                      fresh()) == 0);
  CHECK(strcmp(report.peer, "right") == 0 && report.regions == 1);
  CHECK(headrace_agent_connect(left, "right", NULL, ten_seconds, fresh()) == 0);
  CHECK(headrace_agent_metadata_version(right) >= 1);
}

/* ---------------------------------------------------------------- what is refused */

static void errors_have_code_sentence_and_page(headrace_agent* agent) {
  headrace_page_spec spec = uniform(77);
  headrace_page_list* list = NULL;
  CHECK(headrace_agent_prepare(agent, NULL, &spec, &list, fresh()) == 3 && list == NULL);
  CHECK(headrace_error_code(last_error) == 3 && headrace_error_page(last_error) == 0);
  CHECK(strstr(text(), "this agent has no region 77") != NULL);
  CHECK(headrace_agent_prepare(agent, NULL, &spec, &list, NULL) == 3);
  spec.struct_size = 8;
  CHECK(headrace_agent_prepare(agent, NULL, &spec, &list, fresh()) == 2);
  CHECK(strstr(text(), "struct_size") != NULL);
  CHECK(headrace_agent_prepare(agent, NULL, NULL, &list, fresh()) == 2);
  CHECK(strcmp(text(), "spec is NULL") == 0);
  CHECK(headrace_agent_prepare(NULL, NULL, &spec, &list, fresh()) == 2);
  spec = uniform(77);
  spec.form = 9;
  CHECK(headrace_agent_prepare(agent, NULL, &spec, &list, fresh()) == 2);
  spec.form = HEADRACE_PAGES_ADDRESSES;
  CHECK(headrace_agent_prepare(agent, "right", &spec, &list, fresh()) == 2);
  spec.dimensions = 5;
  CHECK(headrace_agent_prepare(agent, NULL, &spec, &list, fresh()) == 2);
  CHECK(headrace_agent_notify(agent, "nobody", "x", 1, fresh()) == 3);
  CHECK(strcmp(headrace_code_name(3), "not_found") == 0);
  headrace_notifications* taken = NULL;
  CHECK(headrace_agent_wait_notification(agent, NULL, NULL, 1000000, &taken, fresh()) == 5 && taken == NULL);
}

/* A caller that was compiled with a later version. */
static void structs_of_a_later_version_may_be_longer_in_arrays_too(headrace_agent* agent) {
  static unsigned char memory[2][page_bytes];
  struct {
    headrace_memory known;
    uint64_t later;
  } ranges[2];
  memset(ranges, 0xff, sizeof ranges);
  for (int i = 0; i < 2; ++i) {
    SIZED(headrace_memory, range);
    range.struct_size = sizeof ranges[i];
    range.address = memory[i];
    range.length = page_bytes;
    ranges[i].known = range;
  }
  uint32_t regions[2] = {0, 0};
  CHECK(headrace_agent_register(agent, &ranges[0].known, 2, NULL, regions, fresh()) == 0);
  CHECK(regions[0] != 0 && regions[1] != 0 && regions[0] != regions[1]);
  ranges[0].known.struct_size = sizeof ranges[0] + 1;
  CHECK(headrace_agent_register(agent, &ranges[0].known, 2, NULL, regions, fresh()) == 2);
  CHECK(strstr(text(), "struct_size") != NULL);
  CHECK(headrace_agent_deregister(agent, regions, 2, ten_seconds, fresh()) == 0);

  headrace_page_spec spec = uniform(register_bytes(agent, memory, sizeof memory, NULL));
  spec.count = 1;
  headrace_page_list *local = NULL, *remote = NULL;
  CHECK(headrace_agent_prepare(agent, NULL, &spec, &local, fresh()) == 0);
  CHECK(headrace_agent_prepare(agent, "left", &spec, &remote, fresh()) == 0);
  struct {
    headrace_request_part known;
    uint64_t later;
  } parts[2];
  memset(parts, 0xff, sizeof parts);
  for (int i = 0; i < 2; ++i) {
    SIZED(headrace_request_part, part);
    part.struct_size = sizeof parts[i];
    part.local = local;
    part.remote = remote;
    parts[i].known = part;
  }
  headrace_request* request = NULL;
  CHECK(headrace_agent_make_request(agent, HEADRACE_OPERATION_READ, &parts[0].known, 2, NULL, &request,
                                    fresh()) == 2);
  CHECK(strstr(text(), "struct_size") == NULL); /* both are of one peer: that is what is wrong */
  headrace_page_list_free(local);
  headrace_page_list_free(remote);
}

static void a_refused_registration_drops_what_it_was_to_keep(headrace_agent* agent) {
  const int before = atomic_load(&drops);
  SIZED(headrace_memory, nothing);
  SIZED(headrace_register_options, options);
  options.keep = &drops;
  options.drop = drop;
  uint32_t region = 0;
  CHECK(headrace_agent_register(agent, &nothing, 1, &options, &region, fresh()) == 2);
  CHECK(atomic_load(&drops) == before + 1);
}

static void a_request_needs_indices_on_both_sides(headrace_agent* agent) {
  static unsigned char memory[pages * page_bytes];
  const uint32_t region = register_bytes(agent, memory, sizeof memory, NULL);
  headrace_page_list* list = prepare(agent, NULL, region);
  static const uint32_t index[] = {0};
  SIZED(headrace_request_part, part);
  part.local = list;
  headrace_request* request = NULL;
  CHECK(headrace_agent_make_request(agent, 0, &part, 1, NULL, &request, fresh()) == 2);
  part.remote = list;
  part.local_index = index;
  part.count = 1;
  CHECK(headrace_agent_make_request(agent, 0, &part, 1, NULL, &request, fresh()) == 2);
  CHECK(strstr(text(), "for both, or for none") != NULL);
  CHECK(headrace_agent_make_request(agent, 7, &part, 1, NULL, &request, fresh()) == 2 && request == NULL);
  headrace_page_list_free(list);
  CHECK(headrace_agent_deregister(agent, &region, 1, ten_seconds, fresh()) == 0);
}

static void null_may_be_freed_and_asked(void) {
  headrace_agent_close(NULL);
  headrace_agent_shut(NULL);
  headrace_regions_free(NULL);
  headrace_mapping_free(NULL);
  headrace_page_list_free(NULL);
  headrace_request_free(NULL);
  headrace_request_cancel(NULL);
  headrace_notifications_free(NULL);
  headrace_counter_free(NULL);
  headrace_counter_word_free(NULL);
  headrace_completion_queue_free(NULL);
  headrace_notification_watch_free(NULL);
  CHECK(headrace_counter_value(NULL) == 0 && headrace_counter_word_address(NULL) == NULL);
  headrace_error_free(NULL);
  headrace_bytes_free(NULL);
  CHECK(headrace_regions_count(NULL) == 0 && headrace_mapping_address(NULL) == NULL);
  CHECK(headrace_error_code(NULL) == 0 && strcmp(headrace_error_message(NULL), "") == 0);
}

/* A request keeps its agent alive inside: a handle that is freed late calls nothing that is gone. */
static void a_request_may_be_freed_after_its_agent(void) {
  static unsigned char memory[pages * page_bytes];
  headrace_agent* agent = open_agent("alone");
  const uint32_t region = register_bytes(agent, memory, sizeof memory, NULL);
  headrace_page_list* local = prepare(agent, NULL, region);
  headrace_page_list* remote = prepare(agent, "alone", region);
  headrace_request* request = make_read(agent, local, remote);
  headrace_agent_close(agent);
  CHECK(headrace_request_post(request, NULL, fresh()) == 2);
  headrace_request_free(request);
  headrace_page_list_free(remote);
  headrace_page_list_free(local);
}

/* ---------------------------------------------------------------- closing */

struct closing {
  headrace_agent* agent;
  headrace_request* request;
  atomic_int begun;
};

/* What ends a call of an agent that is closed. */
static int is_closed(int32_t code) { return code == canceled || code == invalid_argument; }

static void* posts_until_closed(void* argument) {
  struct closing* closing = argument;
  int32_t code = 0;
  atomic_fetch_add(&closing->begun, 1);
  while (code == 0) {
    code = headrace_request_post(closing->request, NULL, fresh());
    (void)headrace_request_poll(closing->request);
    if (code == 0) code = headrace_request_wait(closing->request, ten_seconds, fresh());
  }
  CHECK(is_closed(code));
  (void)fresh();
  return NULL;
}

static void* registers_until_closed(void* argument) {
  struct closing* closing = argument;
  static unsigned char memory[page_bytes];
  int32_t code = 0;
  atomic_fetch_add(&closing->begun, 1);
  while (code == 0) {
    SIZED(headrace_memory, range);
    range.address = memory;
    range.length = sizeof memory;
    uint32_t region = 0;
    code = headrace_agent_register(closing->agent, &range, 1, NULL, &region, fresh());
    if (code == 0) code = headrace_agent_deregister(closing->agent, &region, 1, ten_seconds, fresh());
    if (code == 0) code = headrace_agent_notify(closing->agent, "closing", "hi", 2, fresh());
  }
  CHECK(is_closed(code));
  (void)fresh();
  return NULL;
}

static void* waits_until_closed(void* argument) {
  struct closing* closing = argument;
  headrace_counter* counter = NULL;
  CHECK(headrace_agent_counter(closing->agent, 9, 9, &counter, fresh()) == 0);
  atomic_fetch_add(&closing->begun, 1);
  CHECK(headrace_counter_wait(counter, 1, -1, fresh()) == canceled);
  headrace_counter_free(counter);
  (void)fresh();
  return NULL;
}

static void an_agent_may_be_shut_beside_every_call_and_freed_later(void) {
  static unsigned char memory[pages * page_bytes];
  void* (*const calls[])(void*) = {posts_until_closed, registers_until_closed, waits_until_closed};
  for (int round = 0; round < 10; ++round) {
    struct closing closing = {open_agent("closing"), NULL, 0};
    const uint32_t region = register_bytes(closing.agent, memory, sizeof memory, NULL);
    headrace_page_list* local = prepare(closing.agent, NULL, region);
    headrace_page_list* remote = prepare(closing.agent, "closing", region);
    closing.request = make_read(closing.agent, local, remote);
    pthread_t threads[3];
    for (int i = 0; i < 3; ++i) CHECK(pthread_create(&threads[i], NULL, calls[i], &closing) == 0);
    CHECK(reaches(&closing.begun, 3));
    poll(NULL, 0, round);
    headrace_agent_shut(closing.agent);
    for (int i = 0; i < 3; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
    headrace_agent_shut(closing.agent);
    CHECK(headrace_request_post(closing.request, NULL, fresh()) == invalid_argument);
    headrace_agent_close(closing.agent);
    headrace_request_free(closing.request);
    headrace_page_list_free(remote);
    headrace_page_list_free(local);
  }
}

static void a_shut_agent_refuses_notifications_and_wakes_those_that_wait_for_them(void) {
  headrace_agent* agent = open_agent("shut");
  struct pollfd waiting = {-1, POLLIN, 0};
  int32_t again = -1;
  CHECK(headrace_agent_notification_fd(agent, &waiting.fd, fresh()) == 0);
  CHECK(poll(&waiting, 1, 0) == 0);
  headrace_agent_shut(agent);
  CHECK(poll(&waiting, 1, 0) == 1);
  headrace_notifications* taken = NULL;
  CHECK(headrace_agent_take_notifications(agent, NULL, NULL, &taken, fresh()) == invalid_argument);
  CHECK(taken == NULL && strstr(text(), "is closed") != NULL);
  CHECK(headrace_agent_notification_fd(agent, &again, fresh()) == invalid_argument);
  headrace_agent_close(agent);
}

static void a_count_beyond_all_memory_is_refused(headrace_agent* agent) {
  static unsigned char memory[pages * page_bytes];
  const uint64_t beyond = (uint64_t)1 << 62;
  uint32_t region = register_bytes(agent, memory, sizeof memory, NULL);
  CHECK(headrace_agent_deregister(agent, &region, beyond, ten_seconds, fresh()) == invalid_argument);
  CHECK(strstr(text(), "check the count") != NULL);
  SIZED(headrace_export_options, export);
  export.regions = &region;
  export.region_count = beyond;
  headrace_bytes* bytes = NULL;
  CHECK(headrace_agent_export_metadata(agent, &export, &bytes, fresh()) == invalid_argument);
  headrace_page row = {0};
  SIZED(headrace_page_spec, spec);
  spec.form = HEADRACE_PAGES_ROWS;
  spec.rows = &row;
  spec.count = beyond;
  headrace_page_list* pages_of = NULL;
  CHECK(headrace_agent_prepare(agent, NULL, &spec, &pages_of, fresh()) == invalid_argument);
  headrace_page_list* list = prepare(agent, NULL, region);
  SIZED(headrace_request_part, part);
  part.local = list;
  part.remote = list;
  part.local_index = &region;
  part.remote_index = &region;
  part.count = beyond;
  headrace_request* request = NULL;
  CHECK(headrace_agent_make_request(agent, 0, &part, 1, NULL, &request, fresh()) == invalid_argument);
  headrace_page_list_free(list);
  CHECK(headrace_agent_deregister(agent, &region, 1, ten_seconds, fresh()) == 0);
}

int main(void) {
  headrace_agent* left = open_agent("left");
  headrace_agent* right = open_agent("right");
  a_read_moves_the_pages_that_its_indices_name(left, right);
  every_form_of_pages_says_the_same(left);
  messages_and_lists_cross(left, right);
  a_note_goes_with_its_size(left, right);
  a_counter_counts_posts_after_their_bytes(left, right);
  metadata_travels_by_socket(left, right);
  errors_have_code_sentence_and_page(left);
  structs_of_a_later_version_may_be_longer_in_arrays_too(left);
  a_refused_registration_drops_what_it_was_to_keep(left);
  a_request_needs_indices_on_both_sides(left);
  a_count_beyond_all_memory_is_refused(left);
  null_may_be_freed_and_asked();
  headrace_agent_close(left);
  headrace_agent_close(right);
  a_request_may_be_freed_after_its_agent();
  an_agent_may_be_shut_beside_every_call_and_freed_later();
  a_shut_agent_refuses_notifications_and_wakes_those_that_wait_for_them();
  (void)fresh();
  puts("the C API does what it says");
  return 0;
}
