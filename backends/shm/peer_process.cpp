// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/peer_process.hpp"

#include "base/clock.hpp"
#include "base/text.hpp"

#include <poll.h>
#include <sys/prctl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace headrace::shm {
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

void allow_attach_by(pid_t peer) {
#ifdef PR_SET_PTRACER
  // The consent belongs to the process, not to an instance, hence the one static here: two agents of a
  // process must not take each other's away.
  static std::atomic<pid_t> allowed{0};
  if (peer <= 0 || peer == ::getpid()) return;
  pid_t before = 0;
  if (allowed.compare_exchange_strong(before, peer) || before == peer) {
    (void)::prctl(PR_SET_PTRACER, static_cast<unsigned long>(peer), 0, 0,
                  0);  // EINVAL without Yama: nothing to allow
    return;
  }
  allowed.store(-1);
  (void)::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
#else
  (void)peer;
#endif
}

AttachResult attach_copy(pid_t peer, Direction direction, std::span<const iovec> local,
                         std::span<const iovec> remote, std::size_t total_bytes) noexcept {
  const auto call = [&](std::span<const iovec> here, std::span<const iovec> there) {
    return direction == Direction::from_peer
               ? ::process_vm_readv(peer, here.data(), here.size(), there.data(), there.size(), 0)
               : ::process_vm_writev(peer, here.data(), here.size(), there.data(), there.size(), 0);
  };
  std::size_t done = 0;
  std::size_t at = 0;
  while (at < local.size()) {
    const ssize_t moved = call(local.subspan(at), remote.subspan(at));
    if (moved < 0) return {done, errno};
    if (done + static_cast<std::size_t>(moved) == total_bytes) return {total_bytes, 0};
    // It stopped on the way without saying why. Asking for the rest of that element alone brings the reason
    // out.
    std::size_t into = static_cast<std::size_t>(moved);
    while (into >= local[at].iov_len) into -= local[at++].iov_len;
    done += static_cast<std::size_t>(moved);
    const iovec here{static_cast<char*>(local[at].iov_base) + into, local[at].iov_len - into};
    const iovec there{static_cast<char*>(remote[at].iov_base) + into, remote[at].iov_len - into};
    const ssize_t rest = call({&here, 1}, {&there, 1});
    if (rest < 0) return {done, errno};
    done += static_cast<std::size_t>(rest);
    if (static_cast<std::size_t>(rest) != here.iov_len) return {done, EFAULT};
    ++at;  // a passing trouble: go on behind it
  }
  return {done, 0};
}

std::string why_no_attach(pid_t peer, const Nonce& nonce) {
  if (peer == 0) return "the peer runs in another PID namespace, so that its process has no number here";
  std::uint64_t found = 0;
  const iovec local{&found, sizeof found};
  const iovec remote{reinterpret_cast<void*>(static_cast<std::uintptr_t>(nonce.address)), sizeof found};
  const AttachResult result =
      attach_copy(peer, Direction::from_peer, {&local, 1}, {&remote, 1}, sizeof found);
  if (result.os_error == 0 && found == nonce.value) return {};
  if (result.os_error == 0) return fmt::format("process {} of this PID namespace is not the peer", peer);
  if (result.os_error == ENOSYS)
    return "this kernel, or a container's seccomp filter, has no process_vm_readv";
  if (result.os_error != EPERM) {
    return fmt::format("reading process {} by cross-memory attach failed: {}", peer,
                       os_error_text(result.os_error));
  }
  std::string scope = read_line("/proc/sys/kernel/yama/ptrace_scope");
  if (scope.empty()) scope = "absent";
  return fmt::format(
      "the kernel forbids cross-memory attach to process {} (EPERM; kernel.yama.ptrace_scope is {}, we are "
      "user {}): a container's "
      "seccomp filter, another user or PID namespace, or a process that is not dumpable can be the cause; "
      "give the container "
      "SYS_PTRACE, or use memory from allocate, which needs none of it",
      peer, scope, ::geteuid());
}

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

bool PeerProcess::dying() const {
  if (pidfd_ && readable(pidfd_.get())) return true;
  if (pid() <= 0) return false;
  // Memory goes before the pidfd turns readable: look at the state and the flags themselves.
  const std::string stat = read_line(fmt::format("/proc/{}/stat", pid()));
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return true;
  char state = 0;
  unsigned long flags = 0;
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

}  // namespace headrace::shm
