// SPDX-License-Identifier: Apache-2.0
// Asking an instance whether files, objects or devices exist.
#include "contract/fixture.hpp"

#include <msgpack.hpp>

#include <limits>
#include <map>
#include <optional>
#include <thread>

namespace headrace::contract {
namespace {

class Query : public Contract {
 protected:
  using Fields = std::map<std::string, msgpack::object>;
  /// What was put out; the fields point into it.
  struct Answer {
    std::int32_t code = HEADRACE_OK;
    std::string error;
    msgpack::zone zone;
    std::vector<std::optional<Fields>> rows;
  };

  /// An object by its key, or what else the backend keeps by name.
  static headrace_region_v1 object(const char* key) {
    headrace_region_v1 region{};
    region.struct_size = sizeof(region);
    region.kind = GetParam().kept_kind;
    region.device = region.memory_fd = region.file_fd = -1;
    region.name = key;
    return region;
  }

  Answer ask(Instance& instance, const std::vector<headrace_region_v1>& regions) const {
    std::vector<const headrace_region_v1*> views;
    for (const headrace_region_v1& region : regions) views.push_back(&region);
    const headrace_query_v1 args{sizeof(args), views.data(), views.size(),
                                 std::numeric_limits<std::uint64_t>::max()};
    const Sink sink;
    ErrorText error;
    Answer answer;
    answer.code = table->query(instance.handle(), &args, sink.out(), error.out());
    answer.error = error.str();
    if (answer.code != HEADRACE_OK) return answer;
    std::size_t end = 0;
    const msgpack::object array = msgpack::unpack(answer.zone, sink.bytes().data(), sink.bytes().size(), end);
    EXPECT_EQ(end, sink.bytes().size()) << "one array, and nothing behind it";
    for (const msgpack::object& row : array.as<std::vector<msgpack::object>>()) {
      if (row.is_nil())
        answer.rows.emplace_back();
      else
        answer.rows.emplace_back(row.as<Fields>());
    }
    return answer;
  }
};
HEADRACE_FOR_EACH_BACKEND_THAT(Query, HEADRACE_QUERY);

TEST_P(Query, answers_each_question_in_its_place) {
  const auto a = open();
  std::vector<headrace_region_v1> regions{object("there is no such key")};
  std::vector<std::optional<std::uint64_t>> expected{std::nullopt};
  for (const auto& [key, bytes] : GetParam().objects) {
    regions.push_back(object(key.c_str()));
    expected.emplace_back(bytes);
  }
  regions.push_back(object("nor this one"));
  expected.emplace_back();
  const Answer answer = ask(*a, regions);
  ASSERT_EQ(answer.code, HEADRACE_OK) << answer.error;
  ASSERT_EQ(answer.rows.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(answer.rows[i].has_value(), expected[i].has_value()) << regions[i].name;
    if (!expected[i]) continue;
    EXPECT_EQ(answer.rows[i]->at("bytes").as<std::uint64_t>(), *expected[i]) << regions[i].name;
  }
}

TEST_P(Query, about_nothing_is_answered_by_nothing) {
  const auto a = open();
  const Answer answer = ask(*a, {});
  EXPECT_EQ(answer.code, HEADRACE_OK) << answer.error;
  EXPECT_TRUE(answer.rows.empty());
}

TEST_P(Query, about_what_has_no_name_or_is_memory_is_refused_with_a_sentence) {
  const auto a = open();
  headrace_region_v1 memory = object("x");
  memory.kind = HEADRACE_DRAM;
  for (const headrace_region_v1& wrong : {object(nullptr), object(""), memory}) {
    const Answer answer = ask(*a, {wrong});
    EXPECT_TRUE(one_of(static_cast<Code>(answer.code), {Code::invalid_argument, Code::not_supported}));
    EXPECT_GE(answer.error.size(), 10U);
  }
}

TEST_P(Query, is_answered_to_several_threads) {
  const auto a = open();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) EXPECT_EQ(ask(*a, {object("there is no such key")}).code, HEADRACE_OK);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class RemoteQuery : public Query {};
HEADRACE_FOR_EACH_BACKEND_THAT(RemoteQuery, HEADRACE_QUERY | HEADRACE_REMOTE);

TEST_P(RemoteQuery, is_answered_to_several_threads_while_a_link_is_made_and_used) {
  Pair pair = open_pair();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i)
        EXPECT_EQ(ask(*pair.a, {object("there is no such key")}).code, HEADRACE_OK);
    });
  }
  for (int i = 0; i < 50; ++i) pair.ab.send(world, HEADRACE_CHANNEL_USER, "hello");
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(world.until([&] { return pair.b->host().message_count() == 50; }));
}

}  // namespace
}  // namespace headrace::contract
