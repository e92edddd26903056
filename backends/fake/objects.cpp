// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/objects.hpp"

#include "base/errors.hpp"
#include "base/text.hpp"
#include "wire/byte_writer.hpp"

#include <msgpack.hpp>

#include <charconv>

namespace headrace::fake {
namespace {

Result<std::string_view> key_of(const headrace_region_v1& region) {
  if (region.kind != HEADRACE_OBJECT)
    return make_error(Code::not_supported, "fake knows objects by their keys, and nothing of memory kind {}",
                      region.kind);
  if (region.name == nullptr || *region.name == '\0')
    return make_error(Code::invalid_argument,
                      "an object is asked for by its key, and this one has none: set the range's path");
  return std::string_view(region.name);
}

}  // namespace

Result<Objects> Objects::parse(std::string_view text) {
  Objects objects;
  for (const std::string_view item : split_list(text)) {
    const std::size_t equals = item.rfind('=');
    std::uint64_t bytes = 0;
    const bool has_key = equals != std::string_view::npos && equals > 0;
    const auto [end, error] =
        has_key ? std::from_chars(item.data() + equals + 1, item.data() + item.size(), bytes)
                : std::from_chars_result{item.data(), std::errc::invalid_argument};
    if (error != std::errc() || end != item.data() + item.size())
      return make_error(Code::invalid_argument,
                        "option objects has \"{}\": write KEY=BYTES, several with commas", item);
    if (!objects.bytes_by_key_.emplace(item.substr(0, equals), bytes).second)
      return make_error(Code::invalid_argument, "option objects has \"{}\" twice", item.substr(0, equals));
  }
  return objects;
}

Result<std::string> Objects::answer(const headrace_query_v1& args) const {
  wire::ByteWriter out;
  msgpack::packer packer(out);
  packer.pack_array(static_cast<std::uint32_t>(args.count));
  for (std::uint64_t i = 0; i < args.count; ++i) {
    HEADRACE_TRY(key, key_of(*args.regions[i]));
    const auto found = bytes_by_key_.find(key);
    if (found == bytes_by_key_.end()) {
      packer.pack_nil();
    } else {
      packer.pack_map(2);
      packer.pack("bytes").pack(found->second);
      packer.pack("key").pack(found->first);
    }
  }
  return std::move(out).take();
}

}  // namespace headrace::fake
