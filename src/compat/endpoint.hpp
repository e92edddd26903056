// SPDX-License-Identifier: Apache-2.0
// The fabric of the process, which all transports and memories share, and what they tell peers: URLs and
// keys.
#pragma once

#include "base/fork_guard.hpp"

#include <headrace/fabric.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace headrace::compat {

/// Values of immediates, each in the scope of the transport that counts them.
enum class Signal : std::uint32_t { written = 1, chunk = 2, taken = 3 };

/// A fabric with all GPUs that the driver shows, or host memory alone. It closes with the last holder.
class Endpoint {
 public:
  Endpoint(Fabric opened, FabricMemory nothing);

  /// That of the process; opens it where nothing holds one. A forked child opens its own.
  [[nodiscard]] static Result<std::shared_ptr<Endpoint>> shared();

  [[nodiscard]] Immediate immediate(Signal signal, std::uint32_t scope) const {
    return {static_cast<std::uint32_t>(signal), scope};
  }
  /// A scope that no other transport of this process has.
  [[nodiscard]] static std::uint32_t new_scope();

  /// A message that the peer never takes: it fails when the peer's process ends.
  [[nodiscard]] Result<FabricWork> watch(const FabricAddress& address);
  /// Nothing takes it: it ends at its deadline or when it is canceled.
  [[nodiscard]] Result<FabricWork> idle(Timeout timeout);

  Fabric fabric;
  const std::uint64_t id;  ///< tells URLs and keys of this process from those of others
  const ForkGuard fork;

 private:
  FabricMemory nothing_;  // one byte, of messages
};

/// The far end of a transport.
struct Url {
  std::uint64_t process = 0;
  std::uint32_t scope = 0;
  FabricAddress address;
};
[[nodiscard]] std::string encode(const Url& url);
/// Of a transport here.
[[nodiscard]] std::string write_url(const Endpoint& endpoint, std::uint32_t scope);
/// Bytes of a peer.
///   errors  corrupt
[[nodiscard]] Result<Url> read_url(std::string_view bytes);

/// Names memory to a peer. Text, as that of headrace.compat.torchcomms._transport.
struct AccessKey {
  std::uint64_t process = 0;
  std::uint64_t address = 0;  ///< where the memory begins in that process
  FabricDescriptor descriptor;
};
[[nodiscard]] std::string encode(const AccessKey& key);
/// Of memory here.
[[nodiscard]] std::string write_key(const Endpoint& endpoint, const FabricMemory& memory);
/// Text of a peer.
///   errors  corrupt
[[nodiscard]] Result<AccessKey> read_key(std::string_view text);

/// Bytes of fixed width, little end first.
void put_number(std::string& bytes, std::uint64_t number, std::size_t width);
/// Takes them from the front. The caller has looked at the length.
[[nodiscard]] std::uint64_t take_number(std::string_view& bytes, std::size_t width);

}  // namespace headrace::compat
