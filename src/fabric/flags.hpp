// SPDX-License-Identifier: Apache-2.0
// Words that grow with the rounds of an expectation, where kernels and streams of GPUs see them.
#pragma once

#include <headrace/fabric_words.hpp>

#include "fabric/host_block.hpp"
#include "gpu/gpu_word.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace headrace::fabric {

/// Lines of 64 bytes of host memory, one for each flag. Blocks are kept until the last line and the pool are
/// gone: freeing pinned memory may wait for kernels, and a kernel may wait for a flag.
///   threads  any
class LinePool : public std::enable_shared_from_this<LinePool> {
 public:
  class Line {
   public:
    Line(std::shared_ptr<LinePool> pool, std::size_t number, std::uint64_t* word, std::uint64_t address)
        : pool_(std::move(pool)), number_(number), word_(word), address_(address) {}
    Line(Line&& other) noexcept = default;
    Line& operator=(Line&&) = delete;
    ~Line() {
      if (pool_ != nullptr) pool_->give_back(number_);
    }
    [[nodiscard]] std::atomic_ref<std::uint64_t> word() const { return std::atomic_ref(*word_); }
    [[nodiscard]] std::uint64_t address() const { return address_; }

   private:
    std::shared_ptr<LinePool> pool_;
    std::size_t number_;
    std::uint64_t* word_;
    std::uint64_t address_;
  };

  /// device: null: plain memory.
  explicit LinePool(std::shared_ptr<const gpu::Device> device) : device_(std::move(device)) {}
  /// Its word is 0.
  ///   errors  exhausted
  Result<Line> take();

 private:
  static constexpr std::size_t lines_a_block = 64, line_bytes = 64;
  void give_back(std::size_t number);

  const std::shared_ptr<const gpu::Device> device_;
  std::mutex mutex_;
  std::vector<HostBlock> blocks_;
  std::vector<std::size_t> free_;
};

/// One word.
class Flag {
 public:
  Flag(LinePool::Line line, std::optional<int> device) : device_(device), line_(std::move(line)) {}
  explicit Flag(std::shared_ptr<gpu::GpuWord> word) : device_(word->device()), gpu_(std::move(word)) {}

  [[nodiscard]] std::uint64_t address() const { return gpu_ != nullptr ? gpu_->address() : line_->address(); }
  [[nodiscard]] std::optional<int> device() const { return device_; }
  [[nodiscard]] bool in_gpu_memory() const { return gpu_ != nullptr; }
  [[nodiscard]] std::uint64_t value() const;
  /// By one thread at a time; values only grow.
  ///   errors  backend_failed: the GPU's context has failed
  Result<void> raise_to(std::uint64_t value);

 private:
  std::optional<int> device_;
  std::optional<LinePool::Line> line_;
  std::shared_ptr<gpu::GpuWord> gpu_;
};

/// Makes them for one fabric.
///   threads  any
class FlagMaker {
 public:
  using Driver = std::function<Result<cuda::DriverTable>()>;
  explicit FlagMaker(Driver driver = cuda::load_driver) : load_(std::move(driver)) {}

  ///   errors  as FabricExpectation::flag
  Result<std::unique_ptr<Flag>> make(const FabricFlagPlace& place);
  ///   errors  not_supported (no driver), invalid_argument (no such GPU), exhausted, backend_failed
  Result<std::shared_ptr<const gpu::Device>> open_gpu(int ordinal);

 private:
  Result<std::unique_ptr<Flag>> make_in_gpu_memory(int ordinal, std::uint64_t address);

  const Driver load_;
  std::mutex mutex_;
  std::optional<Result<cuda::DriverTable>> driver_;
  std::map<int, std::shared_ptr<const gpu::Device>> gpus_;
  const std::shared_ptr<LinePool> plain_ = std::make_shared<LinePool>(nullptr);
  std::shared_ptr<LinePool> pinned_;  // all GPUs of the process see it
};

}  // namespace headrace::fabric
