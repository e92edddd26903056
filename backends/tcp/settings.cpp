// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/settings.hpp"

#include "base/affinity.hpp"
#include "base/backend_options.hpp"
#include "base/errors.hpp"

#include <algorithm>
#include <array>

namespace headrace::tcp {
namespace {

constexpr std::array<headrace_option_v1, 18> table{{
    {"listen", "", "list",
     "addresses to listen on, host:port; empty: every interface, IPv6 and IPv4, on a free port, but loopback "
     "where the agent listens for metadata on loopback and has no store",
     0, 0},
    {"advertise", "", "list",
     "addresses that peers are told to connect to, host or host:port (default: the listening port); empty: "
     "those of all interfaces",
     0, 0},
    {"sockets", "auto", "count",
     "sockets a peer, 1 to 64; auto: 4, or the number of cores if there are fewer", 0, 0},
    {"threads", "auto", "count", "I/O threads of this agent, 1 to 64; auto: one a socket", 0, 0},
    {"congestion", "cubic", "text",
     "congestion control of every socket; if the kernel has or allows no such one, or at \"system\", the "
     "system's own",
     0, 0},
    {"socket_buffer", "0", "bytes", "send and receive buffer of every socket; 0: the kernel tunes them", 0,
     0},
    {"chunk_bytes", "1MiB", "bytes",
     "payload of one frame at most, 4 KiB to 64 MiB: large requests travel in chunks over all sockets", 0, 0},
    {"window", "8MiB", "bytes", "payload under way on one socket at most, beyond which others take the work",
     0, 0},
    {"direct_bytes", "64KiB", "bytes",
     "requests up to here are sent from the thread that posts them, and received by one that polls for them",
     0, 0},
    {"gpu_ring_bytes", "4MiB", "bytes",
     "pinned memory of one socket and direction through which GPU memory's payload passes, at least twice "
     "gpu_chunk_bytes; it is taken when GPU memory is first sent or received over the socket",
     0, 0},
    {"gpu_chunk_bytes", "1MiB", "bytes",
     "payload that a GPU gathers or unpacks at a time, 4 KiB to 64 MiB: several such pieces are under way in "
     "the ring",
     0, 0},
    {"spin", "auto", "duration",
     "how long an I/O thread looks for more work before it sleeps; auto: 100us, or none on one or two cores",
     0, 0},
    {"heartbeat_interval", "2s", "duration",
     "a link's first socket, and one that waits for an answer, carries a ping if nothing moved for this long",
     0, 0},
    {"heartbeat_timeout", "5s", "duration", "a link one of whose sockets was silent for this long is lost", 0,
     0},
    {"handshake_timeout", "5s", "duration", "a connection whose hello is not complete by then is closed", 0,
     0},
    {"connect_timeout", "10s", "duration", "a link that has not come about by then is lost", 0, 0},
    {"max_pending", "64", "count",
     "connections with unfinished hello at most; the oldest is closed for a newer one", 0, 0},
    {"auth_token", "", "text", "the agent's secret: set auth_token or auth_token_file of the agent, not this",
     HEADRACE_OPTION_SECRET, 0},
}};

}  // namespace

std::span<const headrace_option_v1> Settings::rows() { return table; }

Result<Settings> Settings::read(const plugin::CreateArgs& args) {
  using namespace std::chrono_literals;
  BackendOptions options("tcp", table, args);
  Settings s;
  s.cores = usable_cores();
  s.listen = options.list("listen");
  s.advertise = options.list("advertise");
  const auto automatic_sockets = std::min(4U, s.cores);
  s.sockets = static_cast<unsigned>(options.count_or_auto("sockets", 1, 64).value_or(automatic_sockets));
  // On two cores too: sending costs more than receiving, and with one thread a side the sender's core is the
  // limit.
  s.threads = static_cast<unsigned>(options.count_or_auto("threads", 1, 64).value_or(s.sockets));
  s.congestion = options.text("congestion");
  if (s.congestion == "system") s.congestion.clear();
  s.socket_buffer_bytes = options.bytes("socket_buffer", 0, 1 << 30);
  s.chunk_bytes = options.bytes("chunk_bytes", 4096, 64 << 20);
  s.window_bytes = options.bytes("window", 4096, std::uint64_t{1} << 40);
  s.direct_bytes = options.bytes("direct_bytes", 0, 1 << 20);
  s.gpu_chunk_bytes = options.bytes("gpu_chunk_bytes", 4096, 64 << 20);
  s.gpu_ring_bytes = options.bytes("gpu_ring_bytes", 8192, std::uint64_t{1} << 32);
  if (s.gpu_ring_bytes / 2 < s.gpu_chunk_bytes)
    options.refuse("gpu_ring_bytes", "at least twice gpu_chunk_bytes");
  s.spin = options.duration_or_auto("spin").value_or(s.cores > 2 ? std::chrono::nanoseconds(100us) : 0ns);
  s.heartbeat_interval = options.duration("heartbeat_interval", 1ms);
  s.heartbeat_timeout = options.duration("heartbeat_timeout", 1ms);
  if (s.heartbeat_timeout <= s.heartbeat_interval)
    options.refuse("heartbeat_timeout", "longer than heartbeat_interval");
  s.handshake_timeout = options.duration("handshake_timeout", 1ms);
  s.connect_timeout = options.duration("connect_timeout", 1ms);
  s.max_pending = static_cast<unsigned>(options.count("max_pending", 1, 65536));
  s.token = options.text("auth_token");
  s.reserved_descriptors = args.reserved_descriptors;
  return options.checked(std::move(s));
}

}  // namespace headrace::tcp
