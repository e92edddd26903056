// SPDX-License-Identifier: Apache-2.0
// A peer in a process of its own: opens an agent, registers memory with a known pattern, writes a
// PeerGreeting and its metadata to standard output, and serves until its input ends. It deregisters regions
// and closes its agent when a PeerOrder on standard input says so. Over `gpu_backend` its memory is a GPU's.
#include "../peer_greeting.hpp"

#include "support/plugin_gpu.hpp"
#include "support/plugin_memory.hpp"

#include <headrace/headrace.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

using namespace headrace;

namespace {

using Place = test::PeerGreeting::Place;

bool write_all(const void* bytes, std::size_t n) {
  const char* at = static_cast<const char*>(bytes);
  while (n > 0) {
    const ssize_t wrote = ::write(1, at, n);
    if (wrote <= 0) return false;
    at += wrote;
    n -= static_cast<std::size_t>(wrote);
  }
  return true;
}

bool read_all(void* bytes, std::size_t n) {
  char* at = static_cast<char*>(bytes);
  while (n > 0) {
    const ssize_t got = ::read(0, at, n);
    if (got <= 0) return false;
    at += got;
    n -= static_cast<std::size_t>(got);
  }
  return true;
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "peer: %s\n", what.c_str());
  std::exit(1);
}
[[noreturn]] void fail(const Error& error) { fail(error.message); }

/// Memory that the test can map as well, and of which the agent knows the addresses alone: for a backend it
/// is as memory of the heap is.
std::span<std::byte> shared_memory(std::size_t length) {
  const int file = ::memfd_create("system_peer", MFD_CLOEXEC);
  void* const at = ::ftruncate(file, static_cast<off_t>(length)) == 0
                       ? ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                       : MAP_FAILED;
  if (at == MAP_FAILED) fail("no memory for the test to see");
  return {static_cast<std::byte*>(at), length};
}

/// The file that is mapped at this address, among those that this process has open.
Place find_place(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, offset = 0, inode = 0;
    // NOLINTNEXTLINE(bugprone-unchecked-string-to-number-conversion): the kernel writes numbers that fit
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %lx %*s %lu", &begin, &end, &offset, &inode) != 4) continue;
    if (wanted < begin || wanted >= end) continue;
    for (int descriptor = 0; descriptor < 1024; ++descriptor) {
      struct stat file {};
      // All memfds lie on one device, and no other file has seals: the inode tells them apart.
      if (::fcntl(descriptor, F_GET_SEALS) < 0 || ::fstat(descriptor, &file) != 0 || file.st_ino != inode)
        continue;
      Place place;
      place.descriptor = descriptor;
      place.offset = static_cast<std::int64_t>(offset + (wanted - begin));
      return place;
    }
  }
  fail("this memory is no file that is open here");
}

/// A region with a pattern, and its place for the test.
struct Owned {
  Region region;
  Place place;
};

void fill(std::span<std::byte> bytes, std::string_view pattern) {
  std::memcpy(bytes.data(), pattern.data(), pattern.size());
}

Owned allocated(Agent& agent, std::string_view pattern) {
  auto region = agent.allocate(pattern.size());
  if (!region) fail(region.error());
  fill(region->bytes(), pattern);
  return {*region, find_place(region->bytes().data())};
}

/// Registers the middle of the memory. Last, since for the thread sanitizer a registration orders what was
/// written before what the backend's threads send.
Owned registered(Agent& agent, std::span<std::byte> memory, std::string_view pattern, MemoryKind kind) {
  const auto middle = memory.subspan(test::peer_margin_bytes, pattern.size());
  fill(middle, pattern);
  Place place = find_place(memory.data());
  place.margin_bytes = test::peer_margin_bytes;
  auto region = agent.register_memory({.address = middle.data(),
                                       .length_bytes = middle.size(),
                                       .kind = kind,
                                       .device = kind == MemoryKind::vram ? 0 : -1});
  if (!region) fail(region.error());
  return {*region, place};
}

std::array<Owned, 2> make_memory(Agent& agent, bool of_gpu, std::string_view pattern) {
  const auto first = pattern.substr(0, pattern.size() / 2), second = pattern.substr(pattern.size() / 2);
  const std::size_t bytes = second.size() + 2 * test::peer_margin_bytes;
  if (!of_gpu)
    return {allocated(agent, first), registered(agent, shared_memory(bytes), second, MemoryKind::dram)};
  static const test::GpuBytes one(bytes), other(bytes);
  return {registered(agent, one.bytes(), first, MemoryKind::vram),
          registered(agent, other.bytes(), second, MemoryKind::vram)};
}

Result<void> obey(test::PeerOrder order, Agent& agent, const std::array<Owned, 2>& memory) {
  switch (order) {
    case test::PeerOrder::deregister_first:
      return agent.deregister(memory[0].region.id);
    case test::PeerOrder::deregister_second:
      return agent.deregister(memory[1].region.id);
    case test::PeerOrder::close:
      agent.close();
      return {};
  }
  fail("an unknown order");
}

}  // namespace

// peer NAME BACKEND BYTES SEED [option=value ...]
int main(int argc, char** argv) {
  if (argc < 5) return 2;
  AgentOptions options;
  options.backends = {argv[2]};
  for (int i = 5; i < argc; ++i) {
    const std::string option = argv[i];
    const auto equals = option.find('=');
    options.options[option.substr(0, equals)] = option.substr(equals + 1);
  }
  auto agent = Agent::open(argv[1], options);
  if (!agent) fail(agent.error());
  const std::size_t bytes = std::strtoull(argv[3], nullptr, 10);
  const std::uint64_t seed = std::strtoull(argv[4], nullptr, 10);
  std::string pattern(bytes, '\0');
  test::fill_pattern(std::as_writable_bytes(std::span(pattern)), seed);
  const auto memory = make_memory(*agent, argv[2] == std::string_view(test::gpu_backend), pattern);
  auto metadata = agent->export_metadata();
  if (!metadata) fail(metadata.error());
  test::PeerGreeting greeting;
  greeting.metadata_bytes = metadata->size();
  greeting.memory = {memory[0].place, memory[1].place};
  if (!write_all(&greeting, sizeof greeting) || !write_all(metadata->data(), metadata->size())) return 1;
  for (test::PeerOrder order; read_all(&order, sizeof order);) {
    if (auto done = obey(order, *agent, memory); !done) fail(done.error());
    if (!write_all(&test::peer_done, sizeof test::peer_done)) return 1;
  }
  return 0;
}
