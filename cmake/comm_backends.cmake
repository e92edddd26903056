# SPDX-License-Identifier: Apache-2.0
# Backends of communicators that a build can leave out: `-D HEADRACE_COMM_NCCL=OFF`, or the variable HEADRACE_COMM_NCCL of the
# environment, which reaches CMake from pip, uv and conda. ON, OFF, 1 and 0 are understood; -D comes first; without both it is ON.
# GLOO is a class of the Python package, which then does not register it.
# Backend `host` is always there, because communicators of other backends meet by it in tests and tools.

set(headrace_comm_choices FAKE GLOO LAZY NCCL NCCLX ONECCL P2P RCCL RCCLX)

# headrace_comm_left_out(<variable>): the names of those that are left out, as "lazy,nccl".
function(headrace_comm_left_out variable)
  set(left_out "")
  foreach(backend IN LISTS headrace_comm_choices)
    set(value ON)
    if(DEFINED HEADRACE_COMM_${backend})
      set(value "${HEADRACE_COMM_${backend}}")
    elseif(NOT "$ENV{HEADRACE_COMM_${backend}}" STREQUAL "")
      set(value "$ENV{HEADRACE_COMM_${backend}}")
    endif()
    if(NOT value MATCHES "^(ON|OFF|1|0)$")
      message(FATAL_ERROR "HEADRACE_COMM_${backend} is \"${value}\": give ON or 1 to build the backend, OFF or 0 to leave it out.")
    endif()
    if(value MATCHES "^(OFF|0)$")
      string(TOLOWER ${backend} name)
      list(APPEND left_out ${name})
    endif()
  endforeach()
  list(JOIN left_out "," left_out)
  set(${variable} "${left_out}" PARENT_SCOPE)
endfunction()
