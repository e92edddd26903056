// SPDX-License-Identifier: Apache-2.0
#include "support/fake_cuda.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <type_traits>

namespace headrace::cuda {

/// One piece of work of a stream. Returns false while it waits for something.
using Work = std::function<bool()>;

struct ContextObject {
  int device = 0;
  int retained = 0;
  Outcome broken = Outcome::success;  // the error of a kernel that broke the context
  StreamObject* default_stream = nullptr;
};

struct StreamObject {
  ContextObject* context = nullptr;
  std::uint64_t serial = 0;
  std::deque<Work> queue;
  GraphObject* capture = nullptr;
};

struct EventObject {
  std::uint64_t recorded = 0;  // how many times it has been recorded on a stream
  std::uint64_t reached = 0;   // the last of these records that has run
  std::chrono::steady_clock::time_point when;
};

struct ModuleObject {
  std::vector<std::unique_ptr<FunctionObject>> functions;
};

struct FunctionObject {
  std::string name;
  std::map<FunctionAttribute, int> attributes;
};

struct GraphObject {
  std::vector<Work> works;
  CaptureMode mode = CaptureMode::global;  // of the capture that makes the graph
  std::thread::id captured_by;             // the thread of that capture
  bool spoilt = false;                     // whether a forbidden call has invalidated it
};

struct GraphExecObject {
  std::vector<Work> works;
};

namespace {

constexpr std::size_t page_bytes = 4096;
constexpr std::size_t granularity_bytes = 65536;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }
void* pointer(Address address) { return reinterpret_cast<void*>(address); }
Address address_of(const void* p) { return reinterpret_cast<Address>(p); }

enum class Kind { device, pinned, registered, imported, mapped };

/// Memory that GPUs may access.
struct Piece {
  std::size_t bytes = 0;
  std::size_t mapped_bytes = 0;
  Kind kind = Kind::device;
  int device = 0;
  int fd = -1;
  std::uint64_t id = 0;
  PhysicalMemory physical = 0;
  int opened = 0;     // imports: how many times
  int opened_by = 0;  // imports: the GPU whose context opened it
  bool accessible = true;
};

struct Physical {
  int fd = -1;  // the name of the file says which GPU it belongs to
  std::size_t bytes = 0;
  AllocationProperties properties;
  int references = 0;
};

/// The content of the 64 bytes of an IPC handle: the owner, and which allocation.
struct HandleText {
  std::uint64_t magic, id, bytes;
  std::int32_t number;  // the owner's process id in its PID namespace
  std::int32_t pid, fd, device;
};
static_assert(sizeof(HandleText) <= sizeof(IpcMemoryHandle));
constexpr std::uint64_t handle_magic = 0x4852'4641'4b45'4331;

std::string file_name(std::uint64_t id, int device) {
  return "headrace-fake-cuda-" + std::to_string(id) + "-gpu-" + std::to_string(device);
}

/// The name of the file behind a descriptor; empty if there is none.
std::string name_behind(const std::string& descriptor) {
  char name[128] = {};
  return ::readlink(descriptor.c_str(), name, sizeof name - 1) < 0 ? std::string() : std::string(name);
}

/// The GPU that a file of the fake belongs to; none for other files.
std::optional<int> device_of_file(int fd) {
  const std::string name = name_behind("/proc/self/fd/" + std::to_string(fd));
  const auto at = name.find("-gpu-");
  if (name.find("headrace-fake-cuda-") == std::string::npos || at == std::string::npos) return std::nullopt;
  return std::atoi(name.c_str() + at + std::strlen("-gpu-"));
}

struct Script {
  int skip = 0;
  int times = 0;
  Outcome outcome = Outcome::unknown;
};

struct Calls {
  int count = 0;
  std::deque<Script> scripts;
};

}  // namespace

struct FakeDriver {
  explicit FakeDriver(std::vector<FakeGpu> machine) : gpus(std::move(machine)) {
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      contexts.push_back(std::make_unique<ContextObject>());
      contexts.back()->device = static_cast<int>(i);
      contexts.back()->default_stream = new_stream(contexts.back().get());
    }
    next_id = static_cast<std::uint64_t>(::getpid()) << 32;
    clockwork = std::jthread([this](const std::stop_token& stop) { run_what_waits(stop); });
  }
  ~FakeDriver() {
    clockwork.request_stop();
    work_waits.notify_all();
    clockwork.join();
    for (auto& [address, piece] : pieces)
      if (piece.kind != Kind::registered) ::munmap(pointer(address), piece.mapped_bytes);
    for (auto& [address, piece] : pieces)
      if (piece.fd >= 0) ::close(piece.fd);
    for (auto& [handle, memory] : physical) ::close(memory.fd);
    for (auto& [address, bytes] : reservations) ::munmap(pointer(address), bytes);
    for (auto& [bytes, address] : freed) ::munmap(pointer(address), round_up(bytes, page_bytes));
  }

  static std::uint64_t next_driver() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
  static FakeDriver*& current() {
    static FakeDriver* driver = nullptr;
    return driver;
  }

  const std::uint64_t serial = next_driver();
  std::vector<FakeGpu> gpus;
  std::vector<std::unique_ptr<ContextObject>> contexts;
  int version = 13000;
  int process_number = ::getpid();
  bool started = false;
  std::set<std::string> lacking;
  std::map<std::string, Calls> calls;  // of each function and kernel
  std::set<std::pair<int, int>> no_peer_access;
  std::set<std::pair<int, int>> peer_access;

  mutable std::mutex mutex;
  std::condition_variable_any changed;     // for calls that wait
  std::condition_variable_any work_waits;  // for the thread that polls
  std::jthread clockwork;
  bool held = false;
  int steps = 0;  // while held: how many pieces of work may run

  std::map<std::thread::id, std::vector<ContextObject*>> current_contexts;
  std::uint64_t next_serial = 1;
  std::uint64_t next_id = 1;
  std::map<std::uint64_t, std::unique_ptr<StreamObject>> streams;
  std::set<EventObject*> events;
  std::set<ModuleObject*> modules;
  std::set<GraphObject*> graphs;
  std::set<GraphExecObject*> graph_execs;
  std::map<std::thread::id, CaptureMode> thread_modes;  // `global` for a thread that has set none
  std::map<Address, Piece> pieces;
  std::multimap<std::size_t, Address> freed;  // addresses that the next allocation of this size gets again
  std::map<PhysicalMemory, Physical> physical;
  std::map<Address, std::size_t> reservations;
  struct Kernel {
    std::size_t bytes = 0;
    std::function<FakeCuda::Staying(const void*)> launch;
  };
  std::map<std::string, Kernel> kernels;

  // ---- how work runs

  StreamObject* new_stream(ContextObject* context) {
    auto stream = std::make_unique<StreamObject>();
    stream->context = context;
    stream->serial = next_serial++;
    StreamObject* const raw = stream.get();
    streams[raw->serial] = std::move(stream);
    return raw;
  }

  bool run_front(StreamObject& stream) {
    if (stream.queue.empty() || (held && steps == 0)) return false;
    if (stream.context->broken != Outcome::success) {
      stream.queue.clear();
      return true;
    }
    if (!stream.queue.front()()) return false;
    if (held) --steps;
    stream.queue.pop_front();
    return true;
  }

  void pump() {
    for (bool ran = true; ran;) {
      ran = false;
      for (auto& [stream_serial, stream] : streams) {
        while (run_front(*stream)) ran = true;
      }
    }
    changed.notify_all();
    // The thread that polls is asleep but for this: woken at each call it would take half of the driver's
    // time.
    if (anything_waits()) work_waits.notify_one();
  }

  [[nodiscard]] bool anything_waits() const {
    return !held &&
           std::ranges::any_of(streams, [](const auto& entry) { return !entry.second->queue.empty(); });
  }

  // Host memory that a stream waits for changes without a call to the driver, so this thread polls.
  void run_what_waits(const std::stop_token& stop) {
    std::unique_lock lock(mutex);
    while (work_waits.wait(lock, stop, [this] { return anything_waits(); })) {
      pump();
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      lock.lock();
    }
  }

  StreamObject* resolve(Stream stream) {
    if (stream != nullptr && stream != legacy_stream) return stream;
    ContextObject* const context = top();
    return context == nullptr ? nullptr : context->default_stream;
  }

  Outcome enqueue(Stream handle, Work work) {
    StreamObject* const stream = resolve(handle);
    if (stream == nullptr) return Outcome::invalid_context;
    if (stream->context->broken != Outcome::success) return stream->context->broken;
    if (stream->capture != nullptr) {
      if (stream->capture->spoilt) return Outcome::stream_capture_invalidated;
      stream->capture->works.push_back(std::move(work));
      return Outcome::success;
    }
    stream->queue.push_back(std::move(work));
    pump();
    return Outcome::success;
  }

  static std::unique_lock<std::mutex>*& call_lock() {
    thread_local std::unique_lock<std::mutex>* lock = nullptr;
    return lock;
  }

  template <class Condition>
  void wait_for(Condition condition) {
    changed.wait(*call_lock(), condition);
  }

  // ---- entry and exit of every function

  /// Calls that cannot be part of a graph. The rule is documented for cuMemAlloc and was observed for
  /// cuEventQuery; for the others it is assumed.
  static bool is_unsafe_in_captures(const std::string& symbol) {
    static const std::set<std::string> unsafe{"cuMemAlloc",          "cuMemFree",
                                              "cuMemHostAlloc",      "cuMemFreeHost",
                                              "cuMemHostRegister",   "cuEventQuery",
                                              "cuEventSynchronize",  "cuStreamQuery",
                                              "cuStreamSynchronize", "cuCtxSynchronize",
                                              "cuModuleLoadData",    "cuIpcOpenMemHandle",
                                              "cuIpcCloseMemHandle", "cuCtxEnablePeerAccess"};
    return unsafe.contains(symbol);
  }
  /// Whether an unsafe call is forbidden to this thread now. If so, it invalidates the captures that forbid
  /// it.
  bool disturbs_captures(bool unsafe) {
    if (!unsafe || thread_modes[std::this_thread::get_id()] == CaptureMode::relaxed) return false;
    bool disturbed = false;
    for (auto& [stream_serial, stream] : streams) {
      if (stream->capture == nullptr || stream->capture->mode == CaptureMode::relaxed) continue;
      const bool own = stream->capture->captured_by == std::this_thread::get_id();
      const bool minds = own || (stream->capture->mode == CaptureMode::global &&
                                 thread_modes[std::this_thread::get_id()] == CaptureMode::global);
      stream->capture->spoilt = stream->capture->spoilt || minds;
      disturbed = disturbed || minds;
    }
    return disturbed;
  }
  /// Counts a call; the outcome that the script has for it.
  static std::optional<Outcome> scripted(Calls& calls) {
    ++calls.count;
    if (calls.scripts.empty()) return std::nullopt;
    Script& script = calls.scripts.front();
    if (script.skip > 0) {
      --script.skip;
      return std::nullopt;
    }
    const Outcome outcome = script.outcome;
    if (--script.times == 0) calls.scripts.pop_front();
    return outcome;
  }

  // ---- contexts

  ContextObject* top() {
    auto& stack = current_contexts[std::this_thread::get_id()];
    return stack.empty() ? nullptr : stack.back();
  }
  [[nodiscard]] bool is_device(Device device) const {
    return device >= 0 && static_cast<std::size_t>(device) < gpus.size();
  }

  // ---- the functions, in the table's order

  Outcome init(unsigned) {
    started = true;
    return gpus.empty() ? Outcome::no_device : Outcome::success;
  }
  Outcome driver_get_version(int* out) {
    *out = version;
    return Outcome::success;
  }
  Outcome get_error_name(Outcome outcome, const char** text) {
    static const std::map<Outcome, const char*> names{
        {Outcome::success, "CUDA_SUCCESS"},
        {Outcome::invalid_value, "CUDA_ERROR_INVALID_VALUE"},
        {Outcome::out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY"},
        {Outcome::no_device, "CUDA_ERROR_NO_DEVICE"},
        {Outcome::invalid_device, "CUDA_ERROR_INVALID_DEVICE"},
        {Outcome::invalid_image, "CUDA_ERROR_INVALID_IMAGE"},
        {Outcome::no_binary_for_gpu, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
        {Outcome::peer_access_unsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
        {Outcome::illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {Outcome::not_supported, "CUDA_ERROR_NOT_SUPPORTED"},
        {Outcome::system_driver_mismatch, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
        {Outcome::unknown, "CUDA_ERROR_UNKNOWN"}};
    const auto found = names.find(outcome);
    *text = found == names.end() ? "CUDA_ERROR_OF_THE_FAKE" : found->second;
    return Outcome::success;
  }
  Outcome get_error_string(Outcome outcome, const char** text) {
    static const std::map<Outcome, const char*> words{
        {Outcome::out_of_memory, "out of memory"},
        {Outcome::invalid_value, "invalid argument"},
        {Outcome::invalid_image, "device kernel image is invalid"},
        {Outcome::no_binary_for_gpu, "no kernel image is available for execution on the device"},
        {Outcome::system_driver_mismatch, "system has unsupported display driver / cuda driver combination"}};
    const auto found = words.find(outcome);
    *text = found == words.end() ? "scripted failure" : found->second;
    return Outcome::success;
  }
  Outcome device_get_count(int* count) {
    *count = static_cast<int>(gpus.size());
    return Outcome::success;
  }
  Outcome device_get(Device* device, int ordinal) {
    if (!is_device(ordinal)) return Outcome::invalid_device;
    *device = ordinal;
    return Outcome::success;
  }
  Outcome device_get_name(char* name, int capacity, Device device) {
    if (!is_device(device)) return Outcome::invalid_device;
    std::snprintf(name, static_cast<std::size_t>(capacity), "%s",
                  gpus[static_cast<std::size_t>(device)].name.c_str());
    return Outcome::success;
  }
  Outcome device_get_uuid(Uuid* uuid, Device device) {
    if (!is_device(device)) return Outcome::invalid_device;
    for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<unsigned char>(16 * (device + 1) + i);
    return Outcome::success;
  }
  Outcome device_get_attribute(int* value, DeviceAttribute attribute, Device device) {
    if (!is_device(device)) return Outcome::invalid_device;
    const FakeGpu& gpu = gpus[static_cast<std::size_t>(device)];
    switch (attribute) {
      case DeviceAttribute::multiprocessors:
        *value = gpu.multiprocessors;
        break;
      case DeviceAttribute::compute_capability_major:
        *value = gpu.major;
        break;
      case DeviceAttribute::compute_capability_minor:
        *value = gpu.minor;
        break;
      case DeviceAttribute::virtual_memory_management:
      case DeviceAttribute::handle_type_file_descriptor:
        *value = gpu.virtual_memory ? 1 : 0;
        break;
      case DeviceAttribute::unified_addressing:
      case DeviceAttribute::can_map_host_memory:
        *value = 1;
        break;
      case DeviceAttribute::async_engines:
        *value = 3;
        break;
      case DeviceAttribute::max_threads_per_block:
        *value = 1024;
        break;
      case DeviceAttribute::pci_bus:
        *value = device + 1;
        break;
      default:
        *value = 0;
        break;
    }
    return Outcome::success;
  }
  Outcome device_total_mem(std::size_t* bytes, Device device) {
    if (!is_device(device)) return Outcome::invalid_device;
    *bytes = gpus[static_cast<std::size_t>(device)].memory_bytes;
    return Outcome::success;
  }
  Outcome device_get_pci_bus_id(char* text, int capacity, Device device) {
    if (!is_device(device)) return Outcome::invalid_device;
    std::snprintf(text, static_cast<std::size_t>(capacity), "0000:%02x:00.0", device + 1);
    return Outcome::success;
  }
  Outcome device_can_access_peer(int* can, Device device, Device peer) {
    if (!is_device(device) || !is_device(peer)) return Outcome::invalid_device;
    *can = device != peer && !no_peer_access.contains({device, peer}) ? 1 : 0;
    return Outcome::success;
  }
  Outcome device_primary_ctx_retain(Context* context, Device device) {
    if (!is_device(device)) return Outcome::invalid_device;
    *context = contexts[static_cast<std::size_t>(device)].get();
    ++(*context)->retained;
    return Outcome::success;
  }
  Outcome device_primary_ctx_release(Device device) {
    if (!is_device(device)) return Outcome::invalid_device;
    ContextObject& context = *contexts[static_cast<std::size_t>(device)];
    if (context.retained == 0) return Outcome::invalid_context;
    if (--context.retained == 0) context.broken = Outcome::success;
    return Outcome::success;
  }
  Outcome ctx_get_current(Context* context) {
    *context = top();
    return Outcome::success;
  }
  Outcome ctx_set_current(Context context) {
    auto& stack = current_contexts[std::this_thread::get_id()];
    if (!stack.empty()) stack.pop_back();
    if (context != nullptr) stack.push_back(context);
    return Outcome::success;
  }
  Outcome ctx_push_current(Context context) {
    if (context == nullptr || context->retained == 0) return Outcome::invalid_context;
    current_contexts[std::this_thread::get_id()].push_back(context);
    return Outcome::success;
  }
  Outcome ctx_pop_current(Context* context) {
    auto& stack = current_contexts[std::this_thread::get_id()];
    if (stack.empty()) return Outcome::invalid_context;
    if (context != nullptr) *context = stack.back();
    stack.pop_back();
    return Outcome::success;
  }
  Outcome ctx_synchronize() {
    ContextObject* const context = top();
    if (context == nullptr) return Outcome::invalid_context;
    wait_for([&] {
      return std::ranges::all_of(streams, [&](const auto& entry) {
        return entry.second->context != context || entry.second->queue.empty();
      });
    });
    return context->broken;
  }
  Outcome ctx_enable_peer_access(Context peer, unsigned) {
    ContextObject* const context = top();
    if (context == nullptr || peer == nullptr) return Outcome::invalid_context;
    const std::pair<int, int> pair{context->device, peer->device};
    if (context == peer) return Outcome::invalid_device;
    if (no_peer_access.contains(pair)) return Outcome::peer_access_unsupported;
    return peer_access.insert(pair).second ? Outcome::success : Outcome::peer_access_already_enabled;
  }
  Outcome ctx_get_stream_priority_range(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return Outcome::success;
  }
  Outcome stream_create_with_priority(Stream* stream, unsigned, int) {
    if (top() == nullptr) return Outcome::invalid_context;
    *stream = new_stream(top());
    return Outcome::success;
  }
  Outcome stream_destroy(Stream stream) {
    return streams.erase(stream->serial) == 1 ? Outcome::success : Outcome::invalid_handle;
  }
  Outcome stream_query(Stream handle) {
    StreamObject* const stream = resolve(handle);
    if (stream == nullptr) return Outcome::invalid_context;
    if (stream->capture != nullptr) return Outcome::stream_capture_unsupported;
    pump();
    if (stream->context->broken != Outcome::success) return stream->context->broken;
    return stream->queue.empty() ? Outcome::success : Outcome::not_ready;
  }
  Outcome stream_synchronize(Stream handle) {
    StreamObject* const stream = resolve(handle);
    if (stream == nullptr) return Outcome::invalid_context;
    if (stream->capture != nullptr) return Outcome::stream_capture_unsupported;
    wait_for([&] { return stream->queue.empty(); });
    return stream->context->broken;
  }
  Outcome stream_wait_event(Stream stream, Event event, unsigned) {
    const std::uint64_t wanted = event->recorded;
    // Documented: a capture cannot wait for work that was queued outside of it. The fake does not model
    // events inside a capture.
    if (StreamObject* const waiting = resolve(stream); waiting != nullptr && waiting->capture != nullptr) {
      waiting->capture->spoilt = true;
      return Outcome::stream_capture_isolation;
    }
    return enqueue(stream,
                   [this, event, wanted] { return !events.contains(event) || event->reached >= wanted; });
  }
  Outcome stream_get_ctx(Stream handle, Context* context) {
    StreamObject* const stream = resolve(handle);
    if (stream == nullptr) return Outcome::invalid_context;
    *context = stream->context;
    return Outcome::success;
  }
  Outcome stream_is_capturing(Stream handle, CaptureStatus* status) {
    StreamObject* const stream = resolve(handle);
    if (stream == nullptr) return Outcome::invalid_context;
    *status = stream->capture == nullptr ? CaptureStatus::none
              : stream->capture->spoilt  ? CaptureStatus::invalidated
                                         : CaptureStatus::active;
    return Outcome::success;
  }
  Outcome thread_exchange_stream_capture_mode(CaptureMode* mode) {
    std::swap(thread_modes[std::this_thread::get_id()], *mode);
    return Outcome::success;
  }
  Outcome stream_begin_capture(Stream handle, CaptureMode mode) {
    StreamObject* const stream = resolve(handle);
    if (stream == nullptr) return Outcome::invalid_context;
    if (stream->capture != nullptr || stream == stream->context->default_stream)
      return Outcome::stream_capture_unsupported;
    stream->capture = *graphs.insert(new GraphObject{{}, mode, std::this_thread::get_id()}).first;
    return Outcome::success;
  }
  Outcome stream_end_capture(Stream handle, Graph* graph) {
    StreamObject* const stream = resolve(handle);
    if (stream == nullptr || stream->capture == nullptr) return Outcome::illegal_state;
    *graph = std::exchange(stream->capture, nullptr);
    if (!(*graph)->spoilt) return Outcome::success;
    graph_destroy(*graph);
    *graph = nullptr;
    return Outcome::stream_capture_invalidated;
  }
  Outcome graph_instantiate(GraphExec* exec, Graph graph, unsigned long long) {
    *exec = *graph_execs.insert(new GraphExecObject{graph->works}).first;
    return Outcome::success;
  }
  Outcome graph_launch(GraphExec exec, Stream stream) {
    for (const Work& work : exec->works)
      if (const Outcome outcome = enqueue(stream, work); outcome != Outcome::success) return outcome;
    return Outcome::success;
  }
  Outcome graph_exec_destroy(GraphExec exec) {
    if (graph_execs.erase(exec) == 0) return Outcome::invalid_handle;
    delete exec;
    return Outcome::success;
  }
  Outcome graph_destroy(Graph graph) {
    if (graphs.erase(graph) == 0) return Outcome::invalid_handle;
    delete graph;
    return Outcome::success;
  }
  Outcome event_create(Event* event, unsigned) {
    if (top() == nullptr) return Outcome::invalid_context;
    *event = *events.insert(new EventObject).first;
    return Outcome::success;
  }
  Outcome event_destroy(Event event) {
    if (events.erase(event) == 0) return Outcome::invalid_handle;
    delete event;
    return Outcome::success;
  }
  Outcome event_record(Event event, Stream stream) {
    const std::uint64_t number = ++event->recorded;
    return enqueue(stream, [this, event, number] {
      if (events.contains(event)) {
        event->reached = number;
        event->when = std::chrono::steady_clock::now();
      }
      return true;
    });
  }
  Outcome event_query(Event event) {
    pump();
    return event->reached == event->recorded ? Outcome::success : Outcome::not_ready;
  }
  Outcome event_synchronize(Event event) {
    wait_for([&] { return event->reached == event->recorded; });
    return Outcome::success;
  }
  Outcome event_elapsed_time(float* milliseconds, Event from, Event to) {
    if (from->recorded == 0 || to->recorded == 0) return Outcome::invalid_handle;
    if (from->reached != from->recorded || to->reached != to->recorded) return Outcome::not_ready;
    *milliseconds = std::chrono::duration<float, std::milli>(to->when - from->when).count();
    return Outcome::success;
  }

  // ---- memory

  [[nodiscard]] std::size_t used_bytes(int device) const {
    std::size_t bytes = 0;
    for (const auto& [address, piece] : pieces)
      if (piece.kind == Kind::device && piece.device == device) bytes += piece.bytes;
    for (const auto& [handle, memory] : physical)
      if (memory.properties.location.id == device) bytes += memory.bytes;
    return bytes;
  }
  [[nodiscard]] std::map<Address, Piece>::const_iterator piece_with(Address address,
                                                                    std::size_t bytes) const {
    auto found = pieces.upper_bound(address);
    if (found == pieces.begin()) return pieces.end();
    --found;
    const bool inside = address - found->first < found->second.bytes &&
                        found->second.bytes - (address - found->first) >= bytes;
    return inside ? found : pieces.end();
  }
  [[nodiscard]] bool reachable(Address address, std::size_t bytes) const {
    if (bytes == 0) return true;
    // Mappings that touch count as one, as in growing segments.
    while (true) {
      const auto found = piece_with(address, 1);
      if (found == pieces.end() || !found->second.accessible) return false;
      const std::size_t there = found->second.bytes - (address - found->first);
      if (there >= bytes) return true;
      address += there;
      bytes -= there;
    }
  }

  static int new_file(std::uint64_t id, std::size_t bytes, int device) {
    const int fd = ::memfd_create(file_name(id, device).c_str(), MFD_CLOEXEC);
    if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(round_up(bytes, page_bytes))) == 0) return fd;
    std::perror("fake CUDA: memfd");
    std::abort();
  }
  static Address map_file(int fd, std::size_t bytes, Address where) {
    void* const at = ::mmap(pointer(where), round_up(bytes, page_bytes), PROT_READ | PROT_WRITE,
                            MAP_SHARED | (where != 0 ? MAP_FIXED : 0), fd, 0);
    return at == MAP_FAILED ? 0 : address_of(at);
  }
  static void make_unreachable(Address address, std::size_t bytes) {
    if (::mmap(pointer(address), round_up(bytes, page_bytes), PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
      std::abort();  // the memory would stay reachable, and tests would pass that show that it is not
  }

  Address new_piece(std::size_t bytes, Kind kind, int device) {
    Address where = 0;
    if (const auto again = freed.find(bytes); again != freed.end()) {
      where = again->second;
      freed.erase(again);
    }
    Piece piece;
    piece.bytes = bytes;
    piece.mapped_bytes = round_up(bytes, page_bytes);
    piece.kind = kind;
    piece.device = device;
    piece.id = next_id++;
    piece.fd = new_file(piece.id, bytes, device);
    where = map_file(piece.fd, bytes, where);
    std::memset(pointer(where), 0xa5, bytes);  // the content of fresh memory is undefined
    pieces[where] = piece;
    return where;
  }
  Outcome drop_piece(Address address, Kind kind) {
    const auto found = pieces.find(address);
    if (found == pieces.end() || found->second.kind != kind) return Outcome::invalid_value;
    if (found->second.fd >= 0) ::close(found->second.fd);
    make_unreachable(address, found->second.bytes);
    freed.emplace(found->second.bytes, address);
    pieces.erase(found);
    return Outcome::success;
  }

  Outcome mem_get_info(std::size_t* free_bytes, std::size_t* total_bytes) {
    if (top() == nullptr) return Outcome::invalid_context;
    *total_bytes = gpus[static_cast<std::size_t>(top()->device)].memory_bytes;
    *free_bytes = *total_bytes - used_bytes(top()->device);
    return Outcome::success;
  }
  Outcome mem_alloc(Address* address, std::size_t bytes) {
    if (top() == nullptr) return Outcome::invalid_context;
    if (bytes == 0) return Outcome::invalid_value;
    const int device = top()->device;
    if (used_bytes(device) + bytes > gpus[static_cast<std::size_t>(device)].memory_bytes)
      return Outcome::out_of_memory;
    *address = new_piece(bytes, Kind::device, device);
    return Outcome::success;
  }
  Outcome mem_free(Address address) {
    if (address == 0) return Outcome::success;
    // As in the driver, freeing waits for the device.
    wait_for([&] { return !anything_waits() || held; });
    return drop_piece(address, Kind::device);
  }
  Outcome mem_host_alloc(void** address, std::size_t bytes, unsigned) {
    if (top() == nullptr) return Outcome::invalid_context;
    if (bytes == 0) return Outcome::invalid_value;
    *address = pointer(new_piece(bytes, Kind::pinned, top()->device));
    return Outcome::success;
  }
  Outcome mem_free_host(void* address) { return drop_piece(address_of(address), Kind::pinned); }
  Outcome mem_host_register(void* address, std::size_t bytes, unsigned) {
    if (top() == nullptr) return Outcome::invalid_context;
    if (bytes == 0) return Outcome::invalid_value;
    if (piece_with(address_of(address), 1) != pieces.end()) return Outcome::host_memory_already_registered;
    Piece piece;
    piece.bytes = bytes;
    piece.mapped_bytes = 0;
    piece.kind = Kind::registered;
    piece.device = top()->device;
    piece.id = next_id++;
    pieces[address_of(address)] = piece;
    return Outcome::success;
  }
  Outcome mem_host_unregister(void* address) {
    const auto found = pieces.find(address_of(address));
    if (found == pieces.end() || found->second.kind != Kind::registered)
      return Outcome::host_memory_not_registered;
    pieces.erase(found);
    return Outcome::success;
  }
  Outcome mem_host_get_device_pointer(Address* address, void* host, unsigned) {
    const auto found = piece_with(address_of(host), 1);
    if (found == pieces.end() ||
        (found->second.kind != Kind::pinned && found->second.kind != Kind::registered))
      return Outcome::invalid_value;
    *address = address_of(host);
    return Outcome::success;
  }
  Outcome mem_get_address_range(Address* base, std::size_t* bytes, Address inside) {
    const auto found = piece_with(inside, 1);
    // Observed on two H200: memory of another GPU is not found.
    if (found == pieces.end() || top() == nullptr || found->second.device != top()->device)
      return Outcome::not_found;
    if (base != nullptr) *base = found->first;
    if (bytes != nullptr) *bytes = found->second.bytes;
    return Outcome::success;
  }
  Outcome pointer_get_attribute(void* value, PointerAttribute attribute, Address address) {
    const auto found = piece_with(address, 1);
    if (found == pieces.end()) return Outcome::invalid_value;
    const Piece& piece = found->second;
    const bool host = piece.kind == Kind::pinned || piece.kind == Kind::registered;
    const auto put = [&]<class T>(T what) {
      *static_cast<T*>(value) = what;
      return Outcome::success;
    };
    switch (attribute) {
      case PointerAttribute::context:
        return put(Context{contexts[static_cast<std::size_t>(piece.device)].get()});
      case PointerAttribute::memory_type:
        return put(host ? MemoryType::host : MemoryType::device);
      case PointerAttribute::buffer_id:
        return put(static_cast<unsigned long long>(piece.id));
      case PointerAttribute::is_managed:
        return put(0u);
      case PointerAttribute::device_ordinal:
        return put(piece.device);
      case PointerAttribute::is_legacy_ipc_capable:
        return put(piece.kind == Kind::device ? 1u : 0u);
      case PointerAttribute::range_start:
        return put(found->first);
      case PointerAttribute::range_size:
        return put(piece.bytes);
      case PointerAttribute::is_mapped:
        return put(1u);
      case PointerAttribute::allowed_handle_types:
        return put(piece.physical != 0
                       ? static_cast<std::uint64_t>(physical[piece.physical].properties.handle_types)
                       : std::uint64_t{0});
      default:
        return Outcome::invalid_value;
    }
  }
  Outcome pointer_set_attribute(const void*, PointerAttribute, Address address) {
    return piece_with(address, 1) == pieces.end() ? Outcome::invalid_value : Outcome::success;
  }

  /// The driver accepts any host address for a copy. Here any address outside the fake's memory counts as
  /// host memory.
  [[nodiscard]] bool touchable(Address address, std::size_t bytes) const {
    return piece_with(address, 1) == pieces.end() ? address != 0 : reachable(address, bytes);
  }
  Outcome memcpy_async(Address target, Address source, std::size_t bytes, Stream stream) {
    if (!touchable(target, bytes) || !touchable(source, bytes)) return Outcome::invalid_value;
    return enqueue(stream, [target, source, bytes] {
      std::memmove(pointer(target), pointer(source), bytes);
      return true;
    });
  }
  Outcome memcpy_peer_async(Address target, Context, Address source, Context, std::size_t bytes,
                            Stream stream) {
    return memcpy_async(target, source, bytes, stream);
  }
  Outcome memcpy_batch_async(Address* targets, Address* sources, std::size_t* bytes, std::size_t count,
                             CopyAttributes* attributes, std::size_t* first_of_attributes,
                             std::size_t attribute_count, std::size_t* failed, Stream stream) {
    if (stream == nullptr || stream == legacy_stream) return Outcome::invalid_value;  // documented
    if (count == 0 || attribute_count != 1 || *first_of_attributes != 0 ||
        attributes->source_order < SourceOrder::stream || attributes->source_order > SourceOrder::any)
      return Outcome::invalid_value;
    // The driver promises no order, so the fake copies the last first; a caller that relies on an order
    // fails. It is assumed that a batch with a wrong address is refused completely.
    for (std::size_t i = 0; i < count; ++i)
      if (!touchable(targets[i], bytes[i]) || !touchable(sources[i], bytes[i])) {
        *failed = i;
        return Outcome::invalid_value;
      }
    for (std::size_t i = count; i-- > 0;)
      if (const Outcome outcome = memcpy_async(targets[i], sources[i], bytes[i], stream);
          outcome != Outcome::success)
        return outcome;
    return Outcome::success;
  }
  Outcome memcpy_2d_async(const Copy2D* copy, Stream stream) {
    const auto side = [](MemoryType type, const void* host, Address device) {
      return type == MemoryType::host ? address_of(host) : device;
    };
    const Address source = side(copy->source_type, copy->source_host, copy->source_device) +
                           copy->source_y * copy->source_pitch_bytes + copy->source_x_bytes;
    const Address target = side(copy->target_type, copy->target_host, copy->target_device) +
                           copy->target_y * copy->target_pitch_bytes + copy->target_x_bytes;
    for (std::size_t row = 0; row < copy->height; ++row)
      if (!touchable(source + row * copy->source_pitch_bytes, copy->width_bytes) ||
          !touchable(target + row * copy->target_pitch_bytes, copy->width_bytes))
        return Outcome::invalid_value;
    return enqueue(stream, [source, target, copy = *copy] {
      for (std::size_t row = 0; row < copy.height; ++row)
        std::memcpy(pointer(target + row * copy.target_pitch_bytes),
                    pointer(source + row * copy.source_pitch_bytes), copy.width_bytes);
      return true;
    });
  }
  Outcome memset_d8_async(Address target, unsigned char value, std::size_t bytes, Stream stream) {
    if (!reachable(target, bytes)) return Outcome::invalid_value;
    return enqueue(stream, [target, value, bytes] {
      std::memset(pointer(target), value, bytes);
      return true;
    });
  }
  Outcome memset_d32_async(Address target, std::uint32_t value, std::size_t words, Stream stream) {
    if (target % sizeof value != 0 || !reachable(target, words * sizeof value)) return Outcome::invalid_value;
    return enqueue(stream, [target, value, words] {
      std::fill_n(static_cast<std::uint32_t*>(pointer(target)), words, value);
      return true;
    });
  }

  // ---- sharing with other processes

  Outcome ipc_get_mem_handle(IpcMemoryHandle* handle, Address address) {
    const auto found = piece_with(address, 1);
    // Memory of the virtual memory API is refused: observed with torch's expandable segments
    // (bench/notes/gpu.md). The documentation names the base of an allocation, so the fake refuses an address
    // inside one.
    if (found == pieces.end() || found->second.kind != Kind::device || found->first != address)
      return Outcome::invalid_value;
    // Documented: the buffer's number makes the handle another one when an address is reused.
    const HandleText text{handle_magic, found->second.id, found->second.bytes, process_number,
                          ::getpid(),   found->second.fd, found->second.device};
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &text, sizeof text);
    return Outcome::success;
  }
  Outcome ipc_open_mem_handle(Address* address, IpcMemoryHandle handle, unsigned) {
    if (top() == nullptr) return Outcome::invalid_context;
    HandleText text;
    std::memcpy(&text, &handle, sizeof text);
    if (text.magic != handle_magic) return Outcome::invalid_value;
    // A handle of this process gives "invalid device context", as others report (UCX, pull request 11603).
    // The same holds for a process with the exporter's process id in another PID namespace: the answer of the
    // driver is not documented, but the import fails there (NCCL issue 360, UCX pull request 11514).
    if (text.number == process_number) return Outcome::invalid_context;
    if (text.device != top()->device && no_peer_access.contains({top()->device, text.device}))
      return Outcome::peer_access_unsupported;
    // Documented: a second open by the same context is counted and gives the same address; a context of
    // another GPU gets a mapping of its own.
    for (auto& [where, piece] : pieces)
      if (piece.kind == Kind::imported && piece.id == text.id && piece.opened_by == top()->device) {
        ++piece.opened;
        *address = where;
        return Outcome::success;
      }
    // Observed on two H200: an ended process gives another error than freed memory. Memory that is mapped
    // when its owner frees it or ends stays readable; the documentation calls that undefined.
    const std::string process = "/proc/" + std::to_string(text.pid);
    if (::access(process.c_str(), F_OK) != 0) return Outcome::invalid_handle;
    const std::string path = process + "/fd/" + std::to_string(text.fd);
    if (name_behind(path).find(file_name(text.id, text.device) + " ") == std::string::npos)
      return Outcome::invalid_value;
    Piece piece;
    piece.fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (piece.fd < 0) return Outcome::invalid_value;
    piece.bytes = text.bytes;
    piece.mapped_bytes = round_up(text.bytes, page_bytes);
    piece.kind = Kind::imported;
    piece.device = text.device;
    piece.id = text.id;
    piece.opened = 1;
    piece.opened_by = top()->device;
    *address = map_file(piece.fd, piece.bytes, 0);
    pieces[*address] = piece;
    return Outcome::success;
  }
  Outcome ipc_close_mem_handle(Address address) {
    const auto found = pieces.find(address);
    if (found == pieces.end() || found->second.kind != Kind::imported) return Outcome::invalid_value;
    if (--found->second.opened > 0) return Outcome::success;
    ::close(found->second.fd);
    ::munmap(pointer(address), found->second.mapped_bytes);
    pieces.erase(found);
    return Outcome::success;
  }

  Outcome mem_create(PhysicalMemory* memory, std::size_t bytes, const AllocationProperties* properties,
                     unsigned long long) {
    if (bytes == 0 || bytes % granularity_bytes != 0 || !is_device(properties->location.id))
      return Outcome::invalid_value;
    const FakeGpu& gpu = gpus[static_cast<std::size_t>(properties->location.id)];
    if (!gpu.virtual_memory) return Outcome::not_supported;
    if (used_bytes(properties->location.id) + bytes > gpu.memory_bytes) return Outcome::out_of_memory;
    *memory = next_id++;
    physical[*memory] = {new_file(*memory, bytes, properties->location.id), bytes, *properties, 1};
    return Outcome::success;
  }
  Outcome mem_release(PhysicalMemory memory) {
    const auto found = physical.find(memory);
    if (found == physical.end()) return Outcome::invalid_value;
    if (--found->second.references == 0) {
      ::close(found->second.fd);
      physical.erase(found);
    }
    return Outcome::success;
  }
  Outcome mem_address_reserve(Address* address, std::size_t bytes, std::size_t, Address, unsigned long long) {
    if (bytes == 0 || bytes % granularity_bytes != 0) return Outcome::invalid_value;
    void* const at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return Outcome::out_of_memory;
    *address = address_of(at);
    reservations[*address] = bytes;
    return Outcome::success;
  }
  Outcome mem_address_free(Address address, std::size_t bytes) {
    const auto found = reservations.find(address);
    if (found == reservations.end() || found->second != bytes) return Outcome::invalid_value;
    if (const auto mapped = pieces.lower_bound(address);
        mapped != pieces.end() && mapped->first < address + bytes)
      return Outcome::invalid_value;
    ::munmap(pointer(address), bytes);
    reservations.erase(found);
    return Outcome::success;
  }
  Outcome mem_map(Address address, std::size_t bytes, std::size_t offset, PhysicalMemory memory,
                  unsigned long long) {
    const auto reserved = reservations.upper_bound(address);
    if (reserved == reservations.begin()) return Outcome::invalid_value;
    const auto range = std::prev(reserved);
    const auto backing = physical.find(memory);
    if (backing == physical.end() || offset != 0 || bytes != backing->second.bytes ||
        address + bytes > range->first + range->second || piece_with(address, 1) != pieces.end())
      return Outcome::invalid_value;
    map_file(backing->second.fd, bytes, address);
    Piece piece;
    piece.bytes = piece.mapped_bytes = bytes;
    piece.kind = Kind::mapped;
    piece.device = backing->second.properties.location.id;
    piece.id = next_id++;
    piece.physical = memory;
    piece.accessible = false;
    pieces[address] = piece;
    ++backing->second.references;
    return Outcome::success;
  }
  Outcome mem_unmap(Address address, std::size_t bytes) {
    for (const Address end = address + bytes; address < end;) {
      const auto found = pieces.find(address);
      if (found == pieces.end() || found->second.kind != Kind::mapped) return Outcome::invalid_value;
      const std::size_t length = found->second.bytes;
      make_unreachable(address, length);
      const PhysicalMemory memory = found->second.physical;
      pieces.erase(found);
      mem_release(memory);
      address += length;
    }
    return Outcome::success;
  }
  Outcome mem_set_access(Address address, std::size_t bytes, const AccessDescription* descriptions,
                         std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const int from = descriptions[i].location.id;
      for (Address at = address; at < address + bytes;) {
        const auto found = pieces.find(at);
        if (found == pieces.end()) return Outcome::invalid_value;
        // The error for a GPU without peer access is assumed.
        if (from != found->second.device && no_peer_access.contains({from, found->second.device}))
          return Outcome::not_supported;
        found->second.accessible = descriptions[i].flags != AccessFlags::none;
        at += found->second.bytes;
      }
    }
    return Outcome::success;
  }
  Outcome mem_export_to_shareable_handle(void* handle, PhysicalMemory memory, HandleType type,
                                         unsigned long long) {
    const auto found = physical.find(memory);
    if (found == physical.end()) return Outcome::invalid_value;
    if (type != HandleType::file_descriptor ||
        found->second.properties.handle_types != HandleType::file_descriptor)
      return Outcome::not_supported;
    const int fd = ::fcntl(found->second.fd, F_DUPFD_CLOEXEC, 0);
    std::memcpy(handle, &fd, sizeof fd);
    return Outcome::success;
  }
  Outcome mem_import_from_shareable_handle(PhysicalMemory* memory, void* handle, HandleType type) {
    if (type != HandleType::file_descriptor) return Outcome::not_supported;
    const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(handle));
    // Documented: any process may import any number of times, also the process that made the memory, and the
    // caller keeps the descriptor. Assumed: a descriptor of anything else is an invalid value.
    const std::optional<int> device = device_of_file(fd);
    struct stat what {};
    if (!device || ::fstat(fd, &what) != 0 || what.st_size == 0) return Outcome::invalid_value;
    AllocationProperties properties;
    properties.handle_types = HandleType::file_descriptor;
    properties.location = {LocationType::device, *device};
    *memory = next_id++;
    physical[*memory] = {::fcntl(fd, F_DUPFD_CLOEXEC, 0), static_cast<std::size_t>(what.st_size), properties,
                         1};
    return Outcome::success;
  }
  Outcome mem_get_allocation_granularity(std::size_t* bytes, const AllocationProperties* properties,
                                         Granularity) {
    if (!is_device(properties->location.id)) return Outcome::invalid_device;
    *bytes = granularity_bytes;
    return Outcome::success;
  }
  Outcome mem_get_allocation_properties(AllocationProperties* properties, PhysicalMemory memory) {
    const auto found = physical.find(memory);
    if (found == physical.end()) return Outcome::invalid_value;
    *properties = found->second.properties;
    return Outcome::success;
  }
  Outcome mem_retain_allocation_handle(PhysicalMemory* memory, void* address) {
    const auto found = piece_with(address_of(address), 1);
    if (found == pieces.end() || found->second.physical == 0) return Outcome::invalid_value;
    *memory = found->second.physical;
    ++physical[*memory].references;
    return Outcome::success;
  }

  // ---- words that streams write and wait for

  template <class Word>
  Outcome write_value(Stream stream, Address word, Word value) {
    if (!reachable(word, sizeof value)) return Outcome::invalid_value;
    return enqueue(stream, [word, value] {
      __atomic_store_n(static_cast<Word*>(pointer(word)), value, __ATOMIC_RELEASE);
      return true;
    });
  }
  template <class Word>
  Outcome wait_value(Stream stream, Address word, Word value, unsigned flags) {
    if (!reachable(word, sizeof value)) return Outcome::invalid_value;
    return enqueue(stream, [word, value, flags] {
      const Word seen = __atomic_load_n(static_cast<Word*>(pointer(word)), __ATOMIC_ACQUIRE);
      return flags == wait_value_equal ? seen == value
                                       : static_cast<std::make_signed_t<Word>>(seen - value) >= 0;
    });
  }
  Outcome stream_write_value_32(Stream stream, Address word, std::uint32_t value, unsigned) {
    return write_value(stream, word, value);
  }
  Outcome stream_write_value_64(Stream stream, Address word, std::uint64_t value, unsigned) {
    return write_value(stream, word, value);
  }
  Outcome stream_wait_value_32(Stream stream, Address word, std::uint32_t value, unsigned flags) {
    return wait_value(stream, word, value, flags);
  }
  Outcome stream_wait_value_64(Stream stream, Address word, std::uint64_t value, unsigned flags) {
    return wait_value(stream, word, value, flags);
  }

  // ---- kernels

  Outcome module_load_data(Module* module, const void* image) {
    if (top() == nullptr) return Outcome::invalid_context;
    const bool known = std::memcmp(image,
                                   "\x7f"
                                   "ELF",
                                   4) == 0 ||
                       std::memcmp(image, "FAKE", 4) == 0;
    if (!known) return Outcome::invalid_image;
    *module = *modules.insert(new ModuleObject).first;
    return Outcome::success;
  }
  Outcome module_unload(Module module) {
    if (modules.erase(module) == 0) return Outcome::invalid_handle;
    delete module;
    return Outcome::success;
  }
  Outcome module_get_function(Function* function, Module module, const char* name) {
    if (!modules.contains(module)) return Outcome::invalid_handle;
    if (!kernels.contains(name)) return Outcome::not_found;
    module->functions.push_back(std::make_unique<FunctionObject>());
    module->functions.back()->name = name;
    *function = module->functions.back().get();
    return Outcome::success;
  }
  Outcome func_load(Function) { return Outcome::success; }
  Outcome func_get_attribute(int* value, FunctionAttribute attribute, Function function) {
    *value = function->attributes[attribute];
    return Outcome::success;
  }
  Outcome func_set_attribute(Function function, FunctionAttribute attribute, int value) {
    function->attributes[attribute] = value;
    return Outcome::success;
  }
  Outcome launch_kernel_ex(const LaunchConfig* config, Function function, void** parameters, void**) {
    if (config->grid_x == 0 || config->block_x == 0 || config->block_x > 1024) return Outcome::invalid_value;
    const Kernel& kernel = kernels.at(function->name);
    ++calls[function->name].count;
    const auto* const bytes = static_cast<const std::byte*>(parameters[0]);
    auto argument = std::make_shared<std::vector<std::byte>>(bytes, bytes + kernel.bytes);
    StreamObject* const stream = resolve(config->stream);
    if (stream == nullptr) return Outcome::invalid_context;
    return enqueue(config->stream,
                   [context = stream->context, run = kernel.launch(argument->data()), argument] {
                     const std::optional<Outcome> outcome = run();
                     if (outcome && *outcome != Outcome::success) context->broken = *outcome;
                     return outcome.has_value();
                   });
  }
};

namespace {

/// Turns a member function into an entry of the table. The entry counts the call, applies the script and
/// holds the lock.
template <auto Method>
struct Entry;
template <class... Args, Outcome (FakeDriver::*Method)(Args...)>
struct Entry<Method> {
  static inline const char* symbol = nullptr;
  static inline std::uint64_t known_driver = 0;
  static inline Calls* calls = nullptr;
  static inline bool unsafe = false;
  static Outcome call(Args... args) {
    FakeDriver& driver = *FakeDriver::current();
    std::unique_lock lock(driver.mutex);
    // Looking the name up takes longer than many calls, so it is done once for each driver.
    if (known_driver != driver.serial) {
      calls = &driver.calls[symbol];
      unsafe = FakeDriver::is_unsafe_in_captures(symbol);
      known_driver = driver.serial;
    }
    if (const auto outcome = FakeDriver::scripted(*calls)) return *outcome;
    if (driver.disturbs_captures(unsafe)) return Outcome::stream_capture_unsupported;
    std::unique_lock<std::mutex>* const outer = std::exchange(FakeDriver::call_lock(), &lock);
    const Outcome outcome = (driver.*Method)(args...);
    FakeDriver::call_lock() = outer;
    return outcome;
  }
};

void* find_function(const std::string& name) {
#define HEADRACE_FAKE_ENTRY(member, text, ...)                                                               \
  static_assert(std::is_same_v<decltype(&Entry<&FakeDriver::member>::call), decltype(DriverTable::member)>); \
  if (name == (text)) {                                                                                      \
    Entry<& FakeDriver::member>::symbol = text;                                                              \
    return reinterpret_cast<void*>(&Entry<&FakeDriver::member>::call);                                       \
  }
  HEADRACE_CUDA_FUNCTIONS(HEADRACE_FAKE_ENTRY)
#undef HEADRACE_FAKE_ENTRY
  return nullptr;
}

Outcome get_proc_address(const char* name, void** function, int, std::uint64_t, int* answer) {
  FakeDriver& driver = *FakeDriver::current();
  const std::scoped_lock lock(driver.mutex);
  *function = driver.lacking.contains(name) ? nullptr : find_function(name);
  *answer = *function == nullptr ? 1 : 0;
  return *function == nullptr ? Outcome::not_found : Outcome::success;
}

void* find_symbol(const char* name) {
  const std::string wanted = name;
  if (FakeDriver::current()->lacking.contains(wanted)) return nullptr;
  if (wanted == "cuGetProcAddress_v2") return reinterpret_cast<void*>(&get_proc_address);
  return wanted == "cuDriverGetVersion" ? find_function(wanted) : nullptr;
}

}  // namespace

FakeCuda::FakeCuda(std::vector<FakeGpu> gpus) : driver_(std::make_unique<FakeDriver>(std::move(gpus))) {
  FakeDriver::current() = driver_.get();
}
FakeCuda::~FakeCuda() {
  for (GraphObject* graph : driver_->graphs) delete graph;
  for (GraphExecObject* exec : driver_->graph_execs) delete exec;
  for (EventObject* event : driver_->events) delete event;
  for (ModuleObject* module : driver_->modules) delete module;
  driver_.reset();
  FakeDriver::current() = nullptr;
}

Result<DriverTable> FakeCuda::load() { return bind_driver(lookup()); }
SymbolLookup FakeCuda::lookup() { return &find_symbol; }

void FakeCuda::set_version(int version) { driver_->version = version; }
void FakeCuda::lack(const std::string& symbol) { driver_->lacking.insert(symbol); }
void FakeCuda::fail(const std::string& symbol, Outcome outcome, int nth, int times) {
  const std::scoped_lock lock(driver_->mutex);
  driver_->calls[symbol].scripts.push_back({nth - 1, times, outcome});
}
void FakeCuda::forbid_peer_access(int from, int to) {
  const std::scoped_lock lock(driver_->mutex);
  driver_->no_peer_access.insert({from, to});
}
void FakeCuda::allow_peer_access(int from, int to) {
  const std::scoped_lock lock(driver_->mutex);
  driver_->no_peer_access.erase({from, to});
}
void FakeCuda::set_process_number(int number) {
  const std::scoped_lock lock(driver_->mutex);
  driver_->process_number = number;
}
void FakeCuda::hold() {
  const std::scoped_lock lock(driver_->mutex);
  driver_->held = true;
}
void FakeCuda::release() {
  const std::scoped_lock lock(driver_->mutex);
  driver_->held = false;
  driver_->steps = 0;
  driver_->pump();
}
void FakeCuda::step(int count) {
  const std::scoped_lock lock(driver_->mutex);
  driver_->steps += count;
  driver_->pump();
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
  driver_->kernels[name] = {bytes, std::move(launch)};
}
int FakeCuda::calls(const std::string& symbol) const {
  const std::scoped_lock lock(driver_->mutex);
  const auto found = driver_->calls.find(symbol);
  return found == driver_->calls.end() ? 0 : found->second.count;
}
// Kernels call this from inside the driver, which then holds the lock.
bool FakeCuda::reachable(std::uint64_t address, std::size_t bytes) const {
  return driver_->reachable(address, bytes);
}
FakeCuda::Live FakeCuda::live() const {
  const std::scoped_lock lock(driver_->mutex);
  Live live;
  for (const auto& context : driver_->contexts) live.contexts += context->retained;
  live.streams = static_cast<int>(driver_->streams.size() - driver_->contexts.size());
  live.events = static_cast<int>(driver_->events.size());
  live.modules = static_cast<int>(driver_->modules.size());
  live.graphs = static_cast<int>(driver_->graphs.size() + driver_->graph_execs.size());
  for (const auto& [address, piece] : driver_->pieces) {
    live.allocations += piece.kind == Kind::device ? 1 : 0;
    live.pinned += piece.kind == Kind::pinned || piece.kind == Kind::registered ? 1 : 0;
    live.imports += piece.kind == Kind::imported ? 1 : 0;
    live.mappings += piece.kind == Kind::mapped ? 1 : 0;
  }
  live.physical = static_cast<int>(driver_->physical.size());
  live.reservations = static_cast<int>(driver_->reservations.size());
  return live;
}

}  // namespace headrace::cuda
