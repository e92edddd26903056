// SPDX-License-Identifier: Apache-2.0
#include "runner/package_info.hpp"

#include "support/package_file.hpp"
#include "support/temporary_folder.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::PackageText;
using testing::write_file;
using testing::write_package;

const Machine this_one{"linux", "x86_64", {"avx2", "fma", "f16c"}};

class PackageInfo : public ::testing::Test {
 protected:
  Result<ModelInfo> info_of(const PackageText& text, const Machine& machine = this_one) {
    HEADRACE_TRY(package, Package::open(write_package(folder_.path(), text)));
    return read_model_info(package, "model", machine);
  }
  std::string refusal_of(const PackageText& text, const Machine& machine = this_one) {
    const auto info = info_of(text, machine);
    return info ? info->refusal : "error: " + info.error().message;
  }
  test::TemporaryFolder folder_;
};

std::string elf(std::uint16_t machine) {
  std::string header(
      "\x7f"
      "ELF",
      4);
  header.resize(64, '\0');
  header[18] = static_cast<char>(machine & 0xFF);
  header[19] = static_cast<char>(machine >> 8);
  return header;
}

TEST_F(PackageInfo, the_description_of_the_export_is_read) {
  const auto info = info_of({});
  ASSERT_TRUE(info) << info.error().message;
  EXPECT_EQ(info->spec_source, SpecSource::exported);
  EXPECT_EQ(info->torch_version, "2.13.0+cpu");
  EXPECT_EQ(info->headrace_version, "0.1.0");
  ASSERT_EQ(info->inputs.size(), 1U);
  EXPECT_EQ(spec_text(info->inputs[0]), "float32 [batch 1..8, 4]");
  EXPECT_EQ(info->outputs[0].name, "y");
  EXPECT_THAT(info->refusal, IsEmpty());
  EXPECT_THAT(info->warnings, IsEmpty());
}

TEST_F(PackageInfo, the_description_may_stand_in_the_metadata) {
  PackageText text;
  text.io_spec.clear();
  text.metadata =
      R"({"AOTI_DEVICE_KEY": "cpu", "headrace": "{\"headrace_io\": 1, \"inputs\": [], \"outputs\": [{\"name\": \"y\"}]}", "author": "me"})";
  const auto info = info_of(text);
  ASSERT_TRUE(info) << info.error().message;
  EXPECT_EQ(info->spec_source, SpecSource::exported);
  EXPECT_EQ(info->outputs.size(), 1U);
  EXPECT_EQ(info->metadata, (std::map<std::string, std::string>{{"author", "me"}}));
}

TEST_F(PackageInfo, without_a_description_there_are_two_warnings) {
  PackageText text;
  text.io_spec.clear();
  const auto info = info_of(text);
  ASSERT_TRUE(info) << info.error().message;
  EXPECT_EQ(info->spec_source, SpecSource::nothing);
  ASSERT_EQ(info->warnings.size(), 2U);
  EXPECT_THAT(info->warnings[0], HasSubstr("not checked"));
  EXPECT_THAT(info->warnings[1], HasSubstr("which torch"));
}

TEST_F(PackageInfo, another_platform_or_machine_is_refused) {
  PackageText text;
  text.metadata = R"({"AOTI_DEVICE_KEY": "cpu", "AOTI_PLATFORM": "darwin"})";
  EXPECT_THAT(refusal_of(text), HasSubstr("compiled for darwin, and this is linux"));
  text.metadata = R"({"AOTI_DEVICE_KEY": "cpu", "AOTI_PLATFORM": "linux", "AOTI_MACHINE": "aarch64"})";
  EXPECT_THAT(refusal_of(text), HasSubstr("compiled for aarch64, and this machine is x86_64"));
}

TEST_F(PackageInfo, code_of_another_machine_is_refused_even_if_the_metadata_names_this_one) {
  PackageText text;
  text.code = elf(183);
  EXPECT_THAT(refusal_of(text), HasSubstr("compiled for aarch64, and this machine is x86_64"));
  text.code = elf(62);
  EXPECT_THAT(refusal_of(text), IsEmpty());
  EXPECT_THAT(refusal_of(text, {"linux", "aarch64", {"asimd"}}),
              HasSubstr("compiled for x86_64, and this machine is aarch64"));
}

TEST_F(PackageInfo, a_cpu_that_lacks_instructions_is_refused_with_their_names) {
  PackageText text;
  text.metadata = R"({"AOTI_DEVICE_KEY": "cpu", "AOTI_CPU_ISA": "AVX512 AVX512_VNNI"})";
  EXPECT_THAT(refusal_of(text), HasSubstr("compiled for AVX512 AVX512_VNNI, and this CPU has no avx512f, "
                                          "avx512dq, avx512vl, avx512bw, avx512_vnni"));
  text.metadata = R"({"AOTI_DEVICE_KEY": "cpu", "AOTI_CPU_ISA": "AVX2"})";
  EXPECT_THAT(refusal_of(text), IsEmpty());
}

TEST_F(PackageInfo, an_unknown_instruction_set_is_a_warning) {
  PackageText text;
  text.metadata = R"({"AOTI_DEVICE_KEY": "cpu", "AOTI_CPU_ISA": "AVX2 AVX9000"})";
  const auto info = info_of(text);
  ASSERT_TRUE(info);
  EXPECT_THAT(info->refusal, IsEmpty());
  ASSERT_EQ(info->warnings.size(), 1U);
  EXPECT_THAT(info->warnings[0], HasSubstr("AVX9000"));
}

TEST_F(PackageInfo, an_unknown_device_is_refused) {
  PackageText text;
  text.metadata = R"({"AOTI_DEVICE_KEY": "xpu"})";
  EXPECT_THAT(refusal_of(text), HasSubstr("\"xpu\""));
}

TEST_F(PackageInfo, a_damaged_description_is_corrupt) {
  PackageText text;
  text.metadata = "not json";
  EXPECT_EQ(info_of(text).code(), Code::corrupt);
  text = {};
  text.io_spec = R"({"headrace_io": 1, "inputs": [{"name": "x", "shape": [-1]}], "outputs": []})";
  EXPECT_THAT(info_of(text).error().message, HasSubstr("input 0 has a length that is not a whole number"));
  text.io_spec = R"({"headrace_io": 2, "inputs": [], "outputs": []})";
  EXPECT_EQ(info_of(text).code(), Code::not_supported);
}

TEST_F(PackageInfo, a_member_whose_bytes_changed_is_corrupt) {
  const std::string path = write_package(folder_.path());
  std::string bytes = testing::zip_archive(testing::package_members());
  bytes[bytes.find("headrace_io")] = 'X';
  write_file(path, bytes);
  const auto package = Package::open(path);
  ASSERT_TRUE(package);
  const auto info = read_model_info(*package, "model", this_one);
  EXPECT_EQ(info.code(), Code::corrupt);
  EXPECT_THAT(info.error().message, HasSubstr("checksum"));
}

TEST_F(PackageInfo, a_missing_model_is_refused_with_the_present_ones) {
  const auto package = Package::open(write_package(folder_.path()));
  const auto info = read_model_info(*package, "encoder", this_one);
  EXPECT_EQ(info.code(), Code::invalid_argument);
  EXPECT_THAT(info.error().message, HasSubstr("has no model \"encoder\": it has model"));
}

TEST_F(PackageInfo, an_archive_without_a_model_is_no_package) {
  const std::string path = folder_.path() + "/x.pt2";
  write_file(path, testing::zip_archive({{"readme", "hello"}}));
  EXPECT_THAT(Package::open(path).error().message, HasSubstr("contains no compiled model"));
  EXPECT_EQ(Package::open(folder_.path() + "/nothing.pt2").code(), Code::not_found);
}

TEST_F(PackageInfo, an_unpacked_folder_is_read_as_its_archive) {
  for (const auto& [name, content] : testing::package_members()) {
    const std::filesystem::path path = std::filesystem::path(folder_.path()) / "unpacked" / name;
    std::filesystem::create_directories(path.parent_path());
    write_file(path.string(), content);
  }
  for (const char* root : {"/unpacked", "/unpacked/net"}) {
    const auto package = Package::open(folder_.path() + root);
    ASSERT_TRUE(package) << package.error().message;
    EXPECT_TRUE(package->is_folder());
    const auto info = read_model_info(*package, "model", this_one);
    ASSERT_TRUE(info) << info.error().message;
    EXPECT_EQ(info->spec_source, SpecSource::exported);
  }
}

TEST(Machine, the_features_are_those_of_the_first_cpu) {
  EXPECT_EQ(cpu_features("processor : 0\nflags\t\t: fpu avx2 fma\n\nprocessor : 1\nflags : none\n"),
            (std::set<std::string, std::less<>>{"avx2", "fma", "fpu"}));
  EXPECT_EQ(cpu_features("Features\t: fp asimd sve\n"),
            (std::set<std::string, std::less<>>{"asimd", "fp", "sve"}));
  EXPECT_TRUE(cpu_features("nothing").empty());
  EXPECT_FALSE(this_machine().architecture.empty());
}

TEST(Machine, the_features_from_the_cpu_are_those_that_the_kernel_lists) {
  std::ifstream file("/proc/cpuinfo");
  const std::set<std::string, std::less<>> named =
      cpu_features(std::string(std::istreambuf_iterator<char>(file), {}));
  const auto& asked = this_machine().cpu_features;
  EXPECT_FALSE(asked.empty());
  for (const std::string& feature : asked) EXPECT_TRUE(named.contains(feature)) << feature;
  for (const char* const feature :
       {"fma", "f16c", "avx2", "avx512f", "avx512dq", "avx512vl", "avx512bw", "avx512_vnni", "avx512_bf16",
        "avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "asimd"})
    EXPECT_EQ(asked.contains(feature), named.contains(feature)) << feature;
}

}  // namespace
}  // namespace headrace
