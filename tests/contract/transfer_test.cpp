// SPDX-License-Identifier: Apache-2.0
// Bytes: every shape of request moves what it names, nothing else, and the same again when it is posted
// again.
#include "contract/fixture.hpp"

#include <fmt/format.h>

#include <thread>

namespace headrace::contract {
namespace {

std::string op_name(headrace_op_v1 op) { return op == HEADRACE_READ ? "read" : "write"; }

/// Two arenas and the way from one to the other: to a peer, or inside one agent.
struct Ground {
  Instance& initiator;
  const Link* link;  ///< null: inside one agent
  Arena local, remote;
  std::vector<Remote> remotes;

  Ground(Instance& a, Instance& b, const Link* way) : initiator(a), link(way), local(a), remote(b, true) {}
  /// After the last add: loads the remote regions.
  void load() { remotes = link != nullptr ? load_all(*link, remote) : load_all(initiator, remote); }

  std::unique_ptr<Request> prepare(const std::vector<PagePair>& pages, headrace_op_v1 op,
                                   SideShape local_shape, SideShape remote_shape, std::mt19937_64& random) {
    return std::make_unique<Request>(
        initiator, op, link, side_of(pages, true, local_shape, local.handles(), random),
        side_of(pages, false, remote_shape, handles_of(remotes), random), pages.size());
  }
  void expect_moved(const std::vector<PagePair>& pages, headrace_op_v1 op) {
    move_pages(pages, op, local.expected(), remote.expected());
  }
};

void run_and_compare(Ground& ground, Request& request, const std::vector<PagePair>& pages,
                     headrace_op_v1 op) {
  const PostEnd end = request.run();
  ASSERT_TRUE(end.status.ok()) << code_name(end.status.code) << ", page " << end.status.page << ": "
                               << end.text;
  ground.expect_moved(pages, op);
  ASSERT_TRUE(ground.local.as_expected());
  ASSERT_TRUE(ground.remote.as_expected());
}

void move_random_shapes(Ground& ground, std::mt19937_64& random) {
  ground.local.add_mixed(3, 900'000);
  ground.remote.add_mixed(4, 700'000);
  ground.load();
  const std::vector<RandomPages> shapes = {
      {.count = 1, .min_bytes = 1, .max_bytes = 1},
      {.count = 1, .min_bytes = 70'001, .max_bytes = 70'001},
      {.count = 2, .min_bytes = 1, .max_bytes = 9},
      {.count = 5000, .min_bytes = 1, .max_bytes = 1},
      {.count = 5000, .min_bytes = 1, .max_bytes = 300},
      {.count = 1000, .min_bytes = 513, .max_bytes = 513},
      {.count = 100, .min_bytes = 1, .max_bytes = 20'000, .neighbours = 80},
      {.count = 1500, .min_bytes = 64, .max_bytes = 64, .neighbours = 95},
      {.count = 257, .min_bytes = 4096, .max_bytes = 4096, .neighbours = 20},
  };
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    for (const RandomPages& shape : shapes) {
      for (const SideShape side : {SideShape::general, SideShape::general_indexed}) {
        SCOPED_TRACE(fmt::format("{} of {} pages of {}..{} bytes{}", op_name(op), shape.count,
                                 shape.min_bytes, shape.max_bytes,
                                 side == SideShape::general ? "" : ", indexed"));
        const auto pages = random_pages(random, shape, op, ground.local.sizes(), ground.remote.sizes());
        const auto request =
            ground.prepare(pages, op, side, random() % 2 == 0 ? side : SideShape::general, random);
        ASSERT_NO_FATAL_FAILURE(run_and_compare(ground, *request, pages, op));
        ground.local.refill();
        ground.remote.refill();
      }
    }
  }
}

/// A uniform side with or without indices, and the pages that it names.
PageSide uniform_pages(void* region, std::uint32_t number, bool local, std::uint64_t base,
                       std::uint64_t stride, std::uint64_t page_bytes,
                       const std::vector<std::uint32_t>& indices, std::vector<PagePair>& pages) {
  PageSide side = uniform_side(region, base, stride, page_bytes);
  side.indices = indices;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const std::uint64_t offset = base + (indices.empty() ? i : indices[i]) * stride;
    (local ? pages[i].local_region : pages[i].remote_region) = number;
    (local ? pages[i].local_offset : pages[i].remote_offset) = offset;
    pages[i].bytes = page_bytes;
  }
  return side;
}

struct UniformShape {
  std::uint64_t count, page_bytes, local_stride, remote_stride, base;
};

/// Each in regions of about its own size: filling and comparing them takes most of the time.
const std::vector<UniformShape> small_uniform_shapes = {
    {1, 64, 64, 64, 3},         {100, 4096, 4096, 4096, 0}, {100, 4096, 4096, 8192, 4096},
    {777, 1000, 1003, 1000, 1}, {3000, 1, 1, 3, 11},
};
const std::vector<UniformShape> large_uniform_shapes = {{5000, 512, 640, 513, 77}};

void move_uniform_shapes(Ground& ground, const std::vector<UniformShape>& shapes, std::uint64_t region_bytes,
                         std::mt19937_64& random) {
  ground.local.add_mixed(2, region_bytes);
  ground.remote.add_mixed(2, region_bytes);
  ground.load();
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    for (const UniformShape& shape : shapes) {
      for (int indexed = 0; indexed < 4; ++indexed) {
        SCOPED_TRACE(fmt::format("{} of {} pages of {} bytes, strides {} and {}, indices {}", op_name(op),
                                 shape.count, shape.page_bytes, shape.local_stride, shape.remote_stride,
                                 indexed));
        std::vector<std::uint32_t> order(shape.count);
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
        std::vector<std::uint32_t> local_order, remote_order;
        if ((indexed & 1) != 0) std::shuffle(order.begin(), order.end(), random), local_order = order;
        if ((indexed & 2) != 0) std::shuffle(order.begin(), order.end(), random), remote_order = order;
        std::vector<PagePair> pages(shape.count);
        const auto number = static_cast<std::uint32_t>(random() % 2);
        PageSide local = uniform_pages(ground.local.handles()[number], number, true, shape.base,
                                       shape.local_stride, shape.page_bytes, local_order, pages);
        PageSide remote =
            uniform_pages(handles_of(ground.remotes)[1 - number], 1 - number, false, shape.base * 5,
                          shape.remote_stride, shape.page_bytes, remote_order, pages);
        Request request(ground.initiator, op, ground.link, std::move(local), std::move(remote), shape.count);
        ASSERT_NO_FATAL_FAILURE(run_and_compare(ground, request, pages, op));
        ground.local.refill();
        ground.remote.refill();
      }
    }
  }
}

void move_one_large_page(Ground& ground) {
  constexpr std::uint64_t bytes = 64 << 20;
  ground.local.add(Memory::Kind::plain, bytes + 13);
  ground.remote.add(Memory::Kind::shared, bytes + 99);
  ground.load();
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    SCOPED_TRACE(op_name(op));
    if (op == HEADRACE_WRITE) ground.local.refill();
    const std::vector<PagePair> pages{{0, 5, 0, 98, bytes}};
    Request request(ground.initiator, op, ground.link,
                    uniform_side(ground.local.handles()[0], 5, bytes, bytes),
                    uniform_side(ground.remotes[0].handle(), 98, bytes, bytes), 1);
    ASSERT_NO_FATAL_FAILURE(run_and_compare(ground, request, pages, op));
  }
}

void move_among_many_regions(Ground& ground, std::mt19937_64& random) {
  for (int i = 0; i < 150; ++i)
    ground.local.add(i % 5 == 0 ? Memory::Kind::shared : Memory::Kind::plain, 9'000 + random() % 300,
                     random() % 9);
  for (int i = 0; i < 170; ++i)
    ground.remote.add(i % 3 == 0 ? Memory::Kind::shared : Memory::Kind::plain, 9'000 + random() % 300,
                      random() % 9);
  ground.load();
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    SCOPED_TRACE(op_name(op));
    const auto pages =
        random_pages(random, {.count = 3000, .min_bytes = 1, .max_bytes = 700, .neighbours = 30}, op,
                     ground.local.sizes(), ground.remote.sizes());
    const auto request = ground.prepare(pages, op, SideShape::general_indexed, SideShape::general, random);
    ASSERT_NO_FATAL_FAILURE(run_and_compare(ground, *request, pages, op));
    ground.local.refill();
    ground.remote.refill();
  }
}

void post_again_and_again(Ground& ground, std::mt19937_64& random, int times) {
  ground.local.add_mixed(2, 100'000);
  ground.remote.add_mixed(2, 100'000);
  ground.load();
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    const auto pages = random_pages(random, {.count = 20, .min_bytes = 1, .max_bytes = 3000}, op,
                                    ground.local.sizes(), ground.remote.sizes());
    const auto request =
        ground.prepare(pages, op, SideShape::general_indexed, SideShape::general_indexed, random);
    for (int i = 0; i < times; ++i) {
      SCOPED_TRACE(fmt::format("{}, post {}", op_name(op), i + 1));
      const bool look = i % 100 == 0;
      if (look) ground.local.refill(), ground.remote.refill();
      const PostEnd end = request->run();
      ASSERT_TRUE(end.status.ok()) << end.text;
      if (!look) continue;
      ground.expect_moved(pages, op);
      ASSERT_TRUE(ground.local.as_expected());
      ASSERT_TRUE(ground.remote.as_expected());
    }
    EXPECT_EQ(request->ends(), static_cast<std::uint64_t>(times));
  }
}

/// `threads` threads, each with `requests` requests in flight at a time, all over the same link; the pages
/// are apart.
void move_from_threads(Ground& ground, World& world, std::mt19937_64& random, int threads, int requests,
                       int rounds) {
  struct Work {
    std::vector<PagePair> pages;
    std::unique_ptr<Request> request;
    headrace_op_v1 op;
  };
  std::vector<std::vector<Work>> work(static_cast<std::size_t>(threads));
  std::uint32_t region = 0;
  for (auto& mine : work) {
    for (int r = 0; r < requests; ++r) {
      ground.local.add(r % 2 == 0 ? Memory::Kind::plain : Memory::Kind::shared, 60'000);
      ground.remote.add(r % 3 == 0 ? Memory::Kind::plain : Memory::Kind::shared, 60'000);
      const headrace_op_v1 op = r % 2 == 0 ? HEADRACE_READ : HEADRACE_WRITE;
      auto pages =
          random_pages(random, {.count = 40, .min_bytes = 1, .max_bytes = 1200}, op, {60'000}, {60'000});
      for (PagePair& page : pages) page.local_region = page.remote_region = region;
      mine.push_back({std::move(pages), nullptr, op});
      ++region;
    }
  }
  ground.load();
  for (auto& mine : work)
    for (Work& one : mine) {
      one.request = ground.prepare(one.pages, one.op, SideShape::general_indexed, SideShape::general, random);
      ground.expect_moved(one.pages, one.op);
    }
  world.start_driver();
  std::atomic<int> failures{0};
  std::vector<std::thread> runners;
  for (auto& mine : work) {
    runners.emplace_back([&] {
      try {
        for (int round = 0; round < rounds; ++round) {
          for (Work& one : mine) one.request->post();
          for (Work& one : mine)
            if (!one.request->wait().status.ok()) ++failures;
        }
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what();
        ++failures;
      }
    });
  }
  for (std::thread& runner : runners) runner.join();
  world.stop_driver();
  ASSERT_EQ(failures.load(), 0);
  ASSERT_TRUE(ground.local.as_expected());
  ASSERT_TRUE(ground.remote.as_expected());
  for (const auto& mine : work)
    for (const Work& one : mine) ASSERT_EQ(one.request->ends(), static_cast<std::uint64_t>(rounds));
}

// ------------------------------------------------------------------------------------------------ to a peer

class Transfer : public Contract {};
HEADRACE_FOR_EACH_BACKEND_THAT(Transfer, HEADRACE_REMOTE);

TEST_P(Transfer, random_pages_arrive_and_nothing_else_changes) {
  const Pair pair = open_pair();
  Ground ground(*pair.a, *pair.b, &pair.ab);
  move_random_shapes(ground, random);
}

TEST_P(Transfer, the_accepting_side_of_a_link_reads_and_writes_as_well) {
  const Pair pair = open_pair();
  Ground ground(*pair.b, *pair.a, &pair.ba);
  move_random_shapes(ground, random);
}

TEST_P(Transfer, uniform_pages_arrive_with_and_without_indices) {
  const Pair pair = open_pair();
  Ground small(*pair.a, *pair.b, &pair.ab), large(*pair.a, *pair.b, &pair.ab);
  move_uniform_shapes(small, small_uniform_shapes, 850'000, random);
  move_uniform_shapes(large, large_uniform_shapes, 3'300'000, random);
}

TEST_P(Transfer, one_page_of_64_mib_arrives) {
  const Pair pair = open_pair();
  Ground ground(*pair.a, *pair.b, &pair.ab);
  move_one_large_page(ground);
}

TEST_P(Transfer, pages_of_hundreds_of_regions_arrive) {
  const Pair pair = open_pair();
  Ground ground(*pair.a, *pair.b, &pair.ab);
  move_among_many_regions(ground, random);
}

TEST_P(Transfer, a_request_may_be_posted_a_thousand_times) {
  const Pair pair = open_pair();
  Ground ground(*pair.a, *pair.b, &pair.ab);
  post_again_and_again(ground, random, 1000);
}

TEST_P(Transfer, four_threads_with_eight_requests_each_do_not_disturb_one_another) {
  const Pair pair = open_pair();
  Ground ground(*pair.a, *pair.b, &pair.ab);
  move_from_threads(ground, world, random, 4, 8, 25);
}

TEST_P(Transfer, requests_run_in_both_directions_of_one_link_at_once) {
  const Pair pair = open_pair();
  Ground forth(*pair.a, *pair.b, &pair.ab), back(*pair.b, *pair.a, &pair.ba);
  std::vector<std::pair<Ground*, std::vector<PagePair>>> work;
  std::vector<std::unique_ptr<Request>> requests;
  for (Ground* ground : {&forth, &back}) {
    ground->local.add_mixed(1, 1 << 20);
    ground->remote.add_mixed(1, 1 << 20);
    ground->load();
    auto pages = random_pages(random, {.count = 200, .min_bytes = 1, .max_bytes = 5000}, HEADRACE_WRITE,
                              {1 << 20}, {1 << 20});
    requests.push_back(
        ground->prepare(pages, HEADRACE_WRITE, SideShape::general, SideShape::general, random));
    ground->expect_moved(pages, HEADRACE_WRITE);
  }
  for (int round = 0; round < 20; ++round) {
    for (const auto& request : requests) request->post();
    for (const auto& request : requests) ASSERT_TRUE(request->wait().status.ok());
  }
  for (Ground* ground : {&forth, &back}) {
    EXPECT_TRUE(ground->local.as_expected());
    EXPECT_TRUE(ground->remote.as_expected());
  }
}

// ------------------------------------------------------------------------------------------ inside one agent

class LocalTransfer : public Contract {};
HEADRACE_FOR_EACH_BACKEND_THAT(LocalTransfer, HEADRACE_LOCAL);

TEST_P(LocalTransfer, random_pages_arrive_and_nothing_else_changes) {
  const auto a = open();
  Ground ground(*a, *a, nullptr);
  move_random_shapes(ground, random);
}

TEST_P(LocalTransfer, uniform_pages_arrive_with_and_without_indices) {
  const auto a = open();
  Ground small(*a, *a, nullptr), large(*a, *a, nullptr);
  move_uniform_shapes(small, small_uniform_shapes, 850'000, random);
  move_uniform_shapes(large, large_uniform_shapes, 3'300'000, random);
}

TEST_P(LocalTransfer, one_page_of_64_mib_arrives) {
  const auto a = open();
  Ground ground(*a, *a, nullptr);
  move_one_large_page(ground);
}

TEST_P(LocalTransfer, a_request_may_be_posted_a_thousand_times) {
  const auto a = open();
  Ground ground(*a, *a, nullptr);
  post_again_and_again(ground, random, 1000);
}

TEST_P(LocalTransfer, four_threads_with_eight_requests_each_do_not_disturb_one_another) {
  const auto a = open();
  Ground ground(*a, *a, nullptr);
  move_from_threads(ground, world, random, 4, 8, 25);
}

}  // namespace
}  // namespace headrace::contract
