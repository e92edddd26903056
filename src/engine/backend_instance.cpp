// SPDX-License-Identifier: Apache-2.0
#include "engine/backend_instance.hpp"

#include "base/errors.hpp"

#include <fmt/format.h>

#include <array>
#include <exception>
#include <thread>
#include <utility>

namespace headrace::engine {
namespace {

/// The buffer an entry writes its sentence into.
class ErrorText {
 public:
  headrace_text_v1* out() { return &text_; }
  Error error(int32_t code, const std::string& backend) const {
    std::string message(buffer_.data(), std::min(text_.length, buffer_.size()));
    if (message.empty()) message = "backend gave no reason";
    const bool known = code > HEADRACE_OK && code <= HEADRACE_INTERNAL;
    return Error{known ? static_cast<Code>(code) : Code::internal, backend + ": " + message};
  }

 private:
  std::array<char, 1024> buffer_{};
  headrace_text_v1 text_{sizeof(headrace_text_v1), buffer_.data(), buffer_.size(), 0};
};

headrace_sink_v1 sink_into(std::string& out) {
  return {sizeof(headrace_sink_v1), &out, [](void* context, const void* bytes, size_t length) {
            static_cast<std::string*>(context)->append(static_cast<const char*>(bytes), length);
          }};
}

Status from_c(headrace_status_v1 s) {
  const bool known = s.code >= HEADRACE_OK && s.code <= HEADRACE_INTERNAL;
  return {known ? static_cast<Code>(s.code) : Code::internal, s.os_error, s.page};
}

/// Whether the table reaches so far, and has them.
bool has_capture_entries(const headrace_backend_v1& table) {
  return HEADRACE_HAS(&table, check) && table.capture != nullptr && table.end_capture != nullptr &&
         table.set_indices != nullptr && table.check != nullptr;
}

BackendInstance& self(void* context) { return *static_cast<BackendInstance*>(context); }

constinit thread_local int telling = 0;  // how many host functions this thread is in

struct Telling {
  Telling() { ++telling; }
  ~Telling() { --telling; }
  Telling(const Telling&) = delete;
  Telling& operator=(const Telling&) = delete;
};

}  // namespace

bool BackendInstance::is_telling() { return telling > 0; }

/// The body of a host function. An exception (there is no memory) may not cross the border: it is counted and
/// logged as far as that goes, and the function answers `otherwise`.
template <class Value, class Body>
Value BackendInstance::told(Value otherwise, Body&& body) noexcept {
  try {
    return std::forward<Body>(body)(events_);
  } catch (const std::exception& thrown) {
    try {
      events_.count("host_functions_failed", 1);
      events_.log(name_, HEADRACE_LOG_ERROR, fmt::format("a function of the host failed: {}", thrown.what()));
    } catch (...) {  // there is no memory to tell it with
    }
  }
  return otherwise;
}

template <class Body>
void BackendInstance::told(Body&& body) noexcept {
  (void)told(0, [&](HostEvents& events) { return body(events), 0; });
}

void BackendInstance::fill_host(const InstanceArgs& args) {
  agent_name_ = args.agent_name;
  host_.struct_size = sizeof(host_);
  host_.abi_minor = HEADRACE_BACKEND_ABI_MINOR;
  host_.pool_threads = args.pool_threads;
  host_.context = this;
  host_.agent_name = agent_name_.c_str();
  host_.incarnation = args.incarnation;
  host_.log_enabled = [](void* c, int32_t level) {
    return self(c).told(0,
                        [&](HostEvents& events) { return events.log_enabled(self(c).name_, level) ? 1 : 0; });
  };
  host_.log = [](void* c, int32_t level, const char* text, size_t n) {
    self(c).told([&](HostEvents& events) { events.log(self(c).name_, level, {text, n}); });
  };
  host_.now_ns = [](void* c) { return self(c).clock_.now_ns(); };
  host_.count = [](void* c, const char* counter, uint64_t amount) {
    self(c).told([&](HostEvents& events) { events.count(counter, amount); });
  };
  host_.completed = [](void* c, uint64_t token, headrace_status_v1 status, const char* text, size_t n) {
    const Telling inside;
    const std::string_view why = text != nullptr ? std::string_view(text, n) : std::string_view();
    self(c).told([&](HostEvents& events) { events.completed(token, from_c(status), why); });
  };
  host_.accepted = [](void* c, void* connection, const char* peer, uint64_t incarnation) {
    const Telling inside;
    return self(c).told(std::uint64_t{0}, [&](HostEvents& events) {
      return events.accepted(self(c), connection, peer, incarnation);
    });
  };
  host_.link_event = [](void* c, uint64_t link, int32_t event, headrace_status_v1 status, const char* text,
                        size_t n) {
    const Telling inside;
    const auto kind = static_cast<headrace_link_event_v1>(event);
    self(c).told([&](HostEvents& events) { events.link_event(link, kind, from_c(status), {text, n}); });
  };
  host_.received = [](void* c, uint64_t link, uint32_t channel, const void* bytes, size_t n) {
    const Telling inside;
    const std::string_view message{static_cast<const char*>(bytes), n};
    self(c).told([&](HostEvents& events) { events.received(link, channel, message); });
  };
  host_.counted = [](void* c, uint64_t link, uint32_t scope, uint32_t immediate, uint64_t amount) {
    const Telling inside;
    self(c).told([&](HostEvents& events) { events.counted(link, {immediate, scope}, amount); });
  };
  host_.submit = [](void* c, void (*function)(void*), void* argument) {
    return self(c).told(0, [&](HostEvents& events) { return events.submit(function, argument) ? 1 : 0; });
  };
  host_.wake = [](void* c) { self(c).told([](HostEvents& events) { events.wake(); }); };
}

Result<std::unique_ptr<BackendInstance>> BackendInstance::open(const headrace_backend_v1* table,
                                                               const InstanceArgs& args, HostEvents& events) {
  std::unique_ptr<BackendInstance> made(new BackendInstance(table, table->name, events, *args.clock));
  made->fill_host(args);
  std::vector<headrace_setting_v1> settings;
  settings.reserve(args.settings.size());
  for (const auto& [name, value] : args.settings) settings.push_back({name.c_str(), value.c_str()});
  headrace_create_v1 create{sizeof(headrace_create_v1), settings.data(), settings.size(),
                            args.runtime_dir.c_str(), args.reserved_descriptors};
  ErrorText text;
  const int32_t code = table->create(&made->host_, &create, &made->instance_, text.out());
  if (code != HEADRACE_OK) return text.error(code, made->name_).within("open backend");
  made->info_.struct_size = sizeof(made->info_);
  table->info(made->instance_, &made->info_);
  if (made->can(HEADRACE_CAPTURE) && !has_capture_entries(*table))
    return make_error(
        Code::not_supported,
        "backend {} says that it can capture, but its table lacks capture, end_capture, set_indices or check",
        made->name_);
  made->descriptor_ = table->descriptor(made->instance_);
  return made;
}

BackendInstance::~BackendInstance() { end(); }

void BackendInstance::end() {
  if (instance_ == nullptr || ended_.exchange(true)) return;
  // The turn is kept: destroy never runs beside progress, and no progress comes after it.
  while (turn_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  table_->destroy(instance_);
}

Result<std::string> BackendInstance::connection_info() {
  std::string out;
  const auto sink = sink_into(out);
  ErrorText text;
  const int32_t code = table_->connection_info(instance_, &sink, text.out());
  if (code != HEADRACE_OK) return text.error(code, name_);
  return out;
}

Result<void*> BackendInstance::connect(const headrace_connect_v1& args) {
  void* connection = nullptr;
  ErrorText text;
  const int32_t code = table_->connect(instance_, &args, &connection, text.out());
  if (code != HEADRACE_OK) return text.error(code, name_);
  return connection;
}

Result<void*> BackendInstance::register_region(const headrace_region_v1& region) {
  void* handle = nullptr;
  ErrorText text;
  const int32_t code = table_->register_region(instance_, &region, &handle, text.out());
  if (code != HEADRACE_OK) return text.error(code, name_);
  return handle;
}

Result<std::string> BackendInstance::export_region(void* handle) {
  std::string out;
  const auto sink = sink_into(out);
  ErrorText text;
  const int32_t code = table_->export_region(instance_, handle, &sink, text.out());
  if (code != HEADRACE_OK) return text.error(code, name_);
  return out;
}

Result<void*> BackendInstance::load_local(void* handle) {
  void* remote = nullptr;
  ErrorText text;
  const int32_t code = table_->load_local(instance_, handle, &remote, text.out());
  if (code != HEADRACE_OK) return text.error(code, name_);
  return remote;
}

Result<void*> BackendInstance::load_remote(void* connection, const headrace_remote_region_v1& region) {
  void* remote = nullptr;
  ErrorText text;
  const int32_t code = table_->load_remote(instance_, connection, &region, &remote, text.out());
  if (code != HEADRACE_OK) return text.error(code, name_);
  return remote;
}

Result<std::pair<void*, std::uint64_t>> BackendInstance::map(void* remote, int device, bool writable) {
  if (table_->map == nullptr || !can(HEADRACE_MAP))
    return Error{Code::not_supported, name_ + ": this backend does not map memory"};
  headrace_map_v1 args{sizeof(headrace_map_v1), device, writable ? 3U : 1U, nullptr, 0};
  ErrorText text;
  const int32_t code = table_->map(instance_, remote, &args, text.out());
  if (code != HEADRACE_OK) return text.error(code, name_);
  return std::pair{args.address, args.length};
}

Result<void*> BackendInstance::prepare(const headrace_prepare_v1& args) {
  void* request = nullptr;
  ErrorText text;
  const int32_t code = table_->prepare(instance_, &args, &request, text.out());
  if (code != HEADRACE_OK) return text.error(code, name_);
  return request;
}

Result<std::string> BackendInstance::query(const headrace_region_v1& region, std::uint64_t deadline_ns) {
  if (table_->query == nullptr || !can(HEADRACE_QUERY))
    return Error{Code::not_supported, name_ + ": it has nothing to query"};
  std::string out;
  const auto sink = sink_into(out);
  ErrorText text;
  const headrace_region_v1* const one = &region;
  const headrace_query_v1 args{sizeof(headrace_query_v1), &one, 1, deadline_ns};
  const int32_t code = table_->query(instance_, &args, &sink, text.out());
  if (code != HEADRACE_OK) return text.error(code, name_);
  return out;
}

Status BackendInstance::post(void* request, const headrace_post_v1& args) {
  return from_c(table_->post(instance_, request, &args));
}

Status BackendInstance::notify(void* connection, std::uint32_t channel, std::string_view bytes) {
  return from_c(table_->notify(instance_, connection, channel, bytes.data(), bytes.size()));
}

std::uint64_t BackendInstance::unsent(void* connection) const {
  if (!HEADRACE_HAS(table_, unsent) || table_->unsent == nullptr) return 0;
  return table_->unsent(instance_, connection);
}

headrace_cost_v1 BackendInstance::cost(const headrace_prepare_v1& args) {
  headrace_cost_v1 cost{};
  cost.struct_size = sizeof(cost);
  cost.method = "none";
  if (table_->cost(instance_, &args, &cost) != HEADRACE_OK || !(cost.bytes_per_second >= 1)) {
    cost = {sizeof(cost), 1e9, 0, 1, 1, "the backend gave no estimate"};
  }
  return cost;
}

Result<bool> BackendInstance::capture(void* request, headrace_capture_v1 args) {
  args.struct_size = sizeof(args);
  args.page = HEADRACE_NO_PAGE;
  ErrorText text;
  const int32_t code = table_->capture(instance_, request, &args, text.out());
  if (code == HEADRACE_OK) return args.captured != 0;
  Error error = text.error(code, name_);
  error.page = args.page;
  return error;
}

Result<void> BackendInstance::set_indices(void* request, const headrace_indices_v1& args) {
  ErrorText text;
  const int32_t code = table_->set_indices(instance_, request, &args, text.out());
  if (code != HEADRACE_OK) return text.error(code, name_);
  return {};
}

Result<std::uint64_t> BackendInstance::check(void* request) {
  headrace_check_v1 args{sizeof(headrace_check_v1), 0, HEADRACE_NO_PAGE};
  ErrorText text;
  const int32_t code = table_->check(instance_, request, &args, text.out());
  if (code == HEADRACE_OK) return args.replays;
  Error error = text.error(code, name_);
  error.page = args.page;
  return error;
}

std::uint32_t BackendInstance::progress() {
  if (turn_.test_and_set(std::memory_order_acquire)) return 0;
  const std::uint32_t done = table_->progress(instance_);
  turn_.clear(std::memory_order_release);
  return done;
}

std::uint32_t BackendInstance::arm(bool on) {
  if (table_->arm == nullptr) return 0;
  while (turn_.test_and_set(std::memory_order_acquire)) {
    if (ended_.load()) return 0;
    std::this_thread::yield();  // a pass of progress is short
  }
  const std::uint32_t arrived = table_->arm(instance_, on ? 1 : 0);
  turn_.clear(std::memory_order_release);
  return arrived;
}

}  // namespace headrace::engine
