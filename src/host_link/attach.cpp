// SPDX-License-Identifier: Apache-2.0
#include "host_link/attach.hpp"

#include "base/errors.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

namespace headrace::host_link {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

void allow_attach_by(pid_t peer) {
#ifdef PR_SET_PTRACER
  if (peer <= 0 || peer == ::getpid()) return;
  // EINVAL without Yama: nothing to allow.
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
  std::string scope = first_line("/proc/sys/kernel/yama/ptrace_scope");
  if (scope.empty()) scope = "absent";
  return fmt::format(
      "the kernel forbids cross-memory attach to process {} (EPERM; kernel.yama.ptrace_scope is {}, we are "
      "user {}): a container's "
      "seccomp filter, another user or PID namespace, or a process that is not dumpable can be the cause; "
      "give the container "
      "SYS_PTRACE, or use memory from allocate, which needs none of it",
      peer, scope, ::geteuid());
}

}  // namespace headrace::host_link
