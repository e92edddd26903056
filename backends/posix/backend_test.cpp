// SPDX-License-Identifier: Apache-2.0
// Cases that the contract suite does not cover: threads that start late, files that answer late or with
// errors, and refusals.
#include "backends/posix/backend.hpp"
#include "support/direct_backend.hpp"
#include "support/temporary_folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::posix {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Reads block until the test releases them.
class SlowReads final : public FileCalls {
 public:
  ssize_t read(int fd, const iovec* parts, int count, off_t offset) const override {
    std::unique_lock lock(mutex_);
    ++inside_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !held_; });
    lock.unlock();
    return FileCalls::read(fd, parts, count, offset);
  }
  void hold() const { set(true); }
  void let_go() const { set(false); }
  void wait_inside(int reads) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return inside_ >= reads; });
  }
  [[nodiscard]] int reads() const {
    const std::scoped_lock lock(mutex_);
    return inside_;
  }

 private:
  void set(bool held) const {
    const std::scoped_lock lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable bool held_ = false;
  mutable int inside_ = 0;
};

std::ptrdiff_t threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}

class Posix : public test::DirectBackend<PosixBackend> {
 protected:
  Posix() { open({}); }
  ~Posix() override { close(); }
  void open(std::vector<headrace_setting_v1> settings) {
    backend = PosixBackend::open(plugin::Host(host.table()), {settings, ""}, calls).value();
  }

  std::string make(const std::string& name, std::size_t bytes, char fill = 'f') {
    std::string path = folder.path() + "/" + name;
    std::ofstream(path) << std::string(bytes, fill);
    return path;
  }
  Region* memory(std::string& bytes, std::uint32_t flags = 0) {
    headrace_region_v1 region{};
    region.struct_size = sizeof region;
    region.region_id = ++regions;
    region.kind = HEADRACE_DRAM;
    region.address = reinterpret_cast<std::uint64_t>(bytes.data());
    region.length = bytes.size();
    region.device = region.memory_fd = region.file_fd = -1;
    region.flags = flags;
    return backend->register_region(region).value();
  }
  Region* file(const std::string& path, std::uint32_t flags = 0) {
    headrace_region_v1 region{};
    region.struct_size = sizeof region;
    region.region_id = ++regions;
    region.kind = HEADRACE_FILE;
    region.device = region.memory_fd = region.file_fd = -1;
    region.name = path.c_str();
    region.flags = flags;
    return backend->register_region(region).value();
  }
  test::PostEnd wait(Request* handle) {
    while (in_flight(handle)) std::this_thread::yield();
    return end_of(handle);
  }
  test::PostEnd run(const headrace_prepare_v1& args) {
    auto* const handle = backend->prepare(nullptr, args).value();
    EXPECT_TRUE(post(handle).ok());
    test::PostEnd end = wait(handle);
    backend->release(*handle);
    return end;
  }
  void give_back(const std::vector<Region*>& handles) {
    for (auto* const handle : handles) backend->deregister_region(*handle);
  }

  test::TemporaryFolder folder;
  SlowReads calls;
  std::uint32_t regions = 0;
};

TEST_F(Posix, the_backend_starts_no_thread_before_the_first_post) {
  const auto before = threads();
  std::string bytes(4096, '.');
  auto* const here = memory(bytes);
  auto* const there = file(make("f", 4096));
  const auto args = request(HEADRACE_READ, test::uniform_side(here, 0, 4096, 4096),
                            test::uniform_side(there, 0, 4096, 4096), 1);
  auto* const handle = backend->prepare(nullptr, args).value();
  EXPECT_EQ(threads(), before);
  ASSERT_TRUE(post(handle).ok());
  EXPECT_TRUE(wait(handle).status.ok());
  EXPECT_EQ(bytes, std::string(4096, 'f'));
  EXPECT_GT(threads(), before);
  backend->release(*handle);
  give_back({here, there});
}

TEST_F(Posix, neighbouring_pages_of_a_file_are_read_in_one_call) {
  std::string bytes(100 * 64, '.');
  auto* const here = memory(bytes);
  auto* const there = file(make("f", 100 * 32));
  const auto args =
      request(HEADRACE_READ, test::uniform_side(here, 0, 64, 32), test::uniform_side(there, 0, 32, 32), 100);
  EXPECT_TRUE(run(args).status.ok());
  EXPECT_EQ(calls.reads(), 1);
  EXPECT_EQ(bytes.substr(64 * 99), std::string(32, 'f') + std::string(32, '.'));
  give_back({here, there});
}

TEST_F(Posix, an_error_names_the_page_and_the_pages_before_it_are_moved) {
  std::string bytes(10 * 64, '.');
  auto* const here = memory(bytes);
  const std::string path = make("f", 250);
  auto* const there = file(path);
  const auto args =
      request(HEADRACE_READ, test::uniform_side(here, 0, 64, 32), test::uniform_side(there, 0, 32, 32), 10);
  const test::PostEnd end = run(args);
  EXPECT_EQ(end.status.code, Code::invalid_argument);
  EXPECT_EQ(end.status.page, 7U) << "page 7 has the bytes 224 to 256 of a file of 250";
  EXPECT_THAT(end.text, AllOf(HasSubstr(path), HasSubstr("has 250 bytes")));
  EXPECT_EQ(bytes.substr(6 * 64, 32), std::string(32, 'f'));
  EXPECT_EQ(bytes.substr(8 * 64, 32), std::string(32, '.'));
  give_back({here, there});
}

TEST_F(Posix, pages_of_several_files_are_written_to_the_right_file) {
  std::string bytes(4096, 'm');
  auto* const here = memory(bytes);
  const std::string one = make("one", 10), two = make("two", 10);
  auto* const first = file(one);
  auto* const second = file(two);
  test::PageSide there = test::uniform_side(first, 0, 0, 100);
  there.regions = {first, second};
  there.region_of = {0, 1, 1, 0};
  there.offsets = {0, 0, 100, 100};
  EXPECT_TRUE(
      run(request(HEADRACE_WRITE, test::uniform_side(here, 0, 100, 100), std::move(there), 4)).status.ok());
  EXPECT_EQ(std::filesystem::file_size(one), 200U);
  EXPECT_EQ(std::filesystem::file_size(two), 200U);
  give_back({here, first, second});
}

TEST_F(Posix, a_cancel_waits_for_the_chunk_in_flight_and_no_other_begins) {
  const headrace_setting_v1 one_thread{"threads", "1"};
  open({one_thread});
  constexpr std::size_t size = 8 << 20;
  std::string bytes(size, '.');
  auto* const here = memory(bytes);
  auto* const there = file(make("f", size));
  const auto args = request(HEADRACE_READ, test::uniform_side(here, 0, size, size),
                            test::uniform_side(there, 0, size, size), 1);
  auto* const handle = backend->prepare(nullptr, args).value();
  calls.hold();
  ASSERT_TRUE(post(handle).ok());
  calls.wait_inside(1);
  EXPECT_EQ(post(handle).code, Code::invalid_argument) << "the request is in flight";
  backend->cancel(*handle);
  EXPECT_TRUE(in_flight(handle)) << "a read may still write the memory";
  EXPECT_FALSE(backend->poll(*handle));
  calls.let_go();
  EXPECT_EQ(wait(handle).status.code, Code::canceled);
  EXPECT_EQ(calls.reads(), 1);
  EXPECT_EQ(bytes.substr(1 << 20), std::string(size - (1 << 20), '.'));
  ASSERT_TRUE(post(handle).ok()) << "a canceled request may be posted again";
  EXPECT_TRUE(wait(handle).status.ok());
  EXPECT_EQ(bytes, std::string(size, 'f'));
  backend->release(*handle);
  give_back({here, there});
}

TEST_F(Posix, a_full_queue_refuses_a_post_and_a_canceled_request_leaves_it_at_once) {
  const std::vector<headrace_setting_v1> narrow{{"threads", "1"}, {"queue_depth", "1"}};
  open(narrow);
  std::string bytes(64, '.');
  auto* const here = memory(bytes);
  auto* const there = file(make("f", 64));
  const auto args =
      request(HEADRACE_READ, test::uniform_side(here, 0, 64, 64), test::uniform_side(there, 0, 64, 64), 1);
  std::vector<Request*> requests;
  for (int i = 0; i < 3; ++i) requests.push_back(backend->prepare(nullptr, args).value());
  calls.hold();
  ASSERT_TRUE(post(requests[0]).ok());
  calls.wait_inside(1);
  ASSERT_TRUE(post(requests[1]).ok());
  EXPECT_EQ(post(requests[2]).code, Code::would_block);
  backend->cancel(*requests[1]);
  EXPECT_EQ(wait(requests[1]).status.code, Code::canceled) << "no thread has begun the request";
  calls.let_go();
  EXPECT_TRUE(wait(requests[0]).status.ok());
  while (post(requests[2]).code == Code::would_block) std::this_thread::yield();
  EXPECT_TRUE(wait(requests[2]).status.ok());
  for (auto* const handle : requests) backend->release(*handle);
  give_back({here, there});
}

TEST_F(Posix, the_backend_is_destroyed_with_canceled_and_released_requests_in_its_queue) {
  const headrace_setting_v1 one_thread{"threads", "1"};
  open({one_thread});
  std::string bytes(64, '.');
  auto* const here = memory(bytes);
  auto* const there = file(make("f", 64));
  const auto args =
      request(HEADRACE_READ, test::uniform_side(here, 0, 64, 64), test::uniform_side(there, 0, 64, 64), 1);
  auto* const running = backend->prepare(nullptr, args).value();
  auto* const waiting = backend->prepare(nullptr, args).value();
  calls.hold();
  ASSERT_TRUE(post(running).ok());
  calls.wait_inside(1);
  ASSERT_TRUE(post(waiting).ok());
  backend->cancel(*waiting);
  backend->release(*waiting);
  calls.let_go();
  EXPECT_TRUE(wait(running).status.ok());
  backend->release(*running);
  give_back({here, there});
  backend.reset();
  EXPECT_EQ(calls.reads(), 1);
}

TEST_F(Posix, the_backend_moves_between_memory_and_files_only) {
  std::string bytes(64, '.');
  auto* const here = memory(bytes);
  auto* const locked = memory(bytes, HEADRACE_REGION_READ_ONLY);
  auto* const there = file(make("f", 64));
  const std::string read_only = make("g", 64);
  auto* const kept = file(read_only, HEADRACE_REGION_READ_ONLY);
  const auto refusal = [&](headrace_op_v1 op, void* local, void* remote) {
    const auto args =
        request(op, test::uniform_side(local, 0, 64, 64), test::uniform_side(remote, 0, 64, 64), 1);
    const auto refused = backend->prepare(nullptr, args);
    EXPECT_FALSE(refused.ok());
    return refused.ok() ? std::pair<Code, std::string>()
                        : std::pair(refused.error().code, refused.error().message);
  };
  using ::testing::Pair;
  EXPECT_THAT(refusal(HEADRACE_READ, here, here),
              Pair(Code::not_supported, HasSubstr("remote side is memory")));
  EXPECT_THAT(refusal(HEADRACE_READ, there, there),
              Pair(Code::not_supported, HasSubstr("local side is a file")));
  EXPECT_THAT(refusal(HEADRACE_READ, locked, there),
              Pair(Code::invalid_argument, HasSubstr("may be read, not written")));
  EXPECT_THAT(refusal(HEADRACE_WRITE, here, kept),
              Pair(Code::invalid_argument, HasSubstr("may be read, not written")));
  plugin::NoLink none;
  EXPECT_EQ(backend->load_remote(none, {}).code(), Code::not_supported);
  EXPECT_EQ(backend->connect({}).code(), Code::not_supported);
  headrace_region_v1 object{};
  object.kind = HEADRACE_OBJECT;
  object.name = "key";
  EXPECT_EQ(backend->register_region(object).code(), Code::not_supported);
  give_back({here, locked, there, kept});
}

TEST_F(Posix, a_request_without_bytes_completes_at_once) {
  std::string bytes(64, '.');
  auto* const here = memory(bytes);
  auto* const there = file(make("f", 64));
  EXPECT_TRUE(run(request(HEADRACE_READ, test::uniform_side(here, 0, 64, 64),
                          test::uniform_side(there, 0, 64, 64), 0))
                  .status.ok());
  EXPECT_EQ(calls.reads(), 0);
  give_back({here, there});
}

}  // namespace
}  // namespace headrace::posix
