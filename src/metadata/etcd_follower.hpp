// SPDX-License-Identifier: Apache-2.0
// The reading side of a watch on etcd.
#pragma once

#include "base/log.hpp"
#include "metadata/etcd_client.hpp"
#include "metadata/shared_watch.hpp"

#include <stop_token>
#include <string>

namespace headrace::metadata {

/// Reports the names of a namespace, then their changes, until `stop`. When the stream breaks it continues
/// where it was; what it missed since a compaction it reports as a difference.
void follow_etcd(EtcdClient& client, const std::string& name_space, const Log& log,
                 const std::stop_token& stop, const Tell& tell);

}  // namespace headrace::metadata
