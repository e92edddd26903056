// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/kv_pool.hpp"

#include "cli/common/errors.hpp"
#include "gpu/device_memory.hpp"

#include <nlohmann/json.hpp>

#include <cstring>
#include <numeric>

namespace headrace::cli::demo {

KvPool::KvPool(const KvShape& shape, Device device, std::shared_ptr<std::byte> memory, RegionId region)
    : shape_(shape),
      device_(device),
      memory_(std::move(memory)),
      region_(region),
      free_(static_cast<std::size_t>(shape.pages)) {
  std::iota(free_.rbegin(), free_.rend(), 0U);  // take() gives the lowest page first
}

namespace {

Result<std::shared_ptr<std::byte>> gpu_bytes(int ordinal, std::uint64_t bytes) {
  HEADRACE_CLI_TRY(driver, cuda::load_driver());
  HEADRACE_CLI_TRY(device, gpu::Device::open(driver, ordinal));
  HEADRACE_CLI_TRY(memory, gpu::DeviceMemory::allocate(device, bytes));
  const auto owner = std::make_shared<gpu::DeviceMemory>(std::move(memory));
  return std::shared_ptr<std::byte>(owner, reinterpret_cast<std::byte*>(owner->address()));
}

}  // namespace

Result<KvPool> KvPool::allocate(Agent& agent, const KvShape& shape, Device device) {
  RegisterOptions registration;
  registration.name = "kv";
  registration.note = write_kv_note(shape);
  if (device.kind == Device::Kind::cpu) {
    AllocateOptions options;
    options.registration = registration;
    HEADRACE_CLI_TRY(region, agent.allocate(shape.bytes(), options));
    HEADRACE_CLI_TRY(memory, agent.storage(region.id));
    return KvPool(shape, device, std::move(memory), region.id);
  }
  HEADRACE_CLI_TRY(memory, gpu_bytes(device.index, shape.bytes()));
  MemoryRange range;
  range.kind = MemoryKind::vram;
  range.device = device.index;
  range.address = memory.get();
  range.length_bytes = shape.bytes();
  HEADRACE_CLI_TRY(region, agent.register_memory(range, registration));
  return KvPool(shape, device, std::move(memory), region.id);
}

Result<KvPool> KvPool::alone(const KvShape& shape, Device device) {
  if (device.kind == Device::Kind::cpu) {
    std::shared_ptr<std::byte[]> memory(new std::byte[shape.bytes()]());
    return KvPool(shape, device, std::shared_ptr<std::byte>(memory, memory.get()), {});
  }
  HEADRACE_CLI_TRY(memory, gpu_bytes(device.index, shape.bytes()));
  return KvPool(shape, device, std::move(memory), {});
}

std::size_t KvPool::pages_for(std::size_t tokens) const {
  const auto page = static_cast<std::size_t>(shape_.page_tokens);
  return (tokens + page - 1) / page;
}

std::optional<std::vector<std::uint32_t>> KvPool::take(std::size_t count) {
  if (count > free_.size()) return std::nullopt;
  std::vector<std::uint32_t> pages(free_.rbegin(), free_.rbegin() + static_cast<std::ptrdiff_t>(count));
  free_.resize(free_.size() - count);
  return pages;
}

void KvPool::give_back(const std::vector<std::uint32_t>& pages) {
  free_.insert(free_.end(), pages.rbegin(), pages.rend());
}

TensorView KvPool::layer(std::int64_t layer) const {
  return {memory_.get() + static_cast<std::uint64_t>(layer) * shape_.layer_bytes(),
          shape_.dtype,
          {shape_.pages, 2, shape_.page_tokens, shape_.kv_heads, shape_.head_width},
          {},
          device_};
}

void KvPool::copy_heads(Rank rank, KvPool& to) const {
  const std::uint64_t ours = shape_.token_bytes(), theirs = to.shape_.token_bytes();
  const std::byte* from = memory_.get() + static_cast<std::uint64_t>(rank.number) * theirs;
  for (std::uint64_t i = 0; i < shape_.bytes() / ours; ++i)
    std::memcpy(to.memory_.get() + i * theirs, from + i * ours, theirs);
}

void Sequence::add_slots(std::size_t count, const KvShape& shape) {
  const auto page = static_cast<std::size_t>(shape.page_tokens);
  for (const std::size_t end = length() + count; length() < end;)
    slots.push_back(static_cast<std::int64_t>(pages[length() / page] * page + length() % page));
}

PageSpec layer_pages(RegionId region, const KvShape& shape, std::int64_t layer, Rank heads) {
  UniformPages pages{region, static_cast<std::uint64_t>(layer) * shape.layer_bytes(), shape.page_bytes(),
                     shape.page_bytes(), static_cast<std::uint64_t>(shape.pages)};
  if (heads.of == 1) return pages;
  const std::uint64_t ours = shape.split(heads.of).token_bytes();
  pages.base_bytes += static_cast<std::uint64_t>(heads.number) * ours;
  pages.page_bytes = 0;  // the view gives it
  // Keys of the page's tokens, then values: the distance from token to token is the same all the way.
  return {pages, PageView{{2 * shape.page_tokens}, {static_cast<std::int64_t>(shape.token_bytes())}, ours}};
}

std::string write_kv_note(const KvShape& shape) {
  return nlohmann::json{
      {"kv", {shape.layers, shape.kv_heads, shape.head_width, shape.page_tokens, shape.pages}},
      {"dtype", dtype_name(shape.dtype)}}
      .dump();
}

Result<KvShape> read_kv_note(const std::string& note) {
  const auto json = nlohmann::json::parse(note, nullptr, false);
  if (!json.is_object() || !json.contains("kv") || json["kv"].size() != 5)
    return fail(Code::corrupt, "its note does not describe a cache: {}", note);
  KvShape shape;
  std::size_t i = 0;
  for (std::int64_t* length :
       {&shape.layers, &shape.kv_heads, &shape.head_width, &shape.page_tokens, &shape.pages}) {
    const auto& value = json["kv"][i++];
    if (!value.is_number_integer() || value.get<std::int64_t>() < 1)
      return fail(Code::corrupt, "its note does not describe a cache: {}", note);
    *length = value.get<std::int64_t>();
  }
  const auto said = json.find("dtype");
  const auto dtype = dtype_from_name(said != json.end() && said->is_string() ? said->get<std::string>() : "");
  if (!dtype) return fail(Code::corrupt, "its note does not describe a cache: {}", note);
  shape.dtype = *dtype;
  return shape;
}

}  // namespace headrace::cli::demo
