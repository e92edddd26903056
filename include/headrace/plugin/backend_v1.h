/* SPDX-License-Identifier: Apache-2.0
 *
 * What a backend is to Headrace: one C table of functions, and the table the host gives it in return.
 *
 * A backend is a shared object `headrace_backend_<name>.so` that exports `headrace_backend_v1_table`. It
 * carries requests between this agent and its peers over one kind of path (shared memory, TCP, CUDA IPC,
 * verbs, ...) or between this agent's own regions (files, object stores). C++ authors derive from
 * `backend.hpp` instead of filling this in.
 *
 * Rules that hold for every entry
 *   sizes     every struct begins with struct_size, except status, bytes, option, setting and page_grid,
 * which are frozen (option grows by option_size). Whoever makes the struct sets it, and fields are only ever
 * appended; read a field only if struct_size covers it (HEADRACE_HAS). Of a struct that the callee fills
 * (info, cost, map, text) struct_size is the host's: write no byte beyond it and leave it as it is meaning
 * what changes the meaning of an entry is used only with an ability bit that announces it; unknown bits are
 *             passed over
 *   borders   no C++ type, no exception and no allocator crosses; memory is freed by the side that made it; a
 *             pointer argument is valid for the call alone unless its sentence says longer
 *   threads   any entry may be called from any thread, several at once, except `progress`, `arm` and
 * `destroy`: the host never runs two of these three at once on one instance locks     the host holds no lock
 * while it calls; the backend holds no lock while it calls the host blocking  no entry may wait for a peer;
 * what takes time is started here and told through the host table re-entry  from inside a host function the
 * host calls no entry of any table and runs no caller's code. It may use another thread before the function
 * returns: `completed` may be followed by `post` or `release`, `accepted` by `notify`, and `link_event` and
 * `received` may come before `connect` has returned handles   each is given back once (release, unmap,
 * unload, disconnect, deregister_region, destroy), and only while no other call that takes it, or for
 * `disconnect` a post on a request prepared on it, is running; the host sees to that. Once it has called
 * `completed` the backend does not touch the request again of its own accord; a call of the host's that is
 * still running may threads'  an entry leaves the calling thread as found: current GPU context, signal mask,
 * name unload    a plugin is never unloaded
 */
#ifndef HEADRACE_PLUGIN_BACKEND_V1_H
#define HEADRACE_PLUGIN_BACKEND_V1_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_BACKEND_ABI_MAJOR 1u
#define HEADRACE_BACKEND_ABI_MINOR 2u
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

/* Whether the maker of *args knew this field. */
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

/* What an instance can do; a bit that is not set means that the host never calls the entries behind it. */
typedef enum headrace_ability_v1 {
  HEADRACE_LOCAL = 1u << 0,  /* moves between two regions of one agent */
  HEADRACE_REMOTE = 1u << 1, /* moves between this agent and a peer: connect, load_remote, ...; requires
                                HEADRACE_NOTIFY, for revocations travel as messages */
  HEADRACE_NOTIFY = 1u << 2, /* carries messages, with a request and on their own */
  HEADRACE_MAP = 1u << 3,    /* map and unmap */
  HEADRACE_REVOKE_SAFE =
      1u << 4,               /* the owner checks each range itself, so a stale handle cannot reach memory */
  HEADRACE_QUERY = 1u << 5,  /* query */
  HEADRACE_STREAM = 1u << 6, /* post in the order of a GPU stream */
  HEADRACE_NEEDS_VRAM =
      1u << 7, /* on one side at least of each request there is GPU memory, whatever the kinds below */
  HEADRACE_CAPTURE = 1u << 8, /* capture, end_capture, set_indices, check; requires HEADRACE_STREAM */
  HEADRACE_GRID = 1u << 9     /* since 1.2: moves pages that lie in runs, headrace_prepare_v1.grid */
} headrace_ability_v1;

typedef struct headrace_status_v1 {
  int32_t code;     /* headrace_code_v1 */
  int32_t os_error; /* errno, or 0 */
  uint64_t page;    /* the page it is about, or HEADRACE_NO_PAGE */
} headrace_status_v1;

/* Where an entry that fails writes its sentence. The host owns the buffer; write at most `capacity` bytes, no
 * terminating zero needed, and set `length`. The sentence says what was tried, with its values. */
typedef struct headrace_text_v1 {
  size_t struct_size;
  char* data;
  size_t capacity;
  size_t length;
} headrace_text_v1;

/* Where an entry that returns bytes puts them: call `append` any number of times. */
typedef struct headrace_sink_v1 {
  size_t struct_size;
  void* context;
  void (*append)(void* context, const void* bytes, size_t length);
} headrace_sink_v1;

typedef struct headrace_bytes_v1 {
  const void* data;
  size_t length;
} headrace_bytes_v1;

/* One option: the backend's rows are printed by `headrace doctor`, resolved by the host from constructor,
 * HEADRACE_<BACKEND>_<NAME> and configuration file, and handed to `create` as text. */
typedef struct headrace_option_v1 {
  const char* name;
  const char* default_value;
  const char* unit;
  const char* sentence;
  uint32_t flags; /* HEADRACE_OPTION_SECRET or 0 */
  uint32_t reserved;
} headrace_option_v1;
#define HEADRACE_OPTION_SECRET 1u /* only whether it is set is ever shown */

typedef struct headrace_setting_v1 {
  const char* name;
  const char* value;
} headrace_setting_v1;

/* ------------------------------------------------------------------ what the host offers a backend */

typedef enum headrace_log_level_v1 {
  HEADRACE_LOG_ERROR = 1,
  HEADRACE_LOG_WARN = 2,
  HEADRACE_LOG_INFO = 3,
  HEADRACE_LOG_DEBUG = 4,
  HEADRACE_LOG_TRACE = 5
} headrace_log_level_v1;

typedef enum headrace_link_event_v1 {
  HEADRACE_LINK_READY = 0, /* both sides have shaken hands */
  HEADRACE_LINK_LOST = 1 /* gone for good: every post on it has been completed, or will be before long; frees
                            nothing: `disconnect` still follows */
} headrace_link_event_v1;

/* Messages between agents share a link by channel. Backends carry the number and do not look at it. */
#define HEADRACE_CHANNEL_USER 0u
#define HEADRACE_CHANNEL_AGENT 1u

typedef struct headrace_host_v1 {
  size_t struct_size;
  uint32_t abi_minor;
  uint32_t pool_threads; /* threads behind `submit`, at least 1 */
  void* context;         /* first argument of every function below */
  const char* agent_name;
  uint64_t incarnation; /* drawn at random when the agent started: tells it from its predecessor of the same
                           name */

  int (*log_enabled)(void* context, int32_t level);
  void (*log)(void* context, int32_t level, const char* text, size_t length);
  uint64_t (*now_ns)(void* context); /* the host's clock; tests turn it by hand */
  void (*count)(void* context, const char* counter, uint64_t amount);

  /* Ends the post of the request that carries `token`: exactly once a post that was accepted, from any
   * thread, also from inside `post`. After it the backend touches neither side's memory again. `text` may be
   * NULL. */
  void (*completed)(void* context, uint64_t token, headrace_status_v1 status, const char* text,
                    size_t length);

  /* A peer has connected to us. Returns the token to be used for this link in the calls below, or 0 to refuse
   * it. `connection` is a handle like those of `connect`, and lives until `disconnect`: links are symmetric,
   * either side may load regions, prepare, post and notify on them. The link is ready: no READY follows. 0:
   * the backend closes and frees it, and no `disconnect` follows. Links of one peer are independent: if both
   * sides connect at once, or a peer of the same incarnation connects again before its old link is known to
   * be lost, each is a link of its own; the backend neither merges nor drops one for another. What `notify`
   * accepted is lost with the link. */
  uint64_t (*accepted)(void* context, void* connection, const char* peer_name, uint64_t peer_incarnation);

  /* The link's state changed; `text` says why. Called at most once with each event. Status of LOST: peer_lost
   * (dead, restarted, said goodbye), not_supported (this path cannot reach it: use the next), timed_out
   * (handshake), corrupt, canceled (closed by us to end a request: connect again), backend_failed. */
  void (*link_event)(void* context, uint64_t link_token, int32_t event, headrace_status_v1 status,
                     const char* text, size_t length);

  /* A message came in. On one link messages of one channel arrive in the order in which they were sent, each
   * once. A message that was sent with a request is given here only when the request's bytes can be read. */
  void (*received)(void* context, uint64_t link_token, uint32_t channel, const void* bytes, size_t length);

  /* Runs `function(argument)` on the process's pool for large host copies. Returns 0 if its queue is full;
   * what was accepted always runs. The host never calls `destroy` or `disconnect` on a pool thread. */
  int (*submit)(void* context, void (*function)(void* argument), void* argument);

  /* Makes the host call `progress` soon, from any thread: for instances without a descriptor. */
  void (*wake)(void* context);
} headrace_host_v1;

/* ------------------------------------------------------------------ arguments */

typedef struct headrace_create_v1 {
  size_t struct_size;
  const headrace_setting_v1* settings; /* every option of the table, resolved; valid during the call */
  size_t setting_count;
  const char* runtime_dir; /* folder of mode 0700 for sockets, shared by the agents of one user on one host */
} headrace_create_v1;

typedef struct headrace_info_v1 {
  size_t struct_size;
  uint32_t abilities;    /* headrace_ability_v1 */
  uint32_t local_kinds;  /* HEADRACE_KIND_BIT of what may stand on the local side of a request */
  uint32_t remote_kinds; /* ... and on the remote side */
  uint32_t reserved;
  uint64_t max_message_bytes; /* longest message that `notify` and `post` take */
} headrace_info_v1;

typedef struct headrace_connect_v1 {
  size_t struct_size;
  uint64_t link_token; /* what the host wants to hear in link_event and received */
  const char* peer_name;
  uint64_t peer_incarnation;
  headrace_bytes_v1 connection_info; /* what the peer's instance gave out in `connection_info` */
} headrace_connect_v1;

typedef struct headrace_region_v1 {
  size_t struct_size;
  uint32_t region_id; /* never used twice within one incarnation */
  int32_t kind;       /* headrace_memory_kind_v1 */
  uint64_t address;   /* dram, vram; 0 else */
  uint64_t length;    /* 0 (file, block, object): all of it, size unknown */
  int32_t device;     /* vram: ordinal; else -1 */
  int32_t
      memory_fd; /* dram from `allocate`: a sealed memfd that holds it, else -1; the host's, dup to keep */
  uint64_t memory_offset; /* where the region begins in memory_fd */
  int32_t file_fd;        /* file, block: an open descriptor, or -1; the host's, dup to keep */
  uint32_t file_mode;     /* file, block: open(2) flags wanted */
  const char* name;       /* file, block: path; object: key; else NULL */
  uint32_t flags;         /* HEADRACE_REGION_READ_ONLY or 0 */
  uint32_t reserved;
} headrace_region_v1;
/* Peers may read the region, not write it. The host makes no request that would; a backend that sees peers'
 * writes at the owner refuses them there, one that does not refuses its own before a byte moves:
 * invalid_argument at the page. */
#define HEADRACE_REGION_READ_ONLY 1u

typedef struct headrace_remote_region_v1 {
  size_t struct_size;
  uint32_t region_id;
  int32_t kind;
  uint64_t address; /* the owner's base address: a name for attach, never to be dereferenced here */
  uint64_t length;
  headrace_bytes_v1
      public_data; /* what the owner's instance gave out in `export_region`; valid during the call */
} headrace_remote_region_v1;

/* One side of a request: for i < count, with k = indices ? indices[i] : i, page i begins at
 *   offsets ? offsets[k] : base_offset + k * stride_bytes
 * bytes, modulo 2^64 (pages may go backward), into region regions[region_of ? region_of[k] : 0], and is
 *   lengths ? lengths[k] : page_bytes
 * bytes long. The host has checked every page against its region, unless the region's length is 0: then the
 * backend checks. */
typedef struct headrace_side_v1 {
  size_t struct_size;
  void* const* regions; /* handles: `register_region` locally, `load_remote` or `load_local` remotely */
  uint64_t region_count;
  const uint32_t* region_of;
  const uint64_t* offsets;
  const uint64_t* lengths;
  const uint32_t* indices;
  uint64_t base_offset;
  uint64_t stride_bytes;
  uint64_t page_bytes;
} headrace_side_v1;

/* How every page of a request lies, if not in one stretch on both sides: as runs of `run_bytes`, of which
 * counts[0] x ... x counts[dimensions - 1] are in a page. The run with the numbers n[0], n[1], ... begins
 *   n[0] * local_strides[0] + n[1] * local_strides[1] + ...
 * bytes behind the local page's begin, likewise behind the remote one's. A page's bytes are counted in the
 * order of its runs, the last dimension fastest, and its length is that of its runs together, not of what
 * they spread over. The host has merged what can be merged: no two dimensions are one, no count is below 2,
 * no stride is 0. The runs of one page may lie between those of another, and may overlap where they are only
 * read. Every run lies in the page's region. Frozen. */
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
  uint64_t token; /* for host->completed */
  int32_t op;     /* headrace_op_v1 */
  uint32_t reserved;
  void* connection; /* NULL: the remote side is this agent too */
  uint64_t count;   /* pages on each side; page i of one has the length of page i of the other */
  uint64_t bytes;   /* all of them together */
  const headrace_side_v1* local;
  const headrace_side_v1* remote; /* both, with their arrays, stay unchanged until `release` */
  /* --- since 1.2 */
  const headrace_page_grid_v1*
      grid; /* NULL: a page is one stretch. Else, with HEADRACE_GRID only, what its bytes are on
               both sides; all pages have one length. Stays as the sides do */
} headrace_prepare_v1;

typedef struct headrace_post_v1 {
  size_t struct_size;
  uint64_t post_number; /* counts the posts of this request from 1 */
  uint64_t
      deadline_ns; /* on the host's clock; UINT64_MAX: none. The host cancels at it; here for information */
  int32_t has_message;
  uint32_t channel;
  headrace_bytes_v1
      message;  /* to be delivered at the far side after the bytes; valid during the call: copy it */
  void* stream; /* with HEADRACE_STREAM only, else NULL; the default stream is passed as CU_STREAM_LEGACY */
} headrace_post_v1;

/* Which pages the next replays move, in place of those that `prepare` named. */
typedef struct headrace_indices_v1 {
  size_t struct_size;
  const uint32_t* local; /* `count` numbers of pages; NULL: this side's first `count` stay as they are */
  const uint32_t* remote;
  uint64_t count; /* at most the request's */
  void* stream; /* as in headrace_post_v1: replays that are queued after this, in the stream's order, see them
                 */
  int32_t kind; /* HEADRACE_DRAM: valid during the call, and checked by the host. HEADRACE_VRAM: addresses of
                   GPU memory that is read in the stream's order; nobody has checked what will be in it */
  uint32_t reserved;
} headrace_indices_v1;

typedef struct headrace_capture_v1 {
  size_t struct_size;
  void* stream;         /* as in headrace_post_v1 */
  uint64_t local_pages; /* of the page lists that the request's pages were chosen from: new page numbers are
                           below these */
  uint64_t remote_pages;
  const headrace_indices_v1*
      indices;         /* NULL, or what the graph itself reads before it moves, at every replay */
  int32_t has_message; /* a message was to go along, which no graph carries */
  int32_t captured; /* out: 0: the stream is not being captured and nothing was done; 1: the request lies in
                       its graph */
  uint64_t page;    /* out, on failure: what it is about, or HEADRACE_NO_PAGE */
} headrace_capture_v1;

typedef struct headrace_check_v1 {
  size_t struct_size;
  uint64_t replays; /* out: that have ended */
  uint64_t page;    /* out, on failure: what it is about, or HEADRACE_NO_PAGE */
} headrace_check_v1;

typedef struct headrace_cost_v1 {
  size_t struct_size;
  double fixed_ns; /* before the first byte */
  double ns_per_page;
  double bytes_per_second; /* at least 1 */
  double margin;           /* the guess may be off by this share of itself */
  const char* method;      /* static text: "measured at load", "constant", ... */
} headrace_cost_v1;

typedef struct headrace_map_v1 {
  size_t struct_size;
  int32_t device;  /* in: who will use it; -1: the CPU, else a GPU's ordinal */
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
  uint32_t memory_kinds; /* HEADRACE_KIND_BIT of every kind any instance may take: known before one is made */
  uint32_t reserved;

  /* Makes an instance: quick (under a millisecond or so), no peer and no device (GPU, NIC) involved: the
   * first `connection_info` or `register_region` may open one. `host` stays valid until `destroy` returns. */
  int32_t (*create)(const headrace_host_v1* host, const headrace_create_v1* args, void** instance,
                    headrace_text_v1* error);
  /* Ends it. The host has given back every handle and runs no other entry; `accepted` now returns 0. Links
   * that came in and were never accepted are closed. Waits for own threads and own tasks behind `submit`; no
   * host function is called after it returns. */
  void (*destroy)(void* instance);
  /* What this instance can do. Constant over its life. */
  void (*info)(void* instance, headrace_info_v1* info);

  /* Puts out what a peer needs to reach this instance. Constant over its life. */
  int32_t (*connection_info)(void* instance, const headrace_sink_v1* out, headrace_text_v1* error);
  /* Starts to connect and returns. Requests and messages may follow at once and are queued until the link is
   * ready. If the peer is known at once to be out of reach, fails with not_supported (wrong host, ...) or
   * peer_lost. */
  int32_t (*connect)(void* instance, const headrace_connect_v1* args, void** connection,
                     headrace_text_v1* error);
  /* Closes a link, made by either side. Every post on it has been completed (canceled, or as it came), and no
   * host function is called with its token, once this returns; it may wait for its own hardware and threads.
   * What was loaded, mapped and prepared on it can no longer be used but is still owed `release`, `unmap`,
   * `unload`, which may come later; mapped memory stays readable until `unmap`. */
  void (*disconnect)(void* instance, void* connection);

  /* Makes memory usable by this instance and by its peers. Quick: expensive parts are put off to first use.
   */
  int32_t (*register_region)(void* instance, const headrace_region_v1* region, void** handle,
                             headrace_text_v1* error);
  /* Undoes it. No post uses it any more, and each peer has let go of it or is gone. With HEADRACE_REVOKE_SAFE
   * no peer can reach it once this returns, whatever it holds; else the peers' word is all there is. */
  void (*deregister_region)(void* instance, void* handle);
  /* Puts out what a peer's instance needs beside id, kind, address and length; nothing at all is the best
   * answer. */
  int32_t (*export_region)(void* instance, void* handle, const headrace_sink_v1* out,
                           headrace_text_v1* error);

  /* A handle for a region of our own on the remote side of a request to ourselves. */
  int32_t (*load_local)(void* instance, void* handle, void** remote, headrace_text_v1* error);
  /* A handle for a peer's region. May not wait for the peer. */
  int32_t (*load_remote)(void* instance, void* connection, const headrace_remote_region_v1* region,
                         void** remote, headrace_text_v1* error);
  /* Drops a handle of the two above. No post uses it any more. */
  void (*unload)(void* instance, void* remote);
  /* The peer's region as memory of this process, until `unmap`; unload comes after it. would_block: what it
   * needs from the peer is on its way; the host gives the instance time and asks again. Optional: NULL both
   * or neither. */
  int32_t (*map)(void* instance, void* remote, headrace_map_v1* args, headrace_text_v1* error);
  void (*unmap)(void* instance, void* remote, void* address);

  /* Makes a request ready, so that `post` has nothing left to look up. not_supported: not with these memories
   * on this path, which makes the host try its next one. */
  int32_t (*prepare)(void* instance, const headrace_prepare_v1* args, void** request,
                     headrace_text_v1* error);
  /* Starts it. ok: accepted, and `completed` follows exactly once (it may have been called already). Anything
   * else: not accepted, nothing follows. would_block: a queue is full. not_supported, here or in `completed`:
   * nothing was moved, and the host goes to its next path. Never waits; may carry a small request out itself.
   */
  headrace_status_v1 (*post)(void* instance, void* request, const headrace_post_v1* args);
  /* Gives this posted request the caller's time: do a piece of its work (some 100 us at most). Returns 1 if
   * asking again at once beats sleeping (there may be more to do, or the end is near), 0 if it does not. Ends
   * are told by `completed`. */
  int32_t (*poll)(void* instance, void* request);
  /* Asks for an early end. `completed` still follows: canceled once the memory is quiet, or whatever else
   * happened. If that cannot be promised soon, close the link within a second: other posts on it then end
   * with backend_failed, and LINK_LOST says canceled. A request without a connection may take as long as its
   * device does. May come at any time until `release`, and does nothing when no post is in flight; so does
   * `poll`, which answers 0: the end may come between the host's look and its call. */
  void (*cancel)(void* instance, void* request);
  /* Frees it. It was never posted, or its last post has been completed. This may come after the link has been
   * disconnected, and after the regions have been unloaded or deregistered, that it names. */
  void (*release)(void* instance, void* request);

  /* Sends a message on its own. would_block: too much is waiting already. */
  headrace_status_v1 (*notify)(void* instance, void* connection, uint32_t channel, const void* bytes,
                               size_t length);

  /* Does what there is to do and returns how many things that were; 0 when idle. May not sleep. */
  uint32_t (*progress)(void* instance);
  /* A descriptor that is readable when `progress` has something to do, for the host's epoll; -1: there is
   * none, the instance has threads of its own or calls host->wake. Constant over the instance's life. */
  int32_t (*descriptor)(void* instance);
  /* on = 1: the host is about to sleep on the descriptor, peers must ring it from now on. Returns how many
   * things came in before that took effect (0: it is safe to sleep). on = 0: the host polls again. Optional
   * (NULL): always armed. Other threads may call `progress` while one sleeps: until on = 0, either what makes
   * the descriptor readable stays, or peers ring it anew for what comes next. */
  uint32_t (*arm)(void* instance, int32_t on);

  /* Do these files, objects or devices exist? Puts out a msgpack array, one element a region: nil, or a map
   * with "bytes" and what else is known. The one entry that may wait: for its store, until the deadline,
   * never for a peer; not called from a progress or callback thread. Optional: NULL without HEADRACE_QUERY.
   */
  int32_t (*query)(void* instance, const headrace_query_v1* args, const headrace_sink_v1* out,
                   headrace_text_v1* error);
  /* What a post of this request is likely to take. Asked before any link is made, to rank the paths:
   * `connection` and both sides' `regions` may be NULL (the counts and shapes are there); constant time. */
  int32_t (*cost)(void* instance, const headrace_prepare_v1* args, headrace_cost_v1* cost);

  /* --- since 1.1, for backends with HEADRACE_CAPTURE; NULL, or beyond struct_size, without it */

  /* If the stream is being captured, records the move into its graph, to run at every replay without the
   * host; else does nothing, and the host posts. No post is in flight. Until `end_capture` the request is
   * neither posted nor captured again, and holds all memory that replays touch, whatever becomes of link and
   * peer. would_block: the way to the peer's memory is not made yet. not_supported: has_message. */
  int32_t (*capture)(void* instance, void* request, headrace_capture_v1* args, headrace_text_v1* error);
  /* Lets go of what `capture` took. Its graphs are not replayed any more, says the caller. It may wait for
   * what `set_indices` has queued. */
  void (*end_capture)(void* instance, void* request);
  /* Queues a change of the page numbers of a captured request on the stream, which is not being captured. A
   * replay passes over pages whose numbers are out of bounds, and `check` tells. not_supported: not a list of
   * pages of one length at one stride in one region, on each side. would_block: too many changes are queued;
   * ask again when the stream has caught up. */
  int32_t (*set_indices)(void* instance, void* request, const headrace_indices_v1* args,
                         headrace_text_v1* error);
  /* How many replays of a captured request have ended. Fails if one may not have done what it should:
   * not_found (a region is registered no longer), peer_lost, invalid_argument at the page (a page number was
   * out of bounds; told once). Asks neither device nor peer. */
  int32_t (*check)(void* instance, void* request, headrace_check_v1* args, headrace_text_v1* error);
} headrace_backend_v1;

/* The struct_size of version 1.0, the least that a host accepts. */
#define HEADRACE_BACKEND_V1_SIZE \
  (offsetof(headrace_backend_v1, cost) + sizeof(((headrace_backend_v1*)0)->cost))

/* The one symbol a plugin exports: returns its table, which lives as long as the process. */
typedef const headrace_backend_v1* (*headrace_backend_v1_function)(void);

#ifdef __cplusplus
}
#endif
#endif
