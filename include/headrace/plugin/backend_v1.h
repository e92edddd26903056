/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of functions that a backend implements, and the table of functions that the host offers to it.
 *
 * A backend is a shared object `headrace_backend_<name>.so` that exports `headrace_backend_v1_table`. It
 * carries requests between this agent and its peers over one kind of path (shared memory, TCP, CUDA IPC,
 * verbs, ...) or between this agent's own regions (files, object stores). C++ authors derive from
 * `backend.hpp` instead of filling in this table.
 *
 * Rules for every entry
 *   sizes     every struct begins with struct_size, except status, bytes, option, setting and page_grid,
 *             which are frozen (option grows by option_size). The side that makes a struct sets struct_size.
 *             Fields are only ever appended: read a field only if struct_size covers it (HEADRACE_HAS). In a
 *             struct that the callee fills (info, cost, map, text) struct_size is the host's: write no byte
 *             beyond it and do not change it
 *   meaning   a change in the meaning of an entry is used only together with an ability bit that announces
 *             it. Unknown bits are ignored
 *   borders   no C++ type, exception or allocator crosses. The side that made memory frees it. A pointer
 *             argument is valid during the call unless its sentence says longer
 *   threads   any entry may be called from any thread, several at once, except `progress`, `arm` and
 *             `destroy`: the host never runs two of these three at once on one instance
 *   locks     the host holds no lock while it calls the backend; the backend holds no lock while it calls
 *             the host
 *   blocking  no entry may wait for a peer, but `destroy` (see `unsent`): it starts the work, and reports the
 *             result through the host table
 *   re-entry  inside a host function the host calls no entry of any table and runs no code of a caller.
 *             Another thread of the host may do so before the function returns: `completed` may be followed
 *             by `post` or `release`, `accepted` by `notify`; `link_event` and `received` may come before
 *             `connect` has returned
 *   handles   the host returns each handle once (release, unmap, unload, disconnect, deregister_region,
 *             destroy), and only while no other call that takes it is running; for `disconnect` also no post
 *             of a request that was prepared on the link. After `completed` the backend starts no further
 *             access to the request; a call of the host that is still running may finish
 *   state     an entry leaves the calling thread as it found it: current GPU context, signal mask, name
 *   unload    a plugin is never unloaded
 */
#ifndef HEADRACE_PLUGIN_BACKEND_V1_H
#define HEADRACE_PLUGIN_BACKEND_V1_H

#include <headrace/plugin/columns_v1.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_BACKEND_ABI_MAJOR 1u
#define HEADRACE_BACKEND_ABI_MINOR 3u
#define HEADRACE_BACKEND_SYMBOL "headrace_backend_v1_table"

/* The values of headrace::Code; include/headrace/result.hpp says what the caller can do at each. */
typedef enum headrace_code_v1 {
  HEADRACE_OK = 0,
  HEADRACE_WOULD_BLOCK = 1,
  HEADRACE_INVALID_ARGUMENT = 2,
  HEADRACE_NOT_FOUND = 3,
  HEADRACE_NOT_SUPPORTED = 4,
  HEADRACE_TIMED_OUT = 5,
  HEADRACE_CANCELED = 6,
  HEADRACE_PEER_LOST = 7,
  HEADRACE_EXHAUSTED = 8,
  HEADRACE_CORRUPT = 9,
  HEADRACE_BACKEND_FAILED = 10,
  HEADRACE_INTERNAL = 11
} headrace_code_v1;

#define HEADRACE_NO_PAGE UINT64_MAX

/* Whether the maker of *args knows this field. */
#define HEADRACE_HAS(args, field) \
  ((args)->struct_size >= (size_t)((const char*)&(args)->field - (const char*)(args)) + sizeof((args)->field))

typedef enum headrace_memory_kind_v1 {
  HEADRACE_DRAM = 0,  /* host memory: address, length */
  HEADRACE_VRAM = 1,  /* GPU memory: device, address, length */
  HEADRACE_BLOCK = 2, /* a block device: path */
  HEADRACE_FILE = 3,  /* a file: path or descriptor */
  HEADRACE_OBJECT = 4 /* an object in a store: key */
} headrace_memory_kind_v1;
#define HEADRACE_KIND_BIT(kind) (1u << (kind))

typedef enum headrace_op_v1 {
  HEADRACE_READ = 0, /* local <- remote */
  HEADRACE_WRITE = 1 /* local -> remote */
} headrace_op_v1;

/* What an instance can do. If a bit is not set, the host never calls the entries that need it. */
typedef enum headrace_ability_v1 {
  HEADRACE_LOCAL = 1u << 0, /* moves between two regions of one agent */
  /* Moves between this agent and a peer: connect, load_remote, ... Requires HEADRACE_NOTIFY: revocations
   * travel as messages. */
  HEADRACE_REMOTE = 1u << 1,
  HEADRACE_NOTIFY = 1u << 2, /* carries messages, with a request and alone */
  HEADRACE_MAP = 1u << 3,    /* map and unmap */
  /* The owner checks each range itself, so a stale handle cannot reach memory. */
  HEADRACE_REVOKE_SAFE = 1u << 4,
  HEADRACE_QUERY = 1u << 5,  /* query */
  HEADRACE_STREAM = 1u << 6, /* post in the order of a GPU stream */
  /* Each request has GPU memory on at least one side, even if the kinds below allow more. */
  HEADRACE_NEEDS_VRAM = 1u << 7,
  HEADRACE_CAPTURE = 1u << 8, /* capture, end_capture, set_indices, check; requires HEADRACE_STREAM */
  HEADRACE_GRID = 1u << 9, /* since 1.2: moves pages that consist of several runs, headrace_prepare_v1.grid */
  /* Posts to peers may carry an immediate, which the peer's instance passes to `counted`. Requires
   * HEADRACE_REMOTE. */
  HEADRACE_COUNT = 1u << 10
} headrace_ability_v1;

typedef struct headrace_status_v1 {
  int32_t code;     /* headrace_code_v1 */
  int32_t os_error; /* errno, or 0 */
  uint64_t page;    /* page that the status is about, or HEADRACE_NO_PAGE */
} headrace_status_v1;

/* Where an entry that fails writes its sentence: what was tried, with its values. The host owns the buffer.
 * Write at most `capacity` bytes, without a terminating zero, and set `length`. */
typedef struct headrace_text_v1 {
  size_t struct_size;
  char* data;
  size_t capacity;
  size_t length;
} headrace_text_v1;

/* Where an entry that returns bytes puts them: it calls `append` any number of times. */
typedef struct headrace_sink_v1 {
  size_t struct_size;
  void* context;
  void (*append)(void* context, const void* bytes, size_t length);
} headrace_sink_v1;

typedef struct headrace_bytes_v1 {
  const void* data;
  size_t length;
} headrace_bytes_v1;

/* One option of a backend. `headrace doctor` prints it. The host takes its value from the constructor,
 * HEADRACE_<BACKEND>_<NAME> or the configuration file, and passes it to `create` as text. */
typedef struct headrace_option_v1 {
  const char* name;
  const char* default_value;
  const char* unit;
  const char* sentence;
  uint32_t flags; /* HEADRACE_OPTION_SECRET or 0 */
  uint32_t reserved;
} headrace_option_v1;
#define HEADRACE_OPTION_SECRET 1u /* show only whether it is set, never the value */

typedef struct headrace_setting_v1 {
  const char* name;
  const char* value;
} headrace_setting_v1;

/* ------------------------------------------------------------------ functions of the host */

typedef enum headrace_log_level_v1 {
  HEADRACE_LOG_ERROR = 1,
  HEADRACE_LOG_WARN = 2,
  HEADRACE_LOG_INFO = 3,
  HEADRACE_LOG_DEBUG = 4,
  HEADRACE_LOG_TRACE = 5
} headrace_log_level_v1;

typedef enum headrace_link_event_v1 {
  HEADRACE_LINK_READY = 0, /* the handshake is complete on both sides */
  /* The link has ended: every post on it has been completed or will be soon. It frees nothing; `disconnect`
   * still follows. */
  HEADRACE_LINK_LOST = 1
} headrace_link_event_v1;

/* Messages between agents share a link; each has a channel number. A backend carries it and does not read
 * it. */
#define HEADRACE_CHANNEL_USER 0u
#define HEADRACE_CHANNEL_AGENT 1u

typedef struct headrace_host_v1 {
  size_t struct_size;
  uint32_t abi_minor;
  uint32_t pool_threads; /* threads behind `submit`, at least 1 */
  void* context;         /* first argument of every function below */
  const char* agent_name;
  uint64_t incarnation; /* random number of this start of the agent; a restarted agent has a new one */

  int (*log_enabled)(void* context, int32_t level);
  void (*log)(void* context, int32_t level, const char* text, size_t length);
  uint64_t (*now_ns)(void* context); /* the host's clock; tests set it by hand */
  void (*count)(void* context, const char* counter, uint64_t amount);

  /* Ends the post with `token`: exactly once for each accepted post, from any thread, also from inside
   * `post`. Afterwards the backend touches neither side's memory. `text` may be NULL. */
  void (*completed)(void* context, uint64_t token, headrace_status_v1 status, const char* text,
                    size_t length);

  /* A peer has connected to this instance. Returns the token of the new link for the calls below, or 0 to
   * refuse it: then the backend closes and frees it, and no `disconnect` follows. `connection` is a handle
   * like those of `connect` and lives until `disconnect`. Links are symmetric: either side may load regions,
   * prepare, post and notify. The link is ready, so no READY follows. Links to one peer are independent: if
   * both sides connect at once, or if a peer of the same incarnation connects again before its old link is
   * known to be lost, each connection is a link of its own. The backend neither merges them nor drops one of
   * them. Messages that `notify` accepted are lost with the link. */
  uint64_t (*accepted)(void* context, void* connection, const char* peer_name, uint64_t peer_incarnation);

  /* The state of a link has changed; `text` says why. Called at most once with each event. The status of
   * LOST is peer_lost (dead, restarted, left), not_supported (this path cannot reach the peer: use the
   * next), timed_out (handshake), exhausted (this side or the peer has no descriptors for it), corrupt,
   * canceled (closed here to end a request: connect again), or backend_failed. */
  void (*link_event)(void* context, uint64_t link_token, int32_t event, headrace_status_v1 status,
                     const char* text, size_t length);

  /* A message has arrived. Messages of one channel of a link arrive in the order of sending, each once. A
   * message that was sent with a request is passed here only when the bytes of the request can be read. */
  void (*received)(void* context, uint64_t link_token, uint32_t channel, const void* bytes, size_t length);

  /* So many posts of the peer with this immediate have arrived: the bytes of a write can be read here, and
   * the peer has the bytes of a read. Called once for each post, or once for several with their sum. Counts
   * of different posts come in any order, and so do the count and the message of one post. A count comes
   * before a message of channel 1 that the peer has sent after the post's end.
   *
   * - A post that ended ok is counted once, unless the link is lost first.
   * - A post that failed is not counted.
   * - A post that was canceled, or whose link was lost, is counted once or not at all: only if all of its
   *   bytes have arrived.
   * - A replay of a captured post counts as a post. One that ended before `end_capture` is counted. */
  void (*counted)(void* context, uint64_t link_token, uint32_t scope, uint32_t immediate, uint64_t amount);

  /* Runs `function(argument)` on the process's pool for large host copies. Returns 0 if its queue is full.
   * Accepted work always runs. The host never calls `destroy` or `disconnect` on a pool thread. */
  int (*submit)(void* context, void (*function)(void* argument), void* argument);

  /* Makes the host call `progress` soon. From any thread; for instances without a descriptor. */
  void (*wake)(void* context);
} headrace_host_v1;

/* ------------------------------------------------------------------ arguments */

typedef struct headrace_create_v1 {
  size_t struct_size;
  const headrace_setting_v1* settings; /* a value for every option of the table; valid during the call */
  size_t setting_count;
  const char* runtime_dir; /* folder of mode 0700 for sockets; agents of one user on one host share it */
  uint64_t reserved_descriptors; /* a link is refused, with exhausted, that would leave fewer free */
} headrace_create_v1;

typedef struct headrace_info_v1 {
  size_t struct_size;
  uint32_t abilities;    /* headrace_ability_v1 */
  uint32_t local_kinds;  /* HEADRACE_KIND_BIT of the kinds that the local side of a request may have */
  uint32_t remote_kinds; /* ... and on the remote side */
  uint32_t reserved;
  uint64_t max_message_bytes; /* longest message that `notify` and `post` accept */
  /* The addresses on which the instance listens, host:port separated by commas; NULL: none. The text lives as
   * long as the instance. */
  const char* ports;
} headrace_info_v1;

typedef struct headrace_connect_v1 {
  size_t struct_size;
  uint64_t link_token; /* for the host's link_event and received */
  const char* peer_name;
  uint64_t peer_incarnation;
  headrace_bytes_v1 connection_info; /* what the peer's instance returned from `connection_info` */
} headrace_connect_v1;

typedef struct headrace_region_v1 {
  size_t struct_size;
  uint32_t region_id; /* never used twice within one incarnation */
  int32_t kind;       /* headrace_memory_kind_v1 */
  uint64_t address;   /* dram, vram; 0 else */
  uint64_t length;    /* 0 (file, block, object): the whole object, of unknown size */
  int32_t device;     /* vram: ordinal; else -1 */
  /* dram from `allocate`: the sealed memfd that holds it, else -1. It belongs to the host: dup to keep. */
  int32_t memory_fd;
  uint64_t memory_offset; /* offset of the region in memory_fd */
  int32_t file_fd;        /* file, block: open descriptor, or -1. It belongs to the host: dup to keep */
  uint32_t file_mode;     /* file, block: the open(2) flags to use */
  const char* name;       /* file, block: path; object: key; else NULL */
  uint32_t flags;         /* HEADRACE_REGION_READ_ONLY or 0 */
  uint32_t reserved;
} headrace_region_v1;
/* Peers may read the region, not write it. The host makes no request that would write it. A backend whose
 * owner sees peers' writes refuses them at the owner; other backends refuse their own before a byte moves:
 * invalid_argument at the page. */
#define HEADRACE_REGION_READ_ONLY 1u

typedef struct headrace_remote_region_v1 {
  size_t struct_size;
  uint32_t region_id;
  int32_t kind;
  uint64_t address; /* the owner's base address, for attach; never dereference it here */
  uint64_t length;
  /* What the owner's instance returned from `export_region`; valid during the call. */
  headrace_bytes_v1 public_data;
} headrace_remote_region_v1;

/* One side of a request: its pages, and the regions that they are numbers of. The host has checked every page
 * against its region, unless the region's length is 0: then the backend checks. */
typedef struct headrace_side_v1 {
  size_t struct_size;
  void* const* regions; /* handles: local side `register_region`, remote side `load_remote` or `load_local` */
  uint64_t region_count;
  headrace_columns_v1 columns;
} headrace_side_v1;

/* The runs of every page of a request, if the pages are not contiguous on both sides. A page has counts[0] x
 * ... x counts[dimensions - 1] runs of `run_bytes`. Run n[0], n[1], ... begins
 *   n[0] * local_strides[0] + n[1] * local_strides[1] + ...
 * bytes after the begin of the local page, and likewise with remote_strides on the remote side. The bytes of
 * a page are in the order of its runs, the last dimension fastest. Its length is the sum of its runs, not
 * the distance from first to last byte. The host has merged all that can be merged: no two dimensions are
 * one, no count is below 2, no stride is 0. Runs of different pages may interleave, and may overlap on the
 * side that is only read. Every run lies in the page's region. Frozen. */
#define HEADRACE_GRID_MOST 4
typedef struct headrace_page_grid_v1 {
  uint32_t dimensions; /* 1 to HEADRACE_GRID_MOST */
  uint32_t reserved;
  uint64_t run_bytes;
  uint64_t runs; /* in a page: the product of the counts */
  uint64_t counts[HEADRACE_GRID_MOST];
  uint64_t local_strides[HEADRACE_GRID_MOST];
  uint64_t remote_strides[HEADRACE_GRID_MOST];
} headrace_page_grid_v1;

typedef struct headrace_prepare_v1 {
  size_t struct_size;
  int32_t op; /* headrace_op_v1 */
  uint32_t reserved;
  void* connection; /* NULL: the remote side is this agent too */
  uint64_t count;   /* pages on each side; page i of one has the length of page i of the other */
  uint64_t bytes;   /* sum of all pages */
  const headrace_side_v1* local;
  const headrace_side_v1* remote; /* both sides and their arrays stay unchanged until `release` */
  /* --- since 1.2 */
  /* NULL: every page is contiguous. Else, with HEADRACE_GRID only, the runs of the pages on both sides; all
   * pages have one length. Stays unchanged as long as the sides. */
  const headrace_page_grid_v1* grid;
} headrace_prepare_v1;

typedef struct headrace_post_v1 {
  size_t struct_size;
  uint64_t token;       /* of this post alone, for host->completed */
  uint64_t post_number; /* counts the posts of this request from 1 */
  uint64_t deadline_ns; /* on the host's clock; UINT64_MAX: none. For information: the host cancels at it */
  int32_t has_message;
  uint32_t channel;
  headrace_bytes_v1 message; /* delivered to the peer after the bytes; valid during the call: copy it */
  void* stream; /* only with HEADRACE_STREAM, else NULL; the default stream is CU_STREAM_LEGACY */
  /* Only with HEADRACE_COUNT and on a link: the peer's instance counts the post, see `counted`. After
   * backend_failed the host does not try such a post on another path: the peer could not tell the second
   * count from that of another post. */
  int32_t has_immediate;
  uint32_t immediate;
  uint32_t scope; /* immediates of different scopes are different */
  uint32_t reserved;
} headrace_post_v1;

/* Pages for the next replays, instead of those that `prepare` named. */
typedef struct headrace_indices_v1 {
  size_t struct_size;
  const uint32_t* local; /* `count` indices of pages; NULL: the first `count` of this side stay as they are */
  const uint32_t* remote;
  uint64_t count; /* at most the request's count */
  /* As in headrace_post_v1. Replays queued after this call in the stream's order use the new pages. */
  void* stream;
  /* HEADRACE_DRAM: valid during the call, and checked by the host. HEADRACE_VRAM: GPU memory that is read in
   * the stream's order; its indices have not been checked. */
  int32_t kind;
  uint32_t reserved;
} headrace_indices_v1;

typedef struct headrace_capture_v1 {
  size_t struct_size;
  void* stream; /* as in headrace_post_v1 */
  /* Lengths of the page lists that the request's pages were chosen from: new indices are below these. */
  uint64_t local_pages;
  uint64_t remote_pages;
  const headrace_indices_v1* indices; /* NULL, or what the graph reads before it moves, at every replay */
  int32_t has_message;                /* the post has a message; no graph can carry one */
  int32_t captured; /* out: 0: the stream is not being captured, nothing done; 1: recorded into its graph */
  uint64_t page;    /* out, on failure: the page that the error is about, or HEADRACE_NO_PAGE */
  /* As in headrace_post_v1, and every replay is counted. Also inside the agent: then the instance itself
   * calls `counted`, with link_token 0. */
  int32_t has_immediate;
  uint32_t immediate;
  uint32_t scope;
  uint32_t reserved;
} headrace_capture_v1;

typedef struct headrace_check_v1 {
  size_t struct_size;
  uint64_t replays; /* out: number of replays that have ended */
  uint64_t page;    /* out, on failure: the page that the error is about, or HEADRACE_NO_PAGE */
} headrace_check_v1;

typedef struct headrace_cost_v1 {
  size_t struct_size;
  double fixed_ns; /* before the first byte */
  double ns_per_page;
  double bytes_per_second; /* at least 1 */
  double margin;           /* the error of the estimate, as a fraction of it */
  const char* method;      /* static text: "measured at load", "constant", ... */
} headrace_cost_v1;

typedef struct headrace_map_v1 {
  size_t struct_size;
  int32_t device;  /* in: the user of the mapping; -1: the CPU, else a GPU's ordinal */
  uint32_t access; /* in: 1 read, 3 both */
  void* address;   /* out */
  uint64_t length; /* out */
} headrace_map_v1;

typedef struct headrace_query_v1 {
  size_t struct_size;
  const headrace_region_v1* const* regions;
  uint64_t count;
  uint64_t deadline_ns;
} headrace_query_v1;

/* ------------------------------------------------------------------ the table */

typedef struct headrace_backend_v1 {
  size_t struct_size;
  uint32_t abi_major; /* HEADRACE_BACKEND_ABI_MAJOR */
  uint32_t abi_minor;
  const char* name;    /* [a-z0-9_]+, the <name> of the file */
  const char* version; /* of the backend, for people */
  const headrace_option_v1* options;
  size_t option_count;
  size_t option_size;    /* sizeof(headrace_option_v1) here: the step from one row to the next */
  uint32_t memory_kinds; /* HEADRACE_KIND_BIT of every kind that some instance may take */
  uint32_t reserved;

  /* Makes an instance. Quick (about a millisecond), without a peer and without a device (GPU, NIC): the
   * first `connection_info` or `register_region` may open a device. `host` stays valid until `destroy`
   * returns. */
  int32_t (*create)(const headrace_host_v1* host, const headrace_create_v1* args, void** instance,
                    headrace_text_v1* error);
  /* Ends an instance. The host has returned every handle and runs no other entry; `accepted` now returns 0.
   * Closes incoming links that were not accepted. Waits for the instance's own threads and its tasks behind
   * `submit`. No host function is called after it returns. */
  void (*destroy)(void* instance);
  /* Fills in what this instance can do. Constant over its life. */
  void (*info)(void* instance, headrace_info_v1* info);

  /* Returns what a peer needs to reach this instance. Constant over its life. */
  int32_t (*connection_info)(void* instance, const headrace_sink_v1* out, headrace_text_v1* error);
  /* Starts to connect and returns. `load_remote`, `prepare` and `capture` may follow at once; the host calls
   * `post` and `notify` on ready links only. If it is clear at once that the peer cannot be reached, it fails
   * with not_supported (another host, ...) or peer_lost. */
  int32_t (*connect)(void* instance, const headrace_connect_v1* args, void** connection,
                     headrace_text_v1* error);
  /* Closes a link that either side made. When it returns, every post on the link has been completed
   * (canceled, or with its own result), and no host function is called with the link's token any more. It
   * may wait for its own hardware and threads. Handles that were loaded, mapped and prepared on the link can
   * no longer be used; the host still calls `release`, `unmap` and `unload` for them, possibly later. Mapped
   * memory stays readable until `unmap`. */
  void (*disconnect)(void* instance, void* connection);

  /* Makes memory usable by this instance and by its peers. Quick: expensive steps wait until first use. */
  int32_t (*register_region)(void* instance, const headrace_region_v1* region, void** handle,
                             headrace_text_v1* error);
  /* Undoes it. No post uses the region any more, and each peer has released it or is gone. With
   * HEADRACE_REVOKE_SAFE no peer can reach the memory once this returns, with any handle. Without it, only
   * the peers' acknowledgements say so. */
  void (*deregister_region)(void* instance, void* handle);
  /* Returns what a peer's instance needs besides id, kind, address and length. Return zero bytes if the peer
   * needs nothing. */
  int32_t (*export_region)(void* instance, void* handle, const headrace_sink_v1* out,
                           headrace_text_v1* error);

  /* Makes a handle for a region of this agent on the remote side of a request inside the agent. */
  int32_t (*load_local)(void* instance, void* handle, void** remote, headrace_text_v1* error);
  /* Makes a handle for a peer's region. May not wait for the peer. */
  int32_t (*load_remote)(void* instance, void* connection, const headrace_remote_region_v1* region,
                         void** remote, headrace_text_v1* error);
  /* Drops a handle of load_local or load_remote. No post uses it any more. */
  void (*unload)(void* instance, void* remote);
  /* Maps the peer's region into this process until `unmap`; `unload` comes after it. would_block: data from
   * the peer is on its way; the host runs progress and asks again. map and unmap are optional: both are NULL
   * or neither. */
  int32_t (*map)(void* instance, void* remote, headrace_map_v1* args, headrace_text_v1* error);
  void (*unmap)(void* instance, void* remote, void* address);

  /* Makes a request ready, so that `post` has nothing left to look up. not_supported: this path cannot move
   * between these memories; the host tries its next path. */
  int32_t (*prepare)(void* instance, const headrace_prepare_v1* args, void** request,
                     headrace_text_v1* error);
  /* Starts the request. Never waits; may carry out a small request itself. ok: accepted, and `completed`
   * follows exactly once (perhaps before this returns). Any other code: not accepted, and no `completed`
   * follows. would_block: a queue is full, or the link is not ready. not_supported, here or in
   * `completed`: nothing was moved, and the host uses its next path. */
  headrace_status_v1 (*post)(void* instance, void* request, const headrace_post_v1* args);
  /* Lets this posted request use the caller's thread for one step (about 100 us at most). Returns 1 if the
   * caller should ask again at once instead of sleeping (more work is likely, or the end is near), else 0.
   * Ends are reported by `completed`. */
  int32_t (*poll)(void* instance, void* request);
  /* Asks for an early end. `completed` still follows: canceled once the memory is quiet, or with another
   * result. If the backend cannot promise quiet memory soon, it closes the link within a second: other posts
   * on it then end with backend_failed, and the status of LINK_LOST is canceled. A request without a
   * connection may take as long as its device does. `cancel` and `poll` may come at any time until
   * `release`, and do nothing (`poll` returns 0) if no post is in flight: the post may end between the
   * host's check and its call. */
  void (*cancel)(void* instance, void* request);
  /* Frees the request. It was never posted, or its last post has been completed. This may come after the
   * link was disconnected, and after the regions of the request were unloaded or deregistered. */
  void (*release)(void* instance, void* request);

  /* Sends a message without a request. would_block: too many wait, or the link is not ready. */
  headrace_status_v1 (*notify)(void* instance, void* connection, uint32_t channel, const void* bytes,
                               size_t length);

  /* Does the work that is ready and returns the number of steps; 0 when idle. May not sleep. */
  uint32_t (*progress)(void* instance);
  /* A descriptor that is readable when `progress` has work, for the host's epoll. -1: none; the instance has
   * its own threads or calls host->wake. Constant over the instance's life. */
  int32_t (*descriptor)(void* instance);
  /* on = 1: the host is about to sleep on the descriptor; from now on peers must signal it. Returns how many
   * events arrived before this took effect; 0: it is safe to sleep. on = 0: the host polls again. Optional;
   * NULL: always armed. Other threads may call `progress` while one sleeps: until on = 0 the descriptor
   * stays readable, or peers signal it again for the next event. */
  uint32_t (*arm)(void* instance, int32_t on);

  /* Looks for files, objects or devices. Returns a msgpack array with one element for each region: nil, or a
   * map with "bytes" and whatever else is known. The only entry that may wait: for its store, until the
   * deadline, never for a peer. The host does not call it from a progress or callback thread. Optional: NULL
   * without HEADRACE_QUERY. */
  int32_t (*query)(void* instance, const headrace_query_v1* args, const headrace_sink_v1* out,
                   headrace_text_v1* error);
  /* Estimates the time of a post, in constant time. The host asks before it makes a link, to rank the paths:
   * `connection` and both sides' `regions` may be NULL; the counts and shapes are set. */
  int32_t (*cost)(void* instance, const headrace_prepare_v1* args, headrace_cost_v1* cost);

  /* --- since 1.1, for backends with HEADRACE_CAPTURE; without it NULL, or beyond struct_size */

  /* If the stream is being captured, records the move into its graph, to run at every replay without the
   * host. Else does nothing, and the host posts. No post is in flight. Until `end_capture` the request is
   * neither posted nor captured again, and holds all memory that replays touch, even if link or peer are
   * lost. would_block: the peer's memory is not mapped yet. not_supported: has_message, or has_immediate of a
   * backend that does not count replays. */
  int32_t (*capture)(void* instance, void* request, headrace_capture_v1* args, headrace_text_v1* error);
  /* Releases what `capture` holds. The caller promises that its graphs are not replayed any more. It may
   * wait for changes that `set_indices` has queued. */
  void (*end_capture)(void* instance, void* request);
  /* Queues a change of the pages of a captured request on the stream, which is not being captured. A replay
   * skips pages whose index is out of bounds, and `check` reports them. not_supported: a side is not a list
   * of pages of one length at one stride in one region. would_block: too many changes are queued; ask again
   * when the stream has caught up. */
  int32_t (*set_indices)(void* instance, void* request, const headrace_indices_v1* args,
                         headrace_text_v1* error);
  /* Returns how many replays of a captured request have ended. Fails if a replay may not have done all of
   * its work: not_found (a region was deregistered), peer_lost, invalid_argument at the page (an index was
   * out of bounds; reported once). Asks neither device nor peer. */
  int32_t (*check)(void* instance, void* request, headrace_check_v1* args, headrace_text_v1* error);

  /* --- since 1.3 */

  /* Returns how many messages and counts that were accepted on a ready link would be lost if it were
   * disconnected now, those of posts included. Once it is 0 and no post is in flight, `disconnect` and
   * `destroy` lose none of them, unless the peer or the network is lost; `destroy` may wait a second for a
   * peer that does not read. Optional: NULL, or beyond struct_size, if nothing waits in the instance. */
  uint64_t (*unsent)(void* instance, void* connection);
} headrace_backend_v1;

/* The struct_size of version 1.0: the smallest that a host accepts. */
#define HEADRACE_BACKEND_V1_SIZE \
  (offsetof(headrace_backend_v1, cost) + sizeof(((headrace_backend_v1*)0)->cost))

/* The type of the one exported symbol: returns the table, which lives as long as the process. */
typedef const headrace_backend_v1* (*headrace_backend_v1_function)(void);

#ifdef __cplusplus
}
#endif
#endif
