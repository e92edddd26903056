// SPDX-License-Identifier: Apache-2.0
// torchcomms' staged transports in C++ without folly: a server sends lists of buffers to a client, chunk by
// chunk, through staging buffers. The buffers themselves are not registered. For host memory.
#pragma once

#include <headrace/compat/comm_future.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace headrace::compat {

// NOLINTBEGIN(readability-identifier-naming): the names are torchcomms'

struct StagedTransferConfig {
  enum class StagingMode { CPU, GPU };
  StagingMode stagingMode = StagingMode::CPU;  ///< GPU is refused
  std::size_t stagingBufSize = std::size_t{4} << 20;
  /// How long a side waits for the other, for each chunk.
  std::chrono::milliseconds chunkTimeout{300'000};
};

/// Buffers that are sent or filled one after the other. They stay in place until the future has ended.
struct ScatterGatherDescriptor {
  struct Entry {
    void* ptr;
    std::size_t size;
  };
  std::vector<Entry> entries;

  [[nodiscard]] std::size_t totalBytes() const {
    std::size_t total = 0;
    for (const auto& entry : entries) total += entry.size;
    return total;
  }
};

/// What server and client share. Transfers of one transport run one after the other, on a thread of its own.
///   threads  any, but for the destructor, which is not for callbacks of its futures either
class StagedRdmaTransportBase {
 public:
  StagedRdmaTransportBase(const StagedRdmaTransportBase&) = delete;
  StagedRdmaTransportBase& operator=(const StagedRdmaTransportBase&) = delete;
  StagedRdmaTransportBase(StagedRdmaTransportBase&&) = delete;
  StagedRdmaTransportBase& operator=(StagedRdmaTransportBase&&) = delete;

  [[nodiscard]] HEADRACE_API std::size_t stagingBufSize() const;
  /// Opens the transport and its staging buffer. Returns what the other side's connectRemoteTransport takes.
  /// Throws std::runtime_error, std::invalid_argument (a staging buffer on a GPU, or of 0 bytes).
  [[nodiscard]] HEADRACE_API std::string setupLocalTransport();
  /// Throws std::invalid_argument (no such information, or of a second server or client),
  /// std::runtime_error (not set up, connected already).
  HEADRACE_API void connectRemoteTransport(const std::string& peerConnInfo);
  /// Why the last transfer did not succeed; empty: none failed.
  [[nodiscard]] HEADRACE_API std::string lastError() const;

 protected:
  class State;
  enum class Role : char { server = 's', client = 'c' };
  HEADRACE_API StagedRdmaTransportBase(Role role, const StagedTransferConfig& config);
  /// Ends transfers with commUserAbort.
  HEADRACE_API ~StagedRdmaTransportBase();
  std::unique_ptr<State> state_;
};

/// Sends. `cudaDev` and `evb` are without use.
class StagedRdmaServerTransport : public StagedRdmaTransportBase {
 public:
  HEADRACE_API explicit StagedRdmaServerTransport(int cudaDev, void* evb = nullptr,
                                                  StagedTransferConfig config = {});
  /// Sends the buffers, which the client's `recv` takes. Ends with commSuccess when the last chunk lies in
  /// the client's staging buffer; commTimeout: the client takes no chunk; commInternalError: its process has
  /// ended. Throws std::runtime_error (not connected).
  HEADRACE_API CommFuture send(const ScatterGatherDescriptor& src);
};

/// Receives. `cudaDev` and `evb` are without use.
class StagedRdmaClientTransport : public StagedRdmaTransportBase {
 public:
  HEADRACE_API explicit StagedRdmaClientTransport(int cudaDev, void* evb = nullptr,
                                                  StagedTransferConfig config = {});
  /// Fills the buffers with what the server's `send` sends: as many bytes in all, in buffers of any sizes.
  /// Ends as send; commInvalidArgument: the server sends another number of bytes, and later transfers fail.
  HEADRACE_API CommFuture recv(const ScatterGatherDescriptor& dst);
  /// The `recv` calls so far end with commUserAbort where they wait for a chunk. If the server has begun to
  /// send, make new transports.
  HEADRACE_API void cancelPendingRecv();
};

// NOLINTEND(readability-identifier-naming)

}  // namespace headrace::compat
