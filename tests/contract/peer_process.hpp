// SPDX-License-Identifier: Apache-2.0
// A peer in a process of its own: contract_peer, told what to do, killed or stopped by a test.
#pragma once

#include "contract/fixture.hpp"
#include "contract/peer_protocol.hpp"

#include <sys/types.h>

#include <stdexcept>

namespace headrace::contract {

/// Thrown where the system does not allow what a test needs.
struct NoPidNamespace : std::runtime_error {
  NoPidNamespace() : std::runtime_error("this machine allows no PID namespace of one's own") {}
};

class PeerProcess {
 public:
  enum class Numbers { ours, its_own };  ///< its_own: the first process of a PID namespace of its own

  PeerProcess(const BackendCase& which, const std::string& name, std::uint64_t incarnation,
              const std::string& runtime_dir, Numbers numbers = Numbers::ours);
  /// Kills it if it still runs. One that has ended otherwise is a failure of the test.
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  /// One command and its answer. Throws with the peer's sentence if it answers with an error, or if it is
  /// gone.
  std::string ask(const std::string& command);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint64_t incarnation() const { return incarnation_; }
  [[nodiscard]] std::string connection_info() { return from_hex(ask("info")); }
  RegionFacts region(Memory::Kind kind, std::uint64_t length, std::uint64_t seed);
  /// Of the host's memory, also where the others are a GPU's.
  RegionFacts host_region(Memory::Kind kind, std::uint64_t length, std::uint64_t seed);
  /// Another region in the memory of that one.
  RegionFacts part(const RegionFacts& whole, std::uint64_t offset, std::uint64_t length);
  std::uint64_t hash(const RegionFacts& region) {
    return std::stoull(ask(fmt::format("hash {}", region.id)));
  }

  /// What its memory holds now, also while it is stopped.
  [[nodiscard]] std::vector<std::byte> bytes_of(const RegionFacts& region) const;
  void signal(int number);
  /// SIGKILL, and waits until the system has taken it away.
  void kill();
  /// Asks it to end in good order; throws unless it ends with status 0.
  void quit();

 private:
  RegionFacts facts_of(const std::string& answer) const;
  int wait_for_end();

  std::string name_;
  bool vram_;
  std::uint64_t incarnation_;
  pid_t pid_ = -1;
  bool killed_ = false;  ///< by this test
  UniqueFd fd_;
  ControlLine line_;
};

/// Tests with peers in processes of their own.
class ContractBetweenProcesses : public Contract {
 protected:
  std::unique_ptr<PeerProcess> start_peer(const std::string& name = "b",
                                          PeerProcess::Numbers numbers = PeerProcess::Numbers::ours);
  /// A link to the peer that both sides know.
  Link connect(Instance& a, PeerProcess& b);
};

}  // namespace headrace::contract
