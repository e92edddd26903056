# SPDX-License-Identifier: Apache-2.0
# Reads the levels of the rooms out of layers.toml, so that link order and the include check cannot disagree.

# headrace_read_layers(): sets headrace_rooms (lowest level first) and headrace_level_<room> in the caller.
function(headrace_read_layers)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/layers.toml)
  file(STRINGS ${PROJECT_SOURCE_DIR}/layers.toml lines)
  set(inside FALSE)
  set(rooms "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^\\[")
      string(COMPARE EQUAL "${line}" "[rooms]" inside)
    elseif(inside AND line MATCHES "^([a-z][a-z0-9_]*) *= *([0-9]+)$")
      list(APPEND rooms "${CMAKE_MATCH_2}:${CMAKE_MATCH_1}")
      set(headrace_level_${CMAKE_MATCH_1} ${CMAKE_MATCH_2} PARENT_SCOPE)
    endif()
  endforeach()
  if(NOT rooms)
    message(FATAL_ERROR "layers.toml has no line like `base = 0` under [rooms]: the rooms and their levels stand there.")
  endif()
  list(SORT rooms COMPARE NATURAL)
  list(TRANSFORM rooms REPLACE "^[0-9]+:" "")
  set(headrace_rooms "${rooms}" PARENT_SCOPE)
endfunction()
