// SPDX-License-Identifier: Apache-2.0
// A receive in memory of a GPU: the message comes into host memory, over all network cards alike, and a
// stream of the GPU copies it from there.
#pragma once

#include "base/errors.hpp"
#include "gpu/event.hpp"
#include "gpu/memory_identity.hpp"
#include "gpu/stream.hpp"
#include "rail/region.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace headrace::fabric {

/// One message. One thread at a time.
class Landing {
 public:
  struct Setup {
    std::shared_ptr<const gpu::Stream> stream;  ///< of all landings of the GPU
    std::shared_ptr<const gpu::MemoryIdentity> identity;
    cuda::Address address = 0;
    std::uint64_t bytes = 0;  ///< at most
  };
  ///   errors  exhausted (no host memory for it), backend_failed
  static Result<std::shared_ptr<Landing>> make(Setup setup, std::shared_ptr<const gpu::Device> device);
  /// Waits for the copy that has begun: from then on nothing writes to the GPU's memory.
  ~Landing() { wait(); }
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;

  /// The host memory, to be registered.
  [[nodiscard]] rail::Memory memory() const;
  rail::LocalRegion region;  ///< it, once it is registered

  /// A message of that length has come.
  void begin(std::uint64_t bytes);
  [[nodiscard]] bool has_begun() const { return left_.has_value(); }
  /// Goes on. True: all bytes of the message lie in the GPU's memory.
  ///   errors  not_found (the memory was freed since), backend_failed
  Result<bool> step();
  /// For the copy that has begun; no other begins.
  void wait();

 private:
  Landing(Setup setup, gpu::Event event) : setup_(std::move(setup)), event_(std::move(event)) {}
  Result<void> copy_next();

  const Setup setup_;
  gpu::Event event_;
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte, Free> bytes_;
  std::uint64_t length_ = 0;           // of the message
  std::optional<std::uint64_t> left_;  // of it, to be copied
  bool copying_ = false;
};

}  // namespace headrace::fabric
