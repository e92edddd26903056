// SPDX-License-Identifier: Apache-2.0
#include "runner/generated_code.hpp"

#include "runner/dimension_expression.hpp"
#include "runner/exported_program.hpp"

#include <gmock/gmock.h>

#include <string>

namespace headrace {
namespace {

/// The code that AOTInductor of torch 2.13 generates, shortened to the lines that the reader uses.
const std::string code = R"(
AOTInductorModel::AOTInductorModel(std::shared_ptr<ConstantMap> constants_map)
    : AOTInductorModelBase(2,
                           1,
                           4,
                           device_str,
                           true) {
}
AOTI_NOINLINE static void check_input_0(
    AtenTensorHandle* input_handles
) {
    ConstantHandle arg4_1 = ConstantHandle(input_handles[0]);
    int32_t arg4_1_expected_dtype = aoti_torch_dtype_float32();
    if (arg4_1_expected_dtype != arg4_1_dtype) {
        throw std::runtime_error(std::move(ss).str());
    }
    auto arg4_1_size = arg4_1.sizes();

    if (arg4_1_size[0] < 2) {
        throw std::runtime_error(std::move(ss).str());
    }

    if (arg4_1_size[0] > 64) {
        throw std::runtime_error(std::move(ss).str());
    }

    if (256 != arg4_1_size[1]) {
        throw std::runtime_error(std::move(ss).str());
    }
    auto arg4_1_stride = arg4_1.strides();

    if (256 != arg4_1_stride[0]) {
        throw std::runtime_error(std::move(ss).str());
    }

    if (1 != arg4_1_stride[1]) {
        throw std::runtime_error(std::move(ss).str());
    }
}

AOTI_NOINLINE static void check_input_1(
    AtenTensorHandle* input_handles
) {
    ConstantHandle arg5_1 = ConstantHandle(input_handles[1]);
    int32_t arg5_1_expected_dtype = aoti_torch_dtype_int64();
    if (3 != arg5_1_size[0]) {
    }
    if (4 != arg5_1_size[1]) {
    }
    if (1 != arg5_1_stride[0]) {
    }
    if (3 != arg5_1_stride[1]) {
    }
}

void AOTInductorModel::run_impl() {
    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg4_1, {s77, 256L}, {256L, 1L}, "input"); }
}
)";

TEST(GeneratedCode, types_lengths_bounds_and_strides_are_read_from_generated_code) {
  const auto spec = read_generated_code(code);
  ASSERT_TRUE(spec);
  ASSERT_EQ(spec->inputs.size(), 2U);
  EXPECT_EQ(spec_text(spec->inputs[0]), "float32 [s77 1..64, 256]");
  EXPECT_EQ(spec_text(spec->inputs[1]), "int64 [3, 4] with strides [1, 3]");
  EXPECT_EQ(spec->outputs.size(), 1U);
  EXPECT_EQ(spec->source, SpecSource::generated_code);
}

TEST(GeneratedCode, a_dynamic_dimension_has_a_name_of_its_own_if_run_names_no_sizes) {
  const auto spec = read_generated_code(code.substr(0, code.find("void AOTInductorModel::run_impl")));
  ASSERT_TRUE(spec);
  EXPECT_EQ(spec_text(spec->inputs[0]), "float32 [arg4_1_0 1..64, 256]");
}

TEST(GeneratedCode, code_of_another_form_is_not_read) {
  EXPECT_FALSE(read_generated_code("int main() {}"));
  std::string other = code;
  other.replace(other.find("check_input_1"), 13, "check_inputs_");
  EXPECT_FALSE(read_generated_code(other));
  ASSERT_TRUE(read_counts(other));
  EXPECT_EQ(read_counts(other)->inputs, 2U);
  for (std::size_t bytes = 0; bytes < code.size(); bytes += 7)
    static_cast<void>(read_generated_code(code.substr(0, bytes)));
}

const std::string program = R"json({
  "schema_version": {"major": 8, "minor": 20}, "torch_version": "2.13.0+cpu",
  "range_constraints": {"s23": {"min_val": 1, "max_val": 64}, "s9": {"min_val": 2, "max_val": 9223372036854775806}},
  "graph_module": {
    "signature": {
      "input_specs": [{"parameter": {"arg": {"name": "p_w"}, "parameter_name": "w"}},
                      {"user_input": {"arg": {"as_tensor": {"name": "x"}}}}, {"user_input": {"arg": {"as_tensor": {"name": "cache"}}}}],
      "output_specs": [{"user_input_mutation": {"arg": {"name": "add_"}, "user_input_name": "cache"}},
                       {"user_output": {"arg": {"as_tensor": {"name": "mul"}}}}]},
    "graph": {"tensor_values": {
      "x": {"dtype": 7, "sizes": [{"as_expr": {"expr_str": "Symbol('s23', positive=True, integer=True)"}}, {"as_int": 4}],
            "strides": [{"as_int": 4}, {"as_int": 1}]},
      "cache": {"dtype": 5, "sizes": [{"as_expr": {"expr_str": "Symbol('s9', positive=True, integer=True)"}}], "strides": [{"as_int": 1}]},
      "mul": {"dtype": 13, "sizes": [{"as_expr": {"expr_str": "Mul(Integer(2), Symbol('s23', positive=True, integer=True))"}}, {"as_int": 8}],
              "strides": [{"as_int": 1}, {"as_int": 2}]}}}}})json";

TEST(ExportedProgram, names_types_and_ranges_are_read_from_an_exported_program) {
  const auto spec = read_exported_program(program);
  ASSERT_TRUE(spec);
  ASSERT_EQ(spec->inputs.size(), 2U);
  EXPECT_EQ(spec->inputs[0].name, "x");
  EXPECT_EQ(spec_text(spec->inputs[0]), "float32 [s23 1..64, 4]");
  EXPECT_EQ(spec_text(spec->inputs[1]), "int64 [s9 2..]");
  EXPECT_FALSE(spec->inputs[0].mutated);
  EXPECT_TRUE(spec->inputs[1].mutated);
  EXPECT_EQ(spec_text(spec->outputs[0]),
            "bfloat16 [Mul(Integer(2), Symbol('s23', positive=True, integer=True)), 8]");
  EXPECT_EQ(spec->torch_version, "2.13.0+cpu");
}

TEST(ExportedProgram, a_program_of_another_form_is_not_read) {
  EXPECT_FALSE(read_exported_program("{}"));
  EXPECT_FALSE(read_exported_program("[1, 2"));
  std::string other = program;
  other.replace(other.find("\"major\": 8"), 10, "\"major\": 9");
  EXPECT_FALSE(read_exported_program(other));
  other = program;
  other.replace(other.find("{\"as_tensor\": {\"name\": \"x\"}}"), 28, "{\"as_int\": {\"name\": \"x\"}}   ");
  EXPECT_FALSE(read_exported_program(other));
}

TEST(DimensionExpression, sums_products_and_quotients_of_names_and_numbers_have_a_value) {
  const auto value = [](std::string_view text) {
    return evaluate_dimension(text, [](std::string_view name) {
      return name == "n" ? std::optional<std::int64_t>(7) : std::nullopt;
    });
  };
  EXPECT_EQ(value("2*n"), 14);
  EXPECT_EQ(value("n + 1 - 3"), 5);
  EXPECT_EQ(value("(n + 15)//16"), 1);
  EXPECT_EQ(value("2*(n+1)*3"), 48);
  EXPECT_EQ(value("-n + 10"), 3);
  for (const char* text : {"", "m", "n//0", "n +", "(n", "n n", "Mod(n, 2)", "n/2", "9999999999999999999",
                           "4611686018427387904*n", "n$"})
    EXPECT_EQ(value(text), std::nullopt) << text;
  EXPECT_EQ(value(std::string(10'000, '(')), std::nullopt);
}

}  // namespace
}  // namespace headrace
