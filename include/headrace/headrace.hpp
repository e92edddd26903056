// SPDX-License-Identifier: Apache-2.0
// Includes every public header.
#pragma once

#include <headrace/agent.hpp>
#include <headrace/comm.hpp>
#include <headrace/comm_backend.hpp>
#include <headrace/comm_window.hpp>
#include <headrace/completion_queue.hpp>
#include <headrace/counter.hpp>
#include <headrace/fabric.hpp>
#include <headrace/log.hpp>
#include <headrace/memory.hpp>
#include <headrace/model.hpp>
#include <headrace/moe.hpp>
#include <headrace/pages.hpp>
#include <headrace/processor.hpp>
#include <headrace/request.hpp>
#include <headrace/result.hpp>
#include <headrace/telemetry.hpp>
#include <headrace/tensor.hpp>
#include <headrace/topology.hpp>
