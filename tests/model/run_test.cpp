// SPDX-License-Identifier: Apache-2.0
#include "model/model_fixture.hpp"

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

namespace headrace {
namespace {

using testing::counted;
using ::testing::HasSubstr;
using testing::package_path;

class Run : public testing::ModelTest {};

std::vector<float> floats(const Tensor& tensor) {
  const auto elements = tensor.elements<float>();
  return {elements.begin(), elements.end()};
}

TEST_F(Run, a_pointwise_model_computes_its_function) {
  Model model = open("add");
  const Tensor x = counted({1024});
  const std::array<TensorView, 1> inputs{x};
  const auto outputs = model.run(inputs);
  ASSERT_TRUE(outputs) << outputs.error().message;
  ASSERT_EQ(outputs->size(), 1U);
  ASSERT_EQ((*outputs)[0].shape(), Shape({1024}));
  for (std::size_t i = 0; i < 1024; ++i)
    ASSERT_EQ((*outputs)[0].elements<float>()[i], static_cast<float>(i) + 1);
}

TEST_F(Run, new_bytes_in_the_same_memory_are_used) {
  Model model = open("add");
  Tensor x = counted({1024});
  const std::array<TensorView, 1> inputs{x};
  ASSERT_TRUE(model.run(inputs));
  x.elements<float>()[7] = 100;
  EXPECT_EQ(model.run(inputs).value()[0].elements<float>()[7], 101);
}

TEST_F(Run, other_memory_of_the_same_shape_is_used) {
  Model model = open("add");
  const Tensor one = counted({1024});
  Tensor other = counted({1024});
  other.elements<float>()[0] = 50;
  ASSERT_TRUE(model.run(std::array<TensorView, 1>{one}));
  EXPECT_EQ(model.run(std::array<TensorView, 1>{other}).value()[0].elements<float>()[0], 51);
}

TEST_F(Run, every_batch_size_of_the_export_runs_with_one_package) {
  Model model = open("mlp");
  const Tensor whole = counted({64, 256});
  const auto all = model.run(std::array<TensorView, 1>{whole});
  ASSERT_TRUE(all) << all.error().message;
  for (const std::int64_t batch : {1, 2, 33, 64}) {
    TensorView part = whole;
    part.shape[0] = batch;
    const auto outputs = model.run(std::span(&part, 1));
    ASSERT_TRUE(outputs) << outputs.error().message;
    ASSERT_EQ((*outputs)[0].shape(), Shape({batch, 10}));
    ASSERT_EQ((*outputs)[1].shape(), Shape({batch, 512}));
    for (std::size_t i = 0; i < 10; ++i)
      EXPECT_NEAR((*outputs)[0].elements<float>()[i], (*all)[0].elements<float>()[i],
                  std::abs((*all)[0].elements<float>()[i]) * 1e-4 + 1e-3);
  }
}

TEST_F(Run, an_input_or_weight_that_is_an_output_is_copied) {
  Model model = open("mixed");
  Tensor a = counted({16});
  const Tensor bias = counted({16}), m = counted({2, 4});
  const Tensor ids = Tensor::zeros(DType::int64, {5}).value();
  std::vector<Tensor> outputs;
  ASSERT_TRUE(model.run(std::array<TensorView, 4>{a, bias, m, ids}, outputs));
  ASSERT_EQ(outputs.size(), 5U);
  EXPECT_NE(outputs[3].data(), a.data());
  a.elements<float>()[3] = -1;
  EXPECT_EQ(outputs[3].elements<float>()[3], 3);
  const std::vector<float> weight = floats(outputs[4]);
  outputs[4].elements<float>()[0] = 77;
  ASSERT_TRUE(model.run(std::array<TensorView, 4>{a, bias, m, ids}, outputs));
  EXPECT_EQ(floats(outputs[4]), weight);
}

TEST_F(Run, outputs_outlive_the_model) {
  std::vector<Tensor> outputs;
  {
    Model model = open("add");
    outputs = model.run(std::array<TensorView, 1>{counted({1024})}).value();
  }
  EXPECT_EQ(outputs[0].elements<float>()[1023], 1024);
}

TEST_F(Run, every_type_is_an_input_and_an_output) {
  Model model = open("types");
  const std::array types{DType::float64, DType::float16, DType::bfloat16, DType::int8,    DType::int16,
                         DType::int32,   DType::int64,   DType::uint8,    DType::boolean, DType::complex64};
  std::vector<Tensor> tensors;
  std::vector<TensorView> inputs;
  for (const DType type : types) {
    tensors.push_back(Tensor::zeros(type, {6}).value());
    inputs.push_back(tensors.back());
  }
  tensors[0].elements<double>()[1] = 1.5;
  tensors[1].elements<std::uint16_t>()[1] = 0x3C00;  // 1
  tensors[2].elements<std::uint16_t>()[1] = 0x3F80;  // 1
  tensors[6].elements<std::int64_t>()[1] = std::int64_t{1} << 60;
  tensors[9].elements<std::array<float, 2>>()[1] = {2, -3};
  const auto outputs = model.run(inputs);
  ASSERT_TRUE(outputs) << outputs.error().message;
  ASSERT_EQ(outputs->size(), types.size());
  for (std::size_t i = 0; i < types.size(); ++i) EXPECT_EQ((*outputs)[i].dtype(), types[i]) << i;
  EXPECT_EQ((*outputs)[0].elements<double>()[1], 3);
  EXPECT_EQ((*outputs)[1].elements<std::uint16_t>()[1], 0x4000);
  EXPECT_EQ((*outputs)[2].elements<std::uint16_t>()[1], 0x4000);
  EXPECT_EQ((*outputs)[6].elements<std::int64_t>()[1], std::int64_t{1} << 61);
  EXPECT_EQ((*outputs)[8].elements<bool>()[0], true);
  const std::array<float, 2> doubled{4, -6};
  EXPECT_EQ(((*outputs)[9].elements<std::array<float, 2>>()[1]), doubled);
}

TEST_F(Run, a_model_that_writes_into_an_input_writes_once_a_run) {
  Model model = open("counter");
  ASSERT_TRUE(model.info().inputs[1].mutated);
  Tensor x = counted({8}), total = Tensor::zeros(DType::float32, {1}).value();
  const std::array<TensorView, 2> inputs{x, total};
  ASSERT_TRUE(model.run(inputs));
  EXPECT_EQ(total.elements<float>()[0], 28);
  EXPECT_EQ(model.run(inputs).value()[0].elements<float>()[0], 112);
  EXPECT_EQ(total.elements<float>()[0], 56);
}

TEST_F(Run, threads_with_a_runner_each_get_their_own_outputs) {
  ModelOptions options;
  options.runners = 3;
  Model model = open("add", options);
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Tensor x = counted({1024});
      for (int i = 0; i < 200; ++i) {
        x.elements<float>()[0] = static_cast<float>(t * 1000 + i);
        const auto outputs = model.run(std::array<TensorView, 1>{x});
        if (!outputs || (*outputs)[0].elements<float>()[0] != static_cast<float>(t * 1000 + i + 1)) ++wrong;
      }
    });
  threads.clear();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(model.timing().run_ns.count, 800U);
}

TEST_F(Run, many_threads_may_open_models_at_once) {
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i) {
        auto model = try_open(package_path(i % 2 == 0 ? "add" : "mlp"));
        if (!model || model->info().inputs.size() != 1) ++wrong;
      }
    });
  threads.clear();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Run, constants_are_listed_and_replaced_without_another_load) {
  ModelOptions options;
  options.runners = 2;
  Model model = open("mixed", options);
  const auto constants = model.constants();
  ASSERT_TRUE(constants) << constants.error().message;
  ASSERT_EQ(constants->size(), 2U);
  EXPECT_EQ((*constants)[0].name, "table.weight");
  EXPECT_EQ((*constants)[0].shape, Shape({100, 8}));
  EXPECT_EQ((*constants)[1].name, "weight");

  Tensor weight = counted({3, 4});
  for (float& element : weight.elements<float>()) element = 2;
  const auto replaced = model.replace_constants({{"weight", weight}});
  ASSERT_TRUE(replaced) << replaced.error().message;
  Tensor m = Tensor::zeros(DType::float32, {1, 4}).value();
  for (float& element : m.elements<float>()) element = 1;
  const Tensor a = counted({16}), ids = Tensor::zeros(DType::int64, {5}).value();
  for (int i = 0; i < 2; ++i) {
    const auto outputs = model.run(std::array<TensorView, 4>{a, a, m, ids});
    ASSERT_TRUE(outputs) << outputs.error().message;
    EXPECT_EQ(floats((*outputs)[1]), (std::vector<float>{8, 8, 8}));
  }
}

TEST_F(Run, a_constant_of_another_shape_type_or_name_is_refused_and_nothing_changes) {
  Model model = open("mixed");
  const Tensor wrong = counted({4, 3});
  auto refused = model.replace_constants({{"weight", wrong}});
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_THAT(refused.error().message,
              HasSubstr("constant weight is float32 [3, 4], and float32 [4, 3] was given"));
  refused = model.replace_constants({{"wieght", wrong}});
  EXPECT_THAT(refused.error().message, HasSubstr("no constant \"wieght\"; it has table.weight, weight"));
  EXPECT_EQ(model.replace_constants({{"weight", Tensor::zeros(DType::float64, {3, 4}).value()}}).code(),
            Code::invalid_argument);
}

TEST_F(Run, an_error_that_only_the_model_can_find_has_torchs_text) {
  Model model = open("mixed");
  const Tensor a = counted({16}), m = counted({2, 4});
  Tensor ids = Tensor::zeros(DType::int64, {5}).value();
  ids.elements<std::int64_t>()[2] = 100;
  const auto outputs = model.run(std::array<TensorView, 4>{a, a, m, ids});
  ASSERT_FALSE(outputs);
  EXPECT_EQ(outputs.code(), Code::backend_failed);
  EXPECT_THAT(outputs.error().message, HasSubstr("mixed.pt2"));
  ids.elements<std::int64_t>()[2] = 99;
  EXPECT_TRUE(model.run(std::array<TensorView, 4>{a, a, m, ids}));
}

TEST_F(Run, times_and_memory_are_counted) {
  Model model = open("mlp");
  const Tensor x = counted({4, 256});
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(model.run(std::array<TensorView, 1>{x}));
  const ModelTiming timing = model.timing();
  EXPECT_TRUE(timing.unpacked);
  EXPECT_GT(timing.load_ns, timing.unpack_ns);
  EXPECT_EQ(timing.run_ns.count, 5U);
  const ModelMemory memory = model.memory();
  EXPECT_GE(memory.constant_bytes, (256U * 512 + 512 + 512 * 10 + 10) * 4);
  EXPECT_GT(memory.process_bytes, memory.constant_bytes);
  EXPECT_EQ(memory.package_bytes, std::filesystem::file_size(package_path("mlp")));
}

TEST_F(Run, a_tensor_is_copied_to_a_device) {
  Model model = open("add");
  const Tensor x = counted({3, 5});
  const auto copy = model.copy_to(x, Device{});
  ASSERT_TRUE(copy) << copy.error().message;
  EXPECT_NE(copy->data(), x.data());
  EXPECT_EQ(floats(*copy), floats(x));
}

TEST_F(Run, the_device_passes_every_check_that_models_need) {
  const auto checks = check_device(Device{});
  ASSERT_TRUE(checks) << checks.error().message;
  ASSERT_EQ(checks->size(), 12U);
  for (const DeviceCheck& check : *checks) EXPECT_TRUE(check.passed) << check.name << ": " << check.detail;
}

}  // namespace
}  // namespace headrace
