// SPDX-License-Identifier: Apache-2.0
// The C++ form of backend_v1.h: derive from `Backend`, then export it with HEADRACE_EXPORT_BACKEND.
//
// The adapter catches exceptions of the backend and returns `internal` with their text. It copies error
// sentences over the border. The backend itself keeps the rules of backend_v1.h (threads, blocking,
// completion).
#pragma once

#include <headrace/plugin/backend_v1.h>
#include <headrace/result.hpp>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace headrace::plugin {

/// The host's table as C++ methods. Copyable; valid until the instance is destroyed.
class Host {
 public:
  explicit Host(const headrace_host_v1* table) : table_(table) {}

  [[nodiscard]] std::string_view agent_name() const { return table_->agent_name; }
  [[nodiscard]] std::uint64_t incarnation() const { return table_->incarnation; }
  [[nodiscard]] std::uint32_t pool_threads() const { return table_->pool_threads; }
  [[nodiscard]] std::uint64_t now_ns() const { return table_->now_ns(table_->context); }
  [[nodiscard]] bool log_enabled(headrace_log_level_v1 level) const {
    return table_->log_enabled(table_->context, level) != 0;
  }
  void log(headrace_log_level_v1 level, std::string_view text) const {
    table_->log(table_->context, level, text.data(), text.size());
  }
  void count(const char* counter, std::uint64_t amount) const {
    table_->count(table_->context, counter, amount);
  }
  void completed(std::uint64_t token, Status status, std::string_view text = {}) const {
    table_->completed(table_->context, token, to_c(status), text.data(), text.size());
  }
  [[nodiscard]] std::uint64_t accepted(void* connection, const std::string& peer,
                                       std::uint64_t incarnation) const {
    return table_->accepted(table_->context, connection, peer.c_str(), incarnation);
  }
  void link_event(std::uint64_t link, headrace_link_event_v1 event, Status status,
                  std::string_view text) const {
    table_->link_event(table_->context, link, event, to_c(status), text.data(), text.size());
  }
  void received(std::uint64_t link, std::uint32_t channel, std::string_view bytes) const {
    table_->received(table_->context, link, channel, bytes.data(), bytes.size());
  }
  [[nodiscard]] bool submit(void (*function)(void*), void* argument) const {
    return table_->submit(table_->context, function, argument) != 0;
  }
  void wake() const { table_->wake(table_->context); }

  static headrace_status_v1 to_c(Status status) {
    return {static_cast<std::int32_t>(status.code), status.os_error, status.page};
  }

 private:
  const headrace_host_v1* table_;
};

struct CreateArgs {
  std::span<const headrace_setting_v1> settings;
  std::string runtime_dir;

  /// The value of an option of this backend's table, as text; empty if the table has no such option.
  [[nodiscard]] std::string_view setting(std::string_view name) const {
    for (const auto& s : settings)
      if (name == s.name) return s.value;
    return {};
  }
};

/// One instance of a backend. Each method is the entry of the same name in backend_v1.h, and its sentence
/// there is binding. The default methods suit an instance without links, without a descriptor and without
/// queries.
class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual headrace_info_v1 info() = 0;
  virtual Result<std::string> connection_info() { return std::string(); }
  virtual Result<void*> connect(const headrace_connect_v1& /*args*/) {
    return Error{Code::not_supported, "this backend has no links to peers"};
  }
  virtual void disconnect(void* /*connection*/) {}

  virtual Result<void*> register_region(const headrace_region_v1& region) = 0;
  virtual void deregister_region(void* handle) = 0;
  virtual Result<std::string> export_region(void* /*handle*/) { return std::string(); }

  virtual Result<void*> load_local(void* handle) = 0;
  virtual Result<void*> load_remote(void* /*connection*/, const headrace_remote_region_v1& /*region*/) {
    return Error{Code::not_supported, "this backend reaches no peer's memory"};
  }
  virtual void unload(void* remote) = 0;
  virtual Result<std::span<std::byte>> map(void* /*remote*/, int /*device*/, unsigned /*access*/) {
    return Error{Code::not_supported, "this backend does not map memory"};
  }
  virtual void unmap(void* /*remote*/, void* /*address*/) {}

  virtual Result<void*> prepare(const headrace_prepare_v1& args) = 0;
  virtual Status post(void* request, const headrace_post_v1& args) = 0;
  /// Returns whether it did some work and there may be more.
  virtual bool poll(void* /*request*/) { return false; }
  virtual void cancel(void* request) = 0;
  virtual void release(void* request) = 0;

  virtual Status notify(void* /*connection*/, std::uint32_t /*channel*/, std::string_view /*bytes*/) {
    return {Code::not_supported};
  }

  virtual std::uint32_t progress() { return 0; }
  [[nodiscard]] virtual int descriptor() { return -1; }
  virtual std::uint32_t arm(bool /*on*/) { return 0; }

  virtual Result<std::string> query(const headrace_query_v1& /*args*/) {
    return Error{Code::not_supported, "this backend has nothing to query"};
  }
  virtual headrace_cost_v1 cost(const headrace_prepare_v1& args) = 0;

  /// Returns whether the stream is being captured; then the request is now part of the graph.
  virtual Result<bool> capture(void* /*request*/, const headrace_capture_v1& /*args*/) { return no_graphs(); }
  virtual void end_capture(void* /*request*/) {}
  virtual Result<void> set_indices(void* /*request*/, const headrace_indices_v1& /*args*/) {
    return no_graphs();
  }
  /// Returns how many replays have ended.
  virtual Result<std::uint64_t> check(void* /*request*/) { return no_graphs(); }

 private:
  static Error no_graphs() {
    return Error{Code::not_supported, "this backend cannot capture requests into CUDA graphs"};
  }
};

namespace detail {

inline int32_t fail(const Error& error, headrace_text_v1* out) {
  if (out != nullptr) {
    out->length = std::min(error.message.size(), out->capacity);
    std::memcpy(out->data, error.message.data(), out->length);
  }
  return static_cast<int32_t>(error.code);
}

/// Runs `body` (-> Result<T>), passes its value to `take`, and catches every exception.
template <class Body, class Take>
int32_t guarded(headrace_text_v1* error, Body&& body, Take&& take) noexcept {
  try {
    auto result = body();
    if (!result.ok()) return fail(result.error(), error);
    take(result);
    return HEADRACE_OK;
  } catch (const std::exception& e) {
    return fail(Error{Code::internal, std::string("backend threw: ") + e.what()}, error);
  } catch (...) {
    return fail(Error{Code::internal, "backend threw something that is not a std::exception"}, error);
  }
}

inline Backend* self(void* instance) { return static_cast<Backend*>(instance); }

/// Runs `body` of an entry that has no error text; an exception becomes `otherwise`.
template <class Body, class Value>
Value shielded(Value otherwise, Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    return otherwise;
  }
}
template <class Body>
void shielded(Body&& body) noexcept {
  try {
    body();
  } catch (...) {  // the entry has no way to report an error, and an exception may not cross the border
  }
}
inline constexpr headrace_status_v1 threw{HEADRACE_INTERNAL, 0, HEADRACE_NO_PAGE};

/// Copies the fields of `made` that both plugin and host know into the host's `*out`, and keeps its
/// struct_size.
template <class T>
void fill(T* out, const T& made) {
  const std::size_t size = std::min(out->struct_size, sizeof(T));
  std::memcpy(reinterpret_cast<char*>(out) + sizeof(out->struct_size),
              reinterpret_cast<const char*>(&made) + sizeof(out->struct_size),
              size - sizeof(out->struct_size));
}

/// The host's struct, with zeros in fields that the host does not know.
template <class T>
T whole(const T& given) {
  T all{};
  std::memcpy(&all, &given, std::min(given.struct_size, sizeof all));
  all.struct_size = sizeof all;
  return all;
}

/// Passes the result on and stores the page of its error.
template <class T>
Result<T> telling_page(Result<T> result, uint64_t& page) {
  page = result.ok() ? HEADRACE_NO_PAGE : result.error().page;
  return result;
}

inline auto put(void** out) {
  return [out](auto& result) { *out = result.value(); };
}
inline auto pour(const headrace_sink_v1* out) {
  return [out](auto& result) { out->append(out->context, result.value().data(), result.value().size()); };
}

}  // namespace detail

/// The table of backend `T`, which offers
///   static Result<std::unique_ptr<Backend>> open(Host, const CreateArgs&);
///   static constexpr const char* name, *version;
///   static constexpr std::uint32_t memory_kinds;
///   static constexpr bool maps;
///   static std::span<const headrace_option_v1> options();
template <class T>
const headrace_backend_v1* table() {
  using namespace detail;
  static const headrace_backend_v1 backend = [] {
    headrace_backend_v1 t{};
    t.struct_size = sizeof(t);
    t.abi_major = HEADRACE_BACKEND_ABI_MAJOR;
    t.abi_minor = HEADRACE_BACKEND_ABI_MINOR;
    t.name = T::name;
    t.version = T::version;
    t.options = T::options().data();
    t.option_count = T::options().size();
    t.option_size = sizeof(headrace_option_v1);
    t.memory_kinds = T::memory_kinds;
    t.create = [](const headrace_host_v1* host, const headrace_create_v1* args, void** instance,
                  headrace_text_v1* error) {
      return guarded(
          error,
          [&] {
            return T::open(Host(host), CreateArgs{{args->settings, args->setting_count}, args->runtime_dir});
          },
          [&](auto& result) { *instance = result.value().release(); });
    };
    t.destroy = [](void* i) { shielded([&] { delete self(i); }); };
    t.info = [](void* i, headrace_info_v1* info) { shielded([&] { fill(info, self(i)->info()); }); };
    t.connection_info = [](void* i, const headrace_sink_v1* out, headrace_text_v1* error) {
      return guarded(
          error, [&] { return self(i)->connection_info(); }, pour(out));
    };
    t.connect = [](void* i, const headrace_connect_v1* args, void** connection, headrace_text_v1* error) {
      return guarded(
          error, [&] { return self(i)->connect(*args); }, put(connection));
    };
    t.disconnect = [](void* i, void* connection) { shielded([&] { self(i)->disconnect(connection); }); };
    t.register_region = [](void* i, const headrace_region_v1* region, void** handle,
                           headrace_text_v1* error) {
      return guarded(
          error, [&] { return self(i)->register_region(*region); }, put(handle));
    };
    t.deregister_region = [](void* i, void* handle) {
      shielded([&] { self(i)->deregister_region(handle); });
    };
    t.export_region = [](void* i, void* handle, const headrace_sink_v1* out, headrace_text_v1* error) {
      return guarded(
          error, [&] { return self(i)->export_region(handle); }, pour(out));
    };
    t.load_local = [](void* i, void* handle, void** remote, headrace_text_v1* error) {
      return guarded(
          error, [&] { return self(i)->load_local(handle); }, put(remote));
    };
    t.load_remote = [](void* i, void* c, const headrace_remote_region_v1* region, void** remote,
                       headrace_text_v1* error) {
      return guarded(
          error, [&] { return self(i)->load_remote(c, *region); }, put(remote));
    };
    t.unload = [](void* i, void* remote) { shielded([&] { self(i)->unload(remote); }); };
    if constexpr (T::maps) {
      t.map = [](void* i, void* remote, headrace_map_v1* args, headrace_text_v1* error) {
        return guarded(
            error, [&] { return self(i)->map(remote, args->device, args->access); },
            [&](auto& result) {
              args->address = result.value().data();
              args->length = result.value().size();
            });
      };
      t.unmap = [](void* i, void* remote, void* address) {
        shielded([&] { self(i)->unmap(remote, address); });
      };
    }
    t.prepare = [](void* i, const headrace_prepare_v1* args, void** request, headrace_text_v1* error) {
      return guarded(
          error, [&] { return self(i)->prepare(whole(*args)); }, put(request));
    };
    t.post = [](void* i, void* request, const headrace_post_v1* args) {
      return shielded(threw, [&] { return Host::to_c(self(i)->post(request, *args)); });
    };
    t.poll = [](void* i, void* request) {
      return shielded(int32_t{0}, [&] { return int32_t{self(i)->poll(request) ? 1 : 0}; });
    };
    t.cancel = [](void* i, void* request) { shielded([&] { self(i)->cancel(request); }); };
    t.release = [](void* i, void* request) { shielded([&] { self(i)->release(request); }); };
    t.notify = [](void* i, void* connection, uint32_t channel, const void* bytes, size_t length) {
      return shielded(threw, [&] {
        return Host::to_c(self(i)->notify(connection, channel, {static_cast<const char*>(bytes), length}));
      });
    };
    t.progress = [](void* i) { return shielded(uint32_t{0}, [&] { return self(i)->progress(); }); };
    t.descriptor = [](void* i) {
      return shielded(int32_t{-1}, [&] { return int32_t{self(i)->descriptor()}; });
    };
    t.arm = [](void* i, int32_t on) { return shielded(uint32_t{0}, [&] { return self(i)->arm(on != 0); }); };
    t.query = [](void* i, const headrace_query_v1* args, const headrace_sink_v1* out,
                 headrace_text_v1* error) {
      return guarded(
          error, [&] { return self(i)->query(*args); }, pour(out));
    };
    t.cost = [](void* i, const headrace_prepare_v1* args, headrace_cost_v1* cost) {
      return shielded(int32_t{HEADRACE_INTERNAL}, [&] {
        fill(cost, self(i)->cost(whole(*args)));
        return int32_t{HEADRACE_OK};
      });
    };
    t.capture = [](void* i, void* request, headrace_capture_v1* args, headrace_text_v1* error) {
      return guarded(
          error, [&] { return telling_page(self(i)->capture(request, *args), args->page); },
          [&](auto& result) { args->captured = result.value() ? 1 : 0; });
    };
    t.end_capture = [](void* i, void* request) { shielded([&] { self(i)->end_capture(request); }); };
    t.set_indices = [](void* i, void* request, const headrace_indices_v1* args, headrace_text_v1* error) {
      return guarded(
          error, [&] { return self(i)->set_indices(request, *args); }, [](auto&) {});
    };
    t.check = [](void* i, void* request, headrace_check_v1* args, headrace_text_v1* error) {
      return guarded(
          error, [&] { return telling_page(self(i)->check(request), args->page); },
          [&](auto& result) { args->replays = result.value(); });
    };
    return t;
  }();
  return &backend;
}

}  // namespace headrace::plugin

/// Defines the symbol that the host looks for: once, in plugin.cpp. A backend that is linked in calls
/// `headrace::plugin::table<T>()` instead.
#define HEADRACE_EXPORT_BACKEND(Type)                                                                       \
  extern "C" __attribute__((visibility("default"))) const headrace_backend_v1* headrace_backend_v1_table(); \
  const headrace_backend_v1* headrace_backend_v1_table() { return ::headrace::plugin::table<Type>(); }
