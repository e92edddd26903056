// SPDX-License-Identifier: Apache-2.0
#include "backends/posix/query.hpp"

#include "base/unique_fd.hpp"
#include "support/temporary_folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <msgpack.hpp>
#include <optional>
#include <string>
#include <vector>

namespace headrace::posix {
namespace {

using Known = std::map<std::string, std::int64_t>;

headrace_region_v1 file(const char* path, int fd = -1, std::int32_t kind = HEADRACE_FILE) {
  headrace_region_v1 region{};
  region.struct_size = sizeof region;
  region.kind = kind;
  region.device = region.memory_fd = -1;
  region.file_fd = fd;
  region.name = path;
  return region;
}

Result<std::string> ask(const std::vector<headrace_region_v1>& regions) {
  std::vector<const headrace_region_v1*> views;
  for (const headrace_region_v1& region : regions) views.push_back(&region);
  return query({sizeof(headrace_query_v1), views.data(), views.size(), UINT64_MAX});
}

TEST(PosixQuery, a_query_returns_size_mode_and_time_of_files_and_nil_for_missing_ones) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() + "/f", missing = folder.path() + "/missing",
                    under_a_file = path + "/x";
  std::ofstream(path) << "12345";
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto answer =
      ask({file(missing.c_str()), file(path.c_str()), file(under_a_file.c_str()), file(nullptr, fd.get())});
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  msgpack::zone zone;
  const auto rows = msgpack::unpack(zone, answer->data(), answer->size()).as<std::vector<msgpack::object>>();
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_TRUE(rows[0].is_nil());
  EXPECT_TRUE(rows[2].is_nil());
  struct stat found {};
  ASSERT_EQ(::stat(path.c_str(), &found), 0);
  const Known known{{"bytes", 5}, {"mode", S_IFREG | 0640}, {"mtime", found.st_mtim.tv_sec}};
  EXPECT_EQ(rows[1].as<Known>(), known);
  EXPECT_EQ(rows[3].as<Known>(), known);
}

TEST(PosixQuery, a_query_about_no_file_or_without_a_name_is_refused) {
  EXPECT_EQ(ask({file("key", -1, HEADRACE_OBJECT)}).code(), Code::not_supported);
  EXPECT_EQ(ask({file("")}).code(), Code::invalid_argument);
  EXPECT_EQ(ask({file(nullptr)}).code(), Code::invalid_argument);
  const auto refused = ask({file(nullptr, 1'000'000)});
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("descriptor 1000000"));
}

}  // namespace
}  // namespace headrace::posix
