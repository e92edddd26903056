// SPDX-License-Identifier: Apache-2.0
#include "cli/model/model_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace::cli {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

ModelJson verified(const ModelJson& outputs, bool passed) {
  return {{"passed", passed}, {"relative", 1e-4}, {"absolute", 1e-5}, {"outputs", outputs}};
}

ModelJson inferred(const ModelJson& outputs, std::uint64_t runs) {
  const ModelJson latency{{"least", 1.5},  {"mean", 35.14},   {"p50", 40.0},
                          {"p90", 1234.0}, {"p99", 82'205.0}, {"most", 1'500'000.0}};
  const ModelJson memory{{"package_bytes", 1}, {"constant_bytes", 546'856}, {"process_bytes", 118'000'000},
                         {"device_bytes", 0},  {"device_peak_bytes", 0},    {"device_used_bytes", 0}};
  return {{"device", "cpu"},
          {"load_ms", 823.9},
          {"unpack_ms", 0.2},
          {"unpacked", false},
          {"runs", runs},
          {"warmup", 2},
          {"threads", 4},
          {"latency_us", latency},
          {"memory", memory},
          {"outputs", outputs},
          {"runs_per_second", 12.16}};
}

TEST(VerifyText, TheLastLineNamesTheLargestDifference) {
  const ModelJson outputs{
      {{"name", "a"}, {"elements", 4}, {"different", 0}, {"largest_difference", 1e-7}, {"passed", true}},
      {{"name", "b"}, {"elements", 4}, {"different", 0}, {"largest_difference", 3e-6}, {"passed", true}}};
  EXPECT_THAT(verify_text(verified(outputs, true)),
              AllOf(ContainsRegex("\na +4 +0 +1e-07\n"),
                    EndsWith("\nlargest difference: 3e-06, as expected (allowed: 1e-05 + 0.0001 of the "
                             "expected value)\n")));
}

TEST(VerifyText, AnOutputThatDiffersHasItsReason) {
  const ModelJson outputs{{{"name", "a"},
                           {"elements", 4},
                           {"different", 1},
                           {"largest_difference", 2.0},
                           {"passed", false},
                           {"reason", "element 3 is 2; expected: 0"}},
                          {{"name", "b"}, {"passed", false}, {"reason", "its shape is another"}}};
  EXPECT_THAT(
      verify_text(verified(outputs, false)),
      AllOf(ContainsRegex("\na +4 +1 +2 +element 3 is 2"), ContainsRegex("\nb +its shape is another\n"),
            HasSubstr("\nlargest difference: 2, not as expected")));
  const ModelJson none{{{"name", "b"}, {"passed", false}, {"reason", "its shape is another"}}};
  EXPECT_THAT(verify_text(verified(none, false)),
              EndsWith("largest difference: none could be compared, not as expected\n"));
}

TEST(InferText, AShortTensorIsShownInFullAndTimesHaveUnits) {
  const ModelJson outputs{{{"name", "few"},
                           {"dtype", "float32"},
                           {"shape", {2}},
                           {"data", {0.25, nullptr}},
                           {"least", 0.25},
                           {"most", 0.25},
                           {"mean", 0.25},
                           {"not_finite", 1}},
                          {{"name", "many"},
                           {"dtype", "int64"},
                           {"shape", {3, 100}},
                           {"least", -1.0},
                           {"most", 123456.0},
                           {"mean", 0.0},
                           {"not_finite", 0}}};
  const std::string many = infer_text(inferred(outputs, 1000));
  EXPECT_THAT(many, AllOf(ContainsRegex("\nfew +float32 +\\[2\\] .* 1 +0.25 null\n"),
                          ContainsRegex("\nmany +int64 +\\[3, 100\\] +-1 +0 +1.235e\\+05 +0\n")));
  EXPECT_THAT(many,
              AllOf(ContainsRegex("\nload +824 ms\n"), ContainsRegex("\nrun, mean +35.1 us +of 1000 runs"),
                    ContainsRegex("\nrun, median +40.0 us +from 1.50 us to 1.50 s\n"),
                    ContainsRegex("\nrun, 99 % +82.2 ms"), HasSubstr("546.9 kB")));
  EXPECT_THAT(infer_text(inferred(outputs, 1)), AllOf(HasSubstr("\nrun "), Not(HasSubstr("median"))));
}

TEST(InspectText, InputsOutputsAndConstantsAreRows) {
  ModelInfo info;
  info.path = "m.pt2";
  info.model_name = "model";
  info.package_bytes = 2'000'000;
  info.torch_version = "2.13.0";
  info.inputs = {
      {.name = "x",
       .dtype = DType::float32,
       .shape_known = true,
       .shape = {{1, 64, "batch", ""}, {256, 256, "", ""}, {0, std::nullopt, "n", ""}, {0, {}, "", "2*n"}},
       .strides = {},
       .optional = true,
       .mutated = true},
      {.name = "y", .dtype = {}, .shape_known = false, .shape = {}, .strides = {}}};
  info.warnings = {"nothing is known of y"};
  EXPECT_THAT(
      inspect_text(info, {{"w", DType::bfloat16, {2, 3}}}),
      AllOf(HasSubstr("m.pt2: model \"model\" for cpu, 2.0 MB, by torch 2.13.0\n"),
            ContainsRegex("\ninput +x +float32 +\\[batch 1..64, 256, n 0.., 2\\*n\\] +may be left out, "
                          "written to\n"),
            ContainsRegex("\ninput +y +not known +not known\n"),
            ContainsRegex("\nconstant +w +bfloat16 +\\[2, 3\\]\n"),
            HasSubstr("\nwarning: nothing is known of y\n"), EndsWith("\nIt runs on this machine.\n")));
  info.refusal = "it was compiled for riscv64";
  EXPECT_THAT(inspect_text(info, {}),
              EndsWith("It does not run on this machine: it was compiled for riscv64\n"));
}

TEST(ExamText, AFailedCheckIsMarkedAndHasItsReason) {
  const ModelJson checks{{{"name", "matmul float32"}, {"passed", true}, {"detail", "off by 0 at most"}},
                         {{"name", "random float16"}, {"passed", false}, {"detail", "no kernel"}}};
  const ModelJson report{{"version", "1.2"},
                         {"works", false},
                         {"checks", checks},
                         {"model", {{"passed", false}, {"reason", "compiled for riscv64"}}}};
  EXPECT_THAT(exam_text(report),
              AllOf(ContainsRegex("\nmatmul float32 +ok +off by 0 at most\n"),
                    ContainsRegex("\nrandom float16 +bad +no kernel\n"),
                    ContainsRegex("\nthe model +bad +compiled for riscv64\n"), Not(HasSubstr("works"))));
}

TEST(ExamText, TheTextSaysThatRocmHasNotBeenRun) {
  ModelJson report{{"version", "1.2"},
                   {"works", true},
                   {"device", "cuda:0"},
                   {"torch",
                    {{"found", "2.13.0+rocm7.0"},
                     {"found_accelerator", "rocm"},
                     {"devices", 1},
                     {"cpu_capability", "AVX2"}}}};
  EXPECT_THAT(exam_text(report), HasSubstr("has not been run on AMD hardware"));
  report["torch"]["found_accelerator"] = "cuda";
  EXPECT_THAT(exam_text(report), Not(HasSubstr("AMD")));
}

}  // namespace
}  // namespace headrace::cli
