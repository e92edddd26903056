// SPDX-License-Identifier: Apache-2.0
#include "bindings/torchcomms/store.hpp"

#include <exception>
#include <vector>

namespace headrace::torchcomms_backend {
namespace {

template <class Call>
auto without_exceptions(const char* method, const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    return Error{Code::backend_failed, std::string("the store's ") + method + " raised: " + error.what()};
  }
}

}  // namespace

Result<void> TorchStore::set(const std::string& key, const std::string& value) {
  return without_exceptions("set", [&]() -> Result<void> {
    store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
    return {};
  });
}

Result<std::string> TorchStore::get(const std::string& key) {
  return without_exceptions("get", [&]() -> Result<std::string> {
    // `get` waits for a value: it is asked for one that is there.
    if (!store_->check({key})) return Error{Code::not_found, "\"" + key + "\" has no value yet"};
    const std::vector<std::uint8_t> value = store_->get(key);
    return std::string(value.begin(), value.end());
  });
}

}  // namespace headrace::torchcomms_backend
