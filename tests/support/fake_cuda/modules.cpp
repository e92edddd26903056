// SPDX-License-Identifier: Apache-2.0
#include "support/fake_cuda/modules.hpp"

#include "support/fake_cuda/driver.hpp"

#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace headrace::cuda {

Outcome FakeDriver::module_load_data(Module* module, const void* image) {
  if (contexts.top() == nullptr) return Outcome::invalid_context;
  constexpr std::string_view elf("\177ELF"), fake("FAKE");
  const std::string_view magic(static_cast<const char*>(image), 4);
  if (magic != elf && magic != fake) return Outcome::invalid_image;
  *module = modules.loaded.add({});
  return Outcome::success;
}
Outcome FakeDriver::module_unload(Module module) { return modules.loaded.destroy(module); }
Outcome FakeDriver::module_get_function(Function* function, Module module, const char* name) {
  if (!modules.loaded.contains(module)) return Outcome::invalid_handle;
  if (!modules.kernels.contains(name)) return Outcome::not_found;
  module->functions.push_back(std::make_unique<FunctionObject>());
  module->functions.back()->name = name;
  *function = module->functions.back().get();
  return Outcome::success;
}
Outcome FakeDriver::func_load(Function) { return Outcome::success; }
Outcome FakeDriver::func_get_attribute(int* value, FunctionAttribute attribute, Function function) {
  *value = function->attributes[attribute];
  return Outcome::success;
}
Outcome FakeDriver::func_set_attribute(Function function, FunctionAttribute attribute, int value) {
  function->attributes[attribute] = value;
  return Outcome::success;
}
Outcome FakeDriver::launch_kernel_ex(const LaunchConfig* config, Function function, void** parameters,
                                     void**) {
  if (config->grid_x == 0 || config->block_x == 0 || config->block_x > 1024) return Outcome::invalid_value;
  const FakeModules::Kernel& kernel = modules.kernels.at(function->name);
  (void)calls[function->name].add();
  const auto* const bytes = static_cast<const std::byte*>(parameters[0]);
  auto argument = std::make_shared<std::vector<std::byte>>(bytes, bytes + kernel.argument_bytes);
  StreamObject* const stream = resolve(config->stream);
  if (stream == nullptr) return Outcome::invalid_context;
  return enqueue(config->stream,
                 [context = stream->context, run = kernel.launch(argument->data()), argument] {
                   const std::optional<Outcome> outcome = run();
                   if (outcome && *outcome != Outcome::success) context->broken = *outcome;
                   return outcome.has_value();
                 });
}

}  // namespace headrace::cuda
