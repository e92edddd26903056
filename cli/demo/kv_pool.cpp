// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/kv_pool.hpp"

#include "cli/errors.hpp"

#include <nlohmann/json.hpp>

#include <cstring>
#include <numeric>

namespace headrace::cli::demo {

KvPool::KvPool(const KvShape& shape, std::shared_ptr<std::byte> memory, RegionId region)
    : shape_(shape),
      memory_(std::move(memory)),
      region_(region),
      free_(static_cast<std::size_t>(shape.pages)) {
  std::iota(free_.rbegin(), free_.rend(), 0U);  // the lowest page goes first
}

Result<KvPool> KvPool::allocate(Agent& agent, const KvShape& shape) {
  AllocateOptions options;
  options.registration.name = "kv";
  options.registration.note = write_kv_note(shape);
  HEADRACE_CLI_TRY(region, agent.allocate(shape.bytes(), options));
  HEADRACE_CLI_TRY(memory, agent.storage(region.id));
  return KvPool(shape, std::move(memory), region.id);
}

KvPool KvPool::alone(const KvShape& shape) {
  std::shared_ptr<std::byte[]> memory(new std::byte[shape.bytes()]());
  return {shape, std::shared_ptr<std::byte>(memory, memory.get()), {}};
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
  TensorView view;
  view.data = memory_.get() + static_cast<std::uint64_t>(layer) * shape_.layer_bytes();
  view.shape = {shape_.pages, 2, shape_.page_tokens, shape_.kv_heads, shape_.head_width};
  return view;
}

void KvPool::store(std::int64_t layer, std::span<const std::int64_t> slots, std::span<const float> keys,
                   std::span<const float> values) {
  const std::uint64_t floats = shape_.token_floats();
  const std::uint64_t bytes = floats * sizeof(float);
  std::byte* const base = memory_.get() + static_cast<std::uint64_t>(layer) * shape_.layer_bytes();
  const auto page_tokens = static_cast<std::uint64_t>(shape_.page_tokens);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto slot = static_cast<std::uint64_t>(slots[i]);
    std::byte* const key = base + slot / page_tokens * shape_.page_bytes() + slot % page_tokens * bytes;
    std::memcpy(key, keys.data() + i * floats, bytes);
    std::memcpy(key + page_tokens * bytes, values.data() + i * floats, bytes);
  }
}

std::string write_kv_note(const KvShape& shape) {
  return nlohmann::json{
      {"kv", {shape.layers, shape.kv_heads, shape.head_width, shape.page_tokens, shape.pages}}}
      .dump();
}

Result<KvShape> read_kv_note(const std::string& note) {
  const auto json = nlohmann::json::parse(note, nullptr, false);
  if (!json.is_object() || !json.contains("kv") || json["kv"].size() != 5)
    return fail(Code::corrupt, "its note is not that of a cache: {}", note);
  KvShape shape;
  std::size_t i = 0;
  for (std::int64_t* length :
       {&shape.layers, &shape.kv_heads, &shape.head_width, &shape.page_tokens, &shape.pages}) {
    const auto& value = json["kv"][i++];
    if (!value.is_number_integer() || value.get<std::int64_t>() < 1)
      return fail(Code::corrupt, "its note is not that of a cache: {}", note);
    *length = value.get<std::int64_t>();
  }
  return shape;
}

}  // namespace headrace::cli::demo
