// SPDX-License-Identifier: Apache-2.0
// A message in memory of a GPU: it travels out of host memory and into host memory, over all network cards
// alike, and a stream of the GPU copies between the two memories.
#pragma once

#include "base/errors.hpp"
#include "gpu/event.hpp"
#include "gpu/memory_identity.hpp"
#include "gpu/stream.hpp"
#include "rail/region.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace headrace::fabric {

/// One message. One thread at a time.
class StagedMessage {
 public:
  enum class Way : std::uint8_t { out_of_gpu, into_gpu };
  struct Setup {
    Way way = Way::into_gpu;
    std::shared_ptr<const gpu::Stream> stream;  ///< of all messages of the GPU
    std::shared_ptr<const gpu::MemoryIdentity> identity;
    cuda::Address address = 0;
    std::uint64_t bytes = 0;  ///< at most
  };
  static Result<std::shared_ptr<StagedMessage>> make(Setup setup, std::shared_ptr<const gpu::Device> device);
  /// Waits for the copy that has begun: from then on nothing uses the GPU's memory.
  ~StagedMessage() { wait(); }
  StagedMessage(const StagedMessage&) = delete;
  StagedMessage& operator=(const StagedMessage&) = delete;

  [[nodiscard]] bool goes_out() const { return setup_.way == Way::out_of_gpu; }
  [[nodiscard]] std::uint64_t bytes() const { return setup_.bytes; }
  /// Takes the host memory. `region` is it, but known to no network card.
  ///   errors  exhausted
  Result<void> take_memory();
  rail::LocalRegion region;

  /// The message has that length, and the memory that it comes from has it.
  void begin(std::uint64_t bytes);
  [[nodiscard]] bool has_begun() const { return state_ != State::waits; }
  [[nodiscard]] bool is_over() const { return state_ == State::over; }
  /// Goes on. True: all bytes of the message have been copied, or no more will be.
  ///   errors  not_found (the GPU's memory was freed since), backend_failed
  Result<bool> step();
  /// Begins no other copy: `step` is true when that which has begun has ended.
  void cut_short() { left_ = 0; }
  /// For the copy that has begun.
  void wait();

 private:
  enum class State : std::uint8_t { waits, copies, over };
  StagedMessage(Setup setup, gpu::Event event) : setup_(std::move(setup)), event_(std::move(event)) {}
  Result<void> copy_next();

  const Setup setup_;
  gpu::Event event_;
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte, Free> bytes_;
  State state_ = State::waits;
  std::uint64_t length_ = 0;  // of the message
  std::uint64_t left_ = 0;    // of it, to be copied
  bool copying_ = false;
};

}  // namespace headrace::fabric
