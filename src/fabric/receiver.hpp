// SPDX-License-Identifier: Apache-2.0
// Buffers that receive messages, one after the other: each receives again when its message was told.
#pragma once

#include "fabric/buffer_pool.hpp"
#include "fabric/core.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace headrace::fabric {

/// Thread-safe. Its receives keep it until they have ended.
class Receiver : public std::enable_shared_from_this<Receiver> {
 public:
  using Received = std::function<void(std::span<const std::byte>)>;
  Receiver(std::shared_ptr<Core> core, std::shared_ptr<BufferPool> pool, std::size_t count, Received received)
      : core_(std::move(core)), pool_(std::move(pool)), received_(std::move(received)), works_(count) {}

  /// Posts all buffers.
  Result<void> start();
  void stop();

 private:
  Result<void> post(std::size_t index);
  void ended(std::size_t index, Status status);

  const std::shared_ptr<Core> core_;
  const std::shared_ptr<BufferPool> pool_;
  const Received received_;
  std::mutex mutex_;
  bool stopped_ = false;
  std::vector<FabricWork> works_;  // by buffer
};

}  // namespace headrace::fabric
