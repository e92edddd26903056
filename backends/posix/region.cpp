// SPDX-License-Identifier: Apache-2.0
#include "backends/posix/region.hpp"

namespace headrace::posix {

Region::Region(const headrace_region_v1& args, std::unique_ptr<const File> file)
    : id_(args.region_id),
      read_only_((args.flags & HEADRACE_REGION_READ_ONLY) != 0),
      base_(reinterpret_cast<std::byte*>(args.address)),
      file_(std::move(file)) {}

Result<std::unique_ptr<Region>> Region::make(const headrace_region_v1& args, const FileCalls& calls) {
  if (args.kind == HEADRACE_DRAM) return std::unique_ptr<Region>(new Region(args, nullptr));
  if (args.kind != HEADRACE_FILE)
    return make_error(Code::not_supported,
                      "posix moves between host memory and files, and does not support memory kind {}",
                      args.kind);
  HEADRACE_TRY(file, File::open(args, calls));
  return std::unique_ptr<Region>(new Region(args, std::make_unique<const File>(std::move(file))));
}

}  // namespace headrace::posix
