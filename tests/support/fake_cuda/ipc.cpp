// SPDX-License-Identifier: Apache-2.0
// The fake driver's IPC handles: a process opens the file behind another process's memory.
#include "support/fake_cuda/driver.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace headrace::cuda {
namespace {

/// The content of the 64 bytes of an IPC handle: the owner, and which allocation.
struct HandleText {
  std::uint64_t magic, id, bytes;
  std::int32_t number;  // the owner's process id in its PID namespace
  std::int32_t pid, fd, device;
};
static_assert(sizeof(HandleText) <= sizeof(IpcMemoryHandle));
constexpr std::uint64_t handle_magic = 0x4852'4641'4b45'4331;

}  // namespace

Outcome FakeDriver::ipc_get_mem_handle(IpcMemoryHandle* handle, Address address) {
  const auto found = pieces.find(address);
  // Memory of the virtual memory API is refused: observed with torch's expandable segments
  // (bench/notes/gpu.md). The documentation names the base of an allocation, so the fake refuses an address
  // inside one.
  if (found == pieces.end() || found->second.kind != Piece::Kind::device) return Outcome::invalid_value;
  // Documented: the buffer's number makes the handle another one when an address is reused.
  const HandleText text{handle_magic, found->second.id, found->second.bytes, process_number,
                        ::getpid(),   found->second.fd, found->second.device};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &text, sizeof text);
  return Outcome::success;
}

Outcome FakeDriver::ipc_open_mem_handle(Address* address, IpcMemoryHandle handle, unsigned) {
  if (contexts.top() == nullptr) return Outcome::invalid_context;
  const Device device = contexts.top()->device;
  HandleText text;
  std::memcpy(&text, &handle, sizeof text);
  if (text.magic != handle_magic) return Outcome::invalid_value;
  // A handle of this process gives "invalid device context", as others report (UCX, pull request 11603). The
  // same holds for a process with the exporter's process id in another PID namespace: the answer of the
  // driver is not documented, but the import fails there (NCCL issue 360, UCX pull request 11514).
  if (text.number == process_number) return Outcome::invalid_context;
  if (text.device != device && !contexts.can_access(device, text.device))
    return Outcome::peer_access_unsupported;
  // Documented: a second open by the same context is counted and gives the same address; a context of another
  // GPU gets a mapping of its own.
  for (auto& [where, piece] : pieces)
    if (piece.kind == Piece::Kind::imported && piece.id == text.id && piece.opened_by == device) {
      ++piece.opened;
      *address = where;
      return Outcome::success;
    }
  // Observed on two H200: an ended process gives another error than freed memory. Memory that is mapped when
  // its owner frees it or ends stays readable; the documentation calls that undefined.
  const std::string process = "/proc/" + std::to_string(text.pid);
  if (::access(process.c_str(), F_OK) != 0) return Outcome::invalid_handle;
  const std::string path = process + "/fd/" + std::to_string(text.fd);
  if (name_behind(path).find(file_name(text.id, text.device) + " ") == std::string::npos)
    return Outcome::invalid_value;
  Piece piece;
  piece.fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (piece.fd < 0) return Outcome::invalid_value;
  piece.bytes = text.bytes;
  piece.mapped_bytes = round_up(text.bytes, page_bytes);
  piece.kind = Piece::Kind::imported;
  piece.device = text.device;
  piece.id = text.id;
  piece.opened = 1;
  piece.opened_by = device;
  *address = map_file(piece.fd, piece.bytes, 0);
  pieces.add(*address, piece);
  return Outcome::success;
}

Outcome FakeDriver::ipc_close_mem_handle(Address address) {
  const auto found = pieces.find(address);
  if (found == pieces.end() || found->second.kind != Piece::Kind::imported) return Outcome::invalid_value;
  if (found->second.opened > 1) {
    --found->second.opened;
    return Outcome::success;
  }
  wait_for_kernels();  // observed; other threads go on meanwhile
  const auto last = pieces.find(address);
  if (--last->second.opened > 0) return Outcome::success;
  ::close(last->second.fd);
  ::munmap(pointer(address), last->second.mapped_bytes);
  pieces.remove(last);
  return Outcome::success;
}

}  // namespace headrace::cuda
