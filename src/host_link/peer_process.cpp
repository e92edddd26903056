// SPDX-License-Identifier: Apache-2.0
#include "host_link/peer_process.hpp"

#include "base/clock.hpp"
#include "base/text.hpp"

#include <fmt/format.h>

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

namespace headrace::host_link {
namespace {

constexpr std::uint64_t look_again_ns = 1'000'000;
constexpr unsigned long exiting_flag =
    0x4;  // PF_EXITING of the kernel's task flags, the ninth field of /proc/<pid>/stat

std::string read_line(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), std::fclose);
  char line[512] = "";
  if (file == nullptr || std::fgets(line, sizeof line, file.get()) == nullptr) return {};
  return std::string(trim(line));
}

bool readable(int fd) {
  pollfd look{fd, POLLIN, 0};
  return ::poll(&look, 1, 0) > 0;
}

}  // namespace

Result<PeerProcess> PeerProcess::of(const UnixSocket& socket) {
  PeerProcess process;
  HEADRACE_TRY(credentials, socket.peer_credentials());
  process.credentials_ = credentials;
  auto pidfd = socket.peer_pidfd();
  if (pidfd) {
    process.pidfd_ = std::move(pidfd).value();
  } else if (pidfd.code() == Code::peer_lost || pidfd.code() == Code::exhausted) {
    return std::move(pidfd).error();
  }
  return process;
}

std::string PeerProcess::text() const {
  return pid() > 0 ? fmt::format("process {}", pid()) : std::string("a process of another PID namespace");
}

bool PeerProcess::is_this_one() const { return pid() == ::getpid(); }

bool PeerProcess::dying() const {
  if (pidfd_ && readable(pidfd_.get())) return true;
  if (pid() <= 0) return false;
  // Memory goes before the pidfd turns readable: look at the state and the flags themselves.
  const std::string stat = read_line(fmt::format("/proc/{}/stat", pid()));
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return true;
  char state = 0;
  unsigned long flags = 0;
  // NOLINTNEXTLINE(bugprone-unchecked-string-to-number-conversion): the kernel writes numbers that fit
  if (std::sscanf(stat.c_str() + name_end + 1, " %c %*d %*d %*d %*d %*d %lu", &state, &flags) != 2)
    return false;
  return state == 'Z' || state == 'X' || (flags & exiting_flag) != 0;
}

bool PeerProcess::still_there() const {
  const std::uint64_t now = now_ns();
  if (now - seen_alive_ns_.load(std::memory_order_relaxed) < look_again_ns) return true;
  if (pidfd_ && readable(pidfd_.get())) return false;
  seen_alive_ns_.store(now, std::memory_order_relaxed);
  return true;
}

}  // namespace headrace::host_link
