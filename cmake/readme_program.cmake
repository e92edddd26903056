# SPDX-License-Identifier: Apache-2.0
# Does what README.md says to C++ users: saves the program of README.md under the name that README.md gives it, and runs the
# lines below it, in a folder that looks like a checkout after `make build`.
#   cmake -D SOURCE=<source folder> -D BUILD=<build folder> -D FOLDER=<to work in> -P readme_program.cmake

# headrace_block(<variable> <text> <language>): the text's first fenced block of that language.
function(headrace_block variable text language)
  string(FIND "${text}" "```${language}\n" begin)
  if(begin EQUAL -1)
    message(FATAL_ERROR "README.md has no block of ${language}.")
  endif()
  string(LENGTH "```${language}\n" fence)
  math(EXPR begin "${begin} + ${fence}")
  string(SUBSTRING "${text}" ${begin} -1 rest)
  string(FIND "${rest}" "```" end)
  string(SUBSTRING "${rest}" 0 ${end} block)
  set(${variable} "${block}" PARENT_SCOPE)
endfunction()

file(READ ${SOURCE}/README.md readme)
headrace_block(program "${readme}" cpp)
headrace_block(lines "${readme}" sh)

file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER}/build ${FOLDER}/examples)
file(CREATE_LINK ${SOURCE}/include ${FOLDER}/include SYMBOLIC)
file(CREATE_LINK ${BUILD} ${FOLDER}/build/release SYMBOLIC)
file(WRITE ${FOLDER}/examples/first_steps.cpp "${program}")
execute_process(COMMAND sh -e -x -c "${lines}" WORKING_DIRECTORY ${FOLDER} COMMAND_ERROR_IS_FATAL ANY)
