// SPDX-License-Identifier: Apache-2.0
// The keys and values of a language model's layers in pages, and the pages of one sequence.
//
// Layout: [layer][page][2][token of the page][kv head][width]; in the third dimension keys, then values. A
// page of one layer is contiguous, so that it moves as one page. A page number means the same page in every
// layer.
#pragma once

#include <headrace/agent.hpp>
#include <headrace/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace headrace::cli::demo {

/// One of several processes that share the heads of each layer.
struct Rank {
  int number = 0;
  int of = 1;
};

struct KvShape {
  std::int64_t layers = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_width = 0;
  std::int64_t page_tokens = 0;
  std::int64_t pages = 0;
  DType dtype = DType::float32;

  /// The bytes of one token's keys in one layer; its values take as many.
  [[nodiscard]] std::uint64_t token_bytes() const {
    return static_cast<std::uint64_t>(kv_heads * head_width) * element_bytes(dtype);
  }
  /// The bytes of one page of one layer.
  [[nodiscard]] std::uint64_t page_bytes() const {
    return 2 * static_cast<std::uint64_t>(page_tokens) * token_bytes();
  }
  [[nodiscard]] std::uint64_t layer_bytes() const { return static_cast<std::uint64_t>(pages) * page_bytes(); }
  [[nodiscard]] std::uint64_t bytes() const { return static_cast<std::uint64_t>(layers) * layer_bytes(); }
  /// The shape of the pool of one of so many ranks, which must divide the heads.
  [[nodiscard]] KvShape split(int ranks) const {
    KvShape part = *this;
    part.kv_heads /= ranks;
    return part;
  }
  friend bool operator==(const KvShape&, const KvShape&) = default;
};

/// The pages of one layer of a pool in `region`, or in each page the heads of one rank: as long as the pages
/// of that rank's own pool, and in the same order.
[[nodiscard]] PageSpec layer_pages(RegionId region, const KvShape& shape, std::int64_t layer,
                                   Rank heads = {});

/// The pages that hold one text's tokens, in order.
struct Sequence {
  std::vector<std::uint32_t> pages;
  std::vector<std::int64_t> slots;  ///< of each token so far: page * page_tokens + number in the page

  [[nodiscard]] std::size_t length() const { return slots.size(); }
  /// Appends the slots of `count` more tokens, for which the pages must suffice.
  void add_slots(std::size_t count, const KvShape& shape);
};

///   threads  one
class KvPool {
 public:
  /// Allocates the pool on the device and registers it as region "kv"; the region's note is the shape.
  ///   owns    the pool owns GPU memory: it must outlive the agent
  ///   errors  those of Agent::allocate and register_memory; not_supported (there is no such GPU), exhausted
  static Result<KvPool> allocate(Agent& agent, const KvShape& shape, Device device);
  /// Allocates the pool on the device and registers nothing.
  ///   errors  not_supported (there is no such GPU), exhausted
  static Result<KvPool> alone(const KvShape& shape, Device device);

  [[nodiscard]] const KvShape& shape() const { return shape_; }
  [[nodiscard]] RegionId region() const { return region_; }
  [[nodiscard]] std::size_t free_pages() const { return free_.size(); }
  [[nodiscard]] std::size_t pages_for(std::size_t tokens) const;

  /// Takes `count` pages; nullopt if fewer are free.
  [[nodiscard]] std::optional<std::vector<std::uint32_t>> take(std::size_t count);
  void give_back(const std::vector<std::uint32_t>& pages);

  /// [pages, 2, page_tokens, kv_heads, head_width].
  [[nodiscard]] TensorView layer(std::int64_t layer) const;
  /// Copies one rank's heads of all pages into the rank's pool, which has as many pages. In host memory.
  void copy_heads(Rank rank, KvPool& to) const;

 private:
  KvPool(const KvShape& shape, Device device, std::shared_ptr<std::byte> memory, RegionId region);

  KvShape shape_;
  Device device_;
  std::shared_ptr<std::byte> memory_;
  RegionId region_;
  std::vector<std::uint32_t> free_;
};

/// Writes and reads the note of a pool's region.
[[nodiscard]] std::string write_kv_note(const KvShape& shape);
///   errors  corrupt
[[nodiscard]] Result<KvShape> read_kv_note(const std::string& note);

}  // namespace headrace::cli::demo
