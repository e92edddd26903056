/* SPDX-License-Identifier: Apache-2.0
 *
 * The C API of agents: register memory, learn of peers, move pages. include/headrace/agent.hpp and
 * request.hpp explain each call; this header is their form in C. include/headrace/c/types.h has the rules.
 *
 * Threads: every function may be called from any thread, several at once, on any handle, except
 *   - a `_free` or `headrace_agent_close` beside another call with the same handle,
 *   - headrace_request_post and headrace_request_set_indices: one thread at a time for each request.
 * Callbacks run on the agent's callback thread, one at a time, and may call every function of this header but
 * headrace_agent_close. In a forked child every function answers invalid_argument.
 *
 * Order of freeing: any. An agent lives on inside until its requests, page lists and mappings are freed.
 */
#ifndef HEADRACE_C_AGENT_H
#define HEADRACE_C_AGENT_H

#include <headrace/c/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct headrace_agent headrace_agent;
typedef struct headrace_regions headrace_regions;
typedef struct headrace_mapping headrace_mapping;
typedef struct headrace_page_list headrace_page_list;
typedef struct headrace_request headrace_request;
typedef struct headrace_notifications headrace_notifications;
typedef struct headrace_counter headrace_counter;
typedef struct headrace_counter_word headrace_counter_word;
typedef struct headrace_completion_queue headrace_completion_queue;
typedef struct headrace_notification_watch headrace_notification_watch;

/* A function of the caller's with its context. `drop`, if it is not NULL, is called once when the callback
 * will not be called again: it was replaced, or its agent or request has ended. Frozen. */
typedef struct headrace_callback {
  void* context;
  void (*drop)(void* context);
} headrace_callback;

/* ------------------------------------------------------------------ agents */

typedef struct headrace_agent_options {
  size_t struct_size;
  const char* const* backends; /* names, then NULL; NULL: every backend that loads here */
  const char* listen;          /* "host:port" of the metadata socket; NULL: the agent does not listen.
                                  On loopback without a store: so is tcp's data port, as its default */
  const char* store;           /* "etcd://host:port", "file:///folder", "memory:NAME"; NULL: HEADRACE_STORE */
  const char* const* options;  /* name, value, name, value, ..., NULL; or NULL */
} headrace_agent_options;

/* Opens an agent. `options` may be NULL. Free with headrace_agent_close. */
HEADRACE_C_API int32_t headrace_agent_open(const char* name, const headrace_agent_options* options,
                                           headrace_agent** agent, headrace_error** error);
/* Cancels requests in flight, tells peers that the agent leaves, and frees the handle. */
HEADRACE_C_API void headrace_agent_close(headrace_agent* agent);
/* Closes the agent and keeps the handle: calls that wait return canceled, later ones invalid_argument. Beside
 * any other call with the handle but headrace_agent_close, which frees it afterwards. */
HEADRACE_C_API void headrace_agent_shut(headrace_agent* agent);
HEADRACE_C_API const char* headrace_agent_name(const headrace_agent* agent);
/* The random number of this start of the agent. */
HEADRACE_C_API uint64_t headrace_agent_incarnation(const headrace_agent* agent);
/* The address of the metadata socket, "127.0.0.1:40213"; "" if the agent does not listen. */
HEADRACE_C_API const char* headrace_agent_listen_address(const headrace_agent* agent);

/* ------------------------------------------------------------------ memory */

typedef enum headrace_kind {
  HEADRACE_KIND_DRAM = 0,  /* host memory: address, length */
  HEADRACE_KIND_VRAM = 1,  /* GPU memory: device, address, length */
  HEADRACE_KIND_BLOCK = 2, /* a block device: path */
  HEADRACE_KIND_FILE = 3,  /* a file: path or descriptor */
  HEADRACE_KIND_OBJECT = 4 /* an object in a store: path is its key */
} headrace_kind;

/* Memory to register. It stays the caller's and in place until it is deregistered. */
typedef struct headrace_memory {
  size_t struct_size;
  int32_t kind;   /* headrace_kind */
  int32_t device; /* vram: ordinal; else not read */
  void* address;  /* dram, vram */
  uint64_t length;
  const char* path;
  int32_t file_descriptor; /* file, block: open descriptor, or -1: use `path` */
  int32_t read_only;       /* requests of this agent and of peers never write it */
} headrace_memory;

typedef struct headrace_register_options {
  size_t struct_size;
  const char* name;            /* unique in the agent; NULL: unnamed */
  const char* note;            /* bytes that travel with the metadata, up to 64 KiB; may be NULL */
  const char* const* backends; /* names, then NULL; NULL: every backend that takes the kind */
  void* keep;                  /* with `drop`: drop(keep) is called once the regions are deregistered */
  void (*drop)(void* keep);    /* may be NULL */
  uint64_t note_size;          /* of `note`, which may have zeros then; 0: it ends with its first zero */
} headrace_register_options;

/* Registers `count` ranges, all or none, and writes their ids to regions[0 .. count - 1]. With more than one
 * range the names end with "/0", "/1", ... `options` may be NULL. If it fails, `drop` is called too. */
HEADRACE_C_API int32_t headrace_agent_register(headrace_agent* agent, const headrace_memory* ranges,
                                               uint64_t count, const headrace_register_options* options,
                                               uint32_t* regions, headrace_error** error);

typedef struct headrace_allocate_options {
  size_t struct_size;
  int32_t kind;       /* HEADRACE_KIND_DRAM */
  int32_t numa_node;  /* -1: the node of near_gpu, else that of the thread that first touches a page */
  int32_t near_gpu;   /* CUDA ordinal, or -1 */
  int32_t huge_pages; /* 2 MiB pages */
  int32_t read_only;  /* requests and peers' mappings only read it */
  int32_t reserved;
  const headrace_register_options* registration; /* may be NULL */
} headrace_allocate_options;
/* Allocates memory that peers of this host can map: the fastest kind. The agent owns it until it is
 * deregistered. `options` may be NULL. */
HEADRACE_C_API int32_t headrace_agent_allocate(headrace_agent* agent, uint64_t length,
                                               const headrace_allocate_options* options, uint32_t* region,
                                               void** address, headrace_error** error);
/* Withdraws regions: asks every peer that knows them, waits, then forgets them. */
HEADRACE_C_API int32_t headrace_agent_deregister(headrace_agent* agent, const uint32_t* regions,
                                                 uint64_t count, int64_t timeout_ns, headrace_error** error);

typedef struct headrace_region {
  size_t struct_size;
  uint32_t id;
  int32_t kind;
  uint64_t address; /* the owner's; 0 for files and objects */
  uint64_t length;
  const char* name;
  const char* note; /* `note_size` bytes, and a zero behind them */
  int32_t read_only;
  int32_t reserved;
  uint64_t note_size;
} headrace_region;
/* The regions of this agent, or of a peer. Free with headrace_regions_free. */
HEADRACE_C_API int32_t headrace_agent_regions(const headrace_agent* agent, headrace_regions** regions,
                                              headrace_error** error);
HEADRACE_C_API int32_t headrace_agent_peer_regions(const headrace_agent* agent, const char* peer,
                                                   headrace_regions** regions, headrace_error** error);
/* A list of one: the region of a peer that has this name. */
HEADRACE_C_API int32_t headrace_agent_peer_region(const headrace_agent* agent, const char* peer,
                                                  const char* name, headrace_regions** regions,
                                                  headrace_error** error);
HEADRACE_C_API uint64_t headrace_regions_count(const headrace_regions* regions);
/* Fills in region `index`. Its texts belong to the list. */
HEADRACE_C_API int32_t headrace_regions_get(const headrace_regions* regions, uint64_t index,
                                            headrace_region* region, headrace_error** error);
HEADRACE_C_API void headrace_regions_free(headrace_regions* regions);

/* Looks for a file, a block device or an object by a backend. *json: NULL if it does not exist, else an
 * object of texts; "bytes" is always there. Free with headrace_bytes_free. */
HEADRACE_C_API int32_t headrace_agent_query(headrace_agent* agent, const headrace_memory* what,
                                            const char* backend, headrace_bytes** json,
                                            headrace_error** error);

/* Makes a peer's region addressable here, for the CPU (device -1) or for a GPU. Free with
 * headrace_mapping_free. */
HEADRACE_C_API int32_t headrace_agent_map(headrace_agent* agent, const char* peer, uint32_t region,
                                          int32_t device, int64_t timeout_ns, headrace_mapping** mapping,
                                          headrace_error** error);
HEADRACE_C_API void* headrace_mapping_address(const headrace_mapping* mapping);
HEADRACE_C_API uint64_t headrace_mapping_length(const headrace_mapping* mapping);
HEADRACE_C_API int32_t headrace_mapping_read_only(const headrace_mapping* mapping);
/* Whether the peer still offers the region. */
HEADRACE_C_API int32_t headrace_mapping_alive(const headrace_mapping* mapping);
/* Unmaps it. Of a GPU's mapping this waits until the GPU has done what was queued. */
HEADRACE_C_API void headrace_mapping_free(headrace_mapping* mapping);

/* ------------------------------------------------------------------ metadata and peers */

typedef struct headrace_export_options {
  size_t struct_size;
  const uint32_t* regions; /* only these; region_count 0: all */
  uint64_t region_count;
  int32_t no_regions;         /* connection information alone */
  int32_t no_connection_info; /* later exports may omit it */
  uint64_t since_version;     /* only changes after this version; 0: everything */
} headrace_export_options;

typedef struct headrace_import_report {
  size_t struct_size;
  uint64_t incarnation;
  uint64_t version;
  uint64_t regions;
  int32_t restarted; /* an earlier incarnation of the peer was known here */
  int32_t reserved;
  char peer[256];
  uint64_t left_out; /* regions that were not taken: the peer has revoked them since */
} headrace_import_report;

/* This agent's metadata as bytes. `options` may be NULL. Free with headrace_bytes_free. */
HEADRACE_C_API int32_t headrace_agent_export_metadata(const headrace_agent* agent,
                                                      const headrace_export_options* options,
                                                      headrace_bytes** metadata, headrace_error** error);
/* Increases with every registration change. */
HEADRACE_C_API uint64_t headrace_agent_metadata_version(const headrace_agent* agent);
/* Imports what a peer exported. `report` may be NULL, here and below. */
HEADRACE_C_API int32_t headrace_agent_import_metadata(headrace_agent* agent, const void* bytes, uint64_t size,
                                                      headrace_import_report* report, headrace_error** error);
/* Fetches and imports the metadata of the agent that listens at "host:port". */
HEADRACE_C_API int32_t headrace_agent_fetch_metadata(headrace_agent* agent, const char* address,
                                                     int64_t timeout_ns, headrace_import_report* report,
                                                     headrace_error** error);
/* Sends this agent's metadata to the agent that listens at "host:port". */
HEADRACE_C_API int32_t headrace_agent_send_metadata(headrace_agent* agent, const char* address,
                                                    const headrace_export_options* options,
                                                    int64_t timeout_ns, headrace_error** error);
/* Publishes this agent's metadata in the store, and again after each change. `options` and `label` may be
 * NULL. */
HEADRACE_C_API int32_t headrace_agent_publish(headrace_agent* agent, const headrace_export_options* options,
                                              const char* label, headrace_error** error);
HEADRACE_C_API int32_t headrace_agent_unpublish(headrace_agent* agent, headrace_error** error);
/* Looks a peer up in the store and imports its metadata. `label` may be NULL. */
HEADRACE_C_API int32_t headrace_agent_find(headrace_agent* agent, const char* peer, const char* label,
                                           int64_t timeout_ns, headrace_import_report* report,
                                           headrace_error** error);
/* The names of the agents in the store's namespace, as a JSON array. */
HEADRACE_C_API int32_t headrace_agent_list_namespace(headrace_agent* agent, int64_t timeout_ns,
                                                     headrace_bytes** json, headrace_error** error);

typedef enum headrace_peer_event {
  HEADRACE_PEER_JOINED = 0,
  HEADRACE_PEER_UPDATED = 1,
  HEADRACE_PEER_LEFT = 2
} headrace_peer_event;
typedef void (*headrace_peer_function)(void* context, int32_t event, const char* peer);
/* Calls `function` for every peer that joins, changes or leaves. It replaces an earlier watch; NULL ends it.
 */
HEADRACE_C_API int32_t headrace_agent_watch_namespace(headrace_agent* agent, headrace_peer_function function,
                                                      headrace_callback callback, headrace_error** error);

/* The peers whose metadata this agent has imported, as a JSON array of objects: name, incarnation, version,
 * regions, connected, lost, backends, detail. */
HEADRACE_C_API int32_t headrace_agent_peers(const headrace_agent* agent, headrace_bytes** json,
                                            headrace_error** error);
/* Connects to a peer before the first request and waits until a link is ready. `backends`: names, then NULL;
 * NULL: all. */
HEADRACE_C_API int32_t headrace_agent_connect(headrace_agent* agent, const char* peer,
                                              const char* const* backends, int64_t timeout_ns,
                                              headrace_error** error);
/* Cancels requests in flight with a peer, closes the links, drops its metadata. */
HEADRACE_C_API int32_t headrace_agent_forget(headrace_agent* agent, const char* peer, headrace_error** error);

/* ------------------------------------------------------------------ pages */

/* A page by region. Frozen. */
typedef struct headrace_page {
  uint64_t region;
  uint64_t offset;
  uint64_t length;
} headrace_page;

/* A page of this process's memory by address. Frozen. */
typedef struct headrace_address_page {
  uint64_t address;
  uint64_t length;
} headrace_address_page;

/* 64-bit integers at a distance of `stride` bytes; 0: one value for all pages. Frozen. */
typedef struct headrace_page_column {
  const void* first;
  int64_t stride;
} headrace_page_column;

typedef enum headrace_page_form {
  HEADRACE_PAGES_ROWS = 0,      /* rows: headrace_page[count] */
  HEADRACE_PAGES_ADDRESSES = 1, /* rows: headrace_address_page[count]; own memory only */
  HEADRACE_PAGES_COLUMNS = 2,   /* region; offsets, lengths, origin: page i begins at offsets[i] - origin */
  HEADRACE_PAGES_UNIFORM = 3    /* region; page i begins at base + i * stride and has page_bytes */
} headrace_page_form;

#define HEADRACE_VIEW_DIMENSIONS 4

/* Which bytes are pages. Fields of other forms are not read. The arrays are read during the call alone. */
typedef struct headrace_page_spec {
  size_t struct_size;
  int32_t form;    /* headrace_page_form */
  uint32_t region; /* columns, uniform */
  uint64_t count;
  const void* rows;
  headrace_page_column offsets;
  headrace_page_column lengths;
  uint64_t origin;
  uint64_t base;
  uint64_t stride; /* 0: page_bytes */
  uint64_t page_bytes;
  /* Each page is a strided view; not with columns. dimensions 0: every page is contiguous. */
  uint32_t dimensions; /* at most HEADRACE_VIEW_DIMENSIONS */
  uint32_t reserved;
  uint64_t item_bytes;
  int64_t shape[HEADRACE_VIEW_DIMENSIONS];
  int64_t strides[HEADRACE_VIEW_DIMENSIONS]; /* in bytes; all 0: no gaps */
} headrace_page_spec;

/* Prepares pages. `peer`: NULL: of this agent; a peer's name: of its regions; this agent's own name: the
 * remote list of a move inside the agent. Free with headrace_page_list_free. */
HEADRACE_C_API int32_t headrace_agent_prepare(headrace_agent* agent, const char* peer,
                                              const headrace_page_spec* spec, headrace_page_list** pages,
                                              headrace_error** error);
HEADRACE_C_API uint64_t headrace_page_list_count(const headrace_page_list* pages);
HEADRACE_C_API uint64_t headrace_page_list_bytes(const headrace_page_list* pages);
HEADRACE_C_API void headrace_page_list_free(headrace_page_list* pages);

/* ------------------------------------------------------------------ requests */

typedef enum headrace_operation {
  HEADRACE_OPERATION_READ = 0, /* local <- remote */
  HEADRACE_OPERATION_WRITE = 1 /* local -> remote */
} headrace_operation;

typedef enum headrace_state {
  HEADRACE_STATE_PREPARED = 0,
  HEADRACE_STATE_POSTED = 1,
  HEADRACE_STATE_CANCELING = 2,
  HEADRACE_STATE_DONE = 3,
  HEADRACE_STATE_FAILED = 4,
  HEADRACE_STATE_CANCELED = 5,
  HEADRACE_STATE_CAPTURED = 6
} headrace_state;

/* Page local_index[i] goes with page remote_index[i], for i < count. Both NULL: page i with page i. */
typedef struct headrace_request_part {
  size_t struct_size;
  const headrace_page_list* local;
  const headrace_page_list* remote;
  const uint32_t* local_index;
  const uint32_t* remote_index;
  uint64_t count;
} headrace_request_part;

typedef struct headrace_request_options {
  size_t struct_size;
  const char* const* backends; /* names, then NULL; NULL: the best of all */
  int64_t timeout_ns;          /* of each post; 0: it ends at once; negative: none */
} headrace_request_options;

/* Makes a request of one part, or of several parts to a peer each. `options` may be NULL. The request co-owns
 * the lists. Free with headrace_request_free. */
HEADRACE_C_API int32_t headrace_agent_make_request(headrace_agent* agent, int32_t operation,
                                                   const headrace_request_part* parts, uint64_t part_count,
                                                   const headrace_request_options* options,
                                                   headrace_request** request, headrace_error** error);

/* Other pages for a captured request. */
typedef struct headrace_page_indices {
  size_t struct_size;
  const uint32_t* local; /* NULL: the first `count` pages of this side stay */
  const uint32_t* remote;
  uint64_t count;
  int32_t kind;  /* HEADRACE_KIND_DRAM: copied; HEADRACE_KIND_VRAM: a GPU reads them in the stream's order */
  uint32_t part; /* of a request to several peers */
} headrace_page_indices;

typedef struct headrace_post_options {
  size_t struct_size;
  const void* notification; /* delivered to the peer after the bytes; read if has_notification is set */
  uint64_t notification_size;
  int32_t has_notification;
  int32_t has_stream; /* `stream` is a CUDA stream; NULL there: the default stream */
  void* stream;
  int64_t timeout_ns;                   /* of this post; 0: it ends at once; negative: the request's */
  const headrace_page_indices* indices; /* in a capture alone; else NULL */
  int32_t has_immediate;                /* the peer counts the post, or each replay: headrace_agent_counter */
  uint32_t immediate;
  uint32_t scope; /* immediates of different scopes are different */
} headrace_post_options;

/* Starts the request and returns. `options` may be NULL. */
HEADRACE_C_API int32_t headrace_request_post(headrace_request* request, const headrace_post_options* options,
                                             headrace_error** error);
/* Runs progress once on this thread and returns the headrace_state. */
HEADRACE_C_API int32_t headrace_request_poll(headrace_request* request);
HEADRACE_C_API int32_t headrace_request_state(const headrace_request* request);
/* Waits until the post has ended: 0, the post's error, or timed_out while the post still ran. If the state
   has ended after timed_out, a wait of 0 ns tells how. */
HEADRACE_C_API int32_t headrace_request_wait(headrace_request* request, int64_t timeout_ns,
                                             headrace_error** error);
/* Asks that the post ends. Wait until the memory is quiet. */
HEADRACE_C_API void headrace_request_cancel(headrace_request* request);
HEADRACE_C_API int32_t headrace_request_set_indices(headrace_request* request,
                                                    const headrace_page_indices* indices, void* stream,
                                                    headrace_error** error);
/* The number of replays of a captured request that have ended. */
HEADRACE_C_API int32_t headrace_request_check(headrace_request* request, uint64_t* replays,
                                              headrace_error** error);
/* Returns the code of the last post, 0 if it did not fail, and its error. */
HEADRACE_C_API int32_t headrace_request_error(const headrace_request* request, headrace_error** error);

typedef struct headrace_request_times {
  size_t struct_size;
  uint64_t posted_at_ns; /* CLOCK_MONOTONIC */
  uint64_t post_ns;      /* inside post */
  uint64_t transfer_ns;  /* from post to completion */
  uint64_t bytes;
  uint64_t pages;
  uint64_t posts;
} headrace_request_times;
HEADRACE_C_API int32_t headrace_request_get_times(const headrace_request* request,
                                                  headrace_request_times* times, headrace_error** error);
/* The path, why it was chosen, and why the others were not. Free with headrace_bytes_free. */
HEADRACE_C_API int32_t headrace_request_explain(const headrace_request* request, headrace_bytes** text,
                                                headrace_error** error);
/* The backend's name; several with commas. */
HEADRACE_C_API int32_t headrace_request_backend(const headrace_request* request, headrace_bytes** text,
                                                headrace_error** error);
/* A JSON array with an object for each part: peer, backend, pages, bytes, state, error (NULL or an object of
 * code, message, page). */
HEADRACE_C_API int32_t headrace_request_parts(const headrace_request* request, headrace_bytes** json,
                                              headrace_error** error);

typedef struct headrace_cost {
  size_t struct_size;
  uint64_t duration_ns;
  double margin; /* the error of the estimate, as a fraction of it */
} headrace_cost;
HEADRACE_C_API int32_t headrace_request_cost(const headrace_request* request, headrace_cost* cost,
                                             headrace_error** error);

typedef void (*headrace_done_function)(void* context, int32_t code, uint64_t page);
/* Calls `function` once for each completion. It replaces an earlier one; NULL ends it. */
HEADRACE_C_API void headrace_request_on_done(headrace_request* request, headrace_done_function function,
                                             headrace_callback callback);
/* An eventfd that becomes readable at each completion. It belongs to the request. */
HEADRACE_C_API int32_t headrace_request_event_fd(headrace_request* request, int32_t* descriptor,
                                                 headrace_error** error);
/* Cancels the post in flight, whose memory must stay until it is quiet, and frees the handle. */
HEADRACE_C_API void headrace_request_free(headrace_request* request);

/* ------------------------------------------------------------------ completion queues */

/* For event loops: one descriptor for the completions of many requests, also of several agents. A queue may
 * be freed before its requests: completions to come are not queued then. Free with
 * headrace_completion_queue_free. */
HEADRACE_C_API int32_t headrace_completion_queue_open(headrace_completion_queue** queue,
                                                      headrace_error** error);
/* Puts `number` into the queue once, at the completion of the post that is in flight. If none is, or if the
 * post is refused after all, at once. */
HEADRACE_C_API int32_t headrace_completion_queue_add(headrace_completion_queue* queue,
                                                     const headrace_request* request, uint64_t number,
                                                     headrace_error** error);
/* Moves numbers to numbers[0 .. *count - 1], at most `capacity`, in the order of their completions. Does not
 * wait: *count is 0 if the queue has none. */
HEADRACE_C_API int32_t headrace_completion_queue_take(headrace_completion_queue* queue, uint64_t* numbers,
                                                      uint64_t capacity, uint64_t* count,
                                                      headrace_error** error);
/* An eventfd that is readable while the queue has numbers. It belongs to the queue; do not read from it. */
HEADRACE_C_API int32_t headrace_completion_queue_event_fd(const headrace_completion_queue* queue,
                                                          int32_t* descriptor, headrace_error** error);
HEADRACE_C_API void headrace_completion_queue_free(headrace_completion_queue* queue);

/* ------------------------------------------------------------------ notifications */

/* Sends a notification without a request. */
HEADRACE_C_API int32_t headrace_agent_notify(headrace_agent* agent, const char* peer, const void* payload,
                                             uint64_t size, headrace_error** error);
/* Takes those that have arrived, of this peer (NULL: any), whose payload begins with `prefix` (NULL: any).
 * Free with headrace_notifications_free. */
HEADRACE_C_API int32_t headrace_agent_take_notifications(headrace_agent* agent, const char* peer,
                                                         const char* prefix,
                                                         headrace_notifications** notifications,
                                                         headrace_error** error);
/* Waits for the next one: a list of one. */
HEADRACE_C_API int32_t headrace_agent_wait_notification(headrace_agent* agent, const char* peer,
                                                        const char* prefix, int64_t timeout_ns,
                                                        headrace_notifications** notifications,
                                                        headrace_error** error);
HEADRACE_C_API uint64_t headrace_notifications_count(const headrace_notifications* notifications);
/* The sender and the payload of notification `index`; NULL if there is none. */
HEADRACE_C_API const char* headrace_notifications_peer(const headrace_notifications* notifications,
                                                       uint64_t index);
HEADRACE_C_API const char* headrace_notifications_payload(const headrace_notifications* notifications,
                                                          uint64_t index, uint64_t* size);
HEADRACE_C_API void headrace_notifications_free(headrace_notifications* notifications);
typedef void (*headrace_notification_function)(void* context, const char* peer, const void* payload,
                                               uint64_t size);
/* Passes each notification to `function` instead of keeping it; NULL ends that. */
HEADRACE_C_API void headrace_agent_on_notification(headrace_agent* agent,
                                                   headrace_notification_function function,
                                                   headrace_callback callback);
/* A descriptor that is readable while notifications wait, and once the agent is closed. It belongs to the
 * agent. */
HEADRACE_C_API int32_t headrace_agent_notification_fd(headrace_agent* agent, int32_t* descriptor,
                                                      headrace_error** error);

/* Tells of notifications of this peer (NULL: any) whose payload begins with `prefix` (NULL: any), until it is
 * freed; it takes one descriptor of the process. A watch may be freed after its agent. Free with
 * headrace_notification_watch_free. */
HEADRACE_C_API int32_t headrace_agent_watch_notifications(headrace_agent* agent, const char* peer,
                                                          const char* prefix,
                                                          headrace_notification_watch** watch,
                                                          headrace_error** error);
/* A descriptor that becomes readable when such a notification arrives, when one waits already, and when the
 * agent is closed. It belongs to the watch; do not read from it. */
HEADRACE_C_API int32_t headrace_notification_watch_fd(const headrace_notification_watch* watch,
                                                      int32_t* descriptor, headrace_error** error);
/* Makes it unreadable until the next such notification. Take those that wait after it, not before. */
HEADRACE_C_API int32_t headrace_notification_watch_drain(headrace_notification_watch* watch,
                                                         headrace_error** error);
HEADRACE_C_API void headrace_notification_watch_free(headrace_notification_watch* watch);

/* ------------------------------------------------------------------ counters */

/* The number of posts with this immediate and scope that have arrived at this agent: their bytes can be read.
 * Free with headrace_counter_free. */
HEADRACE_C_API int32_t headrace_agent_counter(headrace_agent* agent, uint32_t immediate, uint32_t scope,
                                              headrace_counter** counter, headrace_error** error);
HEADRACE_C_API uint64_t headrace_counter_value(const headrace_counter* counter);
/* Waits until the count is at least that: 0, timed_out, or canceled (the agent was closed). */
HEADRACE_C_API int32_t headrace_counter_wait(const headrace_counter* counter, uint64_t at_least,
                                             int64_t timeout_ns, headrace_error** error);
typedef void (*headrace_reached_function)(void* context);
/* Calls `function` once, when the count is at least that; never if the agent is closed first. */
HEADRACE_C_API int32_t headrace_counter_on_reached(headrace_counter* counter, uint64_t at_least,
                                                   headrace_reached_function function,
                                                   headrace_callback callback, headrace_error** error);
/* A new descriptor, the caller's to close. It becomes readable once the count is at least that, or the agent
 * is closed. Do not read from it. */
HEADRACE_C_API int32_t headrace_counter_event_fd(headrace_counter* counter, uint64_t at_least,
                                                 int32_t* descriptor, headrace_error** error);
/* The count as 8 bytes that grow, for threads or kernels that poll: `device` is the number of a GPU in CUDA,
 * or -1 for host memory. Free with headrace_counter_word_free, after its readers have ended. */
HEADRACE_C_API int32_t headrace_counter_get_word(headrace_counter* counter, int32_t device,
                                                 headrace_counter_word** word, headrace_error** error);
/* The word's address, in this process or in the GPU's memory. */
HEADRACE_C_API const uint64_t* headrace_counter_word_address(const headrace_counter_word* word);
HEADRACE_C_API void headrace_counter_word_free(headrace_counter_word* word);
HEADRACE_C_API void headrace_counter_free(headrace_counter* counter);

/* ------------------------------------------------------------------ backends, options, telemetry */

/* The backends of this agent as a JSON array of objects: name, version, path, loaded, refusal, kinds, local,
 * remote, notifications, mapping, query, ports, options. */
HEADRACE_C_API int32_t headrace_agent_backends(const headrace_agent* agent, headrace_bytes** json,
                                               headrace_error** error);
/* Opens one more backend. `options`: name, value, ..., NULL; or NULL. */
HEADRACE_C_API int32_t headrace_agent_create_backend(headrace_agent* agent, const char* name,
                                                     const char* const* options, headrace_error** error);
/* Counters, histograms and events as a JSON object. */
HEADRACE_C_API int32_t headrace_agent_telemetry(const headrace_agent* agent, headrace_bytes** json,
                                                headrace_error** error);
/* Every plugin on the search path, loaded or refused, as headrace_agent_backends returns it. Needs no agent.
 */
HEADRACE_C_API int32_t headrace_list_backends(const char* const* options, headrace_bytes** json,
                                              headrace_error** error);
/* Every option with its value: a JSON array of objects: name, default, value, unit, sentence, source. */
HEADRACE_C_API int32_t headrace_list_options(const char* const* options, headrace_bytes** json,
                                             headrace_error** error);

/* ------------------------------------------------------------------ first values */

/* Structs whose zeros have a meaning that is rarely wanted: GPU 0, NUMA node 0, descriptor 0, "end at once".
 * Begin with these, as in: headrace_post_options options = HEADRACE_POST_OPTIONS_INIT; */
#define HEADRACE_MEMORY_INIT \
  { .struct_size = sizeof(headrace_memory), .file_descriptor = -1 }
#define HEADRACE_ALLOCATE_OPTIONS_INIT \
  { .struct_size = sizeof(headrace_allocate_options), .numa_node = -1, .near_gpu = -1 }
#define HEADRACE_REQUEST_OPTIONS_INIT \
  { .struct_size = sizeof(headrace_request_options), .timeout_ns = -1 }
#define HEADRACE_POST_OPTIONS_INIT \
  { .struct_size = sizeof(headrace_post_options), .timeout_ns = -1 }

#ifdef __cplusplus
}
#endif
#endif
