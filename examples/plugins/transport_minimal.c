/* SPDX-License-Identifier: Apache-2.0
 *
 * A transport in C: host memory to host memory over a Unix socket. It needs the plugin header alone.
 * docs/writing-a-transport.md says how it is built and how the contract suite runs on it.
 *
 * One mutex guards an instance. It is not held while the host is called: what there is to tell is collected
 * and told after the unlock. Sockets never block. `post` and `notify` send what the socket takes, `progress`
 * does the rest. The posts of a link move one after the other, in frames of at most 64 KiB: simple, not fast.
 */
#define _GNU_SOURCE
#include <headrace/plugin/backend_v1.h>

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MAX_MESSAGE = 65536 + 16, FRAME = 65536, MAX_QUEUED = 1 << 20, MAX_POSTS = 256, MAX_OUT = 4 << 20 };
enum { HELLO = 1, WELCOME, WRITE, END, ACK, READ, DATA, MESSAGE, COUNT };
enum { CONNECTING, GREETING, READY, LOST };
static const uint64_t HANDSHAKE_NS = 5000000000u, CANCEL_NS = 500000000u;

typedef struct Header {
  uint32_t type;
  uint32_t code;   /* ACK, DATA: headrace_code_v1 */
  uint64_t number; /* HELLO: the sender's incarnation; else the post */
  uint64_t page;   /* HELLO: the incarnation that is expected */
  uint64_t offset;
  uint32_t region;  /* COUNT: the immediate */
  uint32_t channel; /* COUNT: the scope */
  uint64_t length;  /* READ: bytes that are wanted; else payload behind the header */
} Header;

typedef struct Region {
  struct Region* next;
  uint32_t id;
  int writable;
  char* base;
  uint64_t length;
} Region;

typedef struct Remote {
  uint32_t region;
} Remote;

typedef struct Text {
  struct Text* next; /* a message that waits to be sent */
  uint32_t channel;
  enum { WAITING, SENDABLE, DROPPED } state;
  size_t length;
  char bytes[];
} Text;

typedef struct Request {
  headrace_prepare_v1 args;
  struct Link* link;
  struct Request* next; /* in the link's queue */
  int posted, started, ended_sending, canceling;
  uint64_t token, number, page, done; /* the next byte: in `page`, behind `done` */
  char* target;                       /* of the DATA that is awaited; NULL: none */
  uint64_t target_bytes;
  Text* message;
  int has_immediate;
  uint32_t immediate, scope;
} Request;

typedef struct Link {
  struct Link* next;
  struct Instance* instance;
  uint64_t serial, token, deadline_ns;
  int fd, pidfd, state, wants_out, closed;
  int busy; /* host functions that run, or will run, with the token */
  char peer[256];
  uint64_t expected;
  /* sending */
  char* out;
  size_t out_at, out_end, out_room;
  const char* payload; /* of the WRITE whose header has left */
  uint64_t payload_left;
  Request *first, *last; /* posts; the first one moves */
  unsigned posts;
  uint64_t posts_ever;
  Text *texts, **texts_end;
  size_t text_bytes;
  /* receiving */
  Header in;
  size_t in_have;
  uint64_t in_left; /* payload */
  int in_payload;
  Text* in_text;
  headrace_status_v1 write_status; /* of the peer's post, until its END */
} Link;

typedef struct Call {
  enum { COMPLETED, EVENT, RECEIVED, COUNTED } kind;
  Link* link;
  uint64_t token;
  int32_t event;
  headrace_status_v1 status;
  char text[600];
  Text* message;
  uint32_t scope, immediate;
} Call;

typedef struct Calls {
  Call* at;
  size_t count, room;
} Calls;

typedef struct Instance {
  const headrace_host_v1* host;
  pthread_mutex_t mutex;
  pthread_cond_t quiet;
  int epoll, listener, timer, timer_on;
  struct sockaddr_un address;
  char runtime_dir[96];
  Region* regions;
  Link* links;
  uint64_t serials;
} Instance;

/* ------------------------------------------------------------------ small things */

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static headrace_status_v1 status_of(int32_t code, uint64_t page) {
  headrace_status_v1 status = {code, 0, page};
  return status;
}

static int32_t fail(headrace_text_v1* out, int32_t code, const char* format, ...) {
  char text[256];
  va_list args;
  va_start(args, format);
  int n = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (out != NULL && n >= 0) {
    out->length = (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    if (out->length > out->capacity) out->length = out->capacity;
    memcpy(out->data, text, out->length);
  }
  return code;
}

static void* grown(void* at, size_t bytes) {
  void* more = realloc(at, bytes);
  if (more == NULL) abort(); /* a transport for production reports it */
  return more;
}

/* ------------------------------------------------------------------ what the host is told */

static Call* add_call(Calls* calls, int kind, Link* link) {
  if (calls->count == calls->room)
    calls->at = grown(calls->at, (calls->room = 2 * calls->room + 8) * sizeof(Call));
  Call* call = memset(&calls->at[calls->count++], 0, sizeof(Call));
  call->kind = kind;
  call->link = link;
  call->token = link->token;
  ++link->busy;
  return call;
}

/* Without the mutex. Tells what was collected, in its order. */
static void tell(Instance* self, Calls* calls) {
  const headrace_host_v1* host = self->host;
  for (size_t i = 0; i < calls->count; ++i) {
    Call* c = &calls->at[i];
    if (c->kind == COMPLETED) host->completed(host->context, c->token, c->status, c->text, strlen(c->text));
    if (c->kind == EVENT)
      host->link_event(host->context, c->token, c->event, c->status, c->text, strlen(c->text));
    if (c->kind == RECEIVED)
      host->received(host->context, c->token, c->message->channel, c->message->bytes, c->message->length);
    if (c->kind == COUNTED) host->counted(host->context, c->token, c->scope, c->immediate, 1);
    free(c->message);
  }
  pthread_mutex_lock(&self->mutex);
  for (size_t i = 0; i < calls->count; ++i) --calls->at[i].link->busy;
  pthread_cond_broadcast(&self->quiet);
  pthread_mutex_unlock(&self->mutex);
  free(calls->at);
  memset(calls, 0, sizeof *calls);
}

/* ------------------------------------------------------------------ sending; with the mutex */

static void lose(Link* link, Calls* calls, int32_t code, const char* text);

static void watch(Link* link) {
  const int wants = link->out_at < link->out_end || link->payload_left > 0;
  if (wants == link->wants_out) return;
  link->wants_out = wants;
  struct epoll_event e = {wants ? EPOLLIN | EPOLLOUT : EPOLLIN, {.u64 = link->serial << 1}};
  epoll_ctl(link->instance->epoll, EPOLL_CTL_MOD, link->fd, &e);
}

static void put(Link* link, const void* bytes, size_t n) {
  if (link->out_at == link->out_end) link->out_at = link->out_end = 0;
  if (link->out_end + n > link->out_room)
    link->out = grown(link->out, link->out_room = 2 * (link->out_end + n));
  memcpy(link->out + link->out_end, bytes, n);
  link->out_end += n;
}

static void put_header(Link* link, Header h) { put(link, &h, sizeof h); }

static uint64_t at_index(const headrace_columns_v1* c, uint64_t i) {
  return c->indices != NULL ? c->indices[i] : i;
}
static void* region_at(const headrace_side_v1* side, uint64_t i) {
  const headrace_columns_v1* c = &side->columns;
  return side->regions[c->region_of != NULL ? c->region_of[at_index(c, i)] : 0];
}
static uint64_t offset_at(const headrace_side_v1* side, uint64_t i) {
  const headrace_columns_v1* c = &side->columns;
  const uint64_t k = at_index(c, i);
  return c->offsets != NULL ? c->offsets[k] : c->base_offset + k * c->stride_bytes;
}
static uint64_t length_at(const headrace_side_v1* side, uint64_t i) {
  const headrace_columns_v1* c = &side->columns;
  return c->lengths != NULL ? c->lengths[at_index(c, i)] : c->page_bytes;
}

/* The first post of the link ends. */
static void end_post(Link* link, Calls* calls, headrace_status_v1 status, const char* text) {
  Request* request = link->first;
  link->first = request->next;
  if (link->first == NULL) link->last = NULL;
  --link->posts;
  request->posted = 0;
  if (request->message != NULL) request->message->state = status.code == HEADRACE_OK ? SENDABLE : DROPPED;
  if (request->has_immediate && status.code == HEADRACE_OK && link->state == READY) {
    Header h = {.type = COUNT, .region = request->immediate, .channel = request->scope};
    put_header(link, h);
  }
  Call* call = add_call(calls, COMPLETED, link);
  call->token = request->token;
  call->status = status;
  snprintf(call->text, sizeof call->text, "%s", text);
}

/* Puts the next frame of the first post, if it has one. */
static int put_frame(Link* link, Calls* calls) {
  Request* r = link->first;
  if (r == NULL || r->ended_sending || r->target != NULL) return 0;
  const headrace_side_v1 *local = r->args.local, *remote = r->args.remote;
  const int writes = r->args.op == HEADRACE_WRITE;
  if (!r->started) r->number = ++link->posts_ever;
  r->started = 1;
  while (r->page < r->args.count && r->done == length_at(local, r->page)) ++r->page, r->done = 0;
  Header h = {.type = END, .number = r->number, .page = r->page};
  if (r->page >= r->args.count || r->canceling) {
    if (!writes) {
      end_post(link, calls, status_of(r->canceling ? HEADRACE_CANCELED : HEADRACE_OK, HEADRACE_NO_PAGE), "");
      return 1;
    }
    put_header(link, h);
    r->ended_sending = 1;
    return 1;
  }
  const uint64_t left = length_at(local, r->page) - r->done;
  char* mine = ((Region*)region_at(local, r->page))->base + offset_at(local, r->page) + r->done;
  h.type = writes ? WRITE : READ;
  h.region = ((Remote*)region_at(remote, r->page))->region;
  h.offset = offset_at(remote, r->page) + r->done;
  h.length = left < FRAME ? left : FRAME;
  put_header(link, h);
  if (writes) {
    link->payload = mine;
    link->payload_left = h.length;
  } else {
    r->target = mine;
    r->target_bytes = h.length;
  }
  r->done += h.length;
  return 1;
}

/* Puts the messages whose turn has come: one that still waits holds back those of its channel. */
static int put_texts(Link* link) {
  int any = 0;
  uint32_t held = 0; /* bits of channels */
  for (Text** at = &link->texts; *at != NULL && link->out_end - link->out_at < FRAME;) {
    Text* text = *at;
    if ((held & (1u << text->channel)) != 0 || text->state == WAITING) {
      held |= 1u << text->channel;
      at = &text->next;
      continue;
    }
    if (text->state == SENDABLE) {
      Header h = {.type = MESSAGE, .channel = text->channel, .length = text->length};
      put_header(link, h);
      put(link, text->bytes, text->length);
      any = 1;
    }
    link->text_bytes -= text->length + sizeof(Text);
    *at = text->next;
    if (*at == NULL) link->texts_end = at;
    free(text);
  }
  return any;
}

/* Sends what there is, as long as the socket takes it. */
static void pump(Link* link, Calls* calls) {
  while (link->state == READY || (link->state != LOST && link->out_at < link->out_end)) {
    ssize_t n = 0;
    if (link->out_at < link->out_end) {
      n = send(link->fd, link->out + link->out_at, link->out_end - link->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) link->out_at += (size_t)n;
    } else if (link->payload_left > 0) {
      n = send(link->fd, link->payload, link->payload_left, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) link->payload += n, link->payload_left -= (uint64_t)n;
    } else if (!put_texts(link) && !put_frame(link, calls)) {
      break;
    }
    if (n >= 0 || errno == EINTR) continue;
    if (errno == EFAULT) return lose(link, calls, HEADRACE_BACKEND_FAILED, "local memory cannot be read");
    if (errno != EAGAIN) return; /* the receiving side sees what happened, after all that came before */
    break;
  }
  if (link->state != LOST) watch(link);
}

/* ------------------------------------------------------------------ life of a link; with the mutex */

static void set_timer(Instance* self, int on) {
  if (on == self->timer_on) return;
  self->timer_on = on;
  struct itimerspec every = {{0, on ? 50000000 : 0}, {0, on ? 50000000 : 0}};
  timerfd_settime(self->timer, 0, &every, NULL);
}

static void close_socket(Link* link) {
  if (link->fd >= 0) close(link->fd); /* leaves the epoll set with it: nothing else has duplicated it */
  if (link->pidfd >= 0) close(link->pidfd);
  link->fd = link->pidfd = -1;
}

static Link* new_link(Instance* self, int fd, int state) {
  Link* link = calloc(1, sizeof(Link));
  if (link == NULL) abort();
  link->instance = self;
  link->serial = ++self->serials;
  link->fd = fd;
  link->pidfd = -1;
  link->state = state;
  link->texts_end = &link->texts;
  link->write_status = status_of(HEADRACE_OK, HEADRACE_NO_PAGE);
  link->deadline_ns = now_ns() + HANDSHAKE_NS;
  link->next = self->links;
  self->links = link;
  struct epoll_event e = {EPOLLIN, {.u64 = link->serial << 1}};
  epoll_ctl(self->epoll, EPOLL_CTL_ADD, fd, &e);
  /* A child of the peer may keep the socket open after its death. */
  struct ucred peer;
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0 && peer.pid != getpid()) {
    link->pidfd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
    e.data.u64 = link->serial << 1 | 1;
    if (link->pidfd >= 0) epoll_ctl(self->epoll, EPOLL_CTL_ADD, link->pidfd, &e);
  }
  set_timer(self, 1);
  return link;
}

static void free_link(Link* link) {
  Link** at = &link->instance->links;
  while (*at != link) at = &(*at)->next;
  *at = link->next;
  close_socket(link);
  while (link->texts != NULL) {
    Text* text = link->texts;
    link->texts = text->next;
    free(text);
  }
  free(link->in_text);
  free(link->out);
  free(link);
}

static void end_posts(Link* link, Calls* calls, int32_t code, const char* text) {
  link->payload_left = 0;
  while (link->first != NULL)
    end_post(link, calls, status_of(link->first->canceling ? HEADRACE_CANCELED : code, HEADRACE_NO_PAGE),
             text);
}

static void lose(Link* link, Calls* calls, int32_t code, const char* text) {
  if (link->state == LOST) return;
  const int known = link->token != 0;
  link->state = LOST;
  close_socket(link);
  end_posts(link, calls, code == HEADRACE_CANCELED ? HEADRACE_BACKEND_FAILED : HEADRACE_PEER_LOST, text);
  if (!known) return;
  Call* call = add_call(calls, EVENT, link);
  call->event = HEADRACE_LINK_LOST;
  call->status = status_of(code, HEADRACE_NO_PAGE);
  snprintf(call->text, sizeof call->text, "peer %s: %s", link->peer, text);
}

/* ------------------------------------------------------------------ receiving; with the mutex, in progress
 */

static Region* find_region(Instance* self, uint32_t id) {
  Region* region = self->regions;
  while (region != NULL && region->id != id) region = region->next;
  return region;
}

/* Where a range that a peer names lies; NULL, with the code, if it may not have it. */
static char* check_range(Instance* self, const Header* h, int writes, int32_t* code) {
  const Region* region = find_region(self, h->region);
  *code = HEADRACE_NOT_FOUND;
  if (region == NULL) return NULL;
  *code = HEADRACE_INVALID_ARGUMENT;
  if (h->offset > region->length || h->length > region->length - h->offset) return NULL;
  *code = HEADRACE_NOT_SUPPORTED; /* on the wire: read-only */
  if (writes && !region->writable) return NULL;
  *code = HEADRACE_OK;
  return region->base + h->offset;
}

static void end_refused(Link* link, Calls* calls, uint32_t code, uint64_t page) {
  char text[400];
  const char* why = code == HEADRACE_NOT_FOUND       ? "the region is not registered"
                    : code == HEADRACE_NOT_SUPPORTED ? "the region is registered read-only"
                                                     : "the range cannot be reached";
  snprintf(text, sizeof text, "peer %s refused page %llu: %s", link->peer, (unsigned long long)page, why);
  const int32_t told = code == HEADRACE_NOT_FOUND        ? HEADRACE_NOT_FOUND
                       : code == HEADRACE_BACKEND_FAILED ? HEADRACE_BACKEND_FAILED
                                                         : HEADRACE_INVALID_ARGUMENT;
  end_post(link, calls, status_of(told, page), text);
}

/* A header is here. Returns 0 if the peer broke the protocol. */
static int on_header(Link* link, Calls* calls) {
  Header* h = &link->in;
  Request* r = link->first;
  int32_t code = 0;
  link->in_left = h->length;
  link->in_payload = 1;
  if ((link->state == READY) == (h->type == HELLO || h->type == WELCOME)) return 0;
  switch (h->type) {
    case HELLO:
      if (link->state != GREETING || h->length == 0 || h->length > 255) return 0;
      break;
    case WELCOME: {
      if (link->state != CONNECTING || h->length != 0) return 0;
      link->state = READY;
      Call* call = add_call(calls, EVENT, link);
      call->event = HEADRACE_LINK_READY;
      snprintf(call->text, sizeof call->text, "connected to peer %s", link->peer);
      return 1;
    }
    case WRITE:
      return h->length > 0 && h->length <= FRAME;
    case END: {
      Header ack = {.type = ACK, .number = h->number};
      ack.code = (uint32_t)link->write_status.code;
      ack.page = link->write_status.page;
      put_header(link, ack);
      link->write_status = status_of(HEADRACE_OK, HEADRACE_NO_PAGE);
      return h->length == 0;
    }
    case READ: {
      if (h->length == 0 || h->length > FRAME) return 0;
      Header data = *h;
      data.type = DATA;
      link->in_left = 0;
      const char* from = check_range(link->instance, h, 0, &code);
      data.code = (uint32_t)code;
      if (from == NULL) data.length = 0;
      put_header(link, data);
      if (from != NULL) put(link, from, h->length);
      return 1;
    }
    case ACK:
      if (r == NULL || !r->ended_sending || r->number != h->number || h->length != 0) return 0;
      if (h->code != HEADRACE_OK)
        end_refused(link, calls, h->code, h->page < r->args.count ? h->page : HEADRACE_NO_PAGE);
      else
        end_post(link, calls,
                 status_of(r->canceling && r->page < r->args.count ? HEADRACE_CANCELED : HEADRACE_OK,
                           HEADRACE_NO_PAGE),
                 "");
      return 1;
    case DATA:
      if (r == NULL || r->target == NULL || r->number != h->number) return 0;
      if (h->code != HEADRACE_OK) {
        r->target = NULL;
        end_refused(link, calls, h->code, r->page);
        return h->length == 0;
      }
      return h->length == r->target_bytes;
    case MESSAGE:
      if (h->length > MAX_MESSAGE || h->channel > 31) return 0;
      break;
    case COUNT: {
      if (h->length != 0) return 0;
      Call* call = add_call(calls, COUNTED, link);
      call->immediate = h->region;
      call->scope = h->channel;
      return 1;
    }
    default:
      return 0;
  }
  link->in_text = grown(NULL, sizeof(Text) + h->length);
  link->in_text->channel = h->channel;
  link->in_text->length = h->length;
  return 1;
}

/* Where the next bytes of the payload go, and how many; `scratch`: nowhere. */
static char* payload_target(Link* link, char* scratch, size_t* room) {
  const Header* h = &link->in;
  const uint64_t skip = h->length - link->in_left;
  int32_t code = 0;
  *room = (size_t)link->in_left;
  if (link->in_text != NULL) return link->in_text->bytes + skip;
  if (h->type == DATA) return link->first->target + skip;
  /* The region is looked up for each call, so a deregistered one is not touched any more. */
  char* to = link->write_status.code == HEADRACE_OK ? check_range(link->instance, h, 1, &code) : NULL;
  if (to != NULL) return to + skip;
  if (link->write_status.code == HEADRACE_OK) link->write_status = status_of(code, h->page);
  return scratch;
}

static void on_payload_end(Link* link, Calls* calls) {
  if (link->in.type == DATA && link->in.code == HEADRACE_OK) link->first->target = NULL;
  if (link->in.type != MESSAGE) return;
  add_call(calls, RECEIVED, link)->message = link->in_text;
  link->in_text = NULL;
}

/* Takes what the socket has. Returns the number of steps; *greeted: a HELLO is whole, and the host is to be
 * asked. */
static uint32_t take_in(Link* link, Calls* calls, int* greeted) {
  static __thread char scratch[FRAME];
  uint32_t steps = 0;
  while (link->state != LOST && steps < 64 && link->out_end - link->out_at < MAX_OUT) {
    char* to = (char*)&link->in + link->in_have;
    size_t room = sizeof(Header) - link->in_have;
    if (link->in_payload) to = payload_target(link, scratch, &room);
    ssize_t n = 0;
    if (room > 0) {
      n = recv(link->fd, to, room, MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) break;
      if (n < 0 && errno == EFAULT && link->in.type == WRITE) {
        link->write_status = status_of(HEADRACE_BACKEND_FAILED, link->in.page);
        continue; /* into the scratch memory */
      }
      if (n <= 0) {
        lose(link, calls, HEADRACE_PEER_LOST, "it has closed the link, or died");
        break;
      }
      ++steps;
    }
    if (!link->in_payload) {
      if ((link->in_have += (size_t)n) < sizeof(Header)) continue;
      link->in_have = 0;
      if (!on_header(link, calls)) {
        lose(link, calls, HEADRACE_CORRUPT, "it sent a frame that makes no sense");
        break;
      }
    } else {
      link->in_left -= (uint64_t)n;
    }
    if (link->in_left > 0) continue;
    link->in_payload = 0;
    if (link->in.type == HELLO) {
      *greeted = 1;
      break;
    }
    on_payload_end(link, calls);
  }
  return steps;
}

/* ------------------------------------------------------------------ progress */

/* Asks the host about a link that came in. The mutex is held, and let go of meanwhile. */
static void greet(Link* link, Calls* calls) {
  Instance* self = link->instance;
  const headrace_host_v1* host = self->host;
  memcpy(link->peer, link->in_text->bytes, link->in_text->length);
  free(link->in_text);
  link->in_text = NULL;
  uint64_t token = 0;
  if (link->in.page == 0 || link->in.page == host->incarnation) {
    Header welcome = {.type = WELCOME};
    put_header(link, welcome); /* before anything that the host may send */
    link->state = READY;
    ++link->busy;
    pthread_mutex_unlock(&self->mutex);
    tell(self, calls);
    token = host->accepted(host->context, link, link->peer, link->in.number);
    pthread_mutex_lock(&self->mutex);
    --link->busy;
    pthread_cond_broadcast(&self->quiet);
  }
  link->token = token;
  if (token != 0 && !link->closed) return pump(link, calls);
  if (!link->closed) free_link(link); /* refused: no `disconnect` follows */
}

static Link* link_of(Instance* self, uint64_t serial) {
  Link* link = self->links;
  while (link != NULL && link->serial != serial) link = link->next;
  return link != NULL && !link->closed && link->state != LOST ? link : NULL;
}

static uint32_t serve(Instance* self, uint64_t key, Calls* calls) {
  Link* link = link_of(self, key >> 1);
  if (link == NULL) return 0;
  int greeted = 0;
  uint32_t steps = take_in(link, calls, &greeted);
  if (greeted) {
    greet(link, calls);
    return steps + 1;
  }
  if ((key & 1) != 0 && steps == 0) lose(link, calls, HEADRACE_PEER_LOST, "its process has ended");
  pump(link, calls);
  if (link->state == LOST && link->token == 0 && link->busy == 0) free_link(link);
  return steps + 1;
}

static void accept_all(Instance* self) {
  for (;;) {
    const int fd = accept4(self->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    (void)new_link(self, fd, GREETING);
  }
}

static uint32_t tick(Instance* self, Calls* calls) {
  uint64_t ignored = 0;
  if (read(self->timer, &ignored, sizeof ignored) < 0) return 0;
  int needed = 0;
  for (Link *link = self->links, *next = NULL; link != NULL; link = next) {
    next = link->next;
    if (link->state == LOST || link->closed || link->deadline_ns == 0) continue;
    const int shaking = link->state != READY;
    int canceling = 0;
    for (Request* r = link->first; r != NULL; r = r->next) canceling |= r->canceling;
    if (!shaking && !canceling) link->deadline_ns = 0;
    needed |= shaking | canceling;
    if (link->deadline_ns == 0 || now_ns() < link->deadline_ns) continue;
    lose(link, calls, shaking ? HEADRACE_TIMED_OUT : HEADRACE_CANCELED,
         shaking ? "it did not answer in time" : "closed to end a canceled post");
    if (link->token == 0 && link->busy == 0) free_link(link);
  }
  set_timer(self, needed);
  return 1;
}

static uint32_t progress(void* instance) {
  Instance* self = instance;
  struct epoll_event events[16];
  Calls calls = {0};
  uint32_t steps = 0;
  const int n = epoll_wait(self->epoll, events, 16, 0);
  pthread_mutex_lock(&self->mutex);
  for (int i = 0; i < n; ++i) {
    const uint64_t key = events[i].data.u64;
    if (key == 0)
      accept_all(self), ++steps;
    else if (key == 1)
      steps += tick(self, &calls);
    else
      steps += serve(self, key, &calls);
  }
  pthread_mutex_unlock(&self->mutex);
  tell(self, &calls);
  return steps;
}

static int32_t descriptor(void* instance) { return ((Instance*)instance)->epoll; }

/* ------------------------------------------------------------------ the instance */

static int add_watch(int epoll, int fd, uint64_t key) {
  struct epoll_event e = {EPOLLIN, {.u64 = key}};
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
}

static void destroy(void* instance) {
  Instance* self = instance;
  while (self->links != NULL) free_link(self->links);
  close(self->epoll);
  close(self->timer);
  close(self->listener);
  unlink(self->address.sun_path);
  pthread_cond_destroy(&self->quiet);
  pthread_mutex_destroy(&self->mutex);
  free(self);
}

static int32_t create(const headrace_host_v1* host, const headrace_create_v1* args, void** instance,
                      headrace_text_v1* error) {
  static uint32_t serial;
  Instance* self = calloc(1, sizeof *self);
  if (self == NULL) return fail(error, HEADRACE_EXHAUSTED, "no memory for an instance");
  self->host = host;
  pthread_mutex_init(&self->mutex, NULL);
  pthread_cond_init(&self->quiet, NULL);
  self->address.sun_family = AF_UNIX;
  snprintf(self->runtime_dir, sizeof self->runtime_dir, "%s", args->runtime_dir);
  const int length =
      snprintf(self->address.sun_path, sizeof self->address.sun_path, "%s/minimal-%d-%u.sock",
               args->runtime_dir, (int)getpid(), __atomic_add_fetch(&serial, 1, __ATOMIC_RELAXED));
  self->epoll = epoll_create1(EPOLL_CLOEXEC);
  self->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  self->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  unlink(self->address.sun_path); /* of a process that had this id and died */
  if (length < 0 || (size_t)length >= sizeof self->address.sun_path || self->epoll < 0 || self->timer < 0 ||
      bind(self->listener, (struct sockaddr*)&self->address, sizeof self->address) < 0 ||
      listen(self->listener, 128) < 0 || add_watch(self->epoll, self->listener, 0) < 0 ||
      add_watch(self->epoll, self->timer, 1) < 0) {
    const int32_t code =
        fail(error, HEADRACE_BACKEND_FAILED, "listen in %s: %s", args->runtime_dir, strerror(errno));
    destroy(self);
    return code;
  }
  self->serials = 1; /* keys 0 and 1 are those of the listener and the timer */
  *instance = self;
  return HEADRACE_OK;
}

static void info(void* instance, headrace_info_v1* out) {
  (void)instance;
  headrace_info_v1 all = {0};
  all.struct_size = out->struct_size;
  all.abilities = HEADRACE_REMOTE | HEADRACE_NOTIFY | HEADRACE_REVOKE_SAFE | HEADRACE_COUNT;
  all.local_kinds = all.remote_kinds = HEADRACE_KIND_BIT(HEADRACE_DRAM);
  all.max_message_bytes = MAX_MESSAGE;
  memcpy(out, &all, out->struct_size < sizeof all ? out->struct_size : sizeof all);
}

static int32_t connection_info(void* instance, const headrace_sink_v1* out, headrace_text_v1* error) {
  (void)error;
  const Instance* self = instance;
  out->append(out->context, self->address.sun_path, strlen(self->address.sun_path));
  return HEADRACE_OK;
}

/* ------------------------------------------------------------------ links */

static int32_t connect_to(void* instance, const headrace_connect_v1* args, void** connection,
                          headrace_text_v1* error) {
  Instance* self = instance;
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  const size_t length = args->connection_info.length;
  if (length == 0 || length >= sizeof to.sun_path || memchr(args->connection_info.data, 0, length) != NULL)
    return fail(error, HEADRACE_INVALID_ARGUMENT, "connection information of %zu bytes for %s is no socket",
                length, args->peer_name);
  memcpy(to.sun_path, args->connection_info.data, length);
  const size_t folder = strlen(self->runtime_dir);
  if (strncmp(to.sun_path, self->runtime_dir, folder) != 0)
    return fail(error, HEADRACE_NOT_SUPPORTED, "%s is not in %s: another host, or another runtime directory",
                args->peer_name, self->runtime_dir);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return fail(error, HEADRACE_EXHAUSTED, "a socket: %s", strerror(errno));
  if (connect(fd, (struct sockaddr*)&to, sizeof to) < 0) {
    const int32_t code = fail(error, HEADRACE_PEER_LOST, "%s: %s", args->peer_name, strerror(errno));
    close(fd);
    return code;
  }
  Calls calls = {0};
  pthread_mutex_lock(&self->mutex);
  Link* link = new_link(self, fd, CONNECTING);
  link->token = args->link_token;
  snprintf(link->peer, sizeof link->peer, "%s", args->peer_name);
  const size_t mine = strlen(self->host->agent_name);
  Header hello = {
      .type = HELLO, .number = self->host->incarnation, .page = args->peer_incarnation, .length = mine};
  put_header(link, hello);
  put(link, self->host->agent_name, mine);
  pump(link, &calls);
  pthread_mutex_unlock(&self->mutex);
  tell(self, &calls);
  *connection = link;
  return HEADRACE_OK;
}

static void disconnect(void* instance, void* connection) {
  Instance* self = instance;
  Link* link = connection;
  Calls calls = {0};
  pthread_mutex_lock(&self->mutex);
  link->closed = 1;
  link->state = LOST;
  close_socket(link);
  end_posts(link, &calls, HEADRACE_CANCELED, "the link was closed");
  pthread_mutex_unlock(&self->mutex);
  tell(self, &calls);
  pthread_mutex_lock(&self->mutex);
  while (link->busy > 0) pthread_cond_wait(&self->quiet, &self->mutex);
  free_link(link);
  pthread_mutex_unlock(&self->mutex);
}

/* ------------------------------------------------------------------ regions */

static int32_t register_region(void* instance, const headrace_region_v1* args, void** handle,
                               headrace_text_v1* error) {
  Instance* self = instance;
  if (args->kind != HEADRACE_DRAM)
    return fail(error, HEADRACE_NOT_SUPPORTED, "minimal moves host memory, not kind %d", args->kind);
  if (args->address == 0 || args->length == 0)
    return fail(error, HEADRACE_INVALID_ARGUMENT, "region %u is no memory", args->region_id);
  Region* region = calloc(1, sizeof *region);
  if (region == NULL) return fail(error, HEADRACE_EXHAUSTED, "no memory for region %u", args->region_id);
  region->id = args->region_id;
  region->base = (char*)(uintptr_t)args->address;
  region->length = args->length;
  region->writable = (args->flags & HEADRACE_REGION_READ_ONLY) == 0;
  pthread_mutex_lock(&self->mutex);
  region->next = self->regions;
  self->regions = region;
  pthread_mutex_unlock(&self->mutex);
  *handle = region;
  return HEADRACE_OK;
}

/* Bytes move under the mutex alone: once it is out of the list no peer reaches it. */
static void deregister_region(void* instance, void* handle) {
  Instance* self = instance;
  pthread_mutex_lock(&self->mutex);
  Region** at = &self->regions;
  while (*at != handle) at = &(*at)->next;
  *at = ((Region*)handle)->next;
  pthread_mutex_unlock(&self->mutex);
  free(handle);
}

static int32_t export_region(void* instance, void* handle, const headrace_sink_v1* out,
                             headrace_text_v1* error) {
  (void)instance, (void)handle, (void)out, (void)error; /* the id is all that a peer needs */
  return HEADRACE_OK;
}

static int32_t load_local(void* instance, void* handle, void** remote, headrace_text_v1* error) {
  (void)instance, (void)handle, (void)remote;
  return fail(error, HEADRACE_NOT_SUPPORTED, "minimal moves nothing inside one agent");
}

static int32_t load_remote(void* instance, void* connection, const headrace_remote_region_v1* args,
                           void** handle, headrace_text_v1* error) {
  (void)instance, (void)connection;
  Remote* remote = calloc(1, sizeof *remote);
  if (remote == NULL) return fail(error, HEADRACE_EXHAUSTED, "no memory for region %u", args->region_id);
  remote->region = args->region_id;
  *handle = remote;
  return HEADRACE_OK;
}

static void unload(void* instance, void* remote) {
  (void)instance;
  free(remote);
}

/* ------------------------------------------------------------------ requests and messages */

static int32_t prepare(void* instance, const headrace_prepare_v1* args, void** handle,
                       headrace_text_v1* error) {
  Instance* self = instance;
  if (args->connection == NULL)
    return fail(error, HEADRACE_NOT_SUPPORTED, "minimal moves nothing inside one agent");
  if (HEADRACE_HAS(args, grid) && args->grid != NULL)
    return fail(error, HEADRACE_NOT_SUPPORTED, "minimal moves contiguous pages");
  Link* link = args->connection;
  pthread_mutex_lock(&self->mutex);
  const int lost = link->state == LOST;
  pthread_mutex_unlock(&self->mutex);
  if (lost) return fail(error, HEADRACE_PEER_LOST, "the link to peer %s is lost", link->peer);
  Request* request = calloc(1, sizeof *request);
  if (request == NULL) return fail(error, HEADRACE_EXHAUSTED, "no memory for a request");
  memcpy(&request->args, args, args->struct_size < sizeof *args ? args->struct_size : sizeof *args);
  request->link = link;
  *handle = request;
  return HEADRACE_OK;
}

/* A place for a message in the order of its channel; NULL: the code says why. */
static Text* add_text(Link* link, uint32_t channel, const void* bytes, size_t length, int state,
                      int32_t* code) {
  *code = HEADRACE_INVALID_ARGUMENT;
  if (length > MAX_MESSAGE || channel > 31) return NULL;
  *code = HEADRACE_WOULD_BLOCK;
  if (link->text_bytes + length + sizeof(Text) > MAX_QUEUED) return NULL;
  Text* text = grown(NULL, sizeof(Text) + length);
  text->next = NULL;
  text->channel = channel;
  text->state = state;
  text->length = length;
  if (length > 0) memcpy(text->bytes, bytes, length);
  link->text_bytes += length + sizeof(Text);
  *link->texts_end = text;
  link->texts_end = &text->next;
  return text;
}

/* With the mutex. */
static int32_t take_post(Link* link, Request* r, const headrace_post_v1* args) {
  int32_t code = HEADRACE_OK;
  if (r->posted) return HEADRACE_INVALID_ARGUMENT;
  if (link->state == LOST) return HEADRACE_PEER_LOST;
  if (link->posts == MAX_POSTS) return HEADRACE_WOULD_BLOCK;
  r->message = NULL;
  if (args->has_message != 0) {
    r->message = add_text(link, args->channel, args->message.data, args->message.length, WAITING, &code);
    if (r->message == NULL) return code;
  }
  r->has_immediate = args->has_immediate;
  r->immediate = args->immediate;
  r->scope = args->scope;
  r->token = args->token;
  r->page = r->done = 0;
  r->started = r->ended_sending = r->canceling = 0;
  r->target = NULL;
  r->next = NULL;
  r->posted = 1;
  if (link->last != NULL)
    link->last->next = r;
  else
    link->first = r;
  link->last = r;
  ++link->posts;
  return HEADRACE_OK;
}

static headrace_status_v1 post(void* instance, void* handle, const headrace_post_v1* args) {
  Instance* self = instance;
  Request* request = handle;
  Calls calls = {0};
  pthread_mutex_lock(&self->mutex);
  const int32_t code = take_post(request->link, request, args);
  if (code == HEADRACE_OK) pump(request->link, &calls);
  pthread_mutex_unlock(&self->mutex);
  tell(self, &calls);
  return status_of(code, HEADRACE_NO_PAGE);
}

static int32_t poll_request(void* instance, void* handle) {
  (void)instance, (void)handle;
  return 0; /* `progress` does it all */
}

/* A post that has sent nothing ends at once. Another one sends its END, and has half a second. */
static void cancel(void* instance, void* handle) {
  Instance* self = instance;
  Request* r = handle;
  Calls calls = {0};
  pthread_mutex_lock(&self->mutex);
  if (r->posted && !r->canceling) {
    Link* link = r->link;
    r->canceling = 1;
    if (r->started) {
      link->deadline_ns = now_ns() + CANCEL_NS;
      set_timer(self, 1);
      pump(link, &calls);
    } else {
      if (r != link->first) { /* to the front, for end_post */
        Request* before = link->first;
        while (before->next != r) before = before->next;
        before->next = r->next;
        if (link->last == r) link->last = before;
        r->next = link->first;
        link->first = r;
      }
      end_post(link, &calls, status_of(HEADRACE_CANCELED, HEADRACE_NO_PAGE), "canceled before it began");
      pump(link, &calls);
    }
  }
  pthread_mutex_unlock(&self->mutex);
  tell(self, &calls);
}

static void release(void* instance, void* request) {
  (void)instance;
  free(request);
}

static headrace_status_v1 notify(void* instance, void* connection, uint32_t channel, const void* bytes,
                                 size_t length) {
  Instance* self = instance;
  Link* link = connection;
  Calls calls = {0};
  int32_t code = HEADRACE_PEER_LOST;
  pthread_mutex_lock(&self->mutex);
  if (link->state != LOST && add_text(link, channel, bytes, length, SENDABLE, &code) != NULL) {
    code = HEADRACE_OK;
    pump(link, &calls);
  }
  pthread_mutex_unlock(&self->mutex);
  tell(self, &calls);
  return status_of(code, HEADRACE_NO_PAGE);
}

static int32_t cost(void* instance, const headrace_prepare_v1* args, headrace_cost_v1* out) {
  (void)instance, (void)args;
  headrace_cost_v1 all = {out->struct_size, 50000, 1000, 5e8, 1, "constant"};
  memcpy(out, &all, out->struct_size < sizeof all ? out->struct_size : sizeof all);
  return HEADRACE_OK;
}

__attribute__((visibility("default"))) const headrace_backend_v1* headrace_backend_v1_table(void);
const headrace_backend_v1* headrace_backend_v1_table(void) {
  static const headrace_backend_v1 table = {
      .struct_size = sizeof(headrace_backend_v1),
      .abi_major = HEADRACE_BACKEND_ABI_MAJOR,
      .abi_minor = HEADRACE_BACKEND_ABI_MINOR,
      .name = "minimal",
      .version = "1.0",
      .option_size = sizeof(headrace_option_v1),
      .memory_kinds = HEADRACE_KIND_BIT(HEADRACE_DRAM),
      .create = create,
      .destroy = destroy,
      .info = info,
      .connection_info = connection_info,
      .connect = connect_to,
      .disconnect = disconnect,
      .register_region = register_region,
      .deregister_region = deregister_region,
      .export_region = export_region,
      .load_local = load_local,
      .load_remote = load_remote,
      .unload = unload,
      .prepare = prepare,
      .post = post,
      .poll = poll_request,
      .cancel = cancel,
      .release = release,
      .notify = notify,
      .progress = progress,
      .descriptor = descriptor,
      .cost = cost,
  };
  return &table;
}
