// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/settings.hpp"

#include "base/affinity.hpp"
#include "base/errors.hpp"
#include "base/options.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace headrace::tcp {
namespace {

constexpr std::array<headrace_option_v1, 20> table{{
    {"listen", "", "list",
     "addresses to listen on, host:port; empty: every interface, IPv6 and IPv4, on a free port", 0, 0},
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
    {"heartbeat_interval", "1s", "duration", "a socket on which nothing moved for this long carries a ping",
     0, 0},
    {"heartbeat_timeout", "5s", "duration", "a link one of whose sockets was silent for this long is lost", 0,
     0},
    {"handshake_timeout", "5s", "duration", "a connection whose hello is not complete by then is closed", 0,
     0},
    {"connect_timeout", "10s", "duration", "a link that has not come about by then is lost", 0, 0},
    {"max_pending", "64", "count",
     "connections with unfinished hello at most; the oldest is closed for a newer one", 0, 0},
    {"auth_token", "", "text", "secret that all agents share; both sides prove that they know it",
     HEADRACE_OPTION_SECRET, 0},
    {"auth_token_file", "", "text", "file whose first line is the secret, instead of auth_token", 0, 0},
    {"faults", "", "list", "for tests: failures put into the system calls; see the backend's README", 0, 0},
}};

/// Reads rows of one CreateArgs and keeps the first error.
class Reader {
 public:
  explicit Reader(const plugin::CreateArgs& args) : args_(args) {}

  std::string text(std::string_view name) const { return std::string(trim(args_.setting(name))); }

  std::vector<std::string> list(std::string_view name) const {
    const std::string all = text(name);
    std::vector<std::string> parts;
    for (const std::string_view part : split_list(all)) parts.emplace_back(part);
    return parts;
  }

  std::uint64_t bytes(std::string_view name, std::uint64_t least, std::uint64_t most) {
    auto value = parse_bytes(text(name));
    if (!value) return fail(name, value.error().message), least;
    if (*value < least || *value > most)
      return fail(name, fmt::format("{} to {} bytes are allowed", least, most)), least;
    return *value;
  }

  std::chrono::nanoseconds duration(std::string_view name, std::chrono::nanoseconds least) {
    auto value = parse_duration(text(name));
    if (!value) return fail(name, value.error().message), least;
    if (*value < least)
      return fail(name, fmt::format("at least {} ms are needed", least.count() / 1'000'000)), least;
    return *value;
  }

  unsigned count(std::string_view name, unsigned automatic, unsigned most) {
    const std::string written = text(name);
    if (written == "auto" || written.empty()) return automatic;
    unsigned value = 0;
    const auto [end, error] = std::from_chars(written.data(), written.data() + written.size(), value);
    if (error != std::errc() || end != written.data() + written.size() || value < 1 || value > most)
      return fail(name, fmt::format("a number from 1 to {} is needed", most)), automatic;
    return value;
  }

  void fail(std::string_view name, std::string_view why) {
    if (!error_)
      error_ = make_error(Code::invalid_argument, "option {} is \"{}\": {}", name,
                          name == "auth_token" ? "(secret)" : text(name), why);
  }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  const plugin::CreateArgs& args_;
  std::optional<Error> error_;
};

Result<std::string> first_line(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return os_error(Code::invalid_argument, errno, "read the secret from auth_token_file {}", path);
  std::array<char, 4096> text{};
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got < 0) return os_error(errno, "read the secret from auth_token_file {}", path);
  std::string_view line(text.data(), static_cast<std::size_t>(got));
  line = trim(line.substr(0, line.find('\n')));
  if (line.empty())
    return make_error(Code::invalid_argument, "auth_token_file {} has an empty first line", path);
  return std::string(line);
}

}  // namespace

std::span<const headrace_option_v1> Settings::rows() { return table; }

Result<Settings> Settings::read(const plugin::CreateArgs& args) {
  using namespace std::chrono_literals;
  Reader reader(args);
  const unsigned all_cores = usable_cores();
  Settings s;
  s.listen = reader.list("listen");
  s.advertise = reader.list("advertise");
  s.sockets = reader.count("sockets", std::min(4U, all_cores), 64);
  // On two cores too: sending costs more than receiving, and with one thread a side the sender's core is the
  // limit.
  s.threads = reader.count("threads", s.sockets, 64);
  s.congestion = reader.text("congestion");
  if (s.congestion == "system") s.congestion.clear();
  s.socket_buffer_bytes = reader.bytes("socket_buffer", 0, 1 << 30);
  s.chunk_bytes = reader.bytes("chunk_bytes", 4096, 64 << 20);
  s.window_bytes = reader.bytes("window", 4096, std::uint64_t{1} << 40);
  s.cores = all_cores;
  s.direct_bytes = reader.bytes("direct_bytes", 0, 1 << 20);
  s.gpu_chunk_bytes = reader.bytes("gpu_chunk_bytes", 4096, 64 << 20);
  s.gpu_ring_bytes = reader.bytes("gpu_ring_bytes", 8192, std::uint64_t{1} << 32);
  if (s.gpu_ring_bytes / 2 < s.gpu_chunk_bytes)
    reader.fail("gpu_ring_bytes", "it must be at least twice gpu_chunk_bytes");
  const bool spins = reader.text("spin") != "auto" && !reader.text("spin").empty();
  s.spin = spins ? reader.duration("spin", 0ns) : (all_cores > 2 ? std::chrono::nanoseconds(100us) : 0ns);
  s.heartbeat_interval = reader.duration("heartbeat_interval", 1ms);
  s.heartbeat_timeout = reader.duration("heartbeat_timeout", 1ms);
  if (s.heartbeat_timeout <= s.heartbeat_interval)
    reader.fail("heartbeat_timeout", "it must be longer than heartbeat_interval");
  s.handshake_timeout = reader.duration("handshake_timeout", 1ms);
  s.connect_timeout = reader.duration("connect_timeout", 1ms);
  s.max_pending = reader.count("max_pending", 64, 65536);
  s.token = reader.text("auth_token");
  s.faults = reader.text("faults");
  if (reader.error()) return *reader.error();
  if (const std::string file = reader.text("auth_token_file"); !file.empty()) {
    if (!s.token.empty())
      return make_error(Code::invalid_argument,
                        "auth_token and auth_token_file ({}) are both set: choose one", file);
    HEADRACE_TRY(token, first_line(file));
    s.token = std::move(token);
  }
  return s;
}

}  // namespace headrace::tcp
