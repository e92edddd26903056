// SPDX-License-Identifier: Apache-2.0
#include "runner/model_core.hpp"

#include "support/package_file.hpp"
#include "support/temporary_folder.hpp"
#include "vendor/torch/fake_model_runtime.hpp"

#include <gmock/gmock.h>

#include <array>
#include <latch>
#include <thread>

namespace headrace {
namespace {

using ::testing::HasSubstr;
using testing::PackageText;
using testing::write_package;

class ModelCoreTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<ModelCore>> open(const PackageText& text = {}, ModelOptions options = {}) {
    options.options.emplace("cache_dir", folder_.path() + "/cache");
    return ModelCore::open(
        write_package(folder_.path(), text), options,
        [this](const ModelSettings&) -> Result<ModelRuntime> {
          ++asked_for_runtime_;
          return FakeModelRuntime::runtime();
        },
        logger_);
  }
  std::unique_ptr<ModelCore> opened(ModelOptions options = {}) {
    auto core = open({}, std::move(options));
    if (!core) ADD_FAILURE() << core.error().message;
    return std::move(core).value();
  }

  test::TemporaryFolder folder_;
  FakeModelRuntime fake_;
  Logger logger_;
  int asked_for_runtime_ = 0;
  std::array<float, 32> memory_{1, 2, 3, 4};
  TensorView x_{memory_.data(), DType::float32, {2, 4}, {}, {}};
  std::vector<Tensor> outputs_;
};

TEST_F(ModelCoreTest, a_run_returns_the_runtimes_outputs_and_releases_them) {
  const auto core = opened();
  ASSERT_TRUE(core->run(std::span(&x_, 1), outputs_, {}));
  ASSERT_EQ(outputs_.size(), 1U);
  EXPECT_EQ(outputs_[0].shape(), Shape({2, 4}));
  EXPECT_EQ(outputs_[0].elements<float>()[2], 4);
  EXPECT_EQ(fake_.released, 0);
  outputs_.clear();
  EXPECT_EQ(fake_.released, 1);
}

TEST_F(ModelCoreTest, the_same_inputs_are_bound_once) {
  const auto core = opened();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(core->run(std::span(&x_, 1), outputs_, {}));
  EXPECT_EQ(fake_.bound, 1);
  x_.shape[0] = 3;
  ASSERT_TRUE(core->run(std::span(&x_, 1), outputs_, {}));
  EXPECT_EQ(fake_.bound, 2);
  x_.data = memory_.data() + 1;
  ASSERT_TRUE(core->run(std::span(&x_, 1), outputs_, {}));
  EXPECT_EQ(fake_.bound, 3);
  EXPECT_EQ(fake_.runs, 7);
}

TEST_F(ModelCoreTest, a_wrong_input_never_reaches_the_runtime) {
  const auto core = opened();
  x_.dtype = DType::int32;
  const auto ran = core->run(std::span(&x_, 1), outputs_, {});
  EXPECT_EQ(ran.code(), Code::invalid_argument);
  EXPECT_EQ(fake_.bound, 0);
  EXPECT_EQ(fake_.runs, 0);
  EXPECT_EQ(core->timing().run_ns.count, 0U);
}

TEST_F(ModelCoreTest, all_outputs_are_returned_if_there_are_more_than_expected) {
  fake_.outputs = 30;
  const auto core = opened();
  ASSERT_TRUE(core->run(std::span(&x_, 1), outputs_, {}));
  EXPECT_EQ(outputs_.size(), 30U);
}

TEST_F(ModelCoreTest, an_error_of_the_runtime_is_passed_on) {
  fake_.open_error = "no such symbol";
  auto refused = open();
  EXPECT_EQ(refused.code(), Code::backend_failed);
  EXPECT_THAT(refused.error().message, HasSubstr("net.pt2: no such symbol"));
  fake_.open_error.clear();
  const auto core = opened();
  fake_.run_error = "index out of bounds";
  const auto ran = core->run(std::span(&x_, 1), outputs_, {});
  EXPECT_EQ(ran.code(), Code::backend_failed);
  EXPECT_THAT(ran.error().message, HasSubstr("net.pt2: index out of bounds"));
}

TEST_F(ModelCoreTest, a_package_for_another_machine_is_refused_before_the_runtime_is_loaded) {
  PackageText text;
  text.metadata = R"({"AOTI_DEVICE_KEY": "cpu", "AOTI_MACHINE": "riscv64"})";
  EXPECT_EQ(open(text).code(), Code::not_supported);
  EXPECT_EQ(asked_for_runtime_, 0);
}

TEST_F(ModelCoreTest, a_package_for_a_gpu_is_refused_where_torch_has_none) {
  PackageText text;
  text.metadata = R"({"AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": "90"})";
  const auto refused = open(text);
  EXPECT_EQ(refused.code(), Code::not_supported);
  EXPECT_THAT(refused.error().message,
              HasSubstr("compiled for a GPU, and torch 2.13.0+cpu is for CPUs only"));
  EXPECT_EQ(fake_.opened, 0);
}

TEST_F(ModelCoreTest, a_device_other_than_the_packages_is_refused) {
  ModelOptions options;
  options.device = "cuda:1";
  EXPECT_THAT(open({}, options).error().message, HasSubstr("was compiled for cpu, and cuda:1 was requested"));
  options.device = "tpu";
  EXPECT_EQ(open({}, options).code(), Code::invalid_argument);
}

class GpuModelTest : public ModelCoreTest {
 protected:
  GpuModelTest() {
    fake_.gpus = 2;
    package_.metadata = R"({"AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": "90"})";
    package_.io_spec.replace(package_.io_spec.find(R"("cpu")"), 5, R"("cuda")");
    x_.device = {Device::Kind::cuda, 1};
  }
  std::unique_ptr<ModelCore> opened_on(const std::string& device) {
    ModelOptions options;
    options.device = device;
    auto core = open(package_, options);
    if (!core) ADD_FAILURE() << core.error().message;
    return std::move(core).value();
  }

  PackageText package_;
  int stream_ = 0;
};

TEST_F(GpuModelTest, a_gpu_is_chosen_by_its_number_and_a_missing_one_is_named) {
  EXPECT_EQ(opened_on("cuda")->info().device, (Device{Device::Kind::cuda, 0}));
  EXPECT_EQ(opened_on("cuda:1")->info().device, (Device{Device::Kind::cuda, 1}));
  ModelOptions options;
  options.device = "cuda:2";
  EXPECT_THAT(open(package_, options).error().message, HasSubstr("there is no cuda:2: torch sees 2 GPUs"));
  options.device = "cpu";
  EXPECT_THAT(open(package_, options).error().message,
              HasSubstr("was compiled for cuda, and cpu was requested"));
}

TEST_F(GpuModelTest, an_input_on_another_device_is_named_and_nothing_runs) {
  const auto core = opened_on("cuda:1");
  x_.device = {Device::Kind::cuda, 0};
  EXPECT_THAT(core->run(std::span(&x_, 1), outputs_, {}).error().message,
              HasSubstr("it is on cuda:0, and the model runs on cuda:1"));
  x_.device = {};
  EXPECT_THAT(core->run(std::span(&x_, 1), outputs_, {}).error().message,
              HasSubstr("it is on cpu, and the model runs on cuda:1"));
  EXPECT_EQ(fake_.runs, 0);
}

TEST_F(GpuModelTest, a_run_uses_the_callers_stream_and_waits_for_that_stream_only) {
  const auto core = opened_on("cuda:1");
  ASSERT_TRUE(core->run(std::span(&x_, 1), outputs_, {}));
  ASSERT_TRUE(core->run(std::span(&x_, 1), outputs_, {.stream = &stream_}));
  ASSERT_TRUE(core->run(std::span(&x_, 1), outputs_, {.stream = nullptr}));
  const std::vector<void*> streams{HEADRACE_MODEL_CURRENT_STREAM, &stream_, nullptr};
  EXPECT_EQ(fake_.streams, streams);
  EXPECT_EQ(fake_.waited, streams);
  EXPECT_EQ(outputs_[0].device(), (Device{Device::Kind::cuda, 1}));
}

TEST_F(GpuModelTest, without_synchronize_only_a_call_to_wait_waits) {
  const auto core = opened_on("cuda:1");
  ASSERT_TRUE(core->run(std::span(&x_, 1), outputs_, {.stream = &stream_, .synchronize = false}));
  EXPECT_TRUE(fake_.waited.empty());
  ASSERT_TRUE(core->wait(&stream_));
  EXPECT_EQ(fake_.waited, std::vector<void*>{&stream_});
}

TEST_F(GpuModelTest, memory_reports_torchs_bytes_their_peak_and_all_used_bytes) {
  const ModelMemory memory = opened_on("cuda:1")->memory();
  EXPECT_EQ(memory.device_bytes, 100U);
  EXPECT_EQ(memory.device_peak_bytes, 200U);
  EXPECT_EQ(memory.device_used_bytes, 300U);
  EXPECT_EQ(memory.constant_bytes, 12U);
}

TEST_F(ModelCoreTest, a_stream_for_a_model_on_the_cpu_is_refused) {
  const auto core = opened();
  const auto refused = core->run(std::span(&x_, 1), outputs_, {.stream = nullptr});
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_THAT(refused.error().message, HasSubstr("runs on the CPU, which has no streams"));
  EXPECT_EQ(fake_.runs, 0);
  EXPECT_TRUE(core->wait({}));
}

TEST_F(ModelCoreTest, a_package_of_a_newer_torch_is_refused_and_of_an_older_one_is_warned_of) {
  PackageText text;
  const auto compiled_by = [&](const std::string& version) {
    text.io_spec = R"({"headrace_io": 1, "torch": ")" + version + R"(", "inputs": [], "outputs": []})";
    return open(text);
  };
  const auto refused = compiled_by("2.14.0");
  EXPECT_EQ(refused.code(), Code::not_supported);
  EXPECT_THAT(refused.error().message,
              HasSubstr("compiled by torch 2.14.0, and torch 2.13.0+cpu is installed"));
  const auto older = compiled_by("2.11.0+cu129");
  ASSERT_TRUE(older) << older.error().message;
  ASSERT_EQ((*older)->info().warnings.size(), 1U);
  EXPECT_THAT((*older)->info().warnings[0], HasSubstr("torch 2.11.0+cu129"));
  EXPECT_TRUE(compiled_by("2.13.1")->get()->info().warnings.empty());
}

TEST_F(ModelCoreTest, as_many_runs_are_concurrent_as_there_are_runners) {
  // The first two runs wait for each other inside the runtime; later runs pass.
  static std::latch* both = nullptr;
  std::latch latch(2);
  both = &latch;
  fake_.during_run = [](FakeModelRuntime&) {
    if (!both->try_wait()) both->arrive_and_wait();
  };
  ModelOptions options;
  options.runners = 2;
  const auto core = opened(options);
  EXPECT_EQ(fake_.opened, 2);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        std::vector<Tensor> outputs;
        for (int i = 0; i < 10; ++i) EXPECT_TRUE(core->run(std::span(&x_, 1), outputs, {}));
      });
  }
  EXPECT_EQ(fake_.most_inside, 2);
  EXPECT_EQ(fake_.runs, 40);
}

TEST_F(ModelCoreTest, constants_are_replaced_between_runs) {
  fake_.during_run = [](FakeModelRuntime& fake) {
    const std::scoped_lock lock(fake.mutex);
    EXPECT_EQ(fake.constants["weight"][0], fake.constants["weight"][2]);
  };
  fake_.constants["weight"] = {1, 1, 1};
  ModelOptions options;
  options.runners = 2;
  const auto core = opened(options);
  {
    const std::jthread runs([&](const std::stop_token& stop) {
      std::vector<Tensor> outputs;
      while (!stop.stop_requested()) EXPECT_TRUE(core->run(std::span(&x_, 1), outputs, {}));
    });
    for (int i = 2; i < 100; ++i) {
      const auto value = static_cast<float>(i);
      const std::array<float, 3> values{value, value, value};
      ASSERT_TRUE(core->replace_constants({{"weight", {values.data(), DType::float32, {3}, {}, {}}}}));
    }
  }
  EXPECT_EQ(fake_.constants["weight"][1], 99);
}

TEST_F(ModelCoreTest, a_constant_that_does_not_fit_is_refused) {
  const auto core = opened();
  const std::array<float, 4> values{};
  EXPECT_THAT(
      core->replace_constants({{"weight", {values.data(), DType::float32, {4}, {}, {}}}}).error().message,
      HasSubstr("constant weight is float32 [3], and float32 [4] was given"));
  EXPECT_THAT(
      core->replace_constants({{"bias", {values.data(), DType::float32, {4}, {}, {}}}}).error().message,
      HasSubstr("it has weight"));
  EXPECT_EQ(fake_.constants["weight"][0], 1);
}

TEST_F(ModelCoreTest, options_outside_their_bounds_are_refused) {
  ModelOptions options;
  options.runners = 0;
  EXPECT_THAT(open({}, options).error().message, HasSubstr("0 runners: 1 to 1024"));
  options = {};
  options.threads = -1;
  EXPECT_EQ(open({}, options).code(), Code::invalid_argument);
  options.threads = 1'000'000;
  EXPECT_THAT(open({}, options).error().message, HasSubstr("1000000 threads: 1 to 1024"));
  options = {};
  options.options["debgu"] = "1";
  EXPECT_THAT(open({}, options).error().message, HasSubstr("did you mean \"debug\"?"));
  options = {};
  options.threads = 3;
  EXPECT_TRUE(open({}, options));
  EXPECT_EQ(fake_.threads, 3);
}

TEST_F(ModelCoreTest, with_debug_every_tensor_and_step_is_printed_on_stderr) {
  ModelOptions options;
  options.options["model.debug"] = "1";
  const auto core = opened(options);
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(core->run(std::span(&x_, 1), outputs_, {}));
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("input 0 (x): float32 [2, 4] strides [4, 1] on cpu: least 0, most 4, mean "
                              "1.25, 0 of 8 not finite"));
  EXPECT_THAT(said, HasSubstr("output 0 (y): float32 [2, 4] strides [4, 1] on cpu: least 1, most 5, mean "
                              "2.25, 0 of 8 not finite"));
  EXPECT_THAT(said, HasSubstr("check "));
  EXPECT_THAT(said, HasSubstr("run "));
}

TEST_F(ModelCoreTest, every_runner_is_closed) {
  ModelOptions options;
  options.runners = 3;
  opened(options).reset();
  EXPECT_EQ(fake_.opened, 3);
  EXPECT_EQ(fake_.closed, 3);
}

TEST(ModelRuntime, torch_releases_are_compared_without_patch_and_build) {
  EXPECT_TRUE(same_torch_release("2.13.0+cpu", "2.13.0"));
  EXPECT_TRUE(same_torch_release("2.13.0", "2.13.1+cu129"));
  EXPECT_FALSE(same_torch_release("2.12.1", "2.13.0"));
  EXPECT_FALSE(same_torch_release("2.1.0", "2.13.0"));
}

TEST(ModelRuntime, a_short_old_or_incomplete_table_is_refused) {
  FakeModelRuntime fake;
  headrace_model_runtime_v1 table = *FakeModelRuntime::runtime().table;
  EXPECT_TRUE(check_model_runtime(&table));
  table.run = nullptr;
  EXPECT_EQ(check_model_runtime(&table).code(), Code::corrupt);
  table = *FakeModelRuntime::runtime().table;
  table.struct_size -= 8;
  EXPECT_EQ(check_model_runtime(&table).code(), Code::not_supported);
  table = *FakeModelRuntime::runtime().table;
  table.abi_major = 2;
  EXPECT_EQ(check_model_runtime(&table).code(), Code::not_supported);
  EXPECT_EQ(check_model_runtime(nullptr).code(), Code::corrupt);
}

TEST(ModelRuntime, a_missing_invalid_or_unfitting_library_is_refused_with_the_reason) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(load_model_runtime(folder.path() + "/none.so").error().message, HasSubstr("there is no"));
  testing::write_file(folder.path() + "/libheadrace_torch.so", "no library");
  EXPECT_THAT(load_model_runtime(folder.path() + "/libheadrace_torch.so").error().message,
              HasSubstr("does not load"));
  testing::write_file(folder.path() + "/version.py", "__version__ = '2.12.1+cpu'\n");
  testing::write_file(folder.path() + "/libheadrace_torch.json",
                      R"({"torch": "2.13.0+cpu", "accelerator": "cpu", "folder": ")" + folder.path() + "\"}");
  const auto refused = load_model_runtime(folder.path() + "/libheadrace_torch.so");
  EXPECT_EQ(refused.code(), Code::not_supported);
  EXPECT_THAT(refused.error().message,
              HasSubstr("built for torch 2.13.0+cpu (cpu), and torch 2.12.1+cpu is installed"));
  EXPECT_THAT(refused.error().message, HasSubstr("pip install torch==2.13.0"));
}

}  // namespace
}  // namespace headrace
