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
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace headrace::plugin {

/// What a post adds to at its peer (headrace_post_v1, HEADRACE_COUNT).
struct Immediate {
  std::uint32_t scope = 0;
  std::uint32_t value = 0;

  /// The one of a post, or of a captured one; none: it has no immediate.
  template <class Args>
  [[nodiscard]] static std::optional<Immediate> of(const Args& post) {
    return post.has_immediate != 0 ? std::optional(Immediate{post.scope, post.immediate}) : std::nullopt;
  }
};

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
  void counted(std::uint64_t link, Immediate immediate, std::uint64_t amount = 1) const {
    table_->counted(table_->context, link, immediate.scope, immediate.value, amount);
  }
  /// Runs `Function(argument)` on the pool.
  template <auto Function, class Argument>
  [[nodiscard]] bool submit(Argument* argument) const {
    return table_->submit(
               table_->context, [](void* given) { Function(static_cast<Argument*>(given)); }, argument) != 0;
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
  std::uint64_t reserved_descriptors = 0;

  /// The value of an option of this backend's table, as text; empty if the table has no such option.
  [[nodiscard]] std::string_view setting(std::string_view name) const {
    for (const auto& s : settings)
      if (name == s.name) return s.value;
    return {};
  }
};

/// The types behind the handles of a backend: what it registers, the links to its peers, what it loads, and
/// its requests. Its methods take and return these types; `table` converts them to and from the handles of
/// backend_v1.h. The functions here are for handles inside its structs. The types may be incomplete.
template <class RegionType, class LinkType, class RemoteType, class RequestType>
struct Handles {
  using Region = RegionType;
  using Link = LinkType;
  using Remote = RemoteType;
  using Request = RequestType;

  [[nodiscard]] static Region& region(void* handle) { return *static_cast<Region*>(handle); }
  [[nodiscard]] static Remote& remote(void* handle) { return *static_cast<Remote*>(handle); }
  [[nodiscard]] static Request& request(void* handle) { return *static_cast<Request*>(handle); }
  /// Null if there is none: the request is inside this agent.
  [[nodiscard]] static Link* link(void* handle) { return static_cast<Link*>(handle); }
};

/// The link type of a backend that has no links.
struct NoLink {};

/// One instance of a backend. Each method is the entry of the same name in backend_v1.h, and its sentence
/// there is binding. The default methods suit an instance without links, without a descriptor and without
/// queries.
template <class HandleTypes>
class Backend {
 public:
  using Region = typename HandleTypes::Region;
  using Link = typename HandleTypes::Link;
  using Remote = typename HandleTypes::Remote;
  using Request = typename HandleTypes::Request;

  virtual ~Backend() = default;

  [[nodiscard]] virtual headrace_info_v1 info() = 0;
  virtual Result<std::string> connection_info() { return std::string(); }
  virtual Result<Link*> connect(const headrace_connect_v1& /*args*/) {
    return Error{Code::not_supported, "this backend has no links to peers"};
  }
  virtual void disconnect(Link& /*link*/) {}

  virtual Result<Region*> register_region(const headrace_region_v1& args) = 0;
  virtual void deregister_region(Region& region) = 0;
  virtual Result<std::string> export_region(Region& /*region*/) { return std::string(); }

  virtual Result<Remote*> load_local(Region& /*region*/) {
    return Error{Code::not_supported, "this backend does not move inside one agent"};
  }
  virtual Result<Remote*> load_remote(Link& /*link*/, const headrace_remote_region_v1& /*region*/) {
    return Error{Code::not_supported, "this backend reaches no peer's memory"};
  }
  virtual void unload(Remote& remote) = 0;
  virtual Result<std::span<std::byte>> map(Remote& /*remote*/, int /*device*/, unsigned /*access*/) {
    return Error{Code::not_supported, "this backend does not map memory"};
  }
  virtual void unmap(Remote& /*remote*/, void* /*address*/) {}

  /// `link` is the one of `args`; null: inside this agent.
  virtual Result<Request*> prepare(Link* link, const headrace_prepare_v1& args) = 0;
  virtual Status post(Request& request, const headrace_post_v1& args) = 0;
  /// Returns whether it did some work and there may be more.
  virtual bool poll(Request& /*request*/) { return false; }
  virtual void cancel(Request& request) = 0;
  virtual void release(Request& request) = 0;

  virtual Status notify(Link& /*link*/, std::uint32_t /*channel*/, std::string_view /*bytes*/) {
    return {Code::not_supported};
  }
  virtual std::uint64_t unsent(Link& /*link*/) { return 0; }

  virtual std::uint32_t progress() { return 0; }
  [[nodiscard]] virtual int descriptor() { return -1; }
  virtual std::uint32_t arm(bool /*on*/) { return 0; }

  virtual Result<std::string> query(const headrace_query_v1& /*args*/) {
    return Error{Code::not_supported, "this backend has nothing to query"};
  }
  virtual headrace_cost_v1 cost(const headrace_prepare_v1& args) = 0;

  /// Returns whether the stream is being captured; then the request is now part of the graph.
  virtual Result<bool> capture(Request& /*request*/, const headrace_capture_v1& /*args*/) {
    return no_graphs();
  }
  virtual void end_capture(Request& /*request*/) {}
  virtual Result<void> set_indices(Request& /*request*/, const headrace_indices_v1& /*args*/) {
    return no_graphs();
  }
  /// Returns how many replays have ended.
  virtual Result<std::uint64_t> check(Request& /*request*/) { return no_graphs(); }

 private:
  static Error no_graphs() {
    return Error{Code::not_supported, "this backend cannot capture requests into CUDA graphs"};
  }
};

namespace detail {

template <class T>
using InstanceOf = std::remove_reference_t<decltype(*T::open(std::declval<Host>(), CreateArgs{}).value())>;
template <class B>
using HandlesOf = Handles<typename B::Region, typename B::Link, typename B::Remote, typename B::Request>;
template <class B>
B& self(void* instance) {
  return *static_cast<B*>(instance);
}

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
///   static Result<std::unique_ptr<B>> open(Host, const CreateArgs&);  // B derives from
///   Backend<Handles<...>> static constexpr const char* name, *version; static constexpr std::uint32_t
///   memory_kinds; static constexpr bool maps; static std::span<const headrace_option_v1> options();
template <class T>
const headrace_backend_v1* table() {
  using namespace detail;
  using B = InstanceOf<T>;
  using H = HandlesOf<B>;
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
            const headrace_create_v1 all = whole(*args);
            return T::open(
                Host(host),
                CreateArgs{{all.settings, all.setting_count}, all.runtime_dir, all.reserved_descriptors});
          },
          [&](auto& result) { *instance = result.value().release(); });
    };
    t.destroy = [](void* i) { shielded([&] { delete &self<B>(i); }); };
    t.info = [](void* i, headrace_info_v1* info) { shielded([&] { fill(info, self<B>(i).info()); }); };
    t.connection_info = [](void* i, const headrace_sink_v1* out, headrace_text_v1* error) {
      return guarded(
          error, [&] { return self<B>(i).connection_info(); }, pour(out));
    };
    t.connect = [](void* i, const headrace_connect_v1* args, void** connection, headrace_text_v1* error) {
      return guarded(
          error, [&] { return self<B>(i).connect(*args); }, put(connection));
    };
    t.disconnect = [](void* i, void* connection) {
      shielded([&] { self<B>(i).disconnect(*H::link(connection)); });
    };
    t.register_region = [](void* i, const headrace_region_v1* region, void** handle,
                           headrace_text_v1* error) {
      return guarded(
          error, [&] { return self<B>(i).register_region(*region); }, put(handle));
    };
    t.deregister_region = [](void* i, void* handle) {
      shielded([&] { self<B>(i).deregister_region(H::region(handle)); });
    };
    t.export_region = [](void* i, void* handle, const headrace_sink_v1* out, headrace_text_v1* error) {
      return guarded(
          error, [&] { return self<B>(i).export_region(H::region(handle)); }, pour(out));
    };
    t.load_local = [](void* i, void* handle, void** remote, headrace_text_v1* error) {
      return guarded(
          error, [&] { return self<B>(i).load_local(H::region(handle)); }, put(remote));
    };
    t.load_remote = [](void* i, void* c, const headrace_remote_region_v1* region, void** remote,
                       headrace_text_v1* error) {
      return guarded(
          error, [&] { return self<B>(i).load_remote(*H::link(c), *region); }, put(remote));
    };
    t.unload = [](void* i, void* remote) { shielded([&] { self<B>(i).unload(H::remote(remote)); }); };
    if constexpr (T::maps) {
      t.map = [](void* i, void* remote, headrace_map_v1* args, headrace_text_v1* error) {
        return guarded(
            error, [&] { return self<B>(i).map(H::remote(remote), args->device, args->access); },
            [&](auto& result) {
              args->address = result.value().data();
              args->length = result.value().size();
            });
      };
      t.unmap = [](void* i, void* remote, void* address) {
        shielded([&] { self<B>(i).unmap(H::remote(remote), address); });
      };
    }
    t.prepare = [](void* i, const headrace_prepare_v1* args, void** request, headrace_text_v1* error) {
      return guarded(
          error, [&] { return self<B>(i).prepare(H::link(args->connection), whole(*args)); }, put(request));
    };
    t.post = [](void* i, void* request, const headrace_post_v1* args) {
      return shielded(threw, [&] { return Host::to_c(self<B>(i).post(H::request(request), *args)); });
    };
    t.poll = [](void* i, void* request) {
      return shielded(int32_t{0}, [&] { return int32_t{self<B>(i).poll(H::request(request)) ? 1 : 0}; });
    };
    t.cancel = [](void* i, void* request) { shielded([&] { self<B>(i).cancel(H::request(request)); }); };
    t.release = [](void* i, void* request) { shielded([&] { self<B>(i).release(H::request(request)); }); };
    t.notify = [](void* i, void* connection, uint32_t channel, const void* bytes, size_t length) {
      return shielded(threw, [&] {
        return Host::to_c(
            self<B>(i).notify(*H::link(connection), channel, {static_cast<const char*>(bytes), length}));
      });
    };
    t.unsent = [](void* i, void* connection) {
      return shielded(std::uint64_t{0}, [&] { return self<B>(i).unsent(*H::link(connection)); });
    };
    t.progress = [](void* i) { return shielded(uint32_t{0}, [&] { return self<B>(i).progress(); }); };
    t.descriptor = [](void* i) {
      return shielded(int32_t{-1}, [&] { return int32_t{self<B>(i).descriptor()}; });
    };
    t.arm = [](void* i, int32_t on) {
      return shielded(uint32_t{0}, [&] { return self<B>(i).arm(on != 0); });
    };
    t.query = [](void* i, const headrace_query_v1* args, const headrace_sink_v1* out,
                 headrace_text_v1* error) {
      return guarded(
          error, [&] { return self<B>(i).query(*args); }, pour(out));
    };
    t.cost = [](void* i, const headrace_prepare_v1* args, headrace_cost_v1* cost) {
      return shielded(int32_t{HEADRACE_INTERNAL}, [&] {
        fill(cost, self<B>(i).cost(whole(*args)));
        return int32_t{HEADRACE_OK};
      });
    };
    t.capture = [](void* i, void* request, headrace_capture_v1* args, headrace_text_v1* error) {
      return guarded(
          error,
          [&] { return telling_page(self<B>(i).capture(H::request(request), whole(*args)), args->page); },
          [&](auto& result) { args->captured = result.value() ? 1 : 0; });
    };
    t.end_capture = [](void* i, void* request) {
      shielded([&] { self<B>(i).end_capture(H::request(request)); });
    };
    t.set_indices = [](void* i, void* request, const headrace_indices_v1* args, headrace_text_v1* error) {
      return guarded(
          error, [&] { return self<B>(i).set_indices(H::request(request), *args); }, [](auto&) {});
    };
    t.check = [](void* i, void* request, headrace_check_v1* args, headrace_text_v1* error) {
      return guarded(
          error, [&] { return telling_page(self<B>(i).check(H::request(request)), args->page); },
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
