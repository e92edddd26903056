// SPDX-License-Identifier: Apache-2.0
// torchcomms' RdmaTransport on Headrace: one process writes to the memory of another and notifies it, without
// an RDMA device. docs/compat-torchcomms-transport.md explains the calls.
#include <headrace/compat/rdma_transport.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

using namespace headrace::compat;

namespace {

constexpr std::size_t count = 100'000;

// URLs and keys travel by any way that the program has. Here it is a pair of pipes.
void tell(int to, const std::string& text) {
  const auto length = static_cast<std::uint16_t>(text.size());
  if (::write(to, &length, 2) != 2 || ::write(to, text.data(), length) != length) std::exit(1);
}

std::string hear(int from) {
  std::uint16_t length = 0;
  if (::read(from, &length, 2) != 2) std::exit(1);
  std::string text(length, '\0');
  if (::read(from, text.data(), length) != length) std::exit(1);
  return text;
}

std::vector<int> numbers() {
  std::vector<int> all(count);
  std::iota(all.begin(), all.end(), 1);
  return all;
}

int receive(int from_sender, int to_sender) {
  RdmaTransport transport(0);
  tell(to_sender, transport.bind());
  transport.connect(hear(from_sender));

  std::vector<int> mine(count);
  const RdmaMemory memory(mine.data(), count * sizeof(int), 0);
  tell(to_sender, std::to_string(reinterpret_cast<std::uintptr_t>(mine.data())));
  tell(to_sender, memory.remoteKey());
  if (transport.waitForWrite().get() != commSuccess) return 1;
  return mine == numbers() ? 0 : 1;
}

int send(int from_receiver, int to_receiver) {
  RdmaTransport transport(0);
  tell(to_receiver, transport.bind());
  transport.connect(hear(from_receiver));

  auto mine = numbers();
  const RdmaMemory memory(mine.data(), count * sizeof(int), 0);
  const auto address = std::stoull(hear(from_receiver));
  const RdmaRemoteBuffer remote{reinterpret_cast<void*>(address), memory.length(), hear(from_receiver)};
  const auto result = transport.write(memory.createView(), remote, true, std::chrono::seconds(60)).get();
  std::printf("wrote %zu bytes: %s %s\n", memory.length(), commResultToString(result),
              transport.lastError().c_str());
  return result == commSuccess ? 0 : 1;
}

}  // namespace

int main() {
  int to_receiver[2], to_sender[2];
  if (::pipe(to_receiver) != 0 || ::pipe(to_sender) != 0) return 1;
  const pid_t child = ::fork();  // before any transport
  if (child == 0) ::_exit(receive(to_receiver[0], to_sender[1]));
  const int sent = send(to_sender[0], to_receiver[1]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return sent == 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
