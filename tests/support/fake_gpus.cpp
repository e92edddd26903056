// SPDX-License-Identifier: Apache-2.0
#include "support/fake_gpus.hpp"

#include "backends/cuda_ipc/backend.hpp"
#include "local/backend.hpp"
#include "memory/peer_memory_access.hpp"
#include "support/fake_courier.hpp"
#include "support/fake_kernels.hpp"
#include "support/plugin_instance.hpp"
#include "test_backends/on_gpus.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace headrace::test {
namespace {

constexpr std::size_t memory_bytes = std::size_t{1} << 30;
constexpr std::size_t least_piece_bytes = 64 << 10;
constexpr std::size_t wanted_pieces = 7;  // physical allocations of a segment

using TestBackend = const headrace_backend_v1* (*)(const char* name, const cuda::DriverTable*,
                                                   const headrace_kernels_v1*);

/// Of the plugin of tests/test_backends that has forms of tcp.
const headrace_backend_v1* load_tcp(const char* name, const cuda::DriverTable& driver) {
  const std::string file = fmt::format("{}/test_backends/tcp.so", HEADRACE_TEST_BIN_DIR);
  void* const object = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) throw std::runtime_error(fmt::format("load {}: {}", file, ::dlerror()));
  const auto backend = reinterpret_cast<TestBackend>(::dlsym(object, "headrace_test_backend"));
  if (backend == nullptr)
    throw std::runtime_error(fmt::format("{} does not export headrace_test_backend", file));
  return backend(name, &driver, &cuda::fake_kernels_table());
}

struct CudaIpcOnGpus : OnGpus<cuda_ipc::CudaIpcBackend> {};

/// The name differs from that of `local` over the machine's own GPUs, which moves host memory without one.
struct LocalOnGpus : OnGpus<local::LocalBackend> {
  static constexpr const char* name = "local_gpu";
};

/// A linked-in backend over the GPUs of this process.
template <class OnGpus>
const headrace_backend_v1* over(const cuda::DriverTable& driver) {
  OnGpus::use(driver, cuda::fake_kernels_table());
  return plugin::table<OnGpus>();
}

void must(cuda::Outcome outcome, const char* what) {
  if (outcome != cuda::Outcome::success)
    throw std::runtime_error(fmt::format("{}: {}", what, static_cast<int>(outcome)));
}

/// Makes a context current while this object lives.
class Current {
 public:
  Current(const cuda::DriverTable& driver, int device) : driver_(driver), device_(device) {
    cuda::Context context = nullptr;
    must(driver_.device_primary_ctx_retain(&context, device), "retain a context");
    must(driver_.ctx_push_current(context), "make a context current");
  }
  ~Current() {
    cuda::Context ignored = nullptr;
    (void)driver_.ctx_pop_current(&ignored);
    (void)driver_.device_primary_ctx_release(device_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const cuda::DriverTable& driver_;
  int device_;
};

}  // namespace

namespace {

/// Copies without the thread sanitizer. Another process fills these pages and then reports it over a socket,
/// which the sanitizer does not see. The suites unit_gpu and backend_cuda_ipc check courier and backends with
/// the sanitizer and without FakeGpus.
void copy_unjudged(void* target, const void* source, std::size_t bytes) {
  const PeerMemoryAccess access;
  std::memcpy(target, source, bytes);
}

}  // namespace

FakeGpus::FakeGpus() : driver_({{.memory_bytes = memory_bytes}, {.memory_bytes = memory_bytes}}) {
  cuda::add_reference_kernels(driver_);
  cuda::add_reference_courier(driver_, copy_unjudged);
  table_ = driver_.load().value();
}

FakeGpus& FakeGpus::of_this_process() {
  static auto* const gpus =
      new FakeGpus;  // never destroyed: threads may still access its memory when the process ends
  return *gpus;
}

void FakeGpus::offer_backends() {
  // Each is given the GPUs once: instances read them at any time.
  offer_plugin("cuda_ipc", [] {
    static const headrace_backend_v1* const table = over<CudaIpcOnGpus>(of_this_process().table_);
    return table;
  });
  offer_plugin("local_gpu", [] {
    static const headrace_backend_v1* const table = over<LocalOnGpus>(of_this_process().table_);
    return table;
  });
  offer_plugin("local", [] { return plugin::table<local::LocalBackend>(); });
  for (const char* const name : {"tcp_gpu", "tcp_gpu_faulty", "tcp_faulty"})
    offer_plugin(name, [name] { return load_tcp(name, of_this_process().table_); });
}

MemorySource::Taken FakeGpus::take_plain(std::size_t length_bytes) {
  const Current current(table_, device_);
  cuda::Address address = 0;
  must(table_.mem_alloc(&address, std::max<std::size_t>(length_bytes, 1)), "allocate GPU memory");
  auto* const base = reinterpret_cast<std::byte*>(address);
  return {base,
          std::shared_ptr<void>(base, [driver = table_, address](void*) { (void)driver.mem_free(address); })};
}

MemorySource::Taken FakeGpus::take_shared(std::size_t length_bytes) {
  const Current current(table_, device_);
  const std::size_t piece_bytes = (length_bytes / wanted_pieces / least_piece_bytes + 1) * least_piece_bytes;
  const std::size_t total = (length_bytes + piece_bytes - 1) / piece_bytes * piece_bytes;
  cuda::Address address = 0;
  must(table_.mem_address_reserve(&address, total, 0, 0, 0), "reserve addresses");
  cuda::AllocationProperties properties;
  properties.handle_types = cuda::HandleType::file_descriptor;
  properties.location = {cuda::LocationType::device, device_};
  for (std::size_t at = 0; at < total; at += piece_bytes) {
    cuda::PhysicalMemory memory = 0;
    must(table_.mem_create(&memory, piece_bytes, &properties, 0), "make a piece of memory");
    must(table_.mem_map(address + at, piece_bytes, 0, memory, 0), "map a piece of memory");
    must(table_.mem_release(memory), "let go of a piece of memory");
  }
  const cuda::AccessDescription access{properties.location, cuda::AccessFlags::read_write};
  must(table_.mem_set_access(address, total, &access, 1), "let the GPU reach its memory");
  auto* const base = reinterpret_cast<std::byte*>(address);
  return {base, std::shared_ptr<void>(base, [driver = table_, address, total](void*) {
            (void)driver.mem_unmap(address, total);
            (void)driver.mem_address_free(address, total);
          })};
}

}  // namespace headrace::test
