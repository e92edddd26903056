// SPDX-License-Identifier: Apache-2.0
// One side of a staged transfer: staging buffer, the peer's, the thread that runs transfers in order.
//
// The server writes a chunk into the client's staging buffer, with an immediate. The client copies it out and
// tells the server by an immediate that the buffer is free. Before the bytes of a chunk lie the bytes of the
// whole transfer and the place of the chunk in it, by which the client finds that the two sides differ.
#pragma once

#include "compat/comm_future.hpp"
#include "compat/endpoint.hpp"
#include "compat/staged_gate.hpp"

#include <headrace/compat/staged_rdma_transport.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace headrace::compat {

class StagedRdmaTransportBase::State {
 public:
  State(Role role, const StagedTransferConfig& config);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  [[nodiscard]] const StagedTransferConfig& config() const { return config_; }
  [[nodiscard]] StagedGate& gate() const { return *gate_; }
  [[nodiscard]] bool is_set_up() const { return endpoint_ != nullptr; }
  [[nodiscard]] bool connected() const;

  ///   errors  those of Endpoint::shared and Fabric::register_memory, exhausted
  [[nodiscard]] Result<std::string> set_up();
  ///   errors  corrupt, invalid_argument
  [[nodiscard]] Result<void> connect(std::string_view bytes);

  /// Queues a transfer, which runs on the thread of the transport.
  [[nodiscard]] CommFuture begin(std::function<commResult_t()> transfer);
  [[nodiscard]] commResult_t send(const ScatterGatherDescriptor& src, std::uint64_t transfer);
  [[nodiscard]] commResult_t receive(const ScatterGatherDescriptor& dst, std::uint64_t transfer);

 private:
  struct Peer {
    std::uint32_t scope = 0;
    std::uint64_t staging_bytes = 0;
    FabricDescriptor staging;
    FabricPeer address;
  };
  struct Transfer {
    std::function<commResult_t()> run;
    std::shared_ptr<CommFuture::State> future;
  };

  void run();
  std::optional<Transfer> next();
  [[nodiscard]] std::size_t chunk_bytes() const;
  [[nodiscard]] commResult_t write_chunk(std::uint64_t total, std::uint64_t offset, std::size_t bytes);
  [[nodiscard]] commResult_t free_peers_buffer();
  [[nodiscard]] commResult_t check_chunk(std::uint64_t total, std::uint64_t offset);
  [[nodiscard]] commResult_t end_of(const Result<FabricWork>& work);
  [[nodiscard]] Signal own_signal() const { return role_ == Role::server ? Signal::taken : Signal::chunk; }
  [[nodiscard]] FabricPost post_of(Signal signal) const;

  const Role role_;
  const StagedTransferConfig config_;
  const std::shared_ptr<StagedGate> gate_;  // callbacks of the fabric hold it

  std::shared_ptr<Endpoint> endpoint_;  // from `set_up` on
  std::uint32_t scope_ = 0;
  std::vector<std::byte> staging_;
  FabricMemory staging_memory_;
  FabricExpectation signals_;
  FabricWork watch_;

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::optional<Peer> peer_;  // set once, before any transfer
  std::deque<Transfer> transfers_;
  FabricWork current_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace headrace::compat
