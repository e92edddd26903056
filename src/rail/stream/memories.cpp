// SPDX-License-Identifier: Apache-2.0
#include "rail/stream/memories.hpp"

#include "rail/stream/next_free.hpp"
#include "wire/bounded_reader.hpp"
#include "wire/byte_writer.hpp"

namespace headrace::rail::stream {
namespace {

constexpr std::string_view key_magic = "nickey1:";

}  // namespace

Result<MemoryId> Memories::add(const Memory& memory, std::shared_ptr<const gpu::MemoryIdentity> identity) {
  if (memory.bytes == 0) return make_error(Code::invalid_argument, "0 bytes cannot be registered");
  const std::lock_guard lock(next_mutex_);
  const std::uint32_t id =
      next_free(next_, [this](std::uint32_t number) { return number == 0 || View(*this).has(number); });
  RegisteredMemory kept;
  kept.id = id;
  kept.base = reinterpret_cast<std::byte*>(memory.address);
  kept.length = memory.bytes;
  kept.access = memory.access;
  kept.device = memory.device;
  kept.identity = std::move(identity);
  HEADRACE_TRY_VOID(table_.add(kept));
  return MemoryId{id};
}

bool Memories::remove(MemoryId id) {
  RegisteredMemory named;
  named.id = static_cast<std::uint32_t>(id);
  const auto removed = table_.remove(&named);
  return !removed.empty() && removed.mapped().device.has_value();
}

const RegisteredMemory* Memories::View::memory_of(const Range& range, Access least) {
  const auto found = view_.find(range, transport::Access::read);
  const RegisteredMemory* const memory = found.region;
  if (memory == nullptr || memory->access < least) return nullptr;
  if (memory->identity != nullptr && memory->id != unchanged_) {
    if (!memory->identity->begins_as_before()) return nullptr;
    unchanged_ = memory->id;
  }
  return memory;
}

std::byte* Memories::View::find(const Range& range, Access least, Reach reach) {
  const RegisteredMemory* const memory = memory_of(range, least);
  if (memory == nullptr || (memory->device && reach == Reach::host)) return nullptr;
  return memory->base + range.offset;
}

std::string encode(const Key& key) {
  wire::ByteWriter out;
  out.bytes(key_magic);
  out.number(key.life);
  out.number(key.memory);
  out.number(key.bytes);
  out.number(static_cast<std::uint8_t>(key.gpu));
  return std::move(out).take();
}

Result<Key> read_key(std::string_view bytes) {
  wire::BoundedReader in(bytes, "a key of a NIC's memory");
  HEADRACE_TRY(magic, in.bytes(key_magic.size(), "its beginning"));
  if (magic != key_magic) return in.corrupt("it does not begin with \"{}\"", key_magic);
  HEADRACE_TRY(life, in.number<std::uint64_t>("the life"));
  HEADRACE_TRY(memory, in.number<std::uint32_t>("the memory"));
  HEADRACE_TRY(length, in.number<std::uint64_t>("the length"));
  HEADRACE_TRY(gpu, in.number<std::uint8_t>("its kind"));
  if (gpu > 1) return in.corrupt("its kind is {}, 0 and 1 are known", gpu);
  if (in.remaining() > 0) return in.corrupt("{} bytes follow", in.remaining());
  return Key{life, memory, length, gpu == 1};
}

}  // namespace headrace::rail::stream
