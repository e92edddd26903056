// SPDX-License-Identifier: Apache-2.0
// Tests over the fake GPUs of this process: the rows they run over, the driver that they script, and memory
// of the host's beside that of the GPUs.
#pragma once

#include "contract/peer_process.hpp"
#include "support/fake_gpus.hpp"

#include <algorithm>
#include <vector>

namespace headrace::contract {

/// The rows whose memories are a GPU's and can be mapped by other processes.
inline std::vector<BackendCase> vram_cases() {
  std::vector<BackendCase> cases = process_cases(HEADRACE_REMOTE | HEADRACE_MAP);
  std::erase_if(cases, [](const BackendCase& which) { return !which.vram; });
  return cases;
}

inline cuda::FakeCuda& driver() { return FakeGpus::of_this_process().driver(); }

inline Memory host_memory(Memory::Kind kind, std::size_t bytes, std::uint64_t seed, std::size_t skew = 0) {
  const FromTheHost here;
  return Memory(kind, bytes, seed, skew);
}

/// A fixture whose tests may hold the GPUs' work: whatever they end with, the next finds it going on.
template <class Fixture>
class OverFakeGpus : public Fixture {
 protected:
  ~OverFakeGpus() override { driver().release(); }
};

}  // namespace headrace::contract
