// SPDX-License-Identifier: Apache-2.0
#include "backends/posix/file.hpp"

#include "support/temporary_folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <deque>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

namespace headrace::posix {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Answers by a script, and as the system after the end of the script. A negative answer is an errno.
class ScriptedCalls final : public FileCalls {
 public:
  ssize_t read(int fd, const iovec* parts, int count, off_t offset) const override {
    return answer([&](const iovec* some, int n) { return ::preadv(fd, some, n, offset); }, parts, count);
  }
  ssize_t write(int fd, const iovec* parts, int count, off_t offset) const override {
    return answer([&](const iovec* some, int n) { return ::pwritev(fd, some, n, offset); }, parts, count);
  }
  mutable std::deque<ssize_t> script;
  mutable int calls = 0;

 private:
  template <class Call>
  ssize_t answer(const Call& call, const iovec* parts, int count) const {
    ++calls;
    if (script.empty()) return call(parts, count);
    const ssize_t next = script.front();
    script.pop_front();
    if (next < 0) return errno = static_cast<int>(-next), -1;
    if (next == 0) return 0;
    // Moves only that many bytes, as on a full device or after a signal.
    iovec first = parts[0];
    first.iov_len = std::min(first.iov_len, static_cast<std::size_t>(next));
    return call(&first, 1);
  }
};

class PosixFile : public ::testing::Test {
 protected:
  static headrace_region_v1 region_of(const char* path, int fd = -1, std::uint32_t flags = 0) {
    headrace_region_v1 region{};
    region.struct_size = sizeof region;
    region.region_id = 1;
    region.kind = HEADRACE_FILE;
    region.device = region.memory_fd = -1;
    region.file_fd = fd;
    region.name = path;
    region.flags = flags;
    return region;
  }
  [[nodiscard]] std::string make(const std::string& name, const std::string& content) const {
    std::string path = folder.path() + "/" + name;
    std::ofstream(path) << content;
    return path;
  }
  static std::string content_of(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  File opened(const std::string& path, std::uint32_t flags = 0) {
    return File::open(region_of(path.c_str(), -1, flags), calls).value();
  }
  File of_descriptor(const std::string& path, int flags) {
    const UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC));
    return File::open(region_of(nullptr, fd.get()), calls).value();
  }
  static Moved read(const File& file, std::string& into, std::uint64_t offset) {
    iovec part{into.data(), into.size()};
    return file.move(HEADRACE_READ, {&part, 1}, offset);
  }
  static Moved write(const File& file, std::string from, std::uint64_t offset) {
    iovec part{from.data(), from.size()};
    return file.move(HEADRACE_WRITE, {&part, 1}, offset);
  }

  test::TemporaryFolder folder;
  ScriptedCalls calls;
};

TEST_F(PosixFile, a_file_is_read_and_written_at_an_offset_with_several_buffers) {
  const std::string path = make("f", "0123456789");
  const File file = opened(path);
  std::string first(3, '?'), second(2, '?');
  std::array<iovec, 2> parts{iovec{first.data(), 3}, iovec{second.data(), 2}};
  const Moved moved = file.move(HEADRACE_READ, parts, 4);
  ASSERT_TRUE(moved.status.ok()) << moved.text;
  EXPECT_EQ(moved.bytes, 5U);
  EXPECT_EQ(first + second, "45678");
  ASSERT_TRUE(write(file, "ab", 9).status.ok());
  EXPECT_EQ(content_of(path), "012345678ab");
}

TEST_F(PosixFile, a_file_written_beyond_its_end_grows_and_has_zeros_between) {
  const std::string path = make("f", "x");
  ASSERT_TRUE(write(opened(path), "end", 4).status.ok());
  EXPECT_EQ(content_of(path), std::string("x\0\0\0end", 7));
}

TEST_F(PosixFile, a_move_continues_after_an_interruption_or_a_short_count) {
  const std::string path = make("f", "0123456789");
  const File file = opened(path);
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    std::string first = "abc", second = "defg";
    std::array<iovec, 2> parts{iovec{first.data(), first.size()}, iovec{second.data(), second.size()}};
    calls.script = {-EINTR, 1, 2, -EINTR, 3};
    calls.calls = 0;
    const Moved moved = file.move(op, parts, 1);
    ASSERT_TRUE(moved.status.ok()) << moved.text;
    EXPECT_EQ(moved.bytes, 7U);
    EXPECT_EQ(calls.calls, 6);
    EXPECT_EQ(first + second, op == HEADRACE_READ ? "1234567" : "abcdefg");
  }
  EXPECT_EQ(content_of(path), "0abcdefg89");
}

TEST_F(PosixFile, a_read_beyond_the_end_fails_with_the_offset_and_the_length_of_the_file) {
  const std::string path = make("f", "0123456789");
  const File file = opened(path);
  std::string into(6, '?');
  const Moved moved = read(file, into, 7);
  EXPECT_EQ(moved.status.code, Code::invalid_argument);
  EXPECT_EQ(moved.bytes, 3U);
  EXPECT_THAT(moved.text,
              AllOf(HasSubstr("6 bytes at offset 7"), HasSubstr(path), HasSubstr("has 10 bytes")));
  EXPECT_EQ(read(file, into, 1'000'000).bytes, 0U);
  EXPECT_THAT(read(file, into, 1'000'000).text, HasSubstr("has 10 bytes"));
}

TEST_F(PosixFile, an_error_of_the_system_becomes_a_code_and_a_sentence) {
  const std::string path = make("f", "0123456789");
  const File file = opened(path);
  struct Refusal {
    int error;
    Code code;
    const char* text;
  };
  for (const Refusal& refusal :
       {Refusal{ENOSPC, Code::exhausted, "no space left on device"},
        Refusal{EDQUOT, Code::exhausted, "quota"}, Refusal{EIO, Code::backend_failed, "input/output error"},
        Refusal{EINVAL, Code::invalid_argument, "invalid argument"},
        Refusal{EFAULT, Code::invalid_argument, "the memory is gone"}}) {
    calls.script = {2, -refusal.error};
    const Moved moved = write(file, "abcd", 3);
    EXPECT_EQ(moved.status.code, refusal.code) << refusal.text;
    EXPECT_EQ(moved.status.os_error, refusal.error);
    EXPECT_EQ(moved.bytes, 2U);
    EXPECT_THAT(moved.text,
                AllOf(HasSubstr("write 4 bytes at offset 3 of file " + path), HasSubstr(refusal.text)));
  }
  calls.script = {0};
  EXPECT_EQ(write(file, "abcd", 3).status.code, Code::backend_failed)
      << "a write that moves no byte must fail";
}

TEST_F(PosixFile, a_file_is_not_read_or_written_unless_it_is_open_for_that) {
  const std::string path = make("f", "0123456789");
  std::string into(2, '?');
  const Moved not_written = write(of_descriptor(path, O_RDONLY), "x", 0);
  EXPECT_EQ(not_written.status.code, Code::invalid_argument);
  EXPECT_EQ(not_written.status.os_error, EBADF);
  EXPECT_THAT(not_written.text, AllOf(HasSubstr(path), HasSubstr("for reading only")));
  const File write_only = of_descriptor(path, O_WRONLY);
  EXPECT_THAT(read(write_only, into, 0).text, AllOf(HasSubstr(path), HasSubstr("for writing only")));
  const File appending = of_descriptor(path, O_RDWR | O_APPEND);
  EXPECT_THAT(write(appending, "x", 0).text, HasSubstr("O_APPEND"));
  EXPECT_TRUE(read(appending, into, 8).status.ok());
  EXPECT_EQ(into, "89");
  EXPECT_EQ(content_of(path), "0123456789");
}

TEST_F(PosixFile, an_impossible_offset_is_refused) {
  const File file = opened(make("f", "0"));
  std::string into(2, '?');
  for (const std::uint64_t offset : {UINT64_MAX, std::uint64_t{1} << 63, (std::uint64_t{1} << 63) - 2}) {
    EXPECT_EQ(read(file, into, offset).status.code, Code::invalid_argument) << offset;
    EXPECT_EQ(calls.calls, 0);
  }
}

TEST_F(PosixFile, a_file_stays_open_after_the_caller_closes_its_descriptor) {
  const std::string path = make("f", "0123456789");
  const File file = of_descriptor(path, O_RDWR);  // the caller's descriptor is closed now
  std::string into(2, '?');
  EXPECT_TRUE(read(file, into, 2).status.ok());
  EXPECT_EQ(into, "23");
  EXPECT_THAT(file.name(), HasSubstr(path));
}

TEST_F(PosixFile, a_path_is_opened_with_the_access_of_its_region) {
  const std::string path = make("f", "0123456789");
  EXPECT_TRUE(write(opened(path), "x", 0).status.ok());
  EXPECT_THAT(write(opened(path, HEADRACE_REGION_READ_ONLY), "x", 0).text, HasSubstr("for reading only"));
  const std::string created = folder.path() + "/new";
  headrace_region_v1 region = region_of(created.c_str());
  EXPECT_EQ(File::open(region).code(), Code::not_found);
  region.file_mode = O_CREAT;
  EXPECT_TRUE(write(File::open(region).value(), "made", 0).status.ok());
  EXPECT_EQ(content_of(created), "made");
}

TEST_F(PosixFile, a_file_that_is_not_regular_is_refused_with_advice) {
  const std::string pipe = folder.path() + "/pipe", missing = folder.path() + "/missing";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]),
      folder_fd(::open(folder.path().c_str(), O_RDONLY | O_CLOEXEC)),
      path_fd(::open(make("f", "x").c_str(), O_PATH | O_CLOEXEC));
  struct Wrong {
    headrace_region_v1 region;
    Code code;
    const char* text;
  };
  for (const Wrong& wrong :
       {Wrong{region_of(folder.path().c_str()), Code::invalid_argument, "is a directory: name a file in it"},
        Wrong{region_of(pipe.c_str()), Code::invalid_argument, "which has no offsets"},
        Wrong{region_of("/dev/null"), Code::invalid_argument, "not a regular file"},
        Wrong{region_of(missing.c_str()), Code::not_found, "create it first"},
        Wrong{region_of(""), Code::invalid_argument, "neither"},
        Wrong{region_of(nullptr), Code::invalid_argument, "neither"},
        Wrong{region_of(nullptr, folder_fd.get()), Code::invalid_argument, "is a directory"},
        Wrong{region_of(nullptr, reader.get()), Code::invalid_argument, "which has no offsets"},
        Wrong{region_of(nullptr, path_fd.get()), Code::invalid_argument, "O_PATH"},
        Wrong{region_of(nullptr, 1'000'000), Code::invalid_argument, "descriptor 1000000 is not open"}}) {
    const auto refused = File::open(wrong.region);
    ASSERT_EQ(refused.code(), wrong.code) << wrong.text;
    EXPECT_THAT(refused.error().message, HasSubstr(wrong.text));
  }
}

TEST_F(PosixFile, a_read_only_file_is_refused_with_advice_for_its_registration) {
  // A running program cannot be opened for writing, even by the superuser.
  const auto refused = File::open(region_of("/proc/self/exe"));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("/proc/self/exe"), HasSubstr("register it as not writable")));
  EXPECT_TRUE(File::open(region_of("/proc/self/exe", -1, HEADRACE_REGION_READ_ONLY)).ok());
}

TEST_F(PosixFile, with_o_direct_a_refusal_names_the_alignment) {
  const std::string path = make("f", std::string(8192, 'x'));
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  if (!fd) GTEST_SKIP() << "the file system has no O_DIRECT";
  const File file = File::open(region_of(nullptr, fd.get()), calls).value();
  void* const memory = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  iovec whole{memory, 8192};
  const Moved moved = file.move(HEADRACE_READ, {&whole, 1}, 0);
  EXPECT_TRUE(moved.status.ok()) << moved.text;
  EXPECT_EQ(static_cast<const char*>(memory)[8191], 'x');
  calls.script = {-EINVAL};
  iovec some{static_cast<char*>(memory) + 1, 100};
  const Moved refused = file.move(HEADRACE_READ, {&some, 1}, 3);
  EXPECT_EQ(refused.status.code, Code::invalid_argument);
  EXPECT_THAT(refused.text, AllOf(HasSubstr("O_DIRECT"), HasSubstr("multiple")));
  // The rest of the read lies beyond the end and is not aligned. The error must name the end.
  calls.script = {4096, -EINVAL};
  iovec beyond{memory, 8192};
  EXPECT_THAT(file.move(HEADRACE_READ, {&beyond, 1}, 4096).text, HasSubstr("has 8192 bytes"));
  ::munmap(memory, 8192);
}

}  // namespace
}  // namespace headrace::posix
