// SPDX-License-Identifier: Apache-2.0
// A peer in a process of its own. It opens an agent, registers memory with a known pattern, writes its
// metadata to standard output (length, bytes), imports the metadata from standard input, and serves until its
// input ends.
#include <headrace/headrace.hpp>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

using namespace headrace;

namespace {

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

[[noreturn]] void fail(const Error& error) {
  std::fprintf(stderr, "peer: %s\n", error.message.c_str());
  std::exit(1);
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
  auto registered = agent->allocate(bytes / 2);
  if (!registered) fail(registered.error());
  std::string plain(bytes / 2, '\0');
  // The pattern that the tests expect: byte i of the two contiguous regions is a function of seed and i.
  for (std::size_t i = 0; i < bytes; ++i) {
    const auto value = static_cast<unsigned char>((i * 2654435761u + seed * 40503u) >> 11);
    if (i < bytes / 2) {
      registered->bytes()[i] = std::byte{value};
    } else {
      plain[i - bytes / 2] = static_cast<char>(value);
    }
  }
  // The registration comes last: for the thread sanitizer it orders the writes above before the sends of the
  // backend's threads.
  auto merely = agent->register_memory({plain.data(), plain.size()});
  if (!merely) fail(merely.error());
  auto metadata = agent->export_metadata();
  if (!metadata) fail(metadata.error());
  const std::uint64_t length = metadata->size();
  if (!write_all(&length, sizeof length) || !write_all(metadata->data(), metadata->size())) return 1;
  std::uint64_t theirs = 0;
  while (read_all(&theirs, sizeof theirs)) {
    std::string bytes_in(theirs, '\0');
    if (!read_all(bytes_in.data(), bytes_in.size())) break;
    if (auto imported = agent->import_metadata(bytes_in); !imported) fail(imported.error());
  }
  return 0;
}
