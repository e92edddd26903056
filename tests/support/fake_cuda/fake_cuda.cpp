// SPDX-License-Identifier: Apache-2.0
#include "support/fake_cuda.hpp"

#include "support/fake_cuda/driver.hpp"
#include "support/fake_cuda/entries.hpp"

#include <mutex>
#include <utility>

namespace headrace::cuda {

FakeCuda::FakeCuda(std::vector<FakeGpu> gpus) : driver_(std::make_unique<FakeDriver>(std::move(gpus))) {
  before_ = std::exchange(FakeDriver::current(), driver_.get());
}
FakeCuda::~FakeCuda() {
  driver_.reset();
  FakeDriver::current() = before_;
}

Result<DriverTable> FakeCuda::load() { return bind_driver(lookup()); }
SymbolLookup FakeCuda::lookup() { return &find_symbol; }

void FakeCuda::set_version(int version) { driver_->version = version; }
void FakeCuda::lack(const std::string& symbol) { driver_->lacking.insert(symbol); }
void FakeCuda::fail(const std::string& symbol, Outcome outcome, int nth, int times) {
  const std::scoped_lock lock(driver_->mutex);
  driver_->calls[symbol].script({nth - 1, times, outcome});
}
void FakeCuda::forbid_peer_access(int from, int to) {
  const std::scoped_lock lock(driver_->mutex);
  driver_->contexts.forbid_access(from, to);
}
void FakeCuda::allow_peer_access(int from, int to) {
  const std::scoped_lock lock(driver_->mutex);
  driver_->contexts.allow_access(from, to);
}
void FakeCuda::set_process_number(int number) {
  const std::scoped_lock lock(driver_->mutex);
  driver_->process_number = number;
}
void FakeCuda::hold() {
  const std::scoped_lock lock(driver_->mutex);
  driver_->streams.hold();
}
void FakeCuda::release() {
  const std::scoped_lock lock(driver_->mutex);
  driver_->streams.release();
}
void FakeCuda::step(int count) {
  const std::scoped_lock lock(driver_->mutex);
  driver_->streams.step(count);
}
void FakeCuda::queue(Stream stream, std::function<bool()> work) {
  const std::scoped_lock lock(driver_->mutex);
  static_cast<void>(driver_->enqueue(stream, std::move(work)));
}
void FakeCuda::add_kernel(const std::string& name, std::size_t bytes,
                          std::function<Outcome(const void*)> run) {
  add_staying_kernel(name, bytes, [run = std::move(run)](const void* argument) -> Staying {
    return [run, argument] { return std::optional(run(argument)); };
  });
}
void FakeCuda::add_staying_kernel(const std::string& name, std::size_t bytes,
                                  std::function<Staying(const void*)> launch) {
  const std::scoped_lock lock(driver_->mutex);
  driver_->modules.kernels[name] = {bytes, std::move(launch)};
}
int FakeCuda::calls(const std::string& symbol) const {
  const std::scoped_lock lock(driver_->mutex);
  const auto found = driver_->calls.find(symbol);
  return found == driver_->calls.end() ? 0 : found->second.count();
}
// Kernels call this from inside the driver, which then holds the lock.
bool FakeCuda::reachable(std::uint64_t address, std::size_t bytes) const {
  return driver_->pieces.reachable(address, bytes);
}
FakeCuda::Live FakeCuda::live() const {
  const std::scoped_lock lock(driver_->mutex);
  using Kind = Piece::Kind;
  const FakePieces& pieces = driver_->pieces;
  return {.contexts = driver_->contexts.retained(),
          .streams = driver_->streams.count() - driver_->contexts.gpu_count(),  // default streams stay
          .events = driver_->events.count(),
          .modules = driver_->modules.loaded.count(),
          .graphs = driver_->graphs.count() + driver_->graph_execs.count(),
          .allocations = pieces.count(Kind::device),
          .pinned = pieces.count(Kind::pinned) + pieces.count(Kind::registered),
          .imports = pieces.count(Kind::imported),
          .physical = driver_->physical.count(),
          .reservations = driver_->physical.reservation_count(),
          .mappings = pieces.count(Kind::mapped)};
}

}  // namespace headrace::cuda
