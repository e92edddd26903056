// SPDX-License-Identifier: Apache-2.0
#include "gpu/kernel_library.hpp"

#include "gpu/courier.hpp"
#include "gpu/kernel_family.hpp"
#include "gpu/prepared_move.hpp"
#include "gpu_test.hpp"
#include "kernels/common/kernel_set.hpp"
#include "kernels/common/reference.hpp"
#include "kernels/library/library.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::gpu {
namespace {

using testing::AllOf;
using testing::HasSubstr;

static_assert(sizeof(kernels::LaunchConfig) == sizeof(cuda::LaunchConfig) &&
              offsetof(kernels::LaunchConfig, block_x) == offsetof(cuda::LaunchConfig, block_x) &&
              offsetof(kernels::LaunchConfig, stream) == offsetof(cuda::LaunchConfig, stream) &&
              offsetof(kernels::LaunchConfig, attribute_count) ==
                  offsetof(cuda::LaunchConfig, attribute_count));
class KernelLibraryTest : public GpuTest {
 protected:
  KernelLibraryTest()
      : GpuTest({{.name = "A100", .major = 8, .minor = 0},
                 {.name = "RTX 4090", .major = 8, .minor = 9},
                 {.name = "H200", .major = 9, .minor = 0},
                 {.name = "B300", .major = 10, .minor = 3}}) {}
};

TEST_F(KernelLibraryTest, the_library_picks_the_closest_image_that_runs_on_the_gpu) {
  static constexpr char image[] = "FAKE";
  const std::vector<headrace_kernel_image_v1> images{{"sm_80", 8, 0, 0, 0, image, 5},
                                                     {"sm_86", 8, 6, 0, 0, image, 5},
                                                     {"sm_90", 9, 0, 0, 0, image, 5},
                                                     {"sm_90a", 9, 0, 1, 0, image, 5},
                                                     {"sm_100a", 10, 0, 1, 0, image, 5}};
  const auto table = kernels::make_table(images.data(), images.size());
  const auto library = KernelLibrary::from_table(table, "library").value();
  const auto devices = list_devices(driver).value();
  EXPECT_STREQ(library.image_for(devices[0]).value()->name, "sm_80");
  EXPECT_STREQ(library.image_for(devices[1]).value()->name, "sm_86");
  EXPECT_STREQ(library.image_for(devices[2]).value()->name, "sm_90a");
  const auto none = library.image_for(devices[3]);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.code(), Code::not_supported);
  EXPECT_THAT(none.error().message,
              AllOf(HasSubstr("B300"), HasSubstr("10.3"), HasSubstr("sm_80, sm_86, sm_90, sm_90a"),
                    HasSubstr("HEADRACE_CUDA_ARCHS=103")));
}

TEST_F(KernelLibraryTest, a_library_of_another_version_is_refused_with_its_version) {
  auto table = cuda::fake_kernels_table();
  table.version = "0.0.0-other";
  const auto library = KernelLibrary::from_table(table, "library");
  ASSERT_FALSE(library);
  EXPECT_THAT(library.error().message, AllOf(HasSubstr("0.0.0-other"), HasSubstr("one build")));
  table = cuda::fake_kernels_table();
  table.abi_major = 7;
  EXPECT_EQ(KernelLibrary::from_table(table, "library").code(), Code::not_supported);
  table = cuda::fake_kernels_table();
  table.family = nullptr;
  EXPECT_EQ(KernelLibrary::from_table(table, "library").code(), Code::corrupt);
}

TEST_F(KernelLibraryTest, a_family_is_found_by_its_name_in_its_version_and_in_older_ones) {
  const headrace_kernels_v1& table = cuda::fake_kernels_table();
  const headrace_kernel_family_v1* const grids =
      table.family(HEADRACE_GRIDS_FAMILY, HEADRACE_GRIDS_FAMILY_VERSION);
  ASSERT_NE(grids, nullptr);
  EXPECT_EQ(grids->version, HEADRACE_GRIDS_FAMILY_VERSION);
  EXPECT_EQ(grids->struct_size, sizeof(headrace_grids_v1));
  EXPECT_EQ(table.family(HEADRACE_GRIDS_FAMILY, 0), grids);
  EXPECT_EQ(table.family(HEADRACE_GRIDS_FAMILY, HEADRACE_GRIDS_FAMILY_VERSION + 1), nullptr);
  EXPECT_EQ(table.family("grid", 0), nullptr);
}

TEST_F(KernelLibraryTest, a_family_that_is_missing_or_too_old_is_not_supported_and_named) {
  const auto library = KernelLibrary::from_table(cuda::fake_kernels_table(), "library").value();
  const auto missing = library.family("unknown", 1, sizeof(headrace_kernel_family_v1));
  EXPECT_EQ(missing.code(), Code::not_supported);
  EXPECT_THAT(missing.error().message, HasSubstr("library has no family unknown"));
  const auto old = library.family(HEADRACE_GRIDS_FAMILY, 9, sizeof(headrace_grids_v1));
  EXPECT_EQ(old.code(), Code::not_supported);
  EXPECT_THAT(old.error().message,
              HasSubstr(fmt::format("library has family grids version {}, version 9 is needed",
                                    HEADRACE_GRIDS_FAMILY_VERSION)));
}

/// The library without one family.
template <const char* Lacking>
headrace_kernels_v1 table_without() {
  headrace_kernels_v1 table = cuda::fake_kernels_table();
  table.family = [](const char* name, std::uint32_t version) -> const headrace_kernel_family_v1* {
    return std::string_view(name) == Lacking ? nullptr : cuda::fake_kernels_table().family(name, version);
  };
  return table;
}

TEST_F(KernelLibraryTest, a_mover_needs_the_families_that_it_uses_and_the_courier_only_if_it_is_on) {
  static constexpr char courier[] = HEADRACE_COURIER_FAMILY, grids[] = HEADRACE_GRIDS_FAMILY;
  const auto mover = [this](const headrace_kernels_v1& table, bool with_courier) {
    const auto library = KernelLibrary::from_table(table, "library").value();
    return Mover::make(Kernels::open(library, open(2)).value(), {.courier = {.on = with_courier}});
  };
  const headrace_kernels_v1 no_grids = table_without<grids>(), no_courier = table_without<courier>();
  const auto without_grids = mover(no_grids, false);
  EXPECT_EQ(without_grids.code(), Code::not_supported) << "the engine tries the next path";
  EXPECT_THAT(without_grids.error().message, HasSubstr("library has no family grids"));
  const auto without_courier = mover(no_courier, true);
  EXPECT_EQ(without_courier.code(), Code::not_supported);
  EXPECT_THAT(without_courier.error().message, HasSubstr("library has no family courier"));
  EXPECT_TRUE(mover(no_courier, false));
}

TEST_F(KernelLibraryTest, a_family_whose_table_is_short_or_lacks_an_entry_is_corrupt) {
  static headrace_grids_v1 broken;
  headrace_kernels_v1 table = cuda::fake_kernels_table();
  table.family = [](const char*, std::uint32_t) -> const headrace_kernel_family_v1* {
    return &broken.family;
  };
  const auto library = KernelLibrary::from_table(table, "library").value();
  const auto found = [&] { return library.family(HEADRACE_GRIDS_FAMILY, 1, sizeof(headrace_grids_v1)); };
  broken = {{sizeof broken, 1, 0}, nullptr};
  EXPECT_EQ(found().code(), Code::corrupt);
  broken = *reinterpret_cast<const headrace_grids_v1*>(cuda::fake_kernels_table().family("grids", 1));
  EXPECT_TRUE(found());
  broken.family.struct_size = sizeof(headrace_kernel_family_v1);
  EXPECT_EQ(found().code(), Code::corrupt);
}

TEST_F(KernelLibraryTest, every_family_has_a_cpu_reference_for_each_of_its_kernels) {
  std::set<std::string> launched, references;
  for (const kernels::Family* family : kernels::families)
    for (const kernels::FamilyKernel& kernel : family->kernels)
      EXPECT_TRUE(launched.insert(std::string(family->name) + ": " + kernel.name).second) << kernel.name;
  for (const kernels::reference::Family* family : kernels::reference::families)
    for (const kernels::reference::Kernel& kernel : family->kernels)
      EXPECT_TRUE(references.insert(std::string(family->name) + ": " + kernel.name).second) << kernel.name;
  EXPECT_EQ(launched, references);
  EXPECT_FALSE(launched.empty());
}

TEST_F(KernelLibraryTest, a_missing_library_is_not_supported) {
  const auto library = KernelLibrary::load("/nowhere/libheadrace_kernels.so");
  ASSERT_FALSE(library);
  EXPECT_EQ(library.code(), Code::not_supported);
}

TEST_F(KernelLibraryTest, an_image_that_does_not_load_is_named_and_leaves_nothing_behind) {
  const auto library = KernelLibrary::from_table(cuda::fake_kernels_table(), "library").value();
  const auto device = open(2);
  for (const auto& [outcome, words] :
       {std::pair{cuda::Outcome::no_binary_for_gpu, "no kernel image is available"},
        std::pair{cuda::Outcome::invalid_image, "device kernel image is invalid"}}) {
    fake.fail("cuModuleLoadData", outcome);
    const auto refused = Kernels::open(library, device);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.code(), Code::not_supported) << "the engine tries the next path";
    EXPECT_THAT(refused.error().message,
                AllOf(HasSubstr("sm_90a on GPU 2"), HasSubstr(words),
                      HasSubstr("install a newer driver, or use a build by NVRTC 12.8")));
  }
  fake.fail("cuModuleGetFunction", cuda::Outcome::not_found);
  const auto lacking = Kernels::open(library, device);
  ASSERT_FALSE(lacking);
  EXPECT_THAT(lacking.error().message,
              HasSubstr(std::string("find the kernel ") + kernels::families.front()->kernels.front().name));
  fake.fail("cuFuncLoad", cuda::Outcome::out_of_memory);
  EXPECT_EQ(Kernels::open(library, device).code(), Code::exhausted);
  EXPECT_EQ(fake.live().modules, 0);
  { const auto good = Kernels::open(library, device); }
  EXPECT_EQ(fake.live().modules, 0);
}

TEST_F(KernelLibraryTest, the_library_of_this_build_opens_if_there_was_a_compiler) {
#ifndef HEADRACE_TEST_KERNELS
  GTEST_SKIP() << "there is no compiler for device code";
#endif
  const auto library = KernelLibrary::load();
  ASSERT_TRUE(library) << library.error().message;
  EXPECT_GT(library->table().image_count, 0u);
  for (std::uint64_t i = 0; i < library->table().image_count; ++i)
    EXPECT_EQ(std::memcmp(library->table().images[i].data,
                          "\x7f"
                          "ELF",
                          4),
              0);
  if (library->image_for(list_devices(driver).value()[2])) {
    const auto kernels = Kernels::open(*library, open(2));
    ASSERT_TRUE(kernels) << kernels.error().message;
    int kernels_of_families = 0;
    for (const kernels::Family* family : kernels::families)
      kernels_of_families += static_cast<int>(family->kernels.size());
    EXPECT_EQ(fake.calls("cuFuncLoad"), kernels_of_families);
  }
}

}  // namespace
}  // namespace headrace::gpu
