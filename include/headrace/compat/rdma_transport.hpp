// SPDX-License-Identifier: Apache-2.0
// torchcomms' RdmaTransport in C++ without folly: over sockets and between processes of one host. No RDMA
// device is needed. docs/compat-torchcomms-transport.md has the differences.
//
// Peers are not authenticated: give URLs and remote buffers to processes that you trust.
#pragma once

#include <headrace/compat/comm_future.hpp>
#include <headrace/memory.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

namespace headrace::compat {

// NOLINTBEGIN(readability-identifier-naming): the names are torchcomms'

class Registration;

/// For the hook of an allocator: registers a segment, so that each RdmaMemory inside of it uses this
/// registration. It counts: as many RdmaDeregTensor end it. The memory stays mapped until then.
/// Returns 0, or a commResult_t. Null does nothing.
HEADRACE_API int RdmaRegTensor(void* addr, std::size_t len);
/// Ends the posts that use the segment; then no peer reaches it. commInvalidArgument: it is not registered.
HEADRACE_API int RdmaDeregTensor(void* addr, std::size_t len);
using RdmaRegFn = int (*)(void* addr, std::size_t len);

/// Memory that transports of this process read and write, and peers that have its remote buffer.
/// Move-only. Its end waits until posts have left the memory; then no peer reaches it.
class RdmaMemory {
 public:
  /// Bytes of a memory, which must stay where it is as long as they are used.
  class View {
   public:
    /// Throws std::invalid_argument (outside of the memory).
    HEADRACE_API View(const RdmaMemory& parent, std::size_t offset, std::size_t length);

    [[nodiscard]] const void* data() const { return data_; }
    [[nodiscard]] std::size_t size() const { return length_; }
    const RdmaMemory* operator->() const { return parent_; }
    [[nodiscard]] HEADRACE_API bool isParentValid() const;

   private:
    friend class RdmaTransport;
    const RdmaMemory* parent_;
    std::shared_ptr<Registration> registration_;
    const void* data_;
    std::size_t length_;
  };

  /// Bytes that `read` may write to.
  class MutableView : public View {
   public:
    using View::View;
    [[nodiscard]] void* mutable_data() const { return const_cast<void*>(data()); }
  };

  /// Registers memory; it stays the caller's, in place until the end of this object. `cudaDev`: of memory of
  /// a GPU (`kind` vram), the GPU; of host memory any number.
  /// Throws std::runtime_error (what the network cards do not reach), std::invalid_argument (null, empty).
  HEADRACE_API RdmaMemory(const void* buf, std::size_t len, int cudaDev, MemoryKind kind = MemoryKind::dram);
  HEADRACE_API RdmaMemory(RdmaMemory&& other) noexcept;
  RdmaMemory& operator=(RdmaMemory&&) = delete;
  RdmaMemory(const RdmaMemory&) = delete;
  RdmaMemory& operator=(const RdmaMemory&) = delete;
  HEADRACE_API ~RdmaMemory() noexcept;

  [[nodiscard]] View createView() const { return {*this, 0, len_}; }
  [[nodiscard]] View createView(std::size_t offset, std::size_t length) const {
    return {*this, offset, length};
  }
  /// Throws std::out_of_range (the bytes are not of this memory).
  [[nodiscard]] View createView(const void* buf, std::size_t length) const {
    return {*this, offset_of(buf, length), length};
  }
  [[nodiscard]] MutableView createMutableView() const { return {*this, 0, len_}; }
  [[nodiscard]] MutableView createMutableView(std::size_t offset, std::size_t length) const {
    return {*this, offset, length};
  }
  [[nodiscard]] MutableView createMutableView(const void* buf, std::size_t length) const {
    return {*this, offset_of(buf, length), length};
  }

  /// Not null; the same for memories of one registration.
  [[nodiscard]] void* localKey() const { return registration_.get(); }
  /// For the accessKey of a RdmaRemoteBuffer.
  [[nodiscard]] HEADRACE_API std::string remoteKey() const;
  /// Whether it lies in a segment of RdmaRegTensor.
  [[nodiscard]] bool reusedRegistration() const { return reused_; }
  [[nodiscard]] int getDevice() const { return device_; }
  [[nodiscard]] std::size_t length() const { return len_; }
  [[nodiscard]] const void* data() const { return buf_; }
  [[nodiscard]] HEADRACE_API bool contains(const void* buf, std::size_t len) const;

 private:
  friend class RdmaTransport;
  [[nodiscard]] HEADRACE_API std::size_t offset_of(const void* buf, std::size_t length) const;

  const void* buf_;
  std::size_t len_;
  int device_;
  bool reused_ = false;
  std::shared_ptr<Registration> registration_;
};

/// Memory of the peer: an address inside of it, the bytes from there on, RdmaMemory::remoteKey.
struct RdmaRemoteBuffer {
  void* ptr{nullptr};
  const std::size_t len{0};
  const std::string accessKey;
};

/// Writes to memory of one peer, and reads from it.
///
/// commSuccess; commTimeout: the time of the call passed, and the memory is quiet; commUserAbort: the
/// transport or the memory was destroyed meanwhile; commInternalError: the peer is lost, or has no such
/// memory any more. After that the transport is broken, each call ends with commInternalError at once, and
/// `lastError` has the sentence.
///   threads  any, but for the destructor
class RdmaTransport {
 public:
  enum class MockType {
    None,
    Timeout,  ///< a write ends at its timeout, or with the transport
    Failure,  ///< a write ends at once with commInternalError
  };
  struct MockContext {
    MockType type{MockType::None};
  };

  /// `cudaDev`, `evb`, `maxNumCqe` and `maxNumNic` are without use: cards near the memory carry, and the
  /// fabric has threads of its own. Throws std::runtime_error (no fabric opens).
  HEADRACE_API explicit RdmaTransport(int cudaDev, void* evb = nullptr, std::optional<int> maxNumCqe = {},
                                      std::optional<int> maxNumNic = {});
  /// Ends what is under way with commUserAbort, when its memory is quiet.
  HEADRACE_API ~RdmaTransport();
  RdmaTransport(const RdmaTransport&) = delete;
  RdmaTransport& operator=(const RdmaTransport&) = delete;
  RdmaTransport(RdmaTransport&&) = delete;
  RdmaTransport& operator=(RdmaTransport&&) = delete;

  /// Whether a fabric opens here: true over sockets.
  [[nodiscard]] static HEADRACE_API bool supported();

  /// The URL for the peer's `connect`.
  [[nodiscard]] HEADRACE_API std::string bind();
  /// Begins to connect. Whether the peer can be reached is told by the first write or read.
  /// Throws std::invalid_argument (no URL of `bind`), std::runtime_error (connected already).
  HEADRACE_API commResult_t connect(const std::string& peerUrl);
  /// Whether `connect` was called.
  [[nodiscard]] HEADRACE_API bool connected() const;
  /// The number that was given, or 0: there is no completion queue.
  [[nodiscard]] int getMaxCqe() const { return max_cqe_; }
  /// Of the first group of the fabric.
  [[nodiscard]] HEADRACE_API int getNumNics() const;

  /// Writes the view to the begin of the remote buffer. `notify`: ends one waitForWrite of the peer, after
  /// the bytes. Throws std::runtime_error (not connected, longer than the buffer), std::invalid_argument (no
  /// key of the peer, outside of its memory).
  HEADRACE_API CommFuture write(RdmaMemory::View localBuffer, const RdmaRemoteBuffer& remoteBuffer,
                                bool notify, std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  /// Ends with one write of the peer with `notify`; also with commInternalError, if the peer's process ends
  /// and has written no more. Throws std::runtime_error (not connected).
  HEADRACE_API CommFuture waitForWrite();
  /// Reads from the begin of the remote buffer into the view. Throws as write.
  HEADRACE_API CommFuture read(const RdmaMemory::MutableView& localBuffer,
                               const RdmaRemoteBuffer& remoteBuffer,
                               std::optional<std::chrono::milliseconds> timeout = std::nullopt);

  /// Why it is broken, or why the last operation did not succeed; empty: none did not.
  [[nodiscard]] HEADRACE_API std::string lastError() const;

  /// For writes that are made later.
  HEADRACE_API void setMockForTest(MockContext config);
  HEADRACE_API void markBrokenForTest();
  void abort() {}  ///< does nothing, as there

 private:
  class State;
  std::shared_ptr<State> state_;
  int max_cqe_;
};

// NOLINTEND(readability-identifier-naming)

}  // namespace headrace::compat
