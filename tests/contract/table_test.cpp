// SPDX-License-Identifier: Apache-2.0
// The table itself, making and ending instances, and what an instance says of itself.
#include "contract/fixture.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <set>

namespace headrace::contract {
namespace {

class Table : public Contract {};
HEADRACE_FOR_EACH_BACKEND(Table);

class TableToPeers : public Table {};
HEADRACE_FOR_EACH_BACKEND_THAT(TableToPeers, HEADRACE_REMOTE);

class TableWithoutCapture : public Table {};
INSTANTIATE_TEST_SUITE_P(backend, TableWithoutCapture, testing::ValuesIn(cases_without(HEADRACE_CAPTURE)),
                         CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TableWithoutCapture);

/// The rows of a table's options, by the step that it declares.
std::vector<headrace_option_v1> option_rows(const headrace_backend_v1& table) {
  std::vector<headrace_option_v1> rows;
  for (std::size_t i = 0; i < table.option_count; ++i)
    rows.push_back(*reinterpret_cast<const headrace_option_v1*>(reinterpret_cast<const char*>(table.options) +
                                                                i * table.option_size));
  return rows;
}

bool is_name(std::string_view text) {
  return !text.empty() &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
}

TEST_P(Table, names_its_version_its_kinds_and_itself) {
  EXPECT_GE(table->struct_size, HEADRACE_BACKEND_V1_SIZE);
  EXPECT_EQ(table->abi_major, HEADRACE_BACKEND_ABI_MAJOR);
  EXPECT_TRUE(is_name(table->name)) << table->name;
  const std::string file = std::filesystem::path(plugin_file(GetParam().plugin())).filename();
  EXPECT_EQ(file, fmt::format("headrace_backend_{}.so", table->name));
  EXPECT_STRNE(table->version, "");
  EXPECT_NE(table->memory_kinds, 0U);
  EXPECT_EQ(load_plugin(GetParam().plugin()), table) << "each call of the symbol must give the same table";
}

TEST_P(Table, has_every_entry_that_a_host_calls_without_asking) {
  EXPECT_NE(table->create, nullptr);
  EXPECT_NE(table->destroy, nullptr);
  EXPECT_NE(table->info, nullptr);
  EXPECT_NE(table->connection_info, nullptr);
  EXPECT_NE(table->connect, nullptr);
  EXPECT_NE(table->disconnect, nullptr);
  EXPECT_NE(table->register_region, nullptr);
  EXPECT_NE(table->deregister_region, nullptr);
  EXPECT_NE(table->export_region, nullptr);
  EXPECT_NE(table->load_local, nullptr);
  EXPECT_NE(table->load_remote, nullptr);
  EXPECT_NE(table->unload, nullptr);
  EXPECT_EQ(table->map == nullptr, table->unmap == nullptr);
  EXPECT_NE(table->prepare, nullptr);
  EXPECT_NE(table->post, nullptr);
  EXPECT_NE(table->poll, nullptr);
  EXPECT_NE(table->cancel, nullptr);
  EXPECT_NE(table->release, nullptr);
  EXPECT_NE(table->notify, nullptr);
  EXPECT_NE(table->progress, nullptr);
  EXPECT_NE(table->descriptor, nullptr);
  EXPECT_NE(table->cost, nullptr);
}

TEST_P(Table, lists_options_that_a_person_can_read) {
  std::set<std::string> names;
  if (table->option_count > 0) {
    EXPECT_GE(table->option_size, sizeof(headrace_option_v1));
  }
  for (const headrace_option_v1& row : option_rows(*table)) {
    EXPECT_TRUE(is_name(row.name)) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " stands there twice";
    EXPECT_NE(row.default_value, nullptr) << row.name;
    EXPECT_STRNE(row.unit, "") << row.name;
    EXPECT_GE(std::strlen(row.sentence), 10U) << row.name;
    EXPECT_EQ(row.flags & ~HEADRACE_OPTION_SECRET, 0U) << row.name;
  }
}

TEST_P(Table, create_refuses_values_that_make_no_sense_and_names_the_option) {
  PluginHost host({});
  for (const headrace_option_v1& row : option_rows(*table)) {
    if (std::string_view(row.unit) == "text" || std::string_view(row.unit) == "list")
      continue;  // any text may be right
    const CreateArguments arguments(*table, {{row.name, "no such value"}}, world.runtime_dir());
    ErrorText error;
    void* instance = nullptr;
    EXPECT_EQ(table->create(host.table(), arguments.args(), &instance, error.out()),
              HEADRACE_INVALID_ARGUMENT)
        << row.name;
    EXPECT_NE(error.str().find(row.name), std::string::npos) << error.str();
    EXPECT_NE(error.str().find("no such value"), std::string::npos) << error.str();
  }
}

TEST_P(Table, an_error_writes_no_byte_beyond_the_room_it_is_given) {
  const auto a = open();
  std::string room(64, '#');
  headrace_text_v1 text{sizeof(text), room.data(), 8, 0};
  headrace_region_v1 nonsense{};
  nonsense.struct_size = sizeof(nonsense);
  nonsense.region_id = 1;
  nonsense.kind = 99;
  nonsense.device = nonsense.memory_fd = nonsense.file_fd = -1;
  void* handle = nullptr;
  EXPECT_NE(table->register_region(a->handle(), &nonsense, &handle, &text), HEADRACE_OK);
  EXPECT_GT(text.length, 0U);
  EXPECT_LE(text.length, 8U);
  EXPECT_EQ(text.struct_size, sizeof(text));
  EXPECT_EQ(room.substr(8), std::string(56, '#'));
}

TEST_P(Table, info_keeps_to_the_room_it_is_given_and_does_not_change) {
  const auto a = open();
  headrace_info_v1 again{};
  again.struct_size = sizeof(again);
  table->info(a->handle(), &again);
  EXPECT_EQ(std::memcmp(&again, &a->info(), sizeof(again)), 0);
  EXPECT_EQ(again.struct_size, sizeof(again));

  headrace_info_v1 short_one{};
  short_one.struct_size = offsetof(headrace_info_v1, max_message_bytes);
  short_one.max_message_bytes = 0x1234567890abcdef;
  table->info(a->handle(), &short_one);
  EXPECT_EQ(short_one.struct_size, offsetof(headrace_info_v1, max_message_bytes));
  EXPECT_EQ(short_one.max_message_bytes, 0x1234567890abcdefULL) << "written beyond struct_size";
  EXPECT_EQ(short_one.abilities, again.abilities);
}

TEST_P(Table, abilities_are_those_by_which_the_tests_of_the_row_were_chosen) {
  const auto a = open();
  EXPECT_EQ(a->info().abilities, GetParam().abilities.value_or(a->info().abilities))
      << "the row in cases.cpp names others: tests are missing, or cannot pass";
}

TEST_P(Table, abilities_kinds_and_entries_agree) {
  const auto a = open();
  const headrace_info_v1& info = a->info();
  EXPECT_NE(info.abilities & (HEADRACE_LOCAL | HEADRACE_REMOTE), 0U) << "it moves nothing";
  if (a->can(HEADRACE_REMOTE)) {
    EXPECT_TRUE(a->can(HEADRACE_NOTIFY)) << "revocations travel as messages";
  }
  if (a->can(HEADRACE_COUNT)) {
    EXPECT_TRUE(a->can(HEADRACE_REMOTE)) << "peers count";
  }
  if (a->can(HEADRACE_NOTIFY)) {
    EXPECT_GE(info.max_message_bytes, 65'536U + 16)
        << "agents send 64 KiB with 16 bytes of their own before them";
  }
  if (a->can(HEADRACE_MAP)) {
    EXPECT_NE(table->map, nullptr);
  }
  if (a->can(HEADRACE_QUERY)) {
    EXPECT_NE(table->query, nullptr);
  }
  if (a->can(HEADRACE_CAPTURE)) {
    EXPECT_TRUE(a->can(HEADRACE_STREAM)) << "a capture is of a stream";
    ASSERT_TRUE(HEADRACE_HAS(table, check));
    EXPECT_NE(table->capture, nullptr);
    EXPECT_NE(table->end_capture, nullptr);
    EXPECT_NE(table->set_indices, nullptr);
    EXPECT_NE(table->check, nullptr);
  }
  EXPECT_NE(info.local_kinds, 0U);
  EXPECT_NE(info.remote_kinds, 0U);
  EXPECT_EQ((info.local_kinds | info.remote_kinds) & ~table->memory_kinds, 0U)
      << "kinds that the table does not announce";
}

TEST_P(TableWithoutCapture, has_no_entry_for_it_or_says_so_in_each) {
  const auto a = open();
  ASSERT_FALSE(a->can(HEADRACE_CAPTURE));
  if (!HEADRACE_HAS(table, check)) return;
  if (table->capture == nullptr) {
    EXPECT_TRUE(table->end_capture == nullptr && table->set_indices == nullptr && table->check == nullptr);
    return;
  }
  int request = 0;  // never looked at
  const auto refused = [](auto&& call) {
    ErrorText error;
    EXPECT_EQ(call(error.out()), HEADRACE_NOT_SUPPORTED);
    EXPECT_NE(error.length(), 0U);
  };
  headrace_capture_v1 capture{};
  capture.struct_size = sizeof capture;
  refused([&](headrace_text_v1* error) { return table->capture(a->handle(), &request, &capture, error); });
  EXPECT_EQ(capture.captured, 0);
  EXPECT_EQ(capture.page, HEADRACE_NO_PAGE);
  headrace_indices_v1 indices{};
  indices.struct_size = sizeof indices;
  refused(
      [&](headrace_text_v1* error) { return table->set_indices(a->handle(), &request, &indices, error); });
  headrace_check_v1 check{};
  check.struct_size = sizeof check;
  refused([&](headrace_text_v1* error) { return table->check(a->handle(), &request, &check, error); });
  table->end_capture(a->handle(), &request);
}

TEST_P(Table, descriptor_does_not_change) {
  const auto a = open();
  EXPECT_EQ(table->descriptor(a->handle()), a->descriptor());
}

TEST_P(TableToPeers, connection_info_does_not_change) {
  const auto a = open();
  const std::string info = a->connection_info();
  EXPECT_LE(info.size(), 65'536U) << "more than metadata carries";
  EXPECT_EQ(a->connection_info(), info);
}

TEST_P(Table, cost_is_sane_before_any_link_or_region_is_there) {
  const auto a = open();
  headrace_side_v1 side{};
  side.struct_size = sizeof(side);
  side.columns.stride_bytes = side.columns.page_bytes = 4096;
  side.region_count = 1;  // which is counted, and not there yet
  headrace_prepare_v1 args{};
  args.struct_size = sizeof(args);
  args.local = args.remote = &side;
  double before = 0;
  for (const std::uint64_t count : {1ULL, 1000ULL, 1'000'000ULL}) {
    args.count = count;
    args.bytes = count * 4096;
    headrace_cost_v1 cost{};
    cost.struct_size = sizeof(cost);
    ASSERT_EQ(table->cost(a->handle(), &args, &cost), HEADRACE_OK);
    EXPECT_EQ(cost.struct_size, sizeof(cost));
    EXPECT_GE(cost.fixed_ns, 0);
    EXPECT_GE(cost.ns_per_page, 0);
    EXPECT_GE(cost.bytes_per_second, 1);
    EXPECT_GE(cost.margin, 0);
    ASSERT_NE(cost.method, nullptr);
    EXPECT_STRNE(cost.method, "");
    const double nanoseconds = cost.fixed_ns + cost.ns_per_page * static_cast<double>(count) +
                               static_cast<double>(args.bytes) * 1e9 / cost.bytes_per_second;
    EXPECT_GT(nanoseconds, before) << "a thousand times the pages must cost more";
    EXPECT_LT(nanoseconds, 3600e9);
    before = nanoseconds;
  }
}

/// Descriptors and threads of this process, by name.
std::multiset<std::string> descriptors() {
  std::multiset<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && target.find("/proc/") != 0)
      names.insert(target.substr(0, target.find(":[")));  // without the inode
  }
  return names;
}
std::ptrdiff_t threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}

TEST_P(Table, destroy_leaves_no_descriptor_and_no_thread) {
  const auto live_once = [&] {
    if (const auto a = open(); !a->can(HEADRACE_REMOTE)) {
      const Memory source(Memory::Kind::plain, 10'000, 1),
          target(far_kind(*a, Memory::Kind::plain), 10'000, 2);
      const Region from(*a, source), to(*a, target);
      const Remote remote(*a, to);
      Request request(*a, HEADRACE_WRITE, nullptr, uniform_side(from.handle(), 0, 100, 100),
                      uniform_side(remote.handle(), 0, 100, 100), 100);
      ASSERT_TRUE(request.run().status.ok());
      return;
    }
    const Memory memory(Memory::Kind::shared, 10'000, 1);
    const Pair pair = open_pair();
    const Region mine(*pair.a, memory), theirs(*pair.b, memory);
    const Remote remote(pair.ab, theirs.facts());
    pair.ab.send(world, HEADRACE_CHANNEL_USER, "hello");
    ASSERT_TRUE(world.until([&] { return pair.b->host().message_count() == 1; }));
  };
  live_once();  // what is made once a process is made here
  const auto descriptors_before = descriptors();
  const auto threads_before = threads();
  for (int i = 0; i < 5; ++i) ASSERT_NO_FATAL_FAILURE(live_once());
  EXPECT_EQ(descriptors(), descriptors_before);
  // A thread that was joined stays in /proc for a moment.
  EXPECT_TRUE(world.until([&] { return threads() <= threads_before; }))
      << threads() << " threads, " << threads_before << " before";
}

TEST_P(Table, instances_of_one_process_live_side_by_side) {
  std::vector<std::unique_ptr<Instance>> instances;
  std::set<void*> handles;
  for (int i = 0; i < 8; ++i) instances.push_back(open(fmt::format("agent-{}", i)));
  for (const auto& instance : instances) {
    EXPECT_TRUE(handles.insert(instance->handle()).second) << "one instance for two agents";
    EXPECT_EQ(table->descriptor(instance->handle()), instance->descriptor());
  }
}

TEST_P(TableToPeers, instances_of_one_process_are_at_places_of_their_own) {
  std::vector<std::unique_ptr<Instance>> instances;
  for (int i = 0; i < 8; ++i) instances.push_back(open(fmt::format("agent-{}", i)));
  std::set<std::string> where;
  for (const auto& instance : instances)
    EXPECT_TRUE(where.insert(instance->connection_info()).second) << "two instances at one place";
}

}  // namespace
}  // namespace headrace::contract
