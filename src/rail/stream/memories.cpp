// SPDX-License-Identifier: Apache-2.0
#include "rail/stream/memories.hpp"

#include "wire/bounded_reader.hpp"
#include "wire/byte_writer.hpp"

namespace headrace::rail::stream {
namespace {

constexpr std::string_view key_magic = "nickey1:";

}  // namespace

Result<MemoryId> Memories::add(const Memory& memory) {
  if (memory.device)
    return make_error(Code::not_supported, "this NIC reaches host memory alone, this is memory of GPU {}",
                      *memory.device);
  if (memory.bytes == 0) return make_error(Code::invalid_argument, "0 bytes cannot be registered");
  const std::uint32_t id = next_.fetch_add(1, std::memory_order_relaxed);
  RegisteredMemory kept;
  kept.id = id;
  kept.base = reinterpret_cast<std::byte*>(memory.address);
  kept.length = memory.bytes;
  kept.access = memory.access;
  HEADRACE_TRY_VOID(table_.add(kept));
  return MemoryId{id};
}

void Memories::remove(MemoryId id) {
  RegisteredMemory named;
  named.id = static_cast<std::uint32_t>(id);
  static_cast<void>(table_.remove(&named));
}

std::byte* Memories::View::find(const Range& range, Access least) {
  const auto found = view_.find(range, transport::Access::read);
  if (found.region == nullptr || found.region->access < least) return nullptr;
  return found.region->base + range.offset;
}

std::string encode(const Key& key) {
  wire::ByteWriter out;
  out.bytes(key_magic);
  out.number(key.life);
  out.number(key.memory);
  out.number(key.bytes);
  return std::move(out).take();
}

Result<Key> read_key(std::string_view bytes) {
  wire::BoundedReader in(bytes, "a key of a NIC's memory");
  HEADRACE_TRY(magic, in.bytes(key_magic.size(), "its beginning"));
  if (magic != key_magic) return in.corrupt("it does not begin with \"{}\"", key_magic);
  HEADRACE_TRY(life, in.number<std::uint64_t>("the life"));
  HEADRACE_TRY(memory, in.number<std::uint32_t>("the memory"));
  HEADRACE_TRY(length, in.number<std::uint64_t>("the length"));
  if (in.remaining() > 0) return in.corrupt("{} bytes follow", in.remaining());
  return Key{life, memory, length};
}

}  // namespace headrace::rail::stream
