// SPDX-License-Identifier: Apache-2.0
// The options of models: table [model] of the configuration file, HEADRACE_MODEL_*.
#pragma once

#include "base/errors.hpp"
#include "base/options.hpp"

#include <map>
#include <string>

namespace headrace {

/// The settings for one model.
struct ModelSettings {
  bool debug = false;
  std::string cache_folder;
  std::string library;
};

/// Option names may have their table ("model.debug") or not.
///   errors  invalid_argument
[[nodiscard]] Result<Options> resolve_model_options(const std::map<std::string, std::string>& given);
[[nodiscard]] Result<ModelSettings> model_settings(const std::map<std::string, std::string>& given);

}  // namespace headrace
