// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/instance.hpp"

#include "backends/shm/registry.hpp"

namespace headrace::shm {

Instance::Instance(plugin::Host its_host, Settings its_settings, Epoll its_epoll, EventFd its_bell)
    : host(its_host), settings(its_settings), epoll(std::move(its_epoll)), bell(std::move(its_bell)) {}

Instance::~Instance() = default;  // here, where Registry is a whole type

}  // namespace headrace::shm
