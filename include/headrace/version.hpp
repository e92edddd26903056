// SPDX-License-Identifier: Apache-2.0
// The one place where Headrace's version is written: CMake and the Python package read it from here.
#pragma once

#define HEADRACE_VERSION "0.1.0"
