// SPDX-License-Identifier: Apache-2.0
// What the engine decides by itself: whom it asks, whom it leaves alone, and what it shows meanwhile.
#include "engine/engine.hpp"
#include "backends/fake/backend.hpp"
#include "memory/allocation.hpp"
#include "support/temporary_folder.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

const headrace_backend_v1& model() { return *plugin::table<fake::FakeBackend>(); }

/// The model backend as one that reaches GPU memory alone.
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

/// The model backend as one that moves between host memory and files.
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
    std::vector<std::pair<std::string, std::string>> settings;
    for (const headrace_option_v1& row : fake::FakeBackend::options())
      settings.emplace_back(row.name, std::string(row.name) == "faults" ? faults : row.default_value);
    EXPECT_TRUE(engine.add_backend({table.name, "linked in", &table, ""}, settings).ok());
  }
  RegionId registered(Engine& engine, std::span<std::byte> bytes, int memory_fd = -1) {
    const MemoryRange range{bytes.data(), bytes.size()};
    return engine.register_regions({&range, 1}, {}, {memory_fd, nullptr}).value().front().id;
  }
  static void meet(Engine& here, const Engine& there) {
    EXPECT_TRUE(here.import(there.export_metadata({}).value()).ok());
  }

  std::array<std::byte, 8192> memory{};

 private:
  Logger logger_;
  const test::TemporaryFolder folder_;
};

TEST_F(EngineTest, a_bare_notification_makes_no_link_of_gpus_and_uses_one_that_is_there) {
  const auto here = open("here", OfGpus::table()), there = open("there", OfGpus::table());
  meet(*here, *there);
  ASSERT_TRUE(here->notify("there", "first").ok());
  EXPECT_EQ(OfGpus::links, 0);
  const auto other = open("other", OfGpus::table());
  meet(*here, *other);
  ASSERT_TRUE(here->connect("other", 10s, {"of_gpus"}).ok());
  ASSERT_TRUE(here->notify("other", "second").ok());
  EXPECT_EQ(OfGpus::messages, 1);
}

TEST_F(EngineTest, host_memory_is_mapped_without_a_link_of_gpus) {
  const auto here = open("here", OfGpus::table()), there = open("there", OfGpus::table());
  const Allocation allocation = Allocation::make(8192).value();
  const RegionId region = registered(*there, allocation.bytes(), allocation.fd());
  meet(*here, *there);
  const auto mapping = here->map("there", region, 10s);
  ASSERT_TRUE(mapping.ok()) << mapping.error().message;
  EXPECT_EQ((*mapping)->length, 8192U);
  EXPECT_EQ(OfGpus::links, 0);
  EXPECT_EQ(here->map("there", {region.value + 1}, 10s).code(), Code::not_found);
}

TEST_F(EngineTest, a_request_to_oneself_passes_by_who_takes_its_far_side_nowhere) {
  const auto engine = open("alone", OfFiles::table());
  const RegionId region = registered(*engine, memory);
  RequestPlan plan;
  plan.local = engine->prepare_uniform({}, true, {region, 0, 4096, 4096, 1}).value();
  plan.remote = engine->prepare_uniform("alone", false, {region, 4096, 4096, 4096, 1}).value();
  plan.count = 1;
  plan.bytes = 4096;
  const auto request = engine->make_request(std::move(plan));
  ASSERT_TRUE(request.ok()) << request.error().message;
  EXPECT_NE((*request)->explain().find("not of_files: does not move to or from dram"), std::string::npos)
      << (*request)->explain();
  EXPECT_EQ(OfFiles::loaded, 0);
}

TEST_F(EngineTest, a_post_that_goes_over_to_a_path_with_a_full_queue_waits_there) {
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
  RequestPlan plan;
  plan.op = Op::read;
  plan.local = engine->prepare_uniform({}, true, {region, 0, 4096, 4096, 1}).value();
  plan.remote = engine->prepare_uniform("alone", false, {region, 4096, 4096, 4096, 1}).value();
  plan.count = 1;
  plan.bytes = 4096;
  plan.backends = {"failing", "full"};
  const auto request = engine->make_request(std::move(plan)).value();
  ASSERT_EQ(request->backend(), "failing");
  memory[4096 + 4095] = std::byte{7};
  ASSERT_TRUE(request->post(nullptr).ok());
  EXPECT_TRUE(request->wait(10s).ok()) << request->error().message;
  EXPECT_EQ(request->backend(), "full");
  EXPECT_LT(refusals, 0) << "it was asked until it had room";
  EXPECT_EQ(memory[4095], std::byte{7});
}

TEST_F(EngineTest, views_pass_by_a_backend_that_does_not_know_them) {
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
  plan.local = engine->prepare_uniform({}, true, {region, 0, 256, 0, 2}, &here).value();
  plan.remote = engine->prepare_uniform("alone", false, {region, 4096, 256, 64, 2}, &there).value();
  plan.count = 2;
  plan.bytes = 128;
  RequestPlan stretches = plan;
  plan.grid = pair_shapes(&*plan.local->shape, &*plan.remote->shape).value();
  ASSERT_TRUE(plan.grid);
  const auto request = engine->make_request(std::move(plan));
  ASSERT_TRUE(request.ok()) << request.error().message;
  EXPECT_EQ((*request)->backend(), "fake");
  EXPECT_NE((*request)->explain().find("not older: does not move pages that are strided views"),
            std::string::npos)
      << (*request)->explain();
  const auto plain = engine->make_request(std::move(stretches));
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ((*plain)->explain().find("strided"), std::string::npos);
}

/// The model backend as one that says it can capture, and has nothing to do it with.
TEST_F(EngineTest, a_backend_that_can_capture_and_lacks_the_entries_is_refused) {
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

TEST_F(EngineTest, a_link_from_an_agent_without_a_proper_name_is_refused) {
  const auto engine = open("engine", OfFiles::table());
  BackendInstance& backend = *engine->backends().front();
  for (const char* const name : {"", "\xff", "half a pair \xed\xa0\x80"})
    EXPECT_EQ(engine->accepted(backend, nullptr, name, 1), 0U) << name;
  EXPECT_TRUE(engine->peers().empty());
}

TEST_F(EngineTest, regions_are_listed_while_others_come_and_go) {
  const auto engine = open("busy", OfFiles::table());
  const RegionId kept = registered(*engine, memory);
  std::atomic<bool> over{false};
  const std::jthread other([&] {
    for (int i = 0; i < 500; ++i) {
      const RegionId passing = registered(*engine, memory);
      EXPECT_TRUE(engine->deregister({&passing, 1}, 10s).ok());
    }
    over = true;
  });
  while (!over) {
    const std::vector<Region> listed = engine->regions();
    ASSERT_FALSE(listed.empty());
    EXPECT_EQ(listed.front().id, kept);
    for (const Region& region : listed) EXPECT_EQ(region.backends.size(), 2U);
  }
}

}  // namespace
}  // namespace headrace::engine
