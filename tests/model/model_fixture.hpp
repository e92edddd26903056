// SPDX-License-Identifier: Apache-2.0
// Real packages, run by a real torch. The tests are skipped if torch is not installed.
#pragma once

#include <headrace/model.hpp>

#include "support/temporary_folder.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <string>
#include <vector>

namespace headrace::testing {

inline std::string package_path(const std::string& name) {
  return std::string(HEADRACE_TEST_MODELS) + "/" + name + ".pt2";
}

/// A float32 tensor with the elements 0, 1, 2, ...
inline Tensor counted(const Shape& shape) {
  Tensor tensor = Tensor::zeros(DType::float32, shape).value();
  float next = 0;
  for (float& element : tensor.elements<float>()) element = next++;
  return tensor;
}

class ModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto runtime = model_runtime();
    if (!runtime && runtime.code() == Code::not_supported &&
        runtime.error().message.find("which is not in") != std::string::npos)
      GTEST_SKIP() << "torch is not installed";
    ASSERT_TRUE(runtime) << runtime.error().message;
  }

  /// A model with a cache of its own.
  [[nodiscard]] Result<Model> try_open(const std::string& path, ModelOptions options = {}) {
    options.options.emplace("cache_dir", folder_.path());
    return Model::open(path, std::move(options));
  }
  [[nodiscard]] Model open(const std::string& name, ModelOptions options = {}) {
    auto model = try_open(package_path(name), std::move(options));
    if (!model) ADD_FAILURE() << model.error().message;
    return std::move(model).value();
  }

  test::TemporaryFolder folder_;
};

}  // namespace headrace::testing
