// SPDX-License-Identifier: Apache-2.0
// A peer in a process of its own: opens an agent, registers memory with a known pattern, writes a
// PeerGreeting and its metadata to standard output, imports the metadata that comes on standard input, and
// serves until its input ends.
#include "../peer_greeting.hpp"

#include "support/plugin_memory.hpp"

#include <headrace/headrace.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>
#include <string>

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
struct SharedMemory {
  explicit SharedMemory(std::size_t length) {
    place.descriptor = ::memfd_create("system_peer", MFD_CLOEXEC);
    void* const at = ::ftruncate(place.descriptor, static_cast<off_t>(length)) == 0
                         ? ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, place.descriptor, 0)
                         : MAP_FAILED;
    if (at == MAP_FAILED) fail("no memory for the test to see");
    bytes = {static_cast<std::byte*>(at), length};
  }
  Place place;
  std::span<std::byte> bytes;
};

/// The file that is mapped at this address, among those that this process has open.
Place find_place(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, offset = 0, inode = 0;
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
  fail("the memory of `allocate` is no file that is open here");
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
  auto allocated = agent->allocate(bytes / 2);
  if (!allocated) fail(allocated.error());
  const SharedMemory plain(bytes / 2);
  std::string pattern(bytes, '\0');
  test::fill_pattern(std::as_writable_bytes(std::span(pattern)), seed);
  std::memcpy(allocated->bytes().data(), pattern.data(), bytes / 2);
  std::memcpy(plain.bytes.data(), pattern.data() + bytes / 2, bytes / 2);
  // Last, since for the thread sanitizer a registration orders what was written before what the backend's
  // threads send.
  auto merely = agent->register_memory({plain.bytes.data(), plain.bytes.size()});
  if (!merely) fail(merely.error());
  auto metadata = agent->export_metadata();
  if (!metadata) fail(metadata.error());
  test::PeerGreeting greeting;
  greeting.metadata_bytes = metadata->size();
  greeting.memory = {find_place(allocated->bytes().data()), plain.place};
  if (!write_all(&greeting, sizeof greeting) || !write_all(metadata->data(), metadata->size())) return 1;
  std::uint64_t theirs = 0;
  while (read_all(&theirs, sizeof theirs)) {
    std::string bytes_in(theirs, '\0');
    if (!read_all(bytes_in.data(), bytes_in.size())) break;
    if (auto imported = agent->import_metadata(bytes_in); !imported) fail(imported.error());
  }
  return 0;
}
