// SPDX-License-Identifier: Apache-2.0
#include "backends/posix/query.hpp"

#include "base/errors.hpp"
#include "wire/byte_writer.hpp"

#include <sys/stat.h>
#include <msgpack.hpp>

#include <cerrno>
#include <optional>

namespace headrace::posix {
namespace {

using Found = std::optional<struct stat>;

Result<Found> look_at(const headrace_region_v1& region) {
  if (region.kind != HEADRACE_FILE)
    return make_error(Code::not_supported, "posix keeps files only, and not memory kind {}", region.kind);
  const bool by_path = region.file_fd < 0;
  if (by_path && (region.name == nullptr || *region.name == '\0'))
    return make_error(Code::invalid_argument,
                      "a query of a file needs a path or an open descriptor, and this one has neither");
  struct stat found {};
  if ((by_path ? ::stat(region.name, &found) : ::fstat(region.file_fd, &found)) == 0) return Found(found);
  const int error = errno;
  if (error == ENOENT || error == ENOTDIR) return Found();
  if (by_path) return os_error(error, "read the state of file {}", region.name);
  return os_error(Code::invalid_argument, error, "read the state of descriptor {}", region.file_fd);
}

}  // namespace

Result<std::string> query(const headrace_query_v1& args) {
  wire::ByteWriter out;
  msgpack::packer packer(out);
  packer.pack_array(static_cast<std::uint32_t>(args.count));
  for (std::uint64_t i = 0; i < args.count; ++i) {
    HEADRACE_TRY(found, look_at(*args.regions[i]));
    if (!found) {
      packer.pack_nil();
      continue;
    }
    packer.pack_map(3);
    packer.pack("bytes").pack(static_cast<std::uint64_t>(found->st_size));
    packer.pack("mode").pack(static_cast<std::uint64_t>(found->st_mode));
    packer.pack("mtime").pack(static_cast<std::int64_t>(found->st_mtim.tv_sec));
  }
  return std::move(out).take();
}

}  // namespace headrace::posix
