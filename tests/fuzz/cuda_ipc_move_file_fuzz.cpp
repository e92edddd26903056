// SPDX-License-Identifier: Apache-2.0
// The request of a peer on the same host that the cuda_ipc backend executes (owner move), with bytes of a
// hostile peer: the pages in a memory file, behind its control page.
#include "backends/cuda_ipc/move_file.hpp"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

using namespace headrace;
using cuda_ipc::MoveList;
using cuda_ipc::ToldRegion;

namespace {

std::vector<void*> handles_of(const std::vector<ToldRegion>& regions) {
  std::vector<void*> handles;
  for (const ToldRegion& region : regions) handles.push_back(const_cast<ToldRegion*>(&region));
  return handles;
}

/// The output of our own writer for the list.
std::string written_again(const MoveList& list) {
  const auto near = handles_of(list.initiators.regions), far = handles_of(list.owners.regions);
  const headrace_side_v1 local = list.initiators.view(list, near), remote = list.owners.view(list, far);
  headrace_prepare_v1 args{};
  args.struct_size = sizeof args;
  args.op = list.op;
  args.count = list.count;
  args.local = &local;
  args.remote = &remote;
  args.grid = list.grid ? &*list.grid : nullptr;
  const auto tell = [](void* handle) { return *static_cast<const ToldRegion*>(handle); };
  const auto file = cuda_ipc::write_move_file(args, tell, tell);
  if (!file) std::abort();
  const off_t end = ::lseek(file->descriptor.get(), 0, SEEK_END);
  std::string bytes(static_cast<std::size_t>(end) - cuda_ipc::move_control_bytes, '\0');
  if (::pread(file->descriptor.get(), bytes.data(), bytes.size(), cuda_ipc::move_control_bytes) !=
      static_cast<ssize_t>(bytes.size()))
    std::abort();
  return bytes;
}

}  // namespace

/// Our own writer must reproduce each accepted list, and a list that passes the check must lie within the
/// checked bounds.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(bytes), size);
  const auto list = cuda_ipc::decode_move_list(body);
  if (!list) return 0;
  if (list->count > 100'000) return 0;  // a few bytes can announce many regular pages, which take long
  constexpr std::uint64_t length = 10'000;
  const auto total = list->check([=](std::size_t) { return std::optional(length); });
  if (total && *total > list->count * length) std::abort();
  if (written_again(*list) != body) std::abort();
  return 0;
}
