// SPDX-License-Identifier: Apache-2.0
// The provider for peers of this host: one NIC, whose network is shared memory. docs/decisions/0016,
// section 5.
#pragma once

#include "base/unix_socket.hpp"
#include "gpu/gpus.hpp"
#include "rail/shm/stream.hpp"
#include "rail/stream/provider.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::rail::shm {

struct Options : stream::Options {
  Copies copies = Copies::by_the_system;
  /// Of GPUs whose memory can be registered; none: host memory alone. Loaded at the first such memory.
  std::optional<gpu::GpuSource> gpus = gpus_in_sight();

  /// Those of this machine.
  static std::optional<gpu::GpuSource> gpus_in_sight();
};

/// Peers are processes of this user that find the socket in the same folder.
class ShmProvider final : public stream::StreamProvider {
 public:
  /// `folder`: as base's `runtime_dir`; peers must be given the same.
  ///   errors  those of the system
  static Result<std::unique_ptr<ShmProvider>> open(const std::string& folder, const Options& options = {});

  ~ShmProvider() override { drop_all(); }

  void deregister(MemoryId memory) override;

 private:
  struct Place {
    std::string folder;
    std::uint64_t life = 0;
  };
  ShmProvider(Parts parts, UnixListener listener, Place place, const Options& options);
  Result<stream::NewStream> reach(std::string_view address) override;
  Result<stream::NewStream> accept() override;
  bool must_ask_system() override;
  /// Memory of a GPU must be such that other processes can open it.
  Result<std::shared_ptr<const gpu::MemoryIdentity>> identify(const Memory& memory) override;
  [[nodiscard]] Ways ways() { return {copies_, gpus_ ? &*gpus_ : nullptr}; }

  UnixListener listener_;
  const std::string folder_;
  const Copies copies_;
  std::optional<gpu::Gpus> gpus_;
  std::uint32_t passes_ = 0;  // since the system was asked
};

}  // namespace headrace::rail::shm
