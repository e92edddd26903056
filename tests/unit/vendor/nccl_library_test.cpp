// SPDX-License-Identifier: Apache-2.0
// How a library with NCCL's interface is found, and what is said of one that cannot be used.
#include "vendor/nccl/library.hpp"

#include "vendor/nccl/config.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>

namespace headrace::nccl {
namespace {

using testing::HasSubstr;

const std::string newest_file = HEADRACE_TEST_BIN_DIR "/plugins/libfake_nccl.so";
const std::string old_file = HEADRACE_TEST_BIN_DIR "/plugins/libfake_nccl_old.so";
const Flavour& plain = *find_flavour("nccl");

TEST(NcclLibrary, is_loaded_by_its_path_with_its_version) {
  const auto library = load_library(plain, newest_file);
  ASSERT_TRUE(library) << library.error().message;
  EXPECT_EQ(library->version, 23203);
  EXPECT_EQ(library->path, newest_file);
  for (const Feature& feature : features(*library)) EXPECT_TRUE(feature.there) << feature.symbol;
}

TEST(NcclLibrary, of_an_older_version_lacks_later_functions) {
  const auto library = load_library(plain, old_file);
  ASSERT_TRUE(library) << library.error().message;
  EXPECT_EQ(library->table.comm_shrink, nullptr);
  for (const Feature& feature : features(*library))
    EXPECT_EQ(feature.there, feature.since <= library->version) << feature.symbol;
  EXPECT_EQ(needs_version(*library, "shrink", 22703).message,
            "shrink needs NCCL 2.27.3, and " + old_file + " is 2.20.5");
}

TEST(NcclLibrary, is_one_of_several_flavours_by_its_name) {
  for (const char* name : {"nccl", "ncclx", "rccl", "rcclx"}) {
    ASSERT_NE(find_flavour(name), nullptr);
    EXPECT_TRUE(load_library(*find_flavour(name), newest_file)) << name;
  }
  EXPECT_EQ(find_flavour("mpi"), nullptr);
  const auto unnamed = load_library(*find_flavour("ncclx"), "");
  EXPECT_EQ(unnamed.code(), Code::not_supported);
  EXPECT_THAT(unnamed.error().message, HasSubstr("name its path by option ncclx.library"));
}

TEST(NcclLibrary, of_amd_is_on_hip_and_is_not_installed_by_pip) {
  for (const Flavour& flavour : flavours)
    EXPECT_EQ(flavour.on_hip, std::string_view(flavour.name).starts_with("rccl")) << flavour.name;
  const auto rccl = load_library(*find_flavour("rccl"), "");
  if (rccl) GTEST_SKIP() << "RCCL is installed";
  EXPECT_EQ(rccl.code(), Code::not_supported);
  EXPECT_THAT(rccl.error().message, testing::AllOf(HasSubstr("librccl.so.1"), HasSubstr("ROCm")));
}

TEST(NcclLibrary, that_is_not_there_or_no_library_says_so) {
  const auto missing = load_library(plain, "/nowhere/libnccl.so.2");
  EXPECT_EQ(missing.code(), Code::not_found);
  EXPECT_THAT(missing.error().message, HasSubstr("option nccl.library names /nowhere/libnccl.so.2"));
  EXPECT_THAT(load_library(plain, "/etc/passwd").error().message, HasSubstr("/etc/passwd does not load: "));
  const auto other = load_library(plain, HEADRACE_TEST_BIN_DIR "/plugins/libheadrace_comm_threads.so");
  EXPECT_EQ(other.code(), Code::not_supported);
  EXPECT_THAT(other.error().message, HasSubstr("has no function ncclGetVersion: NCCL 2.18.1 or newer"));
}

// Where NCCL is installed, or the loader's path has it, that one: it needs no GPU to be loaded.
TEST(NcclLibrary, that_is_installed_has_the_functions_of_its_version) {
  const auto library = load_library(plain, "");
  if (!library) {
    EXPECT_THAT(library.error().message, HasSubstr("pip install nvidia-nccl-cu13"));
    GTEST_SKIP() << "NCCL is not installed";
  }
  EXPECT_GE(library->version, oldest_version);
  for (const Feature& feature : features(*library))
    EXPECT_EQ(feature.there, library->version >= feature.since) << feature.symbol << " " << library->version;
  UniqueId id{};
  EXPECT_EQ(library->table.get_unique_id(&id), Outcome::success) << library->table.get_last_error(nullptr);
}

TEST(NcclLibrary, versions_have_a_text) {
  EXPECT_EQ(version_text(22809), "2.28.9");
  EXPECT_EQ(version_text(2804), "2.8.4");
}

Library of_version(int version) {
  Library library;
  library.version = version;
  library.path = "libnccl.so.2";
  return library;
}

TEST(NcclConfig, has_the_size_and_the_fields_of_the_librarys_version) {
  const std::pair<int, std::size_t> sizes[] = {
      {21801, 48}, {22609, 48}, {22707, 72}, {22809, 80}, {22902, 88}, {23005, 96}, {23203, sizeof(Config)}};
  for (const auto& [version, size] : sizes) {
    const Config config = CommConfig::make(of_version(version), {})->get();
    EXPECT_EQ(config.size, size) << version;
    EXPECT_EQ(config.version, static_cast<unsigned>(version));
    EXPECT_EQ(config.blocking, 1);
    EXPECT_EQ(config.max_ctas, undefined_int);
  }
}

TEST(NcclConfig, takes_hints_by_the_names_of_its_fields) {
  const auto made = CommConfig::make(of_version(22809), {{"netName", "IB"}, {"CTAPolicy", "2"}});
  ASSERT_TRUE(made);
  const Config config = made->get();
  EXPECT_STREQ(config.net_name, "IB");
  EXPECT_EQ(config.cta_policy, 2);
  const auto newer = CommConfig::make(of_version(22609), {{"nvlsCTAs", "1"}});
  EXPECT_EQ(newer.code(), Code::not_supported);
  EXPECT_EQ(newer.error().message, "hint nvlsCTAs needs NCCL 2.27.0, and libnccl.so.2 is 2.26.9");
}

TEST(NcclConfig, of_a_call_has_the_size_of_the_librarys_version) {
  EXPECT_EQ(CallConfig::make(of_version(23203), {})->get().size, sizeof(CollConfig));
  const auto made = CallConfig::make(of_version(23102), {{"algSelection", "ring"}, {"CTAPolicy", "zero"}});
  ASSERT_TRUE(made);
  const CollConfig config = made->get();
  EXPECT_EQ(config.size, offsetof(CollConfig, launch_completion_event));
  EXPECT_EQ(config.version, 23102U);
  EXPECT_STREQ(config.algorithms, "ring");
  EXPECT_EQ(config.cta_policy, policy_zero);
  EXPECT_EQ(config.max_ctas, undefined_int);
  EXPECT_EQ(CallConfig::make(of_version(23007), {{"maxCTAs", "1"}}).error().message,
            "hint maxCTAs of a call needs NCCL 2.31.0, and libnccl.so.2 is 2.30.7");
}

}  // namespace
}  // namespace headrace::nccl
