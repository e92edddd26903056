# SPDX-License-Identifier: Apache-2.0
# Does what docs/building.md says to users of an installed library: installs it, and builds and runs its programs by the lines of
# each block below "From C and C++", in a folder that is HOME.
#   cmake -D SOURCE=<source folder> -D BUILD=<build folder> -D FOLDER=<to work in> -P installed_programs.cmake

file(READ ${SOURCE}/docs/building.md text)
string(REGEX REPLACE "^.*\n## From C and C\\+\\+\n" "" text "${text}")
string(FIND "${text}" "\n## " end)
string(SUBSTRING "${text}" 0 ${end} text)
# A semicolon would divide a list.
string(REPLACE ";" "<semicolon>" text "${text}")
string(REGEX MATCHALL "```(sh|cmake)\n[^`]*```" blocks "${text}")
list(LENGTH blocks count)
if(NOT count EQUAL 4)
  message(FATAL_ERROR "docs/building.md has ${count} blocks of sh and cmake below \"From C and C++\": 4 are expected.")
endif()

file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --component library --prefix ${FOLDER}/headrace OUTPUT_QUIET
                COMMAND_ERROR_IS_FATAL ANY)
file(COPY ${SOURCE}/examples/first_steps.cpp ${SOURCE}/examples/two_agents.c DESTINATION ${FOLDER})
foreach(block IN LISTS blocks)
  string(REPLACE "<semicolon>" ";" block "${block}")
  string(REGEX REPLACE "^```[a-z]+\n|```$" "" lines "${block}")
  if(block MATCHES "^```cmake")
    file(WRITE ${FOLDER}/CMakeLists.txt "${lines}")
  else()
    execute_process(COMMAND ${CMAKE_COMMAND} -E env HOME=${FOLDER} sh -e -x -c "${lines}" WORKING_DIRECTORY ${FOLDER}
                    COMMAND_ERROR_IS_FATAL ANY)
  endif()
endforeach()
