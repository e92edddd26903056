// SPDX-License-Identifier: Apache-2.0
// The caller's store of include/headrace/c/comm.h as a CommStore.
#include "comm_handles.hpp"

namespace headrace::c {
namespace {

class StoreOfCaller final : public CommStore {
 public:
  explicit StoreOfCaller(const headrace_comm_store& store) : store_(store) {}

  Result<void> set(const std::string& key, const std::string& value) override {
    headrace_bytes why;
    return result_of("set", key, store_.set(store_.context, key.c_str(), value.data(), value.size(), &why),
                     why);
  }
  Result<std::string> get(const std::string& key) override {
    headrace_bytes value;
    HEADRACE_C_TRY(result_of("get", key, store_.get(store_.context, key.c_str(), &value), value));
    return std::move(value.text);
  }

 private:
  static Result<void> result_of(const char* function, const std::string& key, std::int32_t code,
                                const headrace_bytes& why) {
    if (code == 0) return {};
    const std::string call = std::string("the store's ") + function + " of \"" + key + "\"";
    if (code < 0 || code > static_cast<std::int32_t>(Code::internal))
      return wrong(call + " returned " + std::to_string(code) + ", which is no code of headrace_code_name");
    const auto known = static_cast<Code>(code);
    return Error{known, call + ": " + (why.text.empty() ? std::string(code_sentence(known)) : why.text),
                 no_page};
  }

  const headrace_comm_store store_;
};

}  // namespace

Result<std::shared_ptr<CommStore>> store_of(const headrace_comm_store* given) {
  if (given == nullptr) return std::shared_ptr<CommStore>();
  HEADRACE_C_TRY(whole(given, "store"));
  if (given->set == nullptr) return missing("the store's set");
  if (given->get == nullptr) return missing("the store's get");
  return std::shared_ptr<CommStore>(std::make_shared<StoreOfCaller>(*given));
}

}  // namespace headrace::c
