// SPDX-License-Identifier: Apache-2.0
// Decisions of the engine itself: the backend that it asks, the backend that it leaves out, and the text that
// explains both.
#include "engine/engine.hpp"
#include "backends/fake/backend.hpp"
#include "memory/allocation.hpp"
#include "support/child_ending.hpp"
#include "support/temporary_folder.hpp"
#include "unit/engine/linked_backend.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

const headrace_backend_v1& model() { return *plugin::table<fake::FakeBackend>(); }

/// The fake backend, presented as one that reaches GPU memory only.
struct OfGpus {
  static inline std::atomic<int> links = 0;
  static inline std::atomic<int> messages = 0;

  static const headrace_backend_v1* table() {
    static headrace_backend_v1 t = model();
    t.name = "of_gpus";
    t.info = [](void* instance, headrace_info_v1* info) {
      model().info(instance, info);
      info->local_kinds = info->remote_kinds = HEADRACE_KIND_BIT(HEADRACE_VRAM);
    };
    t.connect = [](void* instance, const headrace_connect_v1* args, void** connection,
                   headrace_text_v1* error) {
      ++links;
      return model().connect(instance, args, connection, error);
    };
    t.notify = [](void* instance, void* connection, uint32_t channel, const void* bytes, size_t length) {
      ++messages;
      return model().notify(instance, connection, channel, bytes, length);
    };
    return &t;
  }
};

/// The same, presented as one that also takes host memory if the other side is GPU memory.
struct OfGpusAndHost {
  static const headrace_backend_v1* table() {
    static headrace_backend_v1 t = *OfGpus::table();
    t.name = "of_gpus_and_host";
    t.info = [](void* instance, headrace_info_v1* info) {
      model().info(instance, info);
      info->abilities |= HEADRACE_NEEDS_VRAM;
    };
    return &t;
  }
};

/// The fake backend, presented as one that moves between host memory and files.
struct OfFiles {
  static inline std::atomic<int> loaded = 0;

  static const headrace_backend_v1* table() {
    static headrace_backend_v1 t = model();
    t.name = "of_files";
    t.info = [](void* instance, headrace_info_v1* info) {
      model().info(instance, info);
      info->local_kinds = HEADRACE_KIND_BIT(HEADRACE_DRAM);
      info->remote_kinds = HEADRACE_KIND_BIT(HEADRACE_FILE);
    };
    t.load_local = [](void* instance, void* handle, void** remote, headrace_text_v1* error) {
      ++loaded;
      return model().load_local(instance, handle, remote, error);
    };
    return &t;
  }
};

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() { OfGpus::links = OfGpus::messages = OfFiles::loaded = 0; }

  std::shared_ptr<Engine> open(const std::string& name, const headrace_backend_v1* first) {
    auto engine = Engine::open({.name = name, .runtime_dir = folder_.path()}, logger_).value();
    for (const headrace_backend_v1* const table : {first, &model()}) add(*engine, *table);
    return engine;
  }
  static void add(Engine& engine, const headrace_backend_v1& table, const std::string& faults = {}) {
    add_linked(engine, table, {{"faults", faults}});
  }
  RegionId registered(Engine& engine, std::span<std::byte> bytes, int memory_fd = -1) {
    const MemoryRange range{bytes.data(), bytes.size()};
    return engine.regions().add({&range, 1}, {}, {memory_fd, nullptr}).value().front().id;
  }
  static void meet(Engine& here, Engine& there) {
    EXPECT_TRUE(here.peers().import(there.regions().exported({}).value()).ok());
  }

  /// A request that moves one page from the second half of our memory to the first.
  static RequestPlan within(Engine& engine, RegionId region, std::vector<std::string> backends = {}) {
    RequestPlan plan;
    plan.local = engine.lists().prepare(Side::local(), UniformPages{region, 0, 4096, 4096, 1}).value();
    plan.remote = engine.lists()
                      .prepare(Side::remote(engine.name()), UniformPages{region, 4096, 4096, 4096, 1})
                      .value();
    plan.count = 1;
    plan.bytes = 4096;
    plan.backends = std::move(backends);
    return plan;
  }

  std::array<std::byte, 8192> memory{};

 private:
  Logger logger_;
  const test::TemporaryFolder folder_;
};

TEST_F(EngineTest, a_notification_without_a_request_opens_no_gpu_link_and_uses_a_ready_one) {
  const auto here = open("here", OfGpus::table()), there = open("there", OfGpus::table());
  meet(*here, *there);
  ASSERT_TRUE(here->notifications().send("there", "first").ok());
  EXPECT_EQ(OfGpus::links, 0);
  const auto other = open("other", OfGpus::table());
  meet(*here, *other);
  ASSERT_TRUE(here->peers().connect("other", 10s, {"of_gpus"}).ok());
  ASSERT_TRUE(here->notifications().send("other", "second").ok());
  EXPECT_EQ(OfGpus::messages, 1);
}

TEST_F(EngineTest, host_memory_is_mapped_without_a_gpu_link) {
  const auto here = open("here", OfGpus::table()), there = open("there", OfGpus::table());
  const Allocation allocation = Allocation::make(8192).value();
  const RegionId region = registered(*there, allocation.bytes(), allocation.fd());
  meet(*here, *there);
  const auto mapping = here->mappings().map("there", region, 10s);
  ASSERT_TRUE(mapping.ok()) << mapping.error().message;
  EXPECT_EQ((*mapping)->length, 8192U);
  EXPECT_EQ(OfGpus::links, 0);
  EXPECT_EQ(here->mappings().map("there", {region.value + 1}, 10s).code(), Code::not_found);
}

TEST_F(EngineTest, host_memory_is_mapped_for_the_cpu_without_a_gpu_link_that_could_reach_it) {
  const auto here = open("here", OfGpusAndHost::table()), there = open("there", OfGpusAndHost::table());
  const Allocation allocation = Allocation::make(8192).value();
  const RegionId region = registered(*there, allocation.bytes(), allocation.fd());
  meet(*here, *there);
  ASSERT_TRUE(here->mappings().map("there", region, 10s));
  EXPECT_EQ(OfGpus::links, 0);
  EXPECT_EQ(here->mappings().map("there", region, 10s, 0).code(), Code::not_supported);
  EXPECT_EQ(OfGpus::links, 1) << "a mapping for a GPU asks the backend";
}

TEST_F(EngineTest, a_request_to_its_own_agent_skips_a_backend_that_cannot_take_its_remote_side) {
  const auto engine = open("alone", OfFiles::table());
  const RegionId region = registered(*engine, memory);
  const auto request = engine->requests().make(within(*engine, region));
  ASSERT_TRUE(request.ok()) << request.error().message;
  EXPECT_NE((*request)->explain().find("not of_files: does not move to or from dram"), std::string::npos)
      << (*request)->explain();
  EXPECT_EQ(OfFiles::loaded, 0);
}

TEST_F(EngineTest, a_post_that_falls_back_to_a_path_with_a_full_queue_waits_there) {
  const auto engine = open("alone", OfFiles::table());
  static headrace_backend_v1 failing = model(), full = model();
  failing.name = "failing";
  full.name = "full";
  static std::atomic<int> refusals;
  refusals = 3;
  full.post = [](void* instance, void* request, const headrace_post_v1* args) {
    if (refusals.fetch_sub(1) > 0) return headrace_status_v1{HEADRACE_WOULD_BLOCK, 0, HEADRACE_NO_PAGE};
    return model().post(instance, request, args);
  };
  add(*engine, failing, "partial:1");
  add(*engine, full);
  const RegionId region = registered(*engine, memory);
  memory.fill(std::byte{1});
  const auto request = engine->requests().make(within(*engine, region, {"failing", "full"})).value();
  ASSERT_EQ(request->backend(), "failing");
  memory[4096 + 4095] = std::byte{7};
  ASSERT_TRUE(request->post(nullptr).ok());
  EXPECT_TRUE(request->wait(10s).ok()) << request->error().message;
  EXPECT_EQ(request->backend(), "full");
  EXPECT_NE(request->explain().find(
                "not failing: it failed this post: the fault script stopped the copy after 1 byte"),
            std::string::npos)
      << request->explain();
  EXPECT_LT(refusals, 0) << "the engine retries until the queue has room";
  EXPECT_EQ(memory[4095], std::byte{7});
}

TEST_F(EngineTest, views_skip_a_backend_that_does_not_support_them) {
  static headrace_backend_v1 older = model();
  older.name = "older";
  older.info = [](void* instance, headrace_info_v1* info) {
    model().info(instance, info);
    info->abilities &= ~static_cast<std::uint32_t>(HEADRACE_GRID);
  };
  const auto engine = open("alone", &older);
  const RegionId region = registered(*engine, memory);
  const PageView here{{4, 16}, {32, 1}, 1}, there{{4, 16}, {64, 1}, 1};
  RequestPlan plan;
  plan.local =
      engine->lists().prepare(Side::local(), PageSpec(UniformPages{region, 0, 256, 0, 2}, here)).value();
  plan.remote = engine->lists()
                    .prepare(Side::remote("alone"), PageSpec(UniformPages{region, 4096, 256, 64, 2}, there))
                    .value();
  plan.count = 2;
  plan.bytes = 128;
  RequestPlan stretches = plan;
  stretches.local = engine->lists().prepare(Side::local(), UniformPages{region, 0, 64, 64, 2}).value();
  stretches.remote =
      engine->lists().prepare(Side::remote("alone"), UniformPages{region, 4096, 64, 64, 2}).value();
  const auto request = engine->requests().make(std::move(plan));
  ASSERT_TRUE(request.ok()) << request.error().message;
  EXPECT_EQ((*request)->backend(), "fake");
  EXPECT_NE((*request)->explain().find("not older: does not move pages that are strided views"),
            std::string::npos)
      << (*request)->explain();
  const auto plain = engine->requests().make(std::move(stretches));
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ((*plain)->explain().find("strided"), std::string::npos);
}

/// The fake backend with counters: the calls that it gets from inside its own `completed`, and the calls that
/// it gets at all.
struct Watched {
  static inline thread_local bool telling = false;
  static inline std::atomic<int> released_inside = 0, released = 0, canceled = 0, polled = 0;
  static inline decltype(headrace_host_v1::completed) tell = nullptr;

  static const headrace_backend_v1* table() {
    static headrace_backend_v1 t = model();
    t.name = "watched";
    t.create = [](const headrace_host_v1* host, const headrace_create_v1* args, void** instance,
                  headrace_text_v1* error) {
      static headrace_host_v1 watching;
      watching = *host;
      tell = host->completed;
      watching.completed = [](void* context, uint64_t token, headrace_status_v1 status, const char* text,
                              size_t length) {
        telling = true;
        tell(context, token, status, text, length);
        telling = false;
      };
      return model().create(&watching, args, instance, error);
    };
    t.release = [](void* instance, void* request) {
      ++(telling ? released_inside : released);
      model().release(instance, request);
    };
    t.cancel = [](void* instance, void* request) {
      ++canceled;
      model().cancel(instance, request);
    };
    t.poll = [](void* instance, void* request) {
      ++polled;
      return model().poll(instance, request);
    };
    released_inside = released = canceled = polled = 0;
    return &t;
  }
};

TEST_F(EngineTest, a_request_without_handles_is_released_after_completed_has_returned) {
  const auto engine = open("alone", OfFiles::table());
  add(*engine, *Watched::table(), "delay:20ms");
  auto request = engine->requests().make(within(*engine, registered(*engine, memory), {"watched"})).value();
  // The callback and the memory that it owns go with the request, but not inside `completed` on a backend's
  // thread.
  std::atomic<int> ended = 0;
  request->on_done([held = std::shared_ptr<int>(new int, [&ended](const int* number) {
                      delete number;
                      ended = Watched::telling ? -1 : 1;
                    })](Status) {});
  ASSERT_TRUE(request->post(nullptr).ok());
  request.reset();
  const Deadline deadline = Deadline::after(10s);
  while ((Watched::released + Watched::released_inside == 0 || ended == 0) && !deadline.expired())
    (void)engine->progress().poll();
  EXPECT_EQ(Watched::released_inside, 0) << "the engine must not call a backend from inside `completed`";
  EXPECT_EQ(Watched::released, 1);
  EXPECT_EQ(ended, 1);
}

TEST_F(EngineTest, close_releases_a_request_that_has_just_ended) {
  auto engine = open("alone", OfFiles::table());
  add(*engine, *Watched::table(), "delay:20ms");
  auto request = engine->requests().make(within(*engine, registered(*engine, memory), {"watched"})).value();
  ASSERT_TRUE(request->post(nullptr).ok());
  request.reset();
  engine->close();
  EXPECT_EQ(Watched::released, 1);
  EXPECT_EQ(Watched::released_inside, 0);
  const std::weak_ptr<Engine> gone = engine;
  engine.reset();
  EXPECT_TRUE(gone.expired()) << "no queued work holds the engine";
}

TEST_F(EngineTest, a_forked_child_makes_no_backend_call_for_its_parents_requests) {
  auto engine = open("alone", OfFiles::table());
  add(*engine, *Watched::table(), "delay:300ms@2");
  const RegionId region = registered(*engine, memory);
  auto running = engine->requests().make(within(*engine, region, {"watched"})).value();
  auto prepared = engine->requests().make(within(*engine, region, {"watched"})).value();
  std::atomic<bool> told = false;
  prepared->on_done([&](Status) { told = true; });
  ASSERT_TRUE(prepared->post(nullptr).ok());
  ASSERT_TRUE(prepared->wait(10s).ok());
  while (!told)
    std::this_thread::yield();  // the callback thread sets it; the child does not have that thread
  ASSERT_TRUE(running->post(nullptr).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    Watched::released = Watched::canceled = Watched::polled = 0;
    running->cancel();
    const bool refused = running->wait(10s).code == Code::invalid_argument &&
                         prepared->post(nullptr).code == Code::invalid_argument;
    (void)running->poll();
    running.reset();
    prepared.reset();
    engine.reset();
    ::_exit(refused && Watched::released + Watched::released_inside + Watched::canceled + Watched::polled == 0
                ? 0
                : 1);
  }
  EXPECT_TRUE(test::ends_well(child));
  EXPECT_TRUE(running->wait(10s).ok());
}

TEST_F(EngineTest, every_accepted_post_is_counted_with_its_end_and_its_duration) {
  static headrace_backend_v1 full = model();
  full.name = "full";
  static std::atomic<int> refusals;
  refusals = 1;
  full.post = [](void* instance, void* request, const headrace_post_v1* args) {
    if (refusals.fetch_sub(1) > 0) return headrace_status_v1{HEADRACE_WOULD_BLOCK, 0, HEADRACE_NO_PAGE};
    return model().post(instance, request, args);
  };
  const auto engine = open("alone", &full);
  const RegionId region = registered(*engine, memory);
  const auto request = engine->requests().make(within(*engine, region, {"full"})).value();
  const EngineCounters& counters = engine->counters();
  EXPECT_EQ(request->post(nullptr).code, Code::would_block);
  EXPECT_EQ(counters.posts.value(), 0U) << "a refused post does not count";
  ASSERT_TRUE(request->post(nullptr).ok());
  EXPECT_EQ(counters.posts.value(), 1U);
  ASSERT_TRUE(request->wait(10s).ok());
  EXPECT_EQ(counters.done.value(), 1U);
  EXPECT_EQ(counters.request_ns.snapshot().count, 1U);
  EXPECT_EQ(counters.request_ns.snapshot().sum, request->times().transfer_ns);
  ASSERT_TRUE(engine->regions().deregister({&region, 1}, 10s));
  EXPECT_EQ(request->post(nullptr).code, Code::not_found);
  EXPECT_EQ(counters.posts.value(), 2U);
  EXPECT_EQ(counters.failed.value(), 1U);
  EXPECT_EQ(counters.request_ns.snapshot().count, 1U) << "only posts that are done count";
}

/// The fake backend claims the ability to capture but lacks an entry that captures need.
TEST_F(EngineTest, a_backend_that_claims_capture_and_lacks_its_entries_is_refused) {
  static headrace_backend_v1 promising = model();
  promising.name = "promising";
  promising.info = [](void* instance, headrace_info_v1* info) {
    model().info(instance, info);
    info->abilities |= HEADRACE_STREAM | HEADRACE_CAPTURE;
  };
  const auto engine = open("engine", OfFiles::table());
  std::vector<std::pair<std::string, std::string>> settings;
  for (const headrace_option_v1& row : fake::FakeBackend::options())
    settings.emplace_back(row.name, row.default_value);
  const auto add = [&] { return engine->add_backend({"promising", "linked in", &promising, ""}, settings); };
  promising.set_indices = nullptr;
  const auto lacking = add();
  ASSERT_FALSE(lacking);
  EXPECT_EQ(lacking.code(), Code::not_supported);
  EXPECT_NE(lacking.error().message.find("set_indices"), std::string::npos);
  promising.set_indices = model().set_indices;
  promising.struct_size = HEADRACE_BACKEND_V1_SIZE;  // as in version 1.0
  EXPECT_EQ(add().code(), Code::not_supported);
  promising.struct_size = model().struct_size;
  EXPECT_TRUE(add().ok());
}

TEST_F(EngineTest, a_link_from_an_agent_with_an_invalid_name_is_refused) {
  const auto engine = open("engine", OfFiles::table());
  BackendInstance& backend = *engine->backends().all().front();
  for (const char* const name : {"", "\xff", "half a pair \xed\xa0\x80"})
    EXPECT_EQ(engine->accepted(backend, nullptr, name, 1), 0U) << name;
  EXPECT_TRUE(engine->peers().list().empty());
}

TEST_F(EngineTest, regions_are_listed_while_others_are_registered_and_deregistered) {
  const auto engine = open("busy", OfFiles::table());
  const RegionId kept = registered(*engine, memory);
  std::atomic<int> rounds = 0;
  const std::jthread other([&](const std::stop_token& stop) {
    for (; !stop.stop_requested(); ++rounds) {
      const RegionId passing = registered(*engine, memory);
      EXPECT_TRUE(engine->regions().deregister({&passing, 1}, 10s).ok());
    }
  });
  // The other region comes and goes between one list and the next.
  const Deadline deadline = Deadline::after(30s);
  std::size_t changes = 0, before = 1;
  while ((changes < 10 || rounds < 100) && !deadline.expired()) {
    std::this_thread::yield();  // a reader without pause keeps the registering thread from the lock
    const std::vector<Region> listed = engine->regions().list();
    ASSERT_TRUE(listed.size() == 1 || listed.size() == 2) << listed.size();
    EXPECT_EQ(listed.front().id, kept);
    for (const Region& region : listed) EXPECT_EQ(region.backends.size(), 2U);
    if (std::exchange(before, listed.size()) != listed.size()) ++changes;
  }
  EXPECT_GE(changes, 10U);
  EXPECT_GE(rounds, 100);
}

}  // namespace
}  // namespace headrace::engine
