// SPDX-License-Identifier: Apache-2.0
// A backend in which nothing ends by itself: posts end when the test says so or they are canceled, links
// become ready and close when the test lets them.
#pragma once

#include "backends/fake/backend.hpp"
#include "wire/agent_message.hpp"

#include <atomic>
#include <functional>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

namespace headrace::engine {

struct Deaf {
  static inline const headrace_host_v1* host = nullptr;
  static inline std::atomic<std::uint64_t> token = 0, link = 0;
  static inline std::atomic<int> posts = 0, closing = 0;
  static inline std::atomic<bool> may_close = true, full = false, ends_posts_of_closed_links = false;
  static inline std::atomic<std::uint64_t> unsent = 0;
  static inline std::vector<std::uint64_t> answered;         ///< sequences of revocations, by `answers`
  static inline std::function<void(std::uint64_t)> answers;  ///< inside the call that sends an answer

  static inline std::function<void(std::uint32_t, std::string_view)> sends;  ///< inside `notify`

  static void complete(headrace_code_v1 code = HEADRACE_OK) {
    if (const std::uint64_t ended = token.exchange(0); ended != 0)
      host->completed(host->context, ended, {code, 0, HEADRACE_NO_PAGE}, nullptr, 0);
  }
  static void make_ready() {
    host->link_event(host->context, link, HEADRACE_LINK_READY, {HEADRACE_OK, 0, HEADRACE_NO_PAGE}, nullptr,
                     0);
  }

  static const headrace_backend_v1* table() {
    static headrace_backend_v1 t = *plugin::table<fake::FakeBackend>();
    t.name = "deaf";
    fill_links(t);
    fill_requests(t);
    token = link = 0;
    posts = closing = 0;
    unsent = 0;
    may_close = true;
    full = ends_posts_of_closed_links = false;
    answered.clear();
    answers = nullptr;
    sends = nullptr;
    return &t;
  }

 private:
  static void* handle() {
    static int one = 0;
    return &one;
  }
  static headrace_status_v1 status(headrace_code_v1 code) { return {code, 0, HEADRACE_NO_PAGE}; }

  static void fill_links(headrace_backend_v1& t) {
    t.create = [](const headrace_host_v1* h, const headrace_create_v1* args, void** instance,
                  headrace_text_v1* e) {
      host = h;
      return plugin::table<fake::FakeBackend>()->create(h, args, instance, e);
    };
    t.connect = [](void*, const headrace_connect_v1* args, void** connection, headrace_text_v1*) {
      link = args->link_token;
      *connection = handle();
      return int32_t{HEADRACE_OK};
    };
    t.disconnect = [](void*, void*) {
      ++closing;
      while (!may_close) std::this_thread::yield();
      if (ends_posts_of_closed_links) complete(HEADRACE_CANCELED);
    };
    t.load_remote = [](void*, void*, const headrace_remote_region_v1*, void** remote, headrace_text_v1*) {
      *remote = handle();
      return int32_t{HEADRACE_OK};
    };
    t.unload = [](void*, void*) {};
    t.unsent = [](void*, void*) { return unsent.load(); };
    t.notify = [](void*, void*, uint32_t channel, const void* bytes, size_t length) {
      if (sends) sends(channel, {static_cast<const char*>(bytes), length});
      if (channel == HEADRACE_CHANNEL_AGENT) note({static_cast<const char*>(bytes), length});
      return status(HEADRACE_OK);
    };
  }
  static void fill_requests(headrace_backend_v1& t) {
    t.prepare = [](void*, const headrace_prepare_v1*, void** request, headrace_text_v1*) {
      *request = handle();
      return int32_t{HEADRACE_OK};
    };
    t.post = [](void*, void*, const headrace_post_v1* args) {
      if (full) return status(HEADRACE_WOULD_BLOCK);
      token = args->token;
      ++posts;
      return status(HEADRACE_OK);
    };
    t.poll = [](void*, void*) { return int32_t{0}; };
    t.cancel = [](void*, void*) { complete(HEADRACE_CANCELED); };
    t.release = [](void*, void*) {};
  }
  static void note(std::string_view bytes) {
    const auto message = wire::decode_agent_message(bytes);
    const auto* const revoked = message ? std::get_if<wire::Revoked>(&*message) : nullptr;
    if (revoked == nullptr) return;
    answered.push_back(revoked->sequence);
    if (answers) answers(revoked->sequence);
  }
};

}  // namespace headrace::engine
