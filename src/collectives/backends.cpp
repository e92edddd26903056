// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends.hpp"

#include "base/errors.hpp"
#include "base/names.hpp"
#include "base/text.hpp"
#include "collectives/check_options.hpp"
#include "collectives/fake_comm.hpp"
#include "collectives/host_comm.hpp"

#include <array>
#include <string_view>

namespace headrace::collectives {
namespace {

struct LinkedIn {
  std::string_view name;
  Result<std::shared_ptr<Comm::Core>> (*open)(const CommOptions& options);
};
constexpr std::array linked_in{LinkedIn{"fake", FakeComm::open}, LinkedIn{"host", HostComm::open}};

Error unknown(const std::string& name) {
  std::vector<std::string_view> names;
  for (const LinkedIn& one : linked_in) names.push_back(one.name);
  return make_error(Code::not_found, "there is no backend {}: did you mean {}? There are: {}",
                    name_text(name), nearest_name(name, names), fmt::join(names, ", "));
}

}  // namespace

Result<std::shared_ptr<Comm::Core>> open_backend(const CommOptions& options) {
  HEADRACE_TRY_VOID(check_options(options));
  for (const LinkedIn& one : linked_in)
    if (one.name == options.backend) return one.open(options);
  return unknown(options.backend);
}

}  // namespace headrace::collectives

namespace headrace {

std::vector<std::string> list_comm_backends() {
  std::vector<std::string> names;
  for (const auto& one : collectives::linked_in) names.emplace_back(one.name);
  return names;
}

}  // namespace headrace
