// SPDX-License-Identifier: Apache-2.0
// One process pushes new weights to eight others. Each tells by a few bytes where its weights lie, and counts
// the arrival; none of them asks, copies or confirms. docs/fabric.md explains the calls.
#include <headrace/fabric.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

using namespace headrace;

namespace {

constexpr int workers = 8;
constexpr int pushes = 3;
constexpr std::size_t weights = 200'000;  // floats of each worker
constexpr auto limit = std::chrono::seconds(60);
constexpr Immediate weights_are_there{1, 0};
constexpr std::size_t bytes_of_all = workers * weights * sizeof(float);

int fail(const Error& error) {
  std::fprintf(stderr, "%s: %s\n", std::string(code_name(error.code)).c_str(), error.message.c_str());
  return 1;
}

float weight(int push, std::size_t index) {
  return static_cast<float>(push * 1000 + static_cast<int>(index % 997));
}

/// Takes weights until all pushes have come. `out`: a pipe to the trainer.
int run_worker(int number, int out) {
  auto fabric = Fabric::open();  // the network cards near this thread's CPU
  if (!fabric) return fail(fabric.error());
  std::vector<float> mine(weights);
  const auto memory = fabric->register_memory(
      {.address = mine.data(), .length_bytes = mine.size() * sizeof(float)}, FabricAccess::writable);
  if (!memory) return fail(memory.error());
  const auto arrivals = fabric->expect(weights_are_there, 1);
  if (!arrivals) return fail(arrivals.error());

  const std::string descriptor = memory->descriptor().bytes();
  const auto length = static_cast<std::uint8_t>(descriptor.size());
  if (::write(out, &length, 1) != 1 || ::write(out, descriptor.data(), length) != length) return 1;
  for (int push = 1; push <= pushes; ++push) {
    if (!arrivals->wait(limit).ok()) return 1;
    for (std::size_t i = 0; i < weights; ++i)
      if (mine[i] != weight(push, static_cast<std::size_t>(number) * weights + i)) return 1;
    if (::write(out, "k", 1) != 1) return 1;  // the next push may overwrite them
  }
  return 0;
}

Result<FabricDescriptor> read_descriptor(int in) {
  std::uint8_t length = 0;
  std::string bytes(255, '\0');
  if (::read(in, &length, 1) != 1 || ::read(in, bytes.data(), length) != length)
    return Error{Code::peer_lost, "a worker has ended"};
  return FabricDescriptor::from_bytes(bytes.substr(0, length));
}

int run_trainer(const std::array<int, workers>& from_workers) {
  auto fabric = Fabric::open();
  if (!fabric) return fail(fabric.error());
  std::vector<float> all(workers * weights);
  const auto source = fabric->register_memory({.address = all.data(), .length_bytes = bytes_of_all});
  if (!source) return fail(source.error());
  std::vector<FabricTarget> targets;
  for (const int in : from_workers) {
    auto to = read_descriptor(in);
    if (!to) return fail(to.error());
    const std::uint64_t begin = targets.size() * weights * sizeof(float);
    targets.push_back({*to, begin, 0, weights * sizeof(float)});
  }

  FabricPost post;
  post.immediate = weights_are_there;
  post.timeout = limit;
  for (int push = 1; push <= pushes; ++push) {
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = weight(push, i);
    const auto work = fabric->scatter(*source, targets, post);
    if (!work) return fail(work.error());
    if (!work->wait().ok()) return fail(work->error());
    char taken = 0;
    for (const int in : from_workers)
      if (::read(in, &taken, 1) != 1) return 1;
  }
  std::printf("pushed %zu bytes to %d workers, %d times\n", bytes_of_all, workers, pushes);
  return 0;
}

}  // namespace

int main() {
  std::array<int, workers> from_workers{};
  for (int number = 0; number < workers; ++number) {
    int ends[2];
    if (::pipe(ends) != 0) return 1;
    if (::fork() == 0) ::_exit(run_worker(number, ends[1]));  // before any fabric: a child opens its own
    ::close(ends[1]);
    from_workers[static_cast<std::size_t>(number)] = ends[0];
  }
  int failed = run_trainer(from_workers);
  for (const int in : from_workers) ::close(in);
  int status = 0;
  while (::wait(&status) > 0)
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) failed = 1;
  return failed;
}
