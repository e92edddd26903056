// SPDX-License-Identifier: Apache-2.0
// Memory of a fabric, and the bytes by which others find a fabric and its memory.
#pragma once

#include <headrace/memory.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace headrace {

namespace fabric {
class BufferPool;
class Core;
struct AddressParts;
struct DescriptorParts;
struct Memory;
}  // namespace fabric

/// Where a fabric is found: its network cards. Bytes that any peer may have; they hold no secret.
class FabricAddress {
 public:
  FabricAddress() = default;
  /// Of a peer's `bytes`.
  ///   errors  corrupt (damaged or cut), not_supported (of another version)
  [[nodiscard]] static HEADRACE_API Result<FabricAddress> from_bytes(std::string_view bytes);
  /// Of a peer's `to_text`.
  ///   errors  as from_bytes
  [[nodiscard]] static HEADRACE_API Result<FabricAddress> from_text(std::string_view hex);

  [[nodiscard]] HEADRACE_API const std::string& bytes() const;
  /// The bytes in hexadecimal digits.
  [[nodiscard]] HEADRACE_API std::string to_text() const;
  [[nodiscard]] explicit operator bool() const noexcept { return parts_ != nullptr; }
  friend bool operator==(const FabricAddress& a, const FabricAddress& b) { return a.bytes() == b.bytes(); }

 private:
  friend class fabric::Core;
  explicit FabricAddress(std::shared_ptr<const fabric::AddressParts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const fabric::AddressParts> parts_;
};

enum class FabricAccess : std::uint8_t {
  local,     ///< for posts of this fabric alone
  readable,  ///< peers that have its descriptor read it
  writable,  ///< and write it
};

/// Names memory of a fabric to its peers. It holds the addresses of the owner's network cards, so a post
/// needs nothing else: the link to the owner is made at the first one. Less than 100 bytes with one card and
/// IPv4. A process that has it can use the memory until it is deregistered.
class FabricDescriptor {
 public:
  FabricDescriptor() = default;
  /// Of the owner's `bytes`.
  ///   errors  corrupt (damaged or cut), not_supported (of another version)
  [[nodiscard]] static HEADRACE_API Result<FabricDescriptor> from_bytes(std::string_view bytes);

  [[nodiscard]] HEADRACE_API const std::string& bytes() const;
  [[nodiscard]] HEADRACE_API std::uint64_t length_bytes() const;
  [[nodiscard]] HEADRACE_API FabricAccess access() const;
  /// For people: "4096 writable bytes at tcp:192.0.2.1:4711/0123456789abcdef".
  [[nodiscard]] HEADRACE_API std::string to_text() const;
  [[nodiscard]] explicit operator bool() const noexcept { return parts_ != nullptr; }
  friend bool operator==(const FabricDescriptor& a, const FabricDescriptor& b) {
    return a.bytes() == b.bytes();
  }

 private:
  friend class FabricMemory;
  friend class fabric::Core;
  explicit FabricDescriptor(std::shared_ptr<const fabric::DescriptorParts> parts)
      : parts_(std::move(parts)) {}
  std::shared_ptr<const fabric::DescriptorParts> parts_;
};

/// Registered memory. A handle, cheap to copy; it stays registered without handles, until it is deregistered
/// or the fabric is closed.
class FabricMemory {
 public:
  FabricMemory() = default;

  [[nodiscard]] HEADRACE_API std::uintptr_t address() const;
  [[nodiscard]] HEADRACE_API std::uint64_t length_bytes() const;
  [[nodiscard]] HEADRACE_API FabricAccess access() const;
  /// The GPU; nullopt: host memory.
  [[nodiscard]] HEADRACE_API std::optional<int> device() const;
  /// Its place in Fabric::groups: the network cards that carry its posts.
  [[nodiscard]] HEADRACE_API std::size_t group() const;
  /// For peers. Empty if the access is local.
  [[nodiscard]] HEADRACE_API FabricDescriptor descriptor() const;
  [[nodiscard]] explicit operator bool() const noexcept { return memory_ != nullptr; }

 private:
  friend class fabric::Core;
  explicit FabricMemory(std::shared_ptr<fabric::Memory> memory) : memory_(std::move(memory)) {}
  std::shared_ptr<fabric::Memory> memory_;
};

/// One host buffer of a pool; its end gives it back.
class FabricBuffer {
 public:
  FabricBuffer() = default;
  HEADRACE_API ~FabricBuffer();
  FabricBuffer(FabricBuffer&& other) noexcept : pool_(std::move(other.pool_)), index_(other.index_) {}
  HEADRACE_API FabricBuffer& operator=(FabricBuffer&& other) noexcept;

  [[nodiscard]] HEADRACE_API std::span<std::byte> bytes() const;
  /// The pool's memory, and where in it the buffer begins: for posts.
  [[nodiscard]] HEADRACE_API const FabricMemory& memory() const;
  [[nodiscard]] HEADRACE_API std::uint64_t offset_bytes() const;
  [[nodiscard]] explicit operator bool() const noexcept { return pool_ != nullptr; }

 private:
  friend class FabricBuffers;
  FabricBuffer(std::shared_ptr<fabric::BufferPool> pool, std::size_t index)
      : pool_(std::move(pool)), index_(index) {}
  std::shared_ptr<fabric::BufferPool> pool_;
  std::size_t index_ = 0;
};

/// Registered host buffers of one size, for messages and small writes. A handle, cheap to copy. The memory
/// lives as long as the pool or one of its buffers.
///   threads  any
class FabricBuffers {
 public:
  FabricBuffers() = default;
  /// A buffer that nobody has; its content is that of its last use.
  ///   errors  would_block (all are taken)
  [[nodiscard]] HEADRACE_API Result<FabricBuffer> take();
  [[nodiscard]] HEADRACE_API std::size_t free() const;
  [[nodiscard]] HEADRACE_API std::uint64_t bytes_each() const;
  [[nodiscard]] explicit operator bool() const noexcept { return pool_ != nullptr; }

 private:
  friend class fabric::Core;
  explicit FabricBuffers(std::shared_ptr<fabric::BufferPool> pool) : pool_(std::move(pool)) {}
  std::shared_ptr<fabric::BufferPool> pool_;
};

}  // namespace headrace
