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
#include <poll.h>
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
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wunused-parameter" /* the table says what the entries take */

enum { MAX_MESSAGE = 65536 + 16, CHANNELS = 32, FRAME = 65536 };
enum { MAX_QUEUED = 1 << 20, MAX_POSTS = 256, MAX_OUT = 4 << 20 };
enum { HELLO = 1, WELCOME, WRITE, END, ACK, READ, DATA, MESSAGE, COUNT };
enum { CONNECTING, GREETING, GREETED, READY, LOST };
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

typedef struct Text {
  struct Text* next; /* a message that waits to be sent */
  uint32_t channel;
  enum { WAITING, SENDABLE, DROPPED } state;
  size_t length;
  char bytes[];
} Text;

typedef struct Request {
  headrace_prepare_v1 args;
  headrace_post_v1 post; /* its message is in `message` */
  struct Link* link;
  struct Request* next; /* in the link's queue */
  int posted, ended_sending, canceling;
  uint64_t number;     /* of the post on its link; 0: nothing of it has been sent */
  uint64_t page, done; /* the next byte: in `page`, behind `done` */
  char* target;        /* of the DATA that is awaited; NULL: none */
  uint64_t target_bytes;
  Text* message;
} Request;

typedef struct Link {
  struct Link* next;
  struct Instance* instance;
  uint64_t serial, token, deadline_ns;
  int fd, pidfd, state, wants_out;
  int busy; /* host functions that run, or will run, with the token */
  char peer[256];
  /* sending */
  char* out;
  size_t out_at, out_end, out_room;
  const char* payload; /* of the WRITE whose header has left */
  size_t payload_left;
  Request* first; /* posts; the first one moves */
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
  Call* calls; /* to be made by the thread that has the mutex, when it gives it back */
  size_t call_count;
} Instance;

/* ------------------------------------------------------------------ small things */

static uint64_t now_ns(const Instance* self) { return self->host->now_ns(self->host->context); }

static headrace_status_v1 at_page(int32_t code, uint64_t page) {
  return (headrace_status_v1){.code = code, .page = page};
}
static headrace_status_v1 status_of(int32_t code) { return at_page(code, HEADRACE_NO_PAGE); }

static int32_t fail(headrace_text_v1* out, int32_t code, const char* format, ...) {
  char text[256] = "";
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (out == NULL) return code;
  out->length = strlen(text) < out->capacity ? strlen(text) : out->capacity;
  memcpy(out->data, text, out->length);
  return code;
}

static void* grown(void* at, size_t bytes) {
  void* more = realloc(at, bytes);
  if (more == NULL) abort(); /* a transport for production reports it */
  return more;
}

static Text* new_text(uint32_t channel, size_t length, int state) {
  Text* text = grown(NULL, sizeof(Text) + length);
  *text = (Text){.channel = channel, .length = length, .state = state};
  return text;
}

/* ------------------------------------------------------------------ what the host is told */

static Call* add_call(Link* link, int kind) {
  Instance* self = link->instance;
  self->calls = grown(self->calls, (self->call_count + 1) * sizeof(Call));
  Call* call = &self->calls[self->call_count++];
  *call = (Call){.kind = kind, .link = link, .token = link->token};
  ++link->busy;
  return call;
}

static void make_call(const headrace_host_v1* host, const Call* c) {
  if (c->kind == COMPLETED) host->completed(host->context, c->token, c->status, c->text, strlen(c->text));
  if (c->kind == EVENT)
    host->link_event(host->context, c->token, c->event, c->status, c->text, strlen(c->text));
  if (c->kind == RECEIVED)
    host->received(host->context, c->token, c->message->channel, c->message->bytes, c->message->length);
  if (c->kind == COUNTED) host->counted(host->context, c->token, c->scope, c->immediate, 1);
  free(c->message);
}

/* Gives the mutex back, and tells what has been collected since it was taken, in its order. */
static void leave(Instance* self) {
  Call* calls = self->calls;
  const size_t count = self->call_count;
  self->calls = NULL;
  self->call_count = 0;
  pthread_mutex_unlock(&self->mutex);
  if (count == 0) return;
  for (size_t i = 0; i < count; ++i) make_call(self->host, &calls[i]);
  pthread_mutex_lock(&self->mutex);
  for (size_t i = 0; i < count; ++i) --calls[i].link->busy;
  pthread_cond_broadcast(&self->quiet);
  pthread_mutex_unlock(&self->mutex);
  free(calls);
}

/* ------------------------------------------------------------------ what is to be sent; with the mutex */

static void put(Link* link, const void* bytes, size_t n) {
  if (link->out_at == link->out_end) link->out_at = link->out_end = 0;
  if (link->out_end + n > link->out_room)
    link->out = grown(link->out, link->out_room = 2 * (link->out_end + n));
  memcpy(link->out + link->out_end, bytes, n);
  link->out_end += n;
}

static void put_header(Link* link, Header h) { put(link, &h, sizeof h); }

typedef struct Page {
  void* region; /* its handle */
  uint64_t offset, length;
} Page;

static Page page_at(const headrace_side_v1* side, uint64_t i) {
  const headrace_columns_v1* c = &side->columns;
  const uint64_t k = c->indices != NULL ? c->indices[i] : i;
  return (Page){side->regions[c->region_of != NULL ? c->region_of[k] : 0],
                c->offsets != NULL ? c->offsets[k] : c->base_offset + k * c->stride_bytes,
                c->lengths != NULL ? c->lengths[k] : c->page_bytes};
}

/* The post ends. Its memory is quiet. */
static void end_post(Request* r, headrace_status_v1 status, const char* text) {
  Link* link = r->link;
  Request** at = &link->first;
  while (*at != r) at = &(*at)->next;
  *at = r->next;
  r->posted = 0;
  if (r->message != NULL) r->message->state = status.code == HEADRACE_OK ? SENDABLE : DROPPED;
  if (r->post.has_immediate && status.code == HEADRACE_OK && link->state == READY)
    put_header(link, (Header){.type = COUNT, .region = r->post.immediate, .channel = r->post.scope});
  Call* call = add_call(link, COMPLETED);
  call->token = r->post.token;
  call->status = status;
  snprintf(call->text, sizeof call->text, "%s", text);
}

/* All that was sent of the post has been answered, and the peer has refused nothing. */
static void end_answered(Request* r) {
  const int all = r->page >= r->args.count;
  end_post(r, status_of(all ? HEADRACE_OK : HEADRACE_CANCELED), all ? "" : "canceled on the way");
}

/* A WRITE, whose payload follows from the user's memory, or a READ, which DATA answers. */
static void put_piece(Link* link, Request* r) {
  const Page local = page_at(r->args.local, r->page), remote = page_at(r->args.remote, r->page);
  const int writes = r->args.op == HEADRACE_WRITE;
  const uint64_t left = local.length - r->done, bytes = left < FRAME ? left : FRAME;
  char* mine = ((Region*)local.region)->base + local.offset + r->done;
  Header h = {.type = writes ? WRITE : READ, .number = r->number, .page = r->page, .length = bytes};
  h.region = *(uint32_t*)remote.region;
  h.offset = remote.offset + r->done;
  put_header(link, h);
  link->payload = mine;
  link->payload_left = writes ? bytes : 0;
  r->target = writes ? NULL : mine;
  r->target_bytes = bytes;
  r->done += bytes;
}

/* Puts the next frame of the first post, if it has one. */
static int put_frame(Link* link) {
  Request* r = link->first;
  if (r == NULL || r->ended_sending || r->target != NULL) return 0;
  if (r->number == 0) r->number = ++link->posts_ever;
  while (r->page < r->args.count && r->done == page_at(r->args.local, r->page).length) ++r->page, r->done = 0;
  if (r->page < r->args.count && !r->canceling) {
    put_piece(link, r);
  } else if (r->args.op == HEADRACE_WRITE) {
    put_header(link, (Header){.type = END, .number = r->number});
    r->ended_sending = 1;
  } else {
    end_answered(r);
  }
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
      put_header(link, (Header){.type = MESSAGE, .channel = text->channel, .length = text->length});
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

static int add_watch(Instance* self, int fd, uint64_t key) {
  struct epoll_event e = {EPOLLIN, {.u64 = key}};
  return epoll_ctl(self->epoll, EPOLL_CTL_ADD, fd, &e);
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
  link->write_status = status_of(HEADRACE_OK);
  link->deadline_ns = now_ns(self) + HANDSHAKE_NS;
  link->next = self->links;
  self->links = link;
  add_watch(self, fd, link->serial << 1);
  /* A child of the peer may keep the socket open after its death. */
  struct ucred peer;
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0 && peer.pid != getpid()) {
    link->pidfd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
    if (link->pidfd >= 0) add_watch(self, link->pidfd, link->serial << 1 | 1);
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

static void shut(Link* link, int32_t code, const char* text) {
  link->state = LOST;
  link->payload_left = 0;
  close_socket(link);
  while (link->first != NULL) {
    Request* r = link->first;
    end_post(r, status_of(r->canceling ? HEADRACE_CANCELED : code), text);
  }
}

static void lose(Link* link, int32_t code, const char* text) {
  if (link->state == LOST) return;
  const int known = link->token != 0;
  shut(link, code == HEADRACE_CANCELED ? HEADRACE_BACKEND_FAILED : HEADRACE_PEER_LOST, text);
  if (!known) return;
  Call* call = add_call(link, EVENT);
  call->event = HEADRACE_LINK_LOST;
  call->status = status_of(code);
  snprintf(call->text, sizeof call->text, "peer %s: %s", link->peer, text);
}

/* ------------------------------------------------------------------ the socket; with the mutex */

static void watch(Link* link) {
  const int wants = link->out_at < link->out_end || link->payload_left > 0;
  if (wants == link->wants_out) return;
  link->wants_out = wants;
  struct epoll_event e = {wants ? EPOLLIN | EPOLLOUT : EPOLLIN, {.u64 = link->serial << 1}};
  epoll_ctl(link->instance->epoll, EPOLL_CTL_MOD, link->fd, &e);
}

/* Sends what there is, as long as the socket takes it. */
static void pump(Link* link) {
  while (link->state == READY || (link->state != LOST && link->out_at < link->out_end)) {
    const int frames = link->out_at < link->out_end;
    const char* from = frames ? link->out + link->out_at : link->payload;
    const size_t bytes = frames ? link->out_end - link->out_at : link->payload_left;
    if (bytes == 0) {
      if (put_texts(link) || put_frame(link)) continue;
      break;
    }
    const ssize_t n = send(link->fd, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0 && frames) link->out_at += (size_t)n;
    if (n > 0 && !frames) link->payload += n, link->payload_left -= (size_t)n;
    if (n >= 0 || errno == EINTR) continue;
    if (errno == EFAULT) lose(link, HEADRACE_BACKEND_FAILED, "local memory cannot be read");
    break; /* of any other error the receiving side sees what happened, after all that came before */
  }
  if (link->state != LOST) watch(link);
}

/* Where a range that a peer names lies; NULL, with the code, if it may not have it. */
static char* check_range(Instance* self, const Header* h, int writes, int32_t* code) {
  const Region* region = self->regions;
  while (region != NULL && region->id != h->region) region = region->next;
  *code = HEADRACE_NOT_FOUND;
  if (region == NULL) return NULL;
  *code = HEADRACE_INVALID_ARGUMENT;
  if (h->offset > region->length || h->length > region->length - h->offset) return NULL;
  *code = HEADRACE_NOT_SUPPORTED; /* on the wire: read-only */
  if (writes && !region->writable) return NULL;
  *code = HEADRACE_OK;
  return region->base + h->offset;
}

/* The owner refused the post at a page, with the code of check_range. */
static void end_refused(Request* r, uint32_t code, uint64_t page) {
  char text[400];
  const char* why = code == HEADRACE_NOT_FOUND       ? "the region is not registered"
                    : code == HEADRACE_NOT_SUPPORTED ? "the region is registered read-only"
                                                     : "the range cannot be reached";
  snprintf(text, sizeof text, "peer %s refused page %llu: %s", r->link->peer, (unsigned long long)page, why);
  const int known = code == HEADRACE_NOT_FOUND || code == HEADRACE_BACKEND_FAILED;
  end_post(r, at_page(known ? (int32_t)code : HEADRACE_INVALID_ARGUMENT, page), text);
}

/* The handlers of a header return 0 if the peer broke the protocol. */

static int on_welcome(Link* link) {
  link->state = READY;
  Call* call = add_call(link, EVENT);
  call->event = HEADRACE_LINK_READY;
  snprintf(call->text, sizeof call->text, "connected to peer %s", link->peer);
  return 1;
}

static int on_end(Link* link) {
  put_header(link, (Header){.type = ACK,
                            .number = link->in.number,
                            .code = (uint32_t)link->write_status.code,
                            .page = link->write_status.page});
  link->write_status = status_of(HEADRACE_OK);
  return 1;
}

static int on_ack(Link* link) {
  const Header* h = &link->in;
  Request* r = link->first;
  if (r == NULL || !r->ended_sending || r->number != h->number) return 0;
  if (h->code != HEADRACE_OK)
    end_refused(r, h->code, h->page < r->args.count ? h->page : HEADRACE_NO_PAGE);
  else
    end_answered(r);
  return 1;
}

static int on_read(Link* link) {
  Header data = link->in;
  int32_t code = 0;
  const char* from = check_range(link->instance, &data, 0, &code);
  data.type = DATA;
  data.code = (uint32_t)code;
  if (from == NULL) data.length = 0;
  put_header(link, data);
  if (from != NULL) put(link, from, data.length);
  link->in_left = 0; /* the length was that of the answer */
  return 1;
}

static int on_data(Link* link) {
  const Header* h = &link->in;
  Request* r = link->first;
  if (r == NULL || r->target == NULL || r->number != h->number) return 0;
  if (h->code == HEADRACE_OK) return h->length == r->target_bytes;
  r->target = NULL;
  end_refused(r, h->code, r->page);
  return h->length == 0;
}

static int on_message(Link* link) {
  link->in_text = new_text(link->in.channel, link->in.length, WAITING);
  return 1;
}

static int on_count(Link* link) {
  Call* call = add_call(link, COUNTED);
  call->immediate = link->in.region;
  call->scope = link->in.channel;
  return 1;
}

static int on_header(Link* link) {
  const Header* h = &link->in;
  const int empty = h->length == 0;
  if ((link->state == READY) == (h->type == HELLO || h->type == WELCOME)) return 0;
  switch (h->type) {
    case HELLO:
      return link->state == GREETING && !empty && h->length < sizeof link->peer;
    case WELCOME:
      return link->state == CONNECTING && empty && on_welcome(link);
    case WRITE:
      return !empty && h->length <= FRAME;
    case END:
      return empty && on_end(link);
    case ACK:
      return empty && on_ack(link);
    case READ:
      return !empty && h->length <= FRAME && on_read(link);
    case DATA:
      return on_data(link);
    case MESSAGE:
      return h->length <= MAX_MESSAGE && h->channel < CHANNELS && on_message(link);
    case COUNT:
      return empty && on_count(link);
    default:
      return 0;
  }
}

/* Where the next bytes of the payload go, and how many; `scratch`: nowhere. */
static char* payload_target(Link* link, char* scratch, size_t* room) {
  const Header* h = &link->in;
  const uint64_t skip = h->length - link->in_left;
  int32_t code = 0;
  *room = (size_t)link->in_left;
  if (h->type == HELLO) return link->peer + skip;
  if (h->type == MESSAGE) return link->in_text->bytes + skip;
  if (h->type == DATA) return link->first->target + skip;
  /* A peer that has closed the link has ended its writes: their memory may have been filled anew. */
  struct pollfd closed = {.fd = link->fd, .events = POLLRDHUP};
  if (poll(&closed, 1, 0) > 0) link->write_status = at_page(HEADRACE_CANCELED, h->page);
  /* The region is looked up for each call, so a deregistered one is not touched any more. */
  char* to = link->write_status.code == HEADRACE_OK ? check_range(link->instance, h, 1, &code) : NULL;
  if (to != NULL) return to + skip;
  if (link->write_status.code == HEADRACE_OK) link->write_status = at_page(code, h->page);
  return scratch;
}

static void on_payload_end(Link* link) {
  if (link->in.type == HELLO) link->state = GREETED;
  if (link->in.type == DATA && link->in.code == HEADRACE_OK) link->first->target = NULL;
  if (link->in.type != MESSAGE) return;
  add_call(link, RECEIVED)->message = link->in_text;
  link->in_text = NULL;
}

/* Receives a piece of a header or of a payload. Returns 0 if there is none now, or the link is lost. */
static int receive_piece(Link* link) {
  static __thread char scratch[FRAME];
  char* to = (char*)&link->in + link->in_have;
  size_t room = sizeof(Header) - link->in_have;
  if (link->in_payload) to = payload_target(link, scratch, &room);
  const ssize_t n = recv(link->fd, to, room, MSG_DONTWAIT);
  if (n < 0 && errno == EAGAIN) return 0;
  if (n < 0 && errno == EFAULT && link->in_payload && link->in.type == WRITE) {
    link->write_status = at_page(HEADRACE_BACKEND_FAILED, link->in.page); /* the rest goes to `scratch` */
  } else if (n == 0 || (n < 0 && errno != EINTR)) {
    lose(link, HEADRACE_PEER_LOST, "it has closed the link, or died");
    return 0;
  } else if (link->in_payload) {
    link->in_left -= n > 0 ? (uint64_t)n : 0;
  } else {
    link->in_have += n > 0 ? (size_t)n : 0;
  }
  return 1;
}

/* Takes what the socket has, up to a whole HELLO. Returns the number of steps. */
static uint32_t take_in(Link* link) {
  uint32_t steps = 0;
  for (; steps < 64 && link->out_end - link->out_at < MAX_OUT && receive_piece(link); ++steps) {
    if (!link->in_payload) {
      if (link->in_have < sizeof(Header)) continue;
      link->in_have = 0;
      link->in_left = link->in.length;
      link->in_payload = 1;
      if (!on_header(link)) {
        lose(link, HEADRACE_CORRUPT, "it sent a frame that makes no sense");
        break;
      }
    }
    if (link->in_left > 0) continue;
    link->in_payload = 0;
    on_payload_end(link);
    if (link->state == GREETED) return steps + 1;
  }
  return steps;
}

/* ------------------------------------------------------------------ progress */

/* Asks the host about a link that came in. The mutex is held, and let go of meanwhile. */
static void greet(Link* link) {
  Instance* self = link->instance;
  const headrace_host_v1* host = self->host;
  uint64_t token = 0;
  if (link->in.page == 0 || link->in.page == host->incarnation) {
    put_header(link, (Header){.type = WELCOME}); /* before anything that the host may send */
    link->state = READY;
    ++link->busy;
    leave(self);
    token = host->accepted(host->context, link, link->peer, link->in.number);
    pthread_mutex_lock(&self->mutex);
    --link->busy;
    pthread_cond_broadcast(&self->quiet);
  }
  link->token = token;
  if (token != 0)
    pump(link);
  else
    free_link(link); /* refused: no `disconnect` follows */
}

static uint32_t serve(Instance* self, uint64_t key) {
  Link* link = self->links;
  while (link != NULL && link->serial != key >> 1) link = link->next;
  if (link == NULL || link->state == LOST) return 0;
  const uint32_t steps = take_in(link);
  if (link->state == GREETED) return greet(link), steps + 1;
  if ((key & 1) != 0 && steps == 0) lose(link, HEADRACE_PEER_LOST, "its process has ended");
  pump(link);
  if (link->state == LOST && link->token == 0 && link->busy == 0) free_link(link);
  return steps + 1;
}

static uint32_t accept_all(Instance* self) {
  int fd = -1;
  while ((fd = accept4(self->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
    new_link(self, fd, GREETING);
  return 1;
}

static uint32_t tick(Instance* self) {
  uint64_t ignored = 0;
  if (read(self->timer, &ignored, sizeof ignored) < 0) return 0;
  int needed = 0;
  for (Link *link = self->links, *next = NULL; link != NULL; link = next) {
    next = link->next;
    if (link->state == LOST) continue;
    const int shaking = link->state != READY;
    int canceling = 0;
    for (Request* r = link->first; r != NULL; r = r->next) canceling |= r->canceling;
    needed |= shaking | canceling;
    if ((!shaking && !canceling) || now_ns(self) < link->deadline_ns) continue;
    lose(link, shaking ? HEADRACE_TIMED_OUT : HEADRACE_CANCELED,
         shaking ? "it did not answer in time" : "closed to end a canceled post");
    if (link->token == 0 && link->busy == 0) free_link(link);
  }
  set_timer(self, needed);
  return 1;
}

static uint32_t progress(void* instance) {
  Instance* self = instance;
  struct epoll_event events[16];
  uint32_t steps = 0;
  const int n = epoll_wait(self->epoll, events, 16, 0);
  pthread_mutex_lock(&self->mutex);
  for (int i = 0; i < n; ++i) {
    const uint64_t key = events[i].data.u64;
    steps += key == 0 ? accept_all(self) : key == 1 ? tick(self) : serve(self, key);
  }
  leave(self);
  return steps;
}

static int32_t descriptor(void* instance) { return ((Instance*)instance)->epoll; }

/* ------------------------------------------------------------------ the instance */

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

/* Returns -1 with errno. */
static int open_sockets(Instance* self) {
  static uint32_t serial;
  struct sockaddr_un* at = &self->address;
  at->sun_family = AF_UNIX;
  const int length = snprintf(at->sun_path, sizeof at->sun_path, "%s/minimal-%d-%u.sock", self->runtime_dir,
                              (int)getpid(), __atomic_add_fetch(&serial, 1, __ATOMIC_RELAXED));
  if (length < 0 || (size_t)length >= sizeof at->sun_path) return errno = ENAMETOOLONG, -1;
  self->epoll = epoll_create1(EPOLL_CLOEXEC);
  self->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  self->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  unlink(at->sun_path); /* of a process that had this id and died */
  if (bind(self->listener, (struct sockaddr*)at, sizeof *at) < 0) return -1;
  if (listen(self->listener, 128) < 0 || add_watch(self, self->listener, 0) < 0) return -1;
  return add_watch(self, self->timer, 1);
}

static int32_t create(const headrace_host_v1* host, const headrace_create_v1* args, void** instance,
                      headrace_text_v1* error) {
  Instance* self = calloc(1, sizeof *self);
  if (self == NULL) return fail(error, HEADRACE_EXHAUSTED, "no memory for an instance");
  self->host = host;
  self->epoll = self->timer = self->listener = -1;
  pthread_mutex_init(&self->mutex, NULL);
  pthread_cond_init(&self->quiet, NULL);
  snprintf(self->runtime_dir, sizeof self->runtime_dir, "%s", args->runtime_dir);
  if (open_sockets(self) < 0) {
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
  headrace_info_v1 all = {0};
  all.struct_size = out->struct_size;
  all.abilities = HEADRACE_REMOTE | HEADRACE_NOTIFY | HEADRACE_REVOKE_SAFE | HEADRACE_COUNT;
  all.local_kinds = all.remote_kinds = HEADRACE_KIND_BIT(HEADRACE_DRAM);
  all.max_message_bytes = MAX_MESSAGE;
  memcpy(out, &all, out->struct_size < sizeof all ? out->struct_size : sizeof all);
}

static int32_t connection_info(void* instance, const headrace_sink_v1* out, headrace_text_v1* error) {
  const Instance* self = instance;
  out->append(out->context, self->address.sun_path, strlen(self->address.sun_path));
  return HEADRACE_OK;
}

/* ------------------------------------------------------------------ links */

/* The peer's socket, if it is one in our runtime directory. */
static int32_t read_address(const Instance* self, const headrace_connect_v1* args, struct sockaddr_un* to,
                            headrace_text_v1* error) {
  const headrace_bytes_v1 path = args->connection_info;
  if (path.length == 0 || path.length >= sizeof to->sun_path || memchr(path.data, 0, path.length) != NULL)
    return fail(error, HEADRACE_INVALID_ARGUMENT, "connection information of %zu bytes for %s is no socket",
                path.length, args->peer_name);
  memcpy(to->sun_path, path.data, path.length);
  if (strncmp(to->sun_path, self->runtime_dir, strlen(self->runtime_dir)) != 0)
    return fail(error, HEADRACE_NOT_SUPPORTED, "%s is not in %s: another host, or another runtime directory",
                args->peer_name, self->runtime_dir);
  return HEADRACE_OK;
}

static int32_t connect_to(void* instance, const headrace_connect_v1* args, void** connection,
                          headrace_text_v1* error) {
  Instance* self = instance;
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  const int32_t refused = read_address(self, args, &to, error);
  if (refused != HEADRACE_OK) return refused;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return fail(error, HEADRACE_EXHAUSTED, "a socket: %s", strerror(errno));
  if (connect(fd, (struct sockaddr*)&to, sizeof to) < 0) {
    const int32_t code = fail(error, HEADRACE_PEER_LOST, "%s: %s", args->peer_name, strerror(errno));
    close(fd);
    return code;
  }
  pthread_mutex_lock(&self->mutex);
  Link* link = new_link(self, fd, CONNECTING);
  link->token = args->link_token;
  snprintf(link->peer, sizeof link->peer, "%s", args->peer_name);
  const uint64_t us = self->host->incarnation, peer = args->peer_incarnation;
  const size_t length = strlen(self->host->agent_name);
  put_header(link, (Header){.type = HELLO, .number = us, .page = peer, .length = length});
  put(link, self->host->agent_name, length);
  pump(link);
  leave(self);
  *connection = link;
  return HEADRACE_OK;
}

static void disconnect(void* instance, void* connection) {
  Instance* self = instance;
  Link* link = connection;
  pthread_mutex_lock(&self->mutex);
  shut(link, HEADRACE_CANCELED, "the link was closed");
  leave(self);
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
  /* the id is all that a peer needs */
  return HEADRACE_OK;
}

static int32_t load_local(void* instance, void* handle, void** remote, headrace_text_v1* error) {
  return fail(error, HEADRACE_NOT_SUPPORTED, "minimal moves nothing inside one agent");
}

static int32_t load_remote(void* instance, void* connection, const headrace_remote_region_v1* args,
                           void** handle, headrace_text_v1* error) {
  uint32_t* remote = malloc(sizeof *remote); /* the id is all that we need */
  if (remote == NULL) return fail(error, HEADRACE_EXHAUSTED, "no memory for region %u", args->region_id);
  *remote = args->region_id;
  *handle = remote;
  return HEADRACE_OK;
}

static void free_handle(void* instance, void* handle) { free(handle); }

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

/* Whether the link takes posts and messages. */
static int32_t usable(const Link* link) {
  return link->state == READY ? HEADRACE_OK : link->state == LOST ? HEADRACE_PEER_LOST : HEADRACE_WOULD_BLOCK;
}

/* A place for a message in the order of its channel; NULL: *code says why. */
static Text* add_text(Link* link, uint32_t channel, const void* bytes, size_t length, int state,
                      int32_t* code) {
  const size_t room = sizeof(Text) + length;
  if (length > MAX_MESSAGE || channel >= CHANNELS)
    *code = HEADRACE_INVALID_ARGUMENT;
  else if (link->text_bytes + room > MAX_QUEUED)
    *code = HEADRACE_WOULD_BLOCK;
  if (*code != HEADRACE_OK) return NULL;
  Text* text = new_text(channel, length, state);
  if (length > 0) memcpy(text->bytes, bytes, length);
  link->text_bytes += room;
  *link->texts_end = text;
  link->texts_end = &text->next;
  return text;
}

/* With the mutex. What is refused leaves nothing behind. */
static int32_t take_post(Link* link, Request* r, const headrace_post_v1* args) {
  unsigned posts = 0;
  Request** end = &link->first;
  for (; *end != NULL; end = &(*end)->next) ++posts;
  int32_t code = usable(link);
  if (code == HEADRACE_OK && r->posted) code = HEADRACE_INVALID_ARGUMENT;
  if (code == HEADRACE_OK && posts == MAX_POSTS) code = HEADRACE_WOULD_BLOCK;
  if (code != HEADRACE_OK) return code;
  r->message = NULL;
  if (args->has_message != 0) {
    r->message = add_text(link, args->channel, args->message.data, args->message.length, WAITING, &code);
    if (r->message == NULL) return code;
  }
  r->post = *args;
  r->number = r->page = r->done = 0;
  r->ended_sending = r->canceling = 0;
  r->target = NULL;
  r->next = NULL;
  r->posted = 1;
  *end = r;
  return HEADRACE_OK;
}

static headrace_status_v1 post(void* instance, void* handle, const headrace_post_v1* args) {
  Instance* self = instance;
  Request* request = handle;
  pthread_mutex_lock(&self->mutex);
  const int32_t code = take_post(request->link, request, args);
  if (code == HEADRACE_OK) pump(request->link);
  leave(self);
  return status_of(code);
}

static int32_t poll_request(void* instance, void* handle) { return 0; /* `progress` does it all */ }

/* A post that has sent nothing ends at once. Another one sends its END, and has half a second. */
static void cancel(void* instance, void* handle) {
  Instance* self = instance;
  Request* r = handle;
  pthread_mutex_lock(&self->mutex);
  if (r->posted && !r->canceling) {
    r->canceling = 1;
    if (r->number == 0) {
      end_post(r, status_of(HEADRACE_CANCELED), "canceled before it began");
    } else {
      r->link->deadline_ns = now_ns(self) + CANCEL_NS;
      set_timer(self, 1);
    }
    pump(r->link);
  }
  leave(self);
}

static headrace_status_v1 notify(void* instance, void* connection, uint32_t channel, const void* bytes,
                                 size_t length) {
  Instance* self = instance;
  Link* link = connection;
  pthread_mutex_lock(&self->mutex);
  int32_t code = usable(link);
  if (code == HEADRACE_OK && add_text(link, channel, bytes, length, SENDABLE, &code) != NULL) pump(link);
  leave(self);
  return status_of(code);
}

static uint64_t unsent(void* instance, void* connection) {
  Instance* self = instance;
  Link* link = connection;
  pthread_mutex_lock(&self->mutex);
  uint64_t waiting = link->out_at < link->out_end; /* frames that have begun count as one */
  for (const Text* text = link->texts; text != NULL; text = text->next) ++waiting;
  pthread_mutex_unlock(&self->mutex);
  return waiting;
}

static int32_t cost(void* instance, const headrace_prepare_v1* args, headrace_cost_v1* out) {
  headrace_cost_v1 all = {out->struct_size, 50000, 1000, 5e8, 1, "constant"};
  memcpy(out, &all, out->struct_size < sizeof all ? out->struct_size : sizeof all);
  return HEADRACE_OK;
}

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
    .unload = free_handle,
    .prepare = prepare,
    .post = post,
    .poll = poll_request,
    .cancel = cancel,
    .release = free_handle,
    .notify = notify,
    .progress = progress,
    .descriptor = descriptor,
    .cost = cost,
    .unsent = unsent,
};

__attribute__((visibility("default"))) const headrace_backend_v1* headrace_backend_v1_table(void) {
  return &table;
}
